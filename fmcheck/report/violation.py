"""Violations as text: one greppable first line, the story, one frozen line for programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcheck.finding import Access, Coverage, Site, Violation


MISSING = {
    "FR101": "a write of these rows before the gather",
    "FR102": "a write of these rows between the last read and this gather",
    "FR105": "a write of a value that the contract calls valid",
    "FR201": "a reset of the tail between the last replay and this one",
    "FR301": "one device for the buffer, its rows and its values",
}


def render(violation: Violation, root: Path) -> str:
    """Returns the whole report of one violation; paths below `root` are shown relative to it."""
    lines = [
        headline(violation),
        f"  gather      {_site(violation.access.site, root)}",
        f"    values    {_values(violation)}",
        f"  last write  {_access(violation.last_write, root)}",
        f"  last read   {_access(violation.last_read, root)}",
        f"  missing     {MISSING[violation.code]}",
        f"  test        {violation.test or 'none: outside of any test'}",
    ]
    if violation.count > 1:
        lines.append(f"  seen {violation.count} times; first shown")
    lines.append(key_values(violation, root))
    return "\n".join(lines)


def headline(violation: Violation) -> str:
    """Returns the first line: check, buffer, rows."""
    line = f"FMCHECK: {violation.code} {violation.name} in {violation.buffer} {_rows(violation)}"
    return line.rstrip()


def key_values(violation: Violation, root: Path) -> str:
    """Returns the last line, whose keys and order are promised to programs."""
    site = violation.access.site
    return (
        f"fmcheck violation: rule={violation.code} buf={violation.buffer} "
        f"rows={','.join(str(row) for row in violation.rows)} row_count={violation.row_count} "
        f"site={short_path(site.path, root)}:{site.line} count={violation.count} "
        f"device={violation.device} pid={violation.pid}"
    )


def closing_line(coverage: Coverage) -> str:
    """Returns what was checked: never only that all is well."""
    counts = coverage.counts
    checked = ", ".join(
        _count(number, noun)
        for number, noun in (
            (counts.buffers, "buffer"),
            (counts.writes, "write"),
            (counts.gathers, "gather"),
            (counts.peeks, "peek"),
        )
    )
    extra = ""
    if counts.unchecked:
        extra += f", {_count(counts.unchecked, 'call')} not checked: in graph capture"
    if counts.unseen_writes:
        extra += f", {_count(counts.unseen_writes, 'row')} written out of our sight"
    return f"fmcheck: {checked} checked{extra}; {_count(coverage.violations, 'violation')}"


def gaps(coverage: Coverage) -> list[str]:
    """Returns a sentence for each part of the contract that was not put to the test."""
    if not coverage.imported:
        return ["no declared relay was imported: nothing was checked"]
    return [
        f"declared relay {relay} was imported, but no buffer of it was ever written or gathered: "
        "nothing was checked"
        for relay in coverage.imported
        if relay not in coverage.touched
    ]


def short_path(path: str, root: Path) -> str:
    """Returns a path as a reader wants it: relative to the project, or from site-packages on."""
    path = os.path.normpath(path)
    for folder in ("site-packages", "dist-packages"):
        _, found, rest = path.rpartition(f"/{folder}/")
        if found:
            return rest
    try:
        return str(Path(path).relative_to(root))
    except ValueError:
        return path


def _site(site: Site, root: Path) -> str:
    text = f"{short_path(site.path, root)}:{site.line} in {site.function}"
    if site.caller is None:
        return text
    return f"{text}, called at {short_path(site.caller.path, root)}:{site.caller.line}"


def _access(access: Access | None, root: Path) -> str:
    if access is None:
        return "none"
    return _site(access.site, root)


def _rows(violation: Violation) -> str:
    if not violation.row_count:
        return ""
    shown = ", ".join(str(row) for row in violation.rows)
    more = violation.row_count - len(violation.rows)
    if violation.row_count == 1:
        return f"row {shown}"
    return f"rows {shown}" + (f" and {more} more" if more else "")


def _values(violation: Violation) -> str:
    more = violation.row_count - len(violation.values)
    return ", ".join(violation.values) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
