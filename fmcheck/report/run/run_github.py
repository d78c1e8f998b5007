"""A run's violations as workflow commands: GitHub shows each beside its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.report.github import COMMANDS, line
from fmcheck.report.repository import path_in, repository
from fmcheck.report.run.by_check import by_site
from fmcheck.report.run.violation import MISSING, headline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Violation
    from fmcheck.record.record import Run


def render(run: Run) -> str:
    """Returns one workflow command for each check, buffer and code site of a run."""
    return "\n".join(_of_run(run))


def _of_run(run: Run) -> Iterator[str]:
    root = repository(run.root)
    for severity, several in ((Severity.ERROR, run.violations), (Severity.NOTE, run.advice)):
        for one, *_ in by_site(several):
            yield _of_violation(one, root, COMMANDS[severity])


def _of_violation(one: Violation, root: str, command: str) -> str:
    site = one.access.site
    properties = {
        "title": f"{one.code} {one.name}",
        "file": path_in(root, site.path),
        "line": site.line,
    }
    missing = one.missing or MISSING.get(one.code, "")
    parts = [headline(one).removeprefix("FMCHECK: "), f"missing: {missing}", f"test: {one.test}"]
    return line(command, properties, "\n".join(parts))
