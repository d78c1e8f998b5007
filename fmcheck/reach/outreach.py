"""The outreach: what a pytest process does so that a watch goes on in those that it starts.

It makes the run's folder, or joins that of the xdist controller, hands the settings on, stamps
the tests, and reads what the other processes write.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from fmcheck import __version__
from fmcheck.config import pack
from fmcheck.finding import Coverage
from fmcheck.journal.attribute import attributed
from fmcheck.journal.layout import Session as SessionLine
from fmcheck.journal.read import Library
from fmcheck.journal.writer import Journal
from fmcheck.reach import arrival, folder, packet, stowaway
from fmcheck.reach.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmcheck.config import Located
    from fmcheck.finding import Violation
    from fmcheck.journal.read import Pages
    from fmcheck.runtime.session import Session

#: Seconds that a test's end waits for children that are at work, for what they find just then.
_SETTLE = 0.1
#: Seconds without a count after which they are taken to be at rest.
_REST = 0.01


class Drained(NamedTuple):
    """What other processes found: in the test that is on, not in it, and advice."""

    here: list[Violation]
    elsewhere: list[Violation]
    advice: list[Violation]


class Outreach:
    """The journal of one pytest process, and those of the processes that it reached."""

    def __init__(
        self, session: Session, located: Located, root: Path | str = "", asked: str = ""
    ) -> None:
        arrival.give_way()
        self.session = session
        self.folder = folder.joined() or folder.made(asked)
        self.is_worker = folder.joined() is not None
        role = os.environ["PYTEST_XDIST_WORKER"] if self.is_worker else "pytest"
        self.journal = Journal(self.folder, "pytest", role)
        self.journal.write(SessionLine(__version__, str(root), session.mode))
        self.library = Library(self.folder)
        self._presence = Presence(session, self.journal)
        self._packet = packet.Packet(
            self.folder,
            self.journal.name,
            os.getpid(),
            session.mode,
            list(session.modules),
            pack(located),
        )
        self._before: str | None = None
        self._undo: list[Callable[[], None]] = []
        self._read: dict[str, int] = {}
        self._on = False

    def start(self) -> None:
        """Hands the settings on to each process that is started from now on."""
        import wrapt

        self._on = True
        self._presence.enter()
        self._before = os.environ.get(packet.VARIABLE)
        os.environ[packet.VARIABLE] = self._packet.pack()
        wrapt.register_post_import_hook(self._stow, "multiprocessing.spawn")

    def _stow(self, _: object) -> None:
        if self._on:
            self._undo.append(stowaway.stow(self._packet))

    def stop(self, code: int | None = None) -> None:
        """Hands nothing on any more, and writes the last word."""
        self._on = False
        for undo in self._undo:
            undo()
        self._undo.clear()
        os.environ.pop(packet.VARIABLE, None)
        if self._before is not None:
            os.environ[packet.VARIABLE] = self._before
        self._presence.leave(code)

    # --- tests ---

    def begin(self, test: str, when: str) -> None:
        """A phase of a test begins."""
        self.journal.begin(test, when)

    def end(self) -> None:
        """The phase that is on ends."""
        self.journal.end()

    def drain(self, test: str = "") -> Drained:
        """Returns what other processes found since the last call, `test` being on."""
        self.library.look(but=self.journal.name)
        drained = Drained([], [], [])
        for pages in self._children():
            for violation, advice in self._new(pages):
                of_this = bool(test) and violation.test == test
                place = 2 if advice else 0 if of_this else 1
                drained[place].append(violation)
        return drained

    def settle(self) -> None:
        """Waits, briefly, until the children that are at work have counted no more for a moment."""
        children = list(self._children())
        if not children:
            return
        until = time.monotonic() + _SETTLE
        counted, since = [pages.counts for pages in children], time.monotonic()
        while since + _REST > time.monotonic() and time.monotonic() < until:
            time.sleep(_REST / 5)
            counts = [pages.counts for pages in children]
            if counts != counted:
                counted, since = counts, time.monotonic()

    def _children(self) -> Iterator[Pages]:
        """Yields the journals of the processes that work for this one's tests."""
        for pages in self.library.pages.values():
            if pages.head and pages.head.board == self.journal.name != pages.name:
                yield pages

    def _new(self, pages: Pages) -> Iterator[tuple[Violation, bool]]:
        read = self._read.get(pages.name, 0)
        if read == len(pages.told):
            return
        self.library.own(self.journal.name).read()
        self._read[pages.name] = len(pages.told)
        for told in pages.told[read:]:
            yield attributed(told, pages, self.library), told.advice

    # --- the end ---

    def others(self) -> Coverage:
        """Returns what all other processes of the run reached, dead or alive."""
        self.library.look(whole=True, but=self.journal.name)
        coverage = Coverage()
        for pages in self.library.pages.values():
            if pages.name != self.journal.name:
                coverage += pages.coverage
        return coverage

    @property
    def problems(self) -> Iterator[str]:
        """Yields a sentence for each process that was reached and could not be watched."""
        for start in self.library.starts:
            if start.failed:
                command = " ".join(start.command[:4])
                yield f"process {start.pid} ({command}) is not watched: {start.failed}"
