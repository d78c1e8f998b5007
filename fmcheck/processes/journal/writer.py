"""The writer: a process's own two files of the journal, open from its first event to its end."""

from __future__ import annotations

import errno
import functools
import mmap
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from fmcheck.finding import Counts
from fmcheck.processes.journal import layout
from fmcheck.processes.journal.layout import (
    Begun,
    Board,
    Ended,
    Fact,
    Goodbye,
    Head,
    Incomplete,
    Line,
    Reaped,
    Reported,
    Role,
    Untracked,
    UseLine,
    now,
)
from fmcheck.processes.role import host_name, role_here
from fmcheck.report.well_formed import encoded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmcheck.finding import ContractUse, Violation

#: The functions themselves: a test may put others in their places.
_write, _stat = functools.partial(os.write), functools.partial(os.fstat)
_APPENDING = os.O_WRONLY | os.O_APPEND
_kept: list[memoryview] = []


class Journal:
    """What one process writes. All of it is there for a reader when a method returns.

    `board` names the journal of the pytest process whose tests run; "" makes this process its own.
    Nothing here raises for a full disk: what is lost is counted.

    Raises:
        OSError: if the files cannot be made.
    """

    def __init__(self, folder: str, way: str, role: str = "", board: str = "") -> None:
        self.folder = folder
        self.pid = os.getpid()
        clock, host = now(), host_name()
        self.name = f"{host}-{self.pid}-{clock}"
        self.board = board or self.name
        path = os.path.join(folder, self.name)
        self.words = _made(path + layout.RING)
        self._board = self.words if not board else _shared(os.path.join(folder, board))
        self._path = path + layout.LINES
        self._file = os.open(self._path, _APPENDING | os.O_CREAT | os.O_EXCL, 0o600)
        self._stat = _stat(self._file)
        self._lock = threading.Lock()
        self._slots: dict[object, int] = {}
        self._used = 0
        self._phase = 0
        self._phases = 0
        self._facts: set[tuple[str, str]] = set()
        self._latest: dict[tuple[str, str], Untracked | Incomplete | UseLine] = {}
        self._role = role or role_here()
        self._is_named = bool(role)
        self.words[0] = layout.MAGIC
        self.write(
            Head(
                pid=self.pid,
                parent=os.getppid(),
                host=host,
                role=self._role,
                command=tuple(sys.orig_argv),
                way=way,
                board=self.board,
                test=os.environ.get("PYTEST_CURRENT_TEST", ""),
                clock=clock,
                wall=time.time(),
            )
        )

    @property
    def counts(self) -> memoryview:
        """The words that a tally is to count in, in the order of `Counts`."""
        return self.words[layout.COUNTS : layout.COUNTS + len(Counts.__struct_fields__)]

    def write(self, line: Line) -> None:
        """Appends a line."""
        text = encoded(line) + b"\n"
        with self._lock:
            try:
                if not self._is_ours():
                    self._file = os.open(self._path, _APPENDING)
                whole = _write(self._file, text) == len(text)
            except OSError:
                whole = False
            self.words[layout.COMMITTED if whole else layout.LOST] += 1

    def _is_ours(self) -> bool:
        """Tells whether the descriptor is that of our file.

        An engine that closes all that it has, as daemons do, may have its number for another one.
        """
        try:
            return os.path.samestat(_stat(self._file), self._stat)
        except OSError:
            return False

    def is_there(self) -> bool:
        """Tells whether what was written can still be found in the folder."""
        return os.path.exists(os.path.join(self.folder, self.name + layout.LINES))

    def hand_on(self, context: str) -> None:
        """Leaves the settings in the folder, for a child that was given another environment."""
        with open(os.path.join(self.folder, self.name + layout.CONTEXT), "w") as file:
            file.write(context)

    # --- what was found ---

    @property
    def phase_moved(self) -> bool:
        """Tells whether another phase is on than at the last violation that was written."""
        return self._phase != self._board[layout.PHASE]

    def violation(self, violation: Violation, advice: bool) -> None:
        """Writes a violation; the same one again in one phase only counts."""
        if self.phase_moved:
            self._phase = self._board[layout.PHASE]
            self._slots.clear()
        if violation.key in self._slots:
            self.again(violation.key)
            return
        slot = self._slots[violation.key] = min(self._used, layout.MOST_SLOTS)
        self._used += 1
        if slot == layout.MOST_SLOTS:
            self.words[layout.LOST] += 1
            return
        self.again(violation.key)
        self.write(Reported(violation, advice, slot, self._phase, now()))

    def again(self, key: object) -> None:
        """Counts a violation that was written in this phase."""
        slot = self._slots.get(key, layout.MOST_SLOTS)
        if slot < layout.MOST_SLOTS:
            self.words[layout.SLOTS + slot] += 1

    def fact(self, kind: str, texts: Iterable[str]) -> None:
        """Writes those sentences or names of a kind that were not written yet."""
        for text in texts:
            if (kind, text) not in self._facts:
                self._facts.add((kind, text))
                self.write(Fact(kind, text))

    def untracked(self, counted: Iterable[tuple[str, str, int]]) -> None:
        """Writes the counts of what is not followed that have changed."""
        for what, reason, count in counted:
            self._replace((what, reason), Untracked(what, reason, count))

    def incomplete(self, sentences: Iterable[tuple[str, str]]) -> None:
        """Writes the sentences on checks that failed themselves, each with its check, if new."""
        for check, sentence in sentences:
            self._replace(("incomplete", check), Incomplete(check, sentence))

    def uses(self, uses: Iterable[ContractUse]) -> None:
        """Writes how far contracts were used, where that has changed."""
        for use in uses:
            self._replace(("use", use.name), UseLine(use))

    def _replace(self, key: tuple[str, str], line: Untracked | Incomplete | UseLine) -> None:
        if self._latest.get(key) != line:
            self._latest[key] = line
            self.write(line)

    def name_again(self) -> None:
        """Writes the name that the process was given since, if it was."""
        role = self._role if self._is_named else role_here()
        if role != self._role:
            self._role = role
            self.write(Role(role))

    # --- tests, children, the end ---

    def begin(self, test: str, when: str) -> None:
        """A phase of a test begins, in this process."""
        if self.board != self.name:
            self.board, self._board = self.name, self.words
            self.write(Board(self.name))
        self._phases += 1
        self.write(Begun(self._phases, test, when, now()))
        self.words[layout.PHASE] = self._phases

    def end(self) -> None:
        """The phase that is on ends, if there is one."""
        if self.words[layout.PHASE]:
            self.words[layout.PHASE] = 0
            self.write(Ended(self._phases, now()))

    @property
    def phase(self) -> int:
        """The phase that is on, 0 between them."""
        return self._board[layout.PHASE]

    def ask(self) -> int:
        """Asks the children to read their devices; returns the number of the question."""
        self.words[layout.ASKED] += 1
        return self.words[layout.ASKED]

    @property
    def asked(self) -> int:
        """The number of the latest question that the board asked."""
        return self._board[layout.ASKED]

    def reaped(self, pid: int, status: int, command: tuple[str, ...] = ()) -> None:
        """A child of this process ended, with a wait status."""
        self.write(Reaped(pid, status, now(), command))

    def goodbye(self, code: int | None = None, notes: tuple[str, ...] = ()) -> None:
        """Writes the last line."""
        self.write(Goodbye(now(), time.time(), code, notes))

    def forget(self) -> None:
        """Lets go of the files without a word, as a forked child has to."""
        if self._is_ours():
            os.close(self._file)
        self._file = -1  # the number may be another file's soon
        # A mapping closes a descriptor of its own when it goes, whoever has its number by then.
        _kept.extend((self.words, self._board))


def _made(path: str) -> memoryview:
    """Makes a ring and maps it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # Written whole: a hole that a full disk cannot fill would kill the process at a count.
        if os.write(file, bytes(layout.SIZE)) < layout.SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return memoryview(mmap.mmap(file, layout.SIZE)).cast("Q")
    finally:
        os.close(file)


def count_unwatched(folder: str, board: str) -> None:
    """Counts this process in the ring of the pytest process that it works for, if that is there.

    It needs no file of its own, for which a full disk or a limit leaves no room.
    """
    try:
        with open(os.path.join(folder, board + layout.RING), "r+b") as file:
            memoryview(mmap.mmap(file.fileno(), layout.SIZE)).cast("Q")[layout.UNWATCHED] += 1
    except (OSError, ValueError):
        return


def _shared(path: str) -> memoryview:
    """Maps the ring of another process, to be read; one that is out of reach reads as zeros."""
    try:
        with open(path + layout.RING, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), layout.SIZE, access=mmap.ACCESS_READ)).cast(
                "Q"
            )
    except (OSError, ValueError):
        return memoryview(bytes(layout.SIZE)).cast("Q")
