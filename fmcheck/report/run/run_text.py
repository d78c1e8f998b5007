"""A run's record for a terminal: what was found in full, the table by check, what was checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.report.colour import plain
from fmcheck.report.printable import printable
from fmcheck.report.run.by_check import FAILS, sorted_kinds
from fmcheck.report.run.closing import closing_line_of, endings, gaps, not_watched
from fmcheck.report.run.table import table
from fmcheck.report.run.violation import render as render_violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.record.record import Run
    from fmcheck.report.colour import Paint

_TITLES = {
    "advisory": "Advisories (do not fail the run):",
    "accepted": "expected or allowed by its test:",
}


def render(run: Run, paint: Paint = plain, *, brief: bool = False) -> str:
    """Returns the whole of it; with `brief`, no violation is shown in full."""
    root = Path(run.root)
    parts = [] if brief else list(_violations(run, root, paint))
    summary = [f"{paint('not watched', 'error')}: {printable(one)}" for one in not_watched(run)]
    summary += [
        paint(text, "error" if kind == FAILS else "strong" if not kind else "margin")
        for text, kind in table(run, root)
    ]
    summary += [
        f"fmcheck: {printable(gap)}" for gap in (*endings(run.processes), *gaps(run.coverage))
    ]
    summary.append(closing(run))
    return "\n\n".join([*parts, "\n".join(summary)])


def closing(run: Run) -> str:
    """Returns the closing line: how much was checked, in how many processes."""
    return closing_line_of(run)


def _violations(run: Run, root: Path, paint: Paint) -> Iterator[str]:
    for kind, found in sorted_kinds(run):
        if found and kind in _TITLES:
            yield paint(_TITLES[kind], "strong")
        for one in found:
            first, *rest = render_violation(one, root).split("\n")
            yield "\n".join([paint(first, "error" if kind == FAILS else "strong"), *rest])
