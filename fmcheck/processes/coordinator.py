"""The coordinator: what a pytest process does so that a watch goes on in those that it starts.

It makes the run's folder, or joins that of the xdist controller, hands the settings on, stamps
the tests, and reads what the other processes write.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from fmcheck import __version__
from fmcheck.config import pack
from fmcheck.errors import UsageError
from fmcheck.finding import Counts
from fmcheck.first_import import after_import
from fmcheck.processes import run_folder
from fmcheck.processes.child import child_start, run_context, spawn_hook
from fmcheck.processes.journal import layout
from fmcheck.processes.journal.attribute import attributed, phase_of
from fmcheck.processes.journal.collect import merged, never_reached, record_of
from fmcheck.processes.journal.ending import RUNNING, ending
from fmcheck.processes.journal.layout import SessionLine
from fmcheck.processes.journal.read import Library
from fmcheck.processes.journal.writer import Journal
from fmcheck.processes.process_watch import ProcessWatch
from fmcheck.processes.role import role_of_pytest
from fmcheck.record.merging import one_each
from fmcheck.report.run.closing import still_running

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from pathlib import Path

    from fmcheck.config import Located
    from fmcheck.finding import Violation
    from fmcheck.processes.journal.read import Pages
    from fmcheck.record.record import Run
    from fmcheck.runtime.session.session import Session

#: Seconds between two looks at what children count, while a test's end waits for them.
_PAUSE = 0.002
#: Looks, at the most, for what children that are at work find just then.
_SETTLE = 50
#: Looks without a new count after which they are taken to be at rest.
_REST = 5
#: Looks, at the most, until children have read their devices.
_FETCH = 1000
#: The function itself: a test may put another one in its place.
_sleep = functools.partial(time.sleep)
_NONE = Counts()
#: Characters of a command.
_MOST_SHOWN = 70


class Drained(NamedTuple):
    """What other processes found: in the test that is on, not in it, and advice."""

    here: tuple[Violation, ...]
    elsewhere: tuple[Violation, ...]
    advice: tuple[Violation, ...]


@contextlib.contextmanager
def _writing(place: str) -> Iterator[None]:
    """Turns a journal that cannot be made, as on a full disk, into one clear error."""
    try:
        yield
    except OSError as err:
        run_folder.remove(place)
        raise UsageError(
            "--fmcheck-journal",
            f"{place}: the journal cannot be written: {err.strerror}; "
            "name a folder on another disk",
        ) from None


class Coordinator:
    """The journal of one pytest process, and those of the processes that it reached."""

    def __init__(
        self, session: Session, located: Located, root: Path | str = "", asked: str = ""
    ) -> None:
        child_start.give_way()
        self.session = session
        self.settings_file = located.origin
        self.folder = run_folder.joined() or run_folder.made(asked)
        self.is_worker = run_folder.joined() is not None
        role = os.environ["PYTEST_XDIST_WORKER"] if self.is_worker else role_of_pytest()
        with _writing(self.folder):
            journal = Journal(self.folder, "pytest", role)
        journal.write(SessionLine(__version__, str(root), session.mode))
        self.library = Library(self.folder)
        self._process_watch = ProcessWatch(session, journal)
        self._context = run_context.RunContext(
            self.folder,
            self.journal.name,
            os.getpid(),
            session.mode,
            session.streams.mode,
            session.streams.seed,
            list(session.modules),
            pack(located),
            session.uninitialized,
        )
        self._before: str | None = None
        self._undo: list[Callable[[], None]] = []
        self._read: dict[str, int] = {}
        self._at_begin: dict[str, Counts] = {}
        self._on = False
        self._asked = bool(asked)
        self._looked = 0
        self._stays = self._asked

    @property
    def journal(self) -> Journal:
        """The journal of this process; a fork of it that runs a test has one of its own."""
        return self._process_watch.journal

    def start(self) -> None:
        """Hands the settings on to each process that is started from now on."""
        self._on = True
        self._process_watch.enter()
        self._before = os.environ.get(run_context.VARIABLE)
        os.environ[run_context.VARIABLE] = self._context.pack()
        with _writing(self.folder):
            self.journal.hand_on(self._context.pack())
        after_import("multiprocessing.spawn", self._hook_spawn)

    def _hook_spawn(self, _: object) -> None:
        if self._on:
            self._undo.append(spawn_hook.hook_spawn(self._context))

    def stop(self, code: int | None = None) -> None:
        """Hands nothing on any more, and writes the last word."""
        self._on = False
        for undo in self._undo:
            undo()
        self._undo.clear()
        os.environ.pop(run_context.VARIABLE, None)
        if self._before is not None:
            os.environ[run_context.VARIABLE] = self._before
        self._process_watch.leave(code)

    # --- tests ---

    def begin(self, test: str, when: str) -> None:
        """A phase of a test begins."""
        self.journal.begin(test, when)
        self._at_begin = {pages.name: pages.counts for pages in self._children()}

    def end(self) -> None:
        """The phase that is on ends."""
        self.journal.end()

    def settle(self) -> None:
        """Waits until the children that were at work in this phase count no more for a moment.

        An engine may have answered before its last step is done. It is a short wait, and none at
        all for a test that has no engine in a child.
        """
        self.library.look(but=self.journal.name)
        children = list(self._children())
        self._fetch([pages for pages in children if pages.word(layout.ON_DEVICE)])
        if all(self._at_begin.get(one.name, _NONE) == one.counts for one in children):
            return
        counted, since = [pages.counts for pages in children], 0
        # By looks and not by a clock, which a test may have stopped.
        for _ in range(_SETTLE):
            _sleep(_PAUSE)
            counts = [pages.counts for pages in children]
            since = since + 1 if counts == counted else 0
            if since == _REST:
                return
            counted = counts

    def _fetch(self, children: list[Pages]) -> None:
        """Has children read their devices, and waits for those that are alive."""
        if not children:
            return
        question = self.journal.ask()
        for _ in range(_FETCH):
            if not any(
                pages.owes(question) and ending(pages, self.library) == RUNNING
                for pages in children
            ):
                return
            _sleep(_PAUSE)

    def drain(self, test: str = "") -> Drained:
        """Returns what other processes found since the last call, `test` being on."""
        self.library.look(but=self.journal.name)
        here: list[Violation] = []
        elsewhere: list[Violation] = []
        advice: list[Violation] = []
        for pages in self._children():
            for violation, is_advice in self._new(pages):
                of_this = bool(test) and violation.test == test
                (advice if is_advice else here if of_this else elsewhere).append(violation)
        return Drained(one_each(here), one_each(elsewhere), one_each(advice))

    def counts(self) -> Counts:
        """Returns what this process and its children have counted up to now."""
        self.library.look(but=self.journal.name)
        return sum((pages.counts for pages in self._children()), self.session.counts)

    @property
    def dead(self) -> list[str]:
        """Sentences on the detectors that did not see, in a child, the fault they were shown."""
        return [text for pages in self._children() for text in pages.facts.get("dead", ())]

    def _children(self) -> Iterator[Pages]:
        """Yields the journals of the processes that work for this one's tests."""
        for pages in self.library.pages.values():
            if pages.board == self.journal.name != pages.name:
                yield pages

    def _new(self, pages: Pages) -> Iterator[tuple[Violation, bool]]:
        read = self._read.get(pages.name, 0)
        if read == len(pages.reported):
            return
        self.library.own(self.journal.name).read()
        self._read[pages.name] = len(pages.reported)
        for reported in pages.reported[read:]:
            yield attributed(reported, pages, self.library), reported.advice

    # --- the end ---

    def run(self) -> Run:
        """Returns what all processes of the run checked and found up to now, dead or alive."""
        own = self.session.coverage()
        self._process_watch.milestone()
        self._looked = layout.now()
        self.library.look(whole=True)
        run = record_of([self.library])
        pages = self.library.pages.values()
        coverage = own + merged(one.coverage for one in pages if one.name != self.journal.name)
        found = run.coverage.violations, run.coverage.warnings
        problems = tuple(dict.fromkeys((*coverage.problems, *run.problems, *self._removed())))
        return replace(
            run,
            ended=time.time(),
            coverage=replace(coverage, violations=found[0], warnings=found[1], problems=problems),
            problems=problems,
        )

    def _removed(self) -> Iterator[str]:
        """Says that the journal is gone, and with it what other processes wrote."""
        others = (one for one in self.library.pages.values() if one.name != self.journal.name)
        unwatched = self.journal.words[layout.UNWATCHED]
        unwatched += sum(pages.word(layout.UNWATCHED) for pages in others)
        if unwatched:
            yield (
                f"{unwatched} process{'es were' if unwatched > 1 else ' was'} not watched: "
                "no journal could be made"
            )
        if not self.journal.is_there():
            yield (
                f"the journal in {self.folder} was removed during the run: the later results of "
                "child processes are lost"
            )

    def missed(self) -> list[str]:
        """Returns a sentence on the Python processes that were started and never reached."""
        missed = never_reached(self.library)
        if not missed:
            return []
        pid, command = next(iter(missed.items()))
        text = shlex.join([os.path.basename(command[0]), *command[1:]])
        shown = text if len(text) < _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
        more = f", and {len(missed) - 1} more Python processes," if len(missed) > 1 else ""
        return [f"`{shown}` (process {pid}){more} was started but not instrumented: not watched"]

    def kept(self, run: Run) -> list[str]:
        """Returns sentences on the processes that go on, and where the journal stays; see `clear`.

        What a process wrote that was killed has been read by now. One that goes on writes on.
        """
        self.journal.fact(layout.LOOKED, [str(self._looked)])
        heads = [one.head for one in self.library.pages.values() if one.head]
        # These have asked for an engine: one that still imports it holds nothing yet.
        asking = {head.pid for head in heads if head.way not in ("fork", "pytest")}
        going_on = [
            process
            for process in run.processes
            if (process.held or process.pid in asking)
            and process.pid != os.getpid()
            and process.ending == RUNNING
        ]
        self._stays = self._asked or bool(going_on)
        where = [f"the journal is in {self.folder}"] if self._stays else []
        return [*still_running(going_on, self.folder), *where]

    def reported(self) -> None:
        """Notes that this run, which will not come to its end, was reported."""
        with contextlib.suppress(OSError):
            open(os.path.join(self.folder, run_folder.REPORTED), "w").close()

    def clear(self) -> None:
        """Removes the journal, unless it was asked for or a process still writes it."""
        if not self._stays and not self.is_worker:
            run_folder.remove(self.folder)

    def unreported(self, worker: str, reported: Container[tuple[str, str]]) -> Iterator[Violation]:
        """Yields what a worker that died, or a child of it, found and the worker never reported.

        `reported` holds the tests, each with a phase, that it did report.
        """
        self.library.look(whole=True)
        boards = {one.name for one in self.library.pages.values() if one.role == worker}
        for pages in self.library.pages.values():
            if pages.board not in boards:
                continue
            for one in pages.reported:
                phase = phase_of(one, pages, self.library)
                if not one.advice and (phase is None or (phase.test, phase.when) not in reported):
                    yield attributed(one, pages, self.library)
