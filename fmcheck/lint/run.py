"""One run of the linter: from paths and options to everything that was found."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fmcheck.config import Located, find_settings, load_settings
from fmcheck.finding import Finding, Severity
from fmcheck.lint import cache, pool, recording, stored
from fmcheck.lint.engine import FAILED, UNREADABLE, lint_file, lint_text, unreadable
from fmcheck.lint.files import python_files
from fmcheck.lint.selection import select_rules
from fmcheck.lint.source import decode, read, read_with_state, split_lines
from fmcheck.registry import contract_files, contracts_for, rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.lint.replay import Inputs
    from fmcheck.lint.rule import Rule

T = TypeVar("T")

#: Fewer files than this are done before a progress bar could be read.
MANY_FILES = 200


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
    work = Work([(str(file), used) for file, used in jobs.items()], request.cache, inputs)
    for file, findings in zip(jobs, work.findings(request.jobs), strict=True):
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


class Work:
    """The files of a run, each with its rules; what the cache knows is not done again."""

    def __init__(
        self, files: Sequence[tuple[str, Sequence[Rule]]], folder: str | None, inputs: Inputs | None
    ) -> None:
        self._files = files
        self._inputs = inputs
        ways = {id(used): used for _, used in files}
        self._caches = {
            key: cache.Cache(folder, f"{os.getcwd()} {_way(used)}") for key, used in ways.items()
        }

    def findings(self, jobs: int | None) -> Sequence[list[Finding]]:
        """Returns every file's findings, in the files' order."""
        packed: dict[int, Any] = {}
        todo: list[int] = []
        for number, (path, used) in enumerate(self._files):
            state = stored.state_of(path)
            known = self._caches[id(used)].by_state(path, state)
            if known is None or state is None:
                todo.append(number)
            else:
                packed[number] = known[1]
                self._note(path, state, known[0])
        workers = pool.processes(jobs, len(todo))
        done = pool.results(lambda number: self._lint(todo[number]), len(todo), workers)
        for at, result in _with_progress(done, len(todo)):
            number = todo[at]
            path, used = self._files[number]
            if isinstance(result, pool.Died):
                why = f"ended the process that checked it ({result})"
                packed[number] = cache.pack([unreadable(path, why)])
                self._forget()
                continue
            state, digest, found = result
            packed[number] = found
            self._note(path, state, digest)
            if digest is not None and all(one[2] != FAILED for one in found):
                self._caches[id(used)].put(path, state, digest, found)
        for one in self._caches.values():
            one.save()
        return [[cache.unpack(one) for one in packed[number]] for number in range(len(self._files))]

    def _lint(self, number: int) -> tuple[stored.State | None, bytes | None, Any]:
        """Returns a file's state, digest and packed findings."""
        from hashlib import sha256

        path, used = self._files[number]
        try:
            text, state = read_with_state(path)
        except OSError as err:
            why = f"cannot be read: {err.strerror or err}"
            return stored.state_of(path), None, cache.pack([unreadable(path, why)])
        digest = sha256(text).digest()
        found = self._caches[id(used)].by_digest(path, digest)
        if found is None:
            found = cache.pack(lint_text(text, path, used))
        return state, digest, found

    def _note(self, path: str, state: stored.State | None, digest: bytes | None) -> None:
        if self._inputs is not None:
            self._inputs.note(path, state, digest)

    def _forget(self) -> None:
        if self._inputs is not None:
            self._inputs.repeatable = False


def _way(used: Sequence[Rule]) -> str:
    """Returns all that findings hang on beside a file's content."""
    sources = {source: stored.state_of(source) for rule in used for source in _sources(rule)}
    codes = [(rule.code, type(rule).__module__) for rule in used]
    return repr((codes, used[0].contracts if used else (), sorted(sources.items())))


def _with_progress(done: Iterable[T], total: int) -> Iterable[T]:
    """Yields what is done; on a terminal, long work shows how far it is."""
    if total < MANY_FILES or not sys.stderr.isatty():
        return done
    return _track(done, total)


def _track(done: Iterable[T], total: int) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import track

    # Past whoever records what the run says: progress is no part of that.
    console = Console(file=sys.__stderr__)
    yield from track(
        done, "linting", total=total, console=console, transient=True, update_period=0.2
    )
