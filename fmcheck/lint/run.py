"""One run of the linter: from paths and options to everything that was found."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.config import Located, find_settings, load_settings
from fmcheck.finding import Finding, Severity
from fmcheck.lint import recording, stored
from fmcheck.lint.cache import unpack
from fmcheck.lint.engine import FAILED, UNREADABLE, lint_file, lint_text
from fmcheck.lint.files import python_files
from fmcheck.lint.selection import select_rules
from fmcheck.lint.source import decode, read, split_lines
from fmcheck.lint.work import Task, Work
from fmcheck.registry import contract_files, contracts_for, rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.lint.replay import Inputs
    from fmcheck.lint.rule import Rule


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for. `select` replaces what the settings select, `ignore` adds to it.

    `jobs` is the number of processes, None for one that fits; `cache` the folder of the cache, None
    for none.
    """

    paths: tuple[Path, ...]
    config: Path | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fix: bool = False
    jobs: int | None = None
    cache: str | None = None


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
        return any(finding.code in (UNREADABLE, FAILED) for finding in self.findings)

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
    settings: list[Located] = []
    jobs: dict[Path, list[Rule]] = {}
    for path in request.paths:
        located = load_settings(request.config) if request.config else find_settings(path)
        if located.origin not in made:
            made[located.origin] = _rules(request, located)
            settings.append(located)
        for file in python_files([path]):
            jobs.setdefault(file, made[located.origin])
    outcome = Outcome(files=len(jobs), rules=max((len(used) for used in made.values()), default=0))
    inputs = recording.INPUTS.get()
    work = Work([_task(str(file), used) for file, used in jobs.items()], request.cache, inputs)
    for file, packed in zip(jobs, work.results(request.jobs), strict=True):
        findings = [unpack(one) for one in packed]
        fixable = request.fix and any(finding.edits for finding in findings)
        outcome.findings += _fix(file, findings, jobs[file], outcome) if fixable else findings
    if inputs is not None:
        _note(request, settings, made.values(), inputs)
    return outcome


def _fix(
    file: Path, findings: Sequence[Finding], used: Sequence[Rule], outcome: Outcome
) -> Sequence[Finding]:
    from fmcheck.lint.fix import fix_file

    if fix_file(file, findings):
        left = lint_file(file, used)
        outcome.fixed += len(findings) - len(left)
        return left
    return findings


def _note(
    request: Request, settings: Iterable[Located], made: Iterable[Sequence[Rule]], inputs: Inputs
) -> None:
    """Notes all that decided which files are linted with which rules."""
    for path in request.paths:
        if path.is_dir():
            inputs.note_folder(str(path))
        start = path.resolve()
        for folder in (start, *start.parents):
            if folder.is_dir():
                for name in ("pyproject.toml", ".gitignore", ".git/info/exclude"):
                    inputs.note_file(str(folder / name))
    for located in settings:
        if located.origin is not None:
            inputs.note_file(str(located.origin))
        for contract in located.settings.contracts:
            inputs.note_file(str(located.folder / contract))
    for file in contract_files().values():
        inputs.note_file(str(file))
    for source in {source for used in made for rule in used for source in _sources(rule)}:
        inputs.note_file(source)


def _sources(rule: Rule) -> Iterator[str]:
    """Yields the files of a rule that another package registered, and of what it may import."""
    package = type(rule).__module__.partition(".")[0]
    if package != "fmcheck":
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == package and getattr(module, "__file__", None):
                yield str(module.__file__)


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


def _task(path: str, used: Sequence[Rule]) -> Task:
    return Task(path, _way(tuple(used)), lambda text: lint_text(text, path, used))


@cache
def _way(used: tuple[Rule, ...]) -> str:
    """Returns all that findings hang on beside a file's content."""
    sources = {source: stored.state_of(source) for rule in used for source in _sources(rule)}
    codes = [(rule.code, type(rule).__module__) for rule in used]
    return repr((os.getcwd(), codes, used[0].contracts if used else (), sorted(sources.items())))
