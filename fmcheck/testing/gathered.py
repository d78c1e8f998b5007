"""What becomes of a run's violations, by the tests that met them: gathered for its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fmcheck.finding import Violation  # noqa: TC001  (msgspec reads the annotations)
from fmcheck.record.merging import one_each

if TYPE_CHECKING:
    from fmcheck.record.record import Run


@dataclass
class Gathered:
    """Violations that failed something, and those that a test expects or allows."""

    failing: list[Violation] = field(default_factory=list)
    accepted: list[Violation] = field(default_factory=list)

    def take_in(self, other: Gathered) -> None:
        """Adds what another process gathered."""
        self.failing += other.failing
        self.accepted += other.accepted

    def accept(self, test: str) -> None:
        """Moves what was found in a test to what fails nothing: the test was meant to fail."""
        self.accepted += [one for one in self.failing if one.test == test]
        self.failing = [one for one in self.failing if one.test != test]

    def sorted_out(self, run: Run) -> Run:
        """Returns the run with what its tests expect or allow set apart.

        What one test both expects and fails for, as outside of a block that expects it, fails it.
        What the run does not know, as from a worker on another host, is added.
        """
        failing = {(one.key, one.test) for one in self.failing}
        accepted = {(one.key, one.test) for one in self.accepted} - failing
        known = {(one.key, one.test) for one in run.violations}
        new = [one for one in (*self.failing, *self.accepted) if (one.key, one.test) not in known]
        every = (*run.violations, *one_each(new))
        return replace(
            run,
            violations=tuple(one for one in every if (one.key, one.test) not in accepted),
            accepted=tuple(one for one in every if (one.key, one.test) in accepted),
        )
