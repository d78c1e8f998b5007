"""Lint findings as workflow commands: GitHub shows each beside its line of a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.finding import Severity

if TYPE_CHECKING:
    from fmcheck.finding import Finding
    from fmcheck.report.contents import Contents

COMMANDS = {Severity.NOTE: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}


def render(contents: Contents) -> str:
    """Returns one workflow command a line."""
    return "\n".join(_command(finding, contents) for finding in contents.findings)


def _command(finding: Finding, contents: Contents) -> str:
    span = finding.span
    properties = {
        "title": f"{finding.code} {contents.codes[finding.code].name}",
        "file": contents.relative(finding.path),
        "line": span.line,
        "endLine": span.end_line,
    }
    if span.line == span.end_line:  # GitHub takes columns for one line alone
        properties |= {"col": span.column, "endColumn": span.end_column}
    told = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    related = [f"note: {text}, line {at.line}" for at, text in finding.related]
    help = [f"help: {finding.help}"] if finding.help else []
    message = _data("\n".join([finding.message, *related, *help]))
    return f"::{COMMANDS[finding.severity]} {told}::{message}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
