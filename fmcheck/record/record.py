"""The record of a run: what its processes checked and found, in a form that can be kept.

Journals are gathered into one, reports are made from one. The classes are plain data that msgspec
writes and reads as they are.
"""

from __future__ import annotations

from msgspec import Struct

from fmcheck.finding import Counts, Coverage, Violation

#: The version of the record's form: raised where a reader of the old one would go wrong.
SCHEMA = 1
#: How the note of a violation begins that names the process in which it was found.
FOUND_IN = "found in process "


class Process(Struct, frozen=True):
    """A process of the run: who it was, how it ended, what it checked.

    `role` is `pytest`, an xdist worker's name, or what the engine calls the process; `started` and
    `ended` are seconds since the epoch, `ended` None where nobody saw the end. `ending` says how it
    ended: `running`, `exit 3`, `killed by SIGKILL`, or `unknown`. `held` are the declared classes
    and functions that it took hold of.
    """

    pid: int
    parent: int
    host: str
    role: str
    command: tuple[str, ...]
    started: float
    ended: float | None = None
    ending: str = "unknown"
    held: tuple[str, ...] = ()
    coverage: Coverage = Coverage()


class Run(Struct, frozen=True):
    """One run, whole. `root` is the folder that paths are shown relative to.

    `violations` are those that fail the run, or are warned of in mode `warn`; a site that was met
    in several tests is there once a test. `advice` are those of advisory checks, and `accepted`
    those that a test expects or allows: they fail nothing. `problems` fail the run: part of what
    was asked for was not watched. `version` is that of fmcheck.
    """

    version: str
    root: str
    mode: str
    started: float
    ended: float
    violations: tuple[Violation, ...] = ()
    advice: tuple[Violation, ...] = ()
    accepted: tuple[Violation, ...] = ()
    processes: tuple[Process, ...] = ()
    coverage: Coverage = Coverage()
    problems: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def active(self) -> tuple[Process, ...]:
        """The processes that checked something."""
        return tuple(one for one in self.processes if one.coverage.counts != Counts())

    @property
    def checked_in(self) -> int:
        """How many processes checked something, 0 where that was the one of the tests alone."""
        alone = len(self.active) == 1 and self.active[0].role == "pytest"
        return 0 if alone else len(self.active)

    @property
    def tests_failed(self) -> int:
        """How many tests met violations that they neither expect nor allow."""
        return len({one.test for one in self.violations if one.test})

    @property
    def only_accepted(self) -> int:
        """How many violations were met by tests alone that expect or allow them."""
        failing = {one.key for one in self.violations}
        return len({one.key for one in self.accepted} - failing)
