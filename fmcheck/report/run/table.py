"""The table by check at the end of a run, in plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.report.printable import printable
from fmcheck.report.run.by_check import ACCEPTED, ADVISORY, FAILS, by_check
from fmcheck.report.run.violation import short_path

if TYPE_CHECKING:
    from pathlib import Path

    from fmcheck.record.record import Run

_HEAD = ("check", "sites", "times", "tests", "")
_REMARK = {FAILS: "", ADVISORY: " (advisory)", ACCEPTED: " (expected or allowed)"}


def table(run: Run, root: Path) -> list[tuple[str, str]]:
    """Returns the lines of the table, each with its kind as in `by_check`, the head's is "".

    A run without findings has none.
    """
    lines = by_check(run)
    if not lines:
        return []
    rows: list[tuple[str, ...]] = [_HEAD]
    for line in lines:
        site = line.first.access.site
        place = f"{line.first.buffer} at {short_path(site.path, root)}:{site.line}"
        more = f" and {line.sites - 1:,} more" if line.sites > 1 else ""
        numbers = (f"{number:,}" for number in (line.sites, line.times, line.tests))
        name = f"{line.code} {line.name}{_REMARK[line.kind]}"
        rows.append((name, *numbers, printable(place) + more))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (_aligned(row, widths), line.kind if line else "")
        for row, line in zip(rows, (None, *lines), strict=True)
    ]


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    name, *numbers, place = row
    cells = [name.ljust(widths[0])]
    cells += [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=False)]
    return "  ".join((*cells, place)).rstrip()
