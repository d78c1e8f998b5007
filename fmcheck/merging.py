"""Merging: the records of several hosts, workers or sessions, made into that of one run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fmcheck.finding import Coverage
from fmcheck.record import Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fmcheck.finding import Violation


def merge(runs: Sequence[Run]) -> Run:
    """Returns the record of runs, of which there is at least one.

    A violation of one check, buffer, code site and test is one, with the counts of all. The root is
    the first run's: paths of other hosts are shown as they are there.
    """
    first = runs[0]
    coverage = sum((run.coverage for run in runs), Coverage())
    violations = merged(one for run in runs for one in run.violations)
    advice = merged(one for run in runs for one in run.advice)
    accepted = merged(one for run in runs for one in run.accepted)
    told = {one.key for one in (*violations, *accepted)}
    return Run(
        version=first.version,
        root=first.root,
        mode=", ".join(dict.fromkeys(run.mode for run in runs)),
        started=min(run.started for run in runs),
        ended=max(run.ended for run in runs),
        violations=violations,
        advice=advice,
        accepted=accepted,
        processes=tuple(dict.fromkeys(one for run in runs for one in run.processes)),
        coverage=replace(coverage, violations=len(told), warnings=len({one.key for one in advice})),
        problems=tuple(dict.fromkeys(one for run in runs for one in run.problems)),
    )


def merged(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Returns the first violation of each check, buffer, site and test, with the counts of all."""
    first: dict[tuple[object, str], Violation] = {}
    for one in violations:
        key = (one.key, one.test)
        known = first.get(key)
        first[key] = replace(known, count=known.count + one.count) if known else one
    return tuple(first.values())
