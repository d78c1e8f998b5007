"""Lint findings as a GitLab Code Quality report."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.report.printable import well_formed

if TYPE_CHECKING:
    from fmcheck.report.contents import Contents

SEVERITIES = {Severity.NOTE: "info", Severity.WARNING: "minor", Severity.ERROR: "major"}


def render(contents: Contents) -> str:
    """Returns a JSON list. Fingerprints outlive moved lines, and no two are alike."""
    entries = []
    for finding, digits in contents.fingerprinted(contents.findings):
        path = contents.relative(finding.path)
        description = f"{finding.whole}; {finding.help}" if finding.help else finding.whole
        key = f"{path}:{finding.code}:{digits}"
        entries.append(
            {
                "description": well_formed(description),
                "check_name": finding.code,
                "fingerprint": hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest(),
                "severity": SEVERITIES[finding.severity],
                "location": {
                    "path": well_formed(path),
                    "lines": {"begin": finding.span.line, "end": finding.span.end_line},
                },
            }
        )
    return json.dumps(entries, indent=2)
