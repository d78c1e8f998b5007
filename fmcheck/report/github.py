"""Findings as workflow commands: GitHub shows each beside its line of a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.report.by_check import ADVISORY, FAILS, by_site
from fmcheck.report.printable import printable
from fmcheck.report.repository import path_in, repository
from fmcheck.report.violation import MISSING, headline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fmcheck.finding import Finding, Violation
    from fmcheck.record import Run
    from fmcheck.report.contents import Contents

_SEVERITY = {FAILS: Severity.ERROR, ADVISORY: Severity.NOTE}
COMMANDS = {Severity.NOTE: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}


def render(contents: Contents) -> str:
    """Returns one workflow command a line."""
    return "\n".join(_command(finding, contents) for finding in contents.findings)


def render_run(run: Run) -> str:
    """Returns one workflow command for each check, buffer and code site of a run."""
    return "\n".join(_of_run(run))


def _of_run(run: Run) -> Iterator[str]:
    root = repository(run.root)
    for kind, several in ((FAILS, run.violations), (ADVISORY, run.advice)):
        for one, *_ in by_site(several):
            yield _of_violation(one, root, COMMANDS[_SEVERITY[kind]])


def _of_violation(one: Violation, root: str, command: str) -> str:
    site = one.access.site
    properties = {
        "title": f"{one.code} {one.name}",
        "file": path_in(root, site.path),
        "line": site.line,
    }
    missing = one.missing or MISSING.get(one.code, "")
    parts = [headline(one).removeprefix("FMCHECK: "), f"missing: {missing}", f"test: {one.test}"]
    return _line(command, properties, "\n".join(parts))


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
    return _line(COMMANDS[finding.severity], properties, message)


def _line(command: str, properties: Mapping[str, object], message: str) -> str:
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{command} {listed}::{_data(message)}"


def _data(text: str) -> str:
    text = printable(text, keep="\t\n\r")
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
