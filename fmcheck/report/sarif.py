"""Lint findings as SARIF 2.1.0, which code scanning services read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fmcheck.finding import Severity
from fmcheck.report.printable import well_formed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fmcheck.finding import Finding, RuleInfo, Span
    from fmcheck.report.contents import Contents

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
LEVELS = {Severity.NOTE: "note", Severity.WARNING: "warning", Severity.ERROR: "error"}
#: The base of relative URIs: the folder that fmcheck ran in.
BASE = "%SRCROOT%"
#: Changes when the way does in which a fingerprint is made.
FINGERPRINT = "fmcheckLine/v1"


def render(contents: Contents) -> str:
    """Returns one SARIF log with one run."""
    return log(lint_run(contents))


def log(*runs: dict[str, Any]) -> str:
    """Returns a SARIF log of runs."""
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": runs}, indent=2)


def lint_run(contents: Contents) -> dict[str, Any]:
    """Returns the linter's run of a log."""
    shown = (*contents.findings, *contents.suppressed)
    used = sorted({finding.code for finding in shown})
    return run(
        contents.version,
        [contents.codes[code] for code in used],
        list(_results(shown, contents, used)),
        complete=contents.complete,
    )


def run(
    version: str, codes: Iterable[RuleInfo], results: Sequence[dict[str, Any]], *, complete: bool
) -> dict[str, Any]:
    """Returns a run of a log; a result's `ruleIndex` counts in `codes`."""
    rules = [_rule(info) for info in codes]
    return {
        "tool": {"driver": {"name": "fmcheck", "version": version, "rules": rules}},
        "invocations": [{"executionSuccessful": complete}],
        "originalUriBaseIds": {BASE: {"description": {"text": "where fmcheck was run"}}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }


def _rule(info: RuleInfo) -> dict[str, Any]:
    return {
        "id": info.code,
        "name": info.name,
        "shortDescription": {"text": info.summary},
        "help": {"text": info.page, "markdown": info.page},
        "defaultConfiguration": {"level": LEVELS[info.severity]},
    }


def _results(
    findings: Sequence[Finding], contents: Contents, used: Sequence[str]
) -> Iterable[dict[str, Any]]:
    for finding, digits in contents.fingerprinted(findings):
        artifact = artifact_of(contents.relative(finding.path))
        text = "\n".join(filter(None, (finding.message, finding.note, finding.help)))
        result: dict[str, Any] = {
            "ruleId": finding.code,
            "ruleIndex": used.index(finding.code),
            "level": LEVELS[finding.severity],
            "message": {"text": well_formed(text)},
            "locations": [_location(finding.span, artifact)],
            "partialFingerprints": {FINGERPRINT: digits},
        }
        if finding.related:
            result["relatedLocations"] = [
                {
                    "id": number,
                    **_location(span, artifact),
                    "message": {"text": well_formed(message)},
                }
                for number, (span, message) in enumerate(finding.related)
            ]
        if finding.edits:
            result["fixes"] = [_fix(finding, artifact)]
        if finding.suppressed:
            result["suppressions"] = [{"kind": "inSource", "justification": finding.suppressed}]
        yield result


def _fix(finding: Finding, artifact: dict[str, str]) -> dict[str, Any]:
    how = finding.help or "fix"
    replacements = [
        {"deletedRegion": _region(edit.span), "insertedContent": {"text": edit.text}}
        for edit in finding.edits
    ]
    return {
        "description": {"text": how if finding.safe else f"{how} (may change what the code does)"},
        "artifactChanges": [{"artifactLocation": artifact, "replacements": replacements}],
    }


def _location(span: Span, artifact: dict[str, str]) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": artifact, "region": _region(span)}}


def _region(span: Span) -> dict[str, int]:
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }


def artifact_of(path: str) -> dict[str, str]:
    """Returns the location of a file: absolute, or relative to `BASE`."""
    # A name that is not UTF-8 is quoted byte by byte.
    name = path.encode(errors="surrogateescape")
    if path.startswith("/"):
        return {"uri": f"file://{quote(name)}"}
    # A drive's colon would be read as a scheme's; that of a name is quoted.
    if os.path.splitdrive(path)[0]:
        return {"uri": f"file:///{quote(name, safe='/:')}"}
    return {"uri": quote(name), "uriBaseId": BASE}
