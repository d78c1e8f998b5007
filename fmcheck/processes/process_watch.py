"""The watch of one process: its session, and the journal that it writes.

The pytest process has one, and so has each process that it reached.
"""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import sys
from typing import TYPE_CHECKING, Any

from fmcheck.errors import ViolationError
from fmcheck.first_import import after_import
from fmcheck.processes.device_fetch import Answering
from fmcheck.processes.journal import layout
from fmcheck.processes.journal.writer import Journal
from fmcheck.processes.module_functions import stand_in
from fmcheck.processes.wait_hooks import watch_forkserver, watch_reaping

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from fmcheck.finding import Violation
    from fmcheck.runtime.session.session import Session

_here: ProcessWatch | None = None
_hooked = False


class ProcessWatch:
    """Hands on what a session counts and finds to the journal, at the moment that it does."""

    def __init__(self, session: Session, journal: Journal) -> None:
        self.session = session
        self.journal = journal
        self._watch = session._watch
        self._is_reporting = False
        self._gone = False
        self._undo: list[Callable[[], None]] = []

    def enter(self) -> None:
        """Keeps the journal from now on, in this process and in those that it forks."""
        global _here
        _here = self
        self._watch.tally.keep(self, self.journal.counts)
        if hasattr(os, "fork"):
            self._undo.append(watch_reaping(_reaped))
        _hook_once()

    def leave(self, code: int | None = None) -> None:
        """Writes the last word."""
        global _here
        if self._gone:
            return
        self._gone = True
        for undo in self._undo:
            undo()
        self._undo.clear()
        with contextlib.suppress(ViolationError):  # of mode halt, when nothing can be halted
            self.session.sync()
        self.milestone()
        coverage = self._watch.coverage()
        self.journal.fact("problems", coverage.problems)
        self.journal.uses(coverage.uses)
        self.journal.goodbye(code, coverage.notes)
        if _here is self:
            _here = None

    # --- what a tally tells ---

    @property
    def phase_moved(self) -> bool:
        """Tells whether another phase of a test is on than at the last violation."""
        return self.journal.phase_moved

    def violation(self, violation: Violation) -> None:
        """Keeps a violation."""
        self.journal.violation(violation, self._watch.is_advice(violation))

    def again(self, key: object) -> None:
        """Counts a violation once more."""
        self.journal.again(key)

    def suppressed(self, number: int) -> None:
        """Keeps how many violations the suppressions took."""
        self.journal.words[layout.SUPPRESSED] = number

    def milestone(self) -> None:
        """Keeps what is new of all else: classes instrumented, buffers used, problems, notes."""
        tally, journal = self._watch.tally, self.journal
        with tally.lock:
            if self._is_reporting:  # looking at the problems may find one
                return
            self._is_reporting = True
            try:
                coverage = self._watch.reached()
                journal.fact("held", self._watch.held)
                journal.fact("imported", coverage.imported)
                journal.fact("touched", coverage.touched)
                journal.fact("problems", coverage.problems)
                journal.fact("dead", tally.dead)
                journal.fact("notes", tally.notes)
                journal.fact("matched", coverage.matched)
                journal.uses(coverage.uses)
                journal.untracked(coverage.untracked)
                journal.incomplete(zip(tally.broken, coverage.incomplete, strict=True))
                self._see_to_devices()
                journal.name_again()
            finally:
                self._is_reporting = False

    def _see_to_devices(self) -> None:
        words = self.journal.words
        if words[layout.ON_DEVICE] or self._watch.tally.kinds <= {"cpu"}:
            return
        words[layout.ON_DEVICE] = 1
        if self.journal.board != self.journal.name:  # a pytest process reads its own
            words[layout.ANSWERED] = self.journal.asked
            Answering(self.journal, self._watch.tally).start()

    # --- forks ---

    def _forked(self) -> None:
        """Begins again in a forked child: what its parent found and counted is not its own."""
        global _here
        before, tally = self.journal, self._watch.tally
        before.forget()
        tally.restart()
        try:
            self.journal = Journal(before.folder, "fork", board=before.board)
        except OSError:  # the folder is gone: the run is over, or it was removed
            _here = None
            before.words[layout.UNWATCHED] += 1
            return
        self._gone = False
        tally.keep(self, self.journal.counts)
        self.milestone()


def here() -> ProcessWatch | None:
    """Returns the presence in this process."""
    return _here


def _hook_once() -> None:
    """Sees to forks and to the ways that a process ends by its own will."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    atexit.register(_leave)
    after_import("multiprocessing.popen_forkserver", _watch_forkserver)
    stand_in(os, "_exit", _exit_after_leaving(os._exit))


def _forked() -> None:
    if _here is not None:
        _here._forked()


def _reaped(pid: int, status: int, command: tuple[str, ...]) -> None:
    if _here is not None:
        _here.journal.reaped(pid, status, command)


def _watch_forkserver(popen_forkserver: ModuleType) -> None:
    watch_forkserver(popen_forkserver, _reaped)


def _leave() -> None:
    if _here is not None:
        # Set when the interpreter printed what nobody had caught.
        _here.leave(1 if hasattr(sys, "last_value") else None)


def _exit_after_leaving(original: Callable[[int], Any]) -> Callable[[int], None]:
    def _exit(status: int) -> None:
        try:
            if _here is not None:
                _here.leave(operator.index(status))  # what is no number, the original refuses
        finally:
            original(status)

    return _exit
