"""Lint findings for programs: a JSON list of objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fmcheck.report.well_formed import escaped

if TYPE_CHECKING:
    from fmcheck.finding import Finding, Span
    from fmcheck.report.contents import Contents


def render(contents: Contents) -> str:
    """Returns the findings as a JSON list, one object each; lines and columns count from 1.

    Suppressed ones, where they are asked for, come last and have a key `suppressed`: the reason.
    """
    entries = [_entry(finding) for finding in contents.findings]
    entries += [{**_entry(one), "suppressed": one.suppressed} for one in contents.suppressed]
    return json.dumps(escaped(entries), indent=2)


def _entry(finding: Finding) -> dict[str, Any]:
    return {
        "path": finding.path,
        **_place(finding.span),
        "code": finding.code,
        "severity": finding.severity.value,
        "message": finding.message,
        "note": finding.note,
        "help": finding.help,
        "related": [{**_place(span), "message": text} for span, text in finding.related],
        "fixable": bool(finding.edits),
        "safe": bool(finding.edits) and finding.safe,
    }


def _place(span: Span) -> dict[str, int]:
    return {
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }
