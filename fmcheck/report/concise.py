"""Lint findings a line each: `path:line:column: CODE message`, for editors and `grep`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.report.headline import fitted
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.report.contents import Contents


def render(contents: Contents) -> str:
    """Returns one line a finding, those that a comment suppresses last."""
    return "\n".join(_lines(contents))


def _lines(contents: Contents) -> Iterator[str]:
    for finding in (*contents.findings, *contents.suppressed):
        yield _line(finding)


def _line(finding: Finding) -> str:
    marks = " [fixable]" if finding.edits and finding.safe else ""
    if finding.suppressed:
        marks += f" (suppressed: {finding.suppressed})"
    at = f"{finding.path}:{finding.span.line}:{finding.span.column}"
    headline = fitted(printable(f"{finding.code} {finding.message}"))
    return f"{printable(at)}: {headline}{printable(marks)}"
