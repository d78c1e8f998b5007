"""A run's violations by check, worst first: what tables and summaries are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.finding import Violation
    from fmcheck.record.record import Run

#: A violation fails the run, is an advisory, or is expected or allowed by a test.
FAILS, ADVISORY, ACCEPTED = "fails", "advisory", "accepted"


@dataclass(frozen=True, slots=True)
class Line:
    """A check's part of a run.

    `sites` counts what differs in check, buffer or code site, `times` how often they were met,
    `tests` the tests that met them; what was found outside of any test is no test's. `first` is the
    violation that was met most often.
    """

    code: str
    name: str
    kind: str
    sites: int
    times: int
    tests: int
    first: Violation


def by_check(run: Run) -> tuple[Line, ...]:
    """Returns a line for each check and kind: what fails first, then by how much was found."""
    lines = [
        _line(kind, [one for one in found if one.code == code])
        for kind, found in sorted_kinds(run)
        for code in {one.code for one in found}
    ]
    kinds = (FAILS, ADVISORY, ACCEPTED)
    return tuple(
        sorted(lines, key=lambda one: (kinds.index(one.kind), -one.sites, -one.times, one.code))
    )


def sorted_kinds(run: Run) -> Iterator[tuple[str, Sequence[Violation]]]:
    """Yields what was found by what becomes of it, the worst first."""
    yield FAILS, run.violations
    yield ADVISORY, run.advice
    yield ACCEPTED, run.accepted


def by_site(several: Iterable[Violation]) -> list[list[Violation]]:
    """Returns the violations of one check, buffer and code site together: the tests that met it."""
    groups: dict[object, list[Violation]] = {}
    for one in several:
        groups.setdefault(one.key, []).append(one)
    return list(groups.values())


def _line(kind: str, found: Sequence[Violation]) -> Line:
    first = max(found, key=lambda one: one.count)
    return Line(
        code=first.code,
        name=first.name,
        kind=kind,
        sites=len({one.key for one in found}),
        times=sum(one.count for one in found),
        tests=len({one.test for one in found if one.test}),
        first=first,
    )
