"""One run of the linter: from paths and options to everything that was found."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.config import Located, find_settings, load_settings
from fmcheck.finding import Finding, Severity
from fmcheck.lint.engine import UNREADABLE, lint_file
from fmcheck.lint.files import python_files
from fmcheck.lint.selection import select_rules
from fmcheck.lint.source import decode, read, split_lines
from fmcheck.registry import contracts_for, rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.lint.rule import Rule

#: Fewer files than this are done before a progress bar could be read.
MANY_FILES = 200


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for. `select` replaces what the settings select, `ignore` adds to it."""

    paths: tuple[Path, ...]
    config: Path | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fix: bool = False


@dataclass(slots=True)
class Outcome:
    """What came of a run. `files` and `rules` count what was checked, and by how many rules."""

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    rules: int = 0
    fixed: int = 0
    _lines: dict[str, Sequence[str]] = field(default_factory=dict)

    @property
    def failing(self) -> bool:
        """Tells whether anything worse than a note was found."""
        return any(finding.severity is not Severity.NOTE for finding in self.findings)

    @property
    def unreadable(self) -> bool:
        """Tells whether a file could not be checked."""
        return any(finding.code == UNREADABLE for finding in self.findings)

    def lines_of(self, path: str) -> Sequence[str]:
        """Returns a file's lines for an excerpt; none if it cannot be read any more."""
        if path not in self._lines:
            try:
                self._lines[path] = split_lines(decode(read(Path(path))).source)
            except (OSError, SyntaxError, UnicodeDecodeError, LookupError):
                self._lines[path] = ()
        return self._lines[path]


def lint_paths(request: Request) -> Outcome:
    """Lints every Python file of the request's paths.

    Raises:
        UsageError: before any file is read, if a path, an option or the settings do not fit.
    """
    made: dict[Path | None, list[Rule]] = {}
    jobs: dict[Path, list[Rule]] = {}
    for path in request.paths:
        located = load_settings(request.config) if request.config else find_settings(path)
        if located.origin not in made:
            made[located.origin] = _rules(request, located)
        for file in python_files([path]):
            jobs.setdefault(file, made[located.origin])
    outcome = Outcome(files=len(jobs), rules=max((len(used) for used in made.values()), default=0))
    for file in _with_progress(list(jobs)):
        outcome.findings += _lint_one(file, jobs[file], outcome, request.fix)
    return outcome


def _lint_one(file: Path, used: Sequence[Rule], outcome: Outcome, fix: bool) -> list[Finding]:
    findings = lint_file(file, used)
    if fix and any(finding.edits for finding in findings):
        from fmcheck.lint.fix import fix_file

        if fix_file(file, findings):
            left = lint_file(file, used)
            outcome.fixed += len(findings) - len(left)
            return left
    return findings


def _rules(request: Request, located: Located) -> list[Rule]:
    settings, origin = located.settings, str(located.origin)
    chosen = select_rules(
        rules(),
        request.select or settings.select,
        request.ignore + settings.ignore,
        (
            "--select" if request.select else f"{origin}: key `select`",
            "--ignore" if request.ignore else f"{origin}: key `ignore`",
        ),
    )
    contracts = contracts_for(located)
    return [rule(contracts) for rule in chosen]


def _with_progress(files: Sequence[Path]) -> Iterable[Path]:
    """Yields the files; on a terminal, long work shows how far it is."""
    if len(files) < MANY_FILES or not sys.stderr.isatty():
        return files
    return _track(files)


def _track(files: Sequence[Path]) -> Iterator[Path]:
    from rich.console import Console
    from rich.progress import track

    yield from track(
        files, "linting", console=Console(stderr=True), transient=True, update_period=0.2
    )
