"""Merging: what several processes, hosts or sessions found, made into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fmcheck.finding import Coverage
from fmcheck.record.record import FOUND_IN, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fmcheck.finding import Violation


def merge(runs: Sequence[Run]) -> Run:
    """Returns the record of runs, of which there is at least one.

    The root is the first run's: paths of other hosts are shown as they are there.
    """
    first = runs[0]
    coverage = sum((run.coverage for run in runs), Coverage())
    violations = one_each(one for run in runs for one in run.violations)
    advice = one_each(one for run in runs for one in run.advice)
    accepted = one_each(one for run in runs for one in run.accepted)
    failing_keys = {one.key for one in (*violations, *accepted)}
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
        coverage=replace(
            coverage, violations=len(failing_keys), warnings=len({one.key for one in advice})
        ),
        problems=tuple(dict.fromkeys(one for run in runs for one in run.problems)),
    )


def one_each(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Returns each violation of a test and a code site once, with the counts of all.

    Its notes name all processes that found it.
    """
    known: dict[object, Violation] = {}
    for violation in violations:
        key = (violation.key, violation.test)
        before = known.get(key)
        if before is not None:
            more = [note for note in violation.notes if note.startswith(FOUND_IN)]
            violation = replace(
                before,
                count=before.count + violation.count,
                notes=tuple(dict.fromkeys((*before.notes, *more))),
            )
        known[key] = violation
    return tuple(known.values())
