"""What the tests of a run found, gathered for its record."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmcheck.finding import Violation  # noqa: TC001  (msgspec reads the annotations)
from fmcheck.record import Process, Run
from fmcheck.testing.book import merged

if TYPE_CHECKING:
    from fmcheck.finding import Coverage


@dataclass
class Gathered:
    """Violations by what becomes of them, in the order in which they were found."""

    failing: list[Violation] = field(default_factory=list)
    advice: list[Violation] = field(default_factory=list)
    accepted: list[Violation] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)

    def take_in(self, other: Gathered) -> None:
        """Adds what another process gathered."""
        self.failing += other.failing
        self.advice += other.advice
        self.accepted += other.accepted
        self.processes += other.processes

    def accept(self, test: str) -> None:
        """Moves what was found in a test to what fails nothing: the test was meant to fail."""
        self.accepted += [one for one in self.failing if one.test == test]
        self.failing = [one for one in self.failing if one.test != test]

    @property
    def only_accepted(self) -> int:
        """How many violations were met by tests alone that expect or allow them."""
        failing = {one.key for one in self.failing}
        return len({one.key for one in self.accepted} - failing)

    def run(
        self, root: str, mode: str, started: float, coverage: Coverage, problems: tuple[str, ...]
    ) -> Run:
        """Returns the record of the run, which ends now."""
        from fmcheck import __version__

        return Run(
            version=__version__,
            root=root,
            mode=mode,
            started=started,
            ended=time.time(),
            violations=merged(self.failing),
            advice=merged(self.advice),
            accepted=merged(self.accepted),
            processes=tuple(self.processes),
            coverage=coverage,
            problems=problems,
        )


def this_process(role: str, started: float, ending: str, coverage: Coverage) -> Process:
    """Returns the entry of the process that calls, which ends now."""
    return Process(
        pid=os.getpid(),
        parent=os.getppid(),
        host=platform.node(),
        role=role,
        command=tuple(sys.orig_argv),
        started=started,
        ended=time.time(),
        ending=ending,
        held=coverage.imported,
        coverage=coverage,
    )
