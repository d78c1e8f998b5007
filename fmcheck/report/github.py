"""Findings as workflow commands: GitHub shows each beside its line of a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    related = [f"note: {text}, line {at.line}" for at, text in finding.related]
    help = [f"help: {finding.help}"] if finding.help else []
    notes = [f"note: {finding.note}"] if finding.note else []
    message = "\n".join([finding.message, *notes, *related, *help])
    return line(COMMANDS[finding.severity], properties, message)


def line(command: str, properties: Mapping[str, object], message: str) -> str:
    """Returns a workflow command with its properties and message escaped."""
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{command} {listed}::{_data(message)}"


def _data(text: str) -> str:
    text = printable(text, keep="\t\n\r")
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
