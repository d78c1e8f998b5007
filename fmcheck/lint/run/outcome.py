"""One run of the linter: from paths and options to everything that was found."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, convert

from fmcheck.finding import Finding, Severity
from fmcheck.lint.own import UNCHECKED
from fmcheck.lint.run import recording
from fmcheck.lint.run.gate import Gate
from fmcheck.lint.run.plan import Job, plan
from fmcheck.lint.run.tasks import lint_as, note, task_for
from fmcheck.lint.run.work import Work
from fmcheck.lint.scope.request import Fixing, Request
from fmcheck.lint.source import decode, read, read_with_state, split_lines
from fmcheck.lint.source.identity import identity_of, is_module
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.lint.run.replay import Inputs
    from fmcheck.lint.run.stored import State

_CLASS = regex(rb"^class[ \t]+(\w+)", re.MULTILINE)


class Outcome(Struct):
    """What came of a run. `files` and `rules` count what was checked, and by how many rules.

    `fixed` counts findings; `refused` holds paths and why their fixes were not made, `unwritten`
    those that could not be written, `diffs` what would have been written and `stdin` the fixed text
    of a file that was given as text. `kept` says why `--fix` leaves a file with fixes as it is.
    `allowed` counts findings that a baseline knows, `notes` say what was done to one, and which
    files were left out.
    """

    findings: list[Finding] = []
    suppressed: list[Finding] = []
    files: int = 0
    rules: int = 0
    fixed: int = 0
    refused: list[tuple[str, str]] = []
    unwritten: list[tuple[str, str]] = []
    kept: dict[str, str] = {}
    diffs: list[bytes] = []
    stdin: bytes | None = None
    allowed: int = 0
    notes: list[str] = []
    _lines: dict[str, Sequence[str]] = {}

    @property
    def failing(self) -> bool:
        """Tells whether anything worse than a note was found."""
        return any(finding.severity is not Severity.NOTE for finding in self.findings)

    @property
    def unreadable(self) -> bool:
        """Tells whether a file could not be checked, or not be written."""
        return bool(self.unwritten) or any(one.code in UNCHECKED for one in self.findings)

    def lines_of(self, path: str) -> Sequence[str]:
        """Returns a file's lines for an excerpt; none if it cannot be read any more."""
        if path not in self._lines:
            try:
                self.show(path, read(Path(path)))
            except OSError:
                self._lines[path] = ()
        return self._lines[path]

    def show(self, path: str, text: bytes) -> None:
        """Takes the excerpts of a file from this text."""
        self._lines[path] = _lines(text)


def lint_paths(request: Request) -> Outcome:
    """Lints every Python file of the request's paths, and fixes what it is asked to.

    Raises:
        UsageError: before any file is read, if a path, an option or the settings do not fit; or
            where a baseline cannot be written.
    """
    planned = plan(request)
    gate = Gate(request, planned)
    jobs = [job for job in planned.jobs if gate.wants(job)]
    most = max((len(policy.rules) for _, policy in planned.policies), default=0)
    outcome = Outcome(files=len(jobs), rules=most)
    reported: dict[Job, list[Finding]] = {}
    inputs = recording.INPUTS.get()
    for job, found in lint_all(jobs, request, inputs):
        if job.text is not None:
            outcome.show(str(job.path), job.text)
        outcome.suppressed += [one for one in found if one.suppressed]
        found = [one for one in found if not one.suppressed]
        reported[job] = gate.let_through(job, found, outcome.lines_of)
        if request.fixing is not Fixing.NONE:
            reported[job] = _fix(job, found, reported[job], request, outcome)
    outcome.allowed = gate.allowed
    if inputs is not None:
        note(planned, inputs)
        # Where a link leads is no part of what a folder lists.
        inputs.repeatable = inputs.repeatable and not planned.outside
    closed = gate.close(reported, outcome.lines_of)
    outcome.findings = [finding for found in reported.values() for finding in found]
    outcome.findings += closed.findings
    outcome.notes += [*closed.notes, *_not_followed(planned.outside)]
    outcome.notes += dict.fromkeys(one for _, policy in planned.policies for one in policy.notes)
    outcome.notes += [one for job in jobs if job.path in request.paths for one in _lone(job)]
    outcome.kept = dict(_kept(outcome, request))
    if inputs is not None:
        inputs.repeatable = inputs.repeatable and not outcome.kept
    return outcome


def _lone(job: Job) -> Iterator[str]:
    """Yields a note if a named file looks like a module of a contract that it is not by its path.

    A copy outside of its package is not known from its path, and a class of one name may be two.
    """
    relays = [(one, of) for of in job.rules[0].contracts for one in of.relay] if job.rules else []
    if not relays:
        return
    try:
        text = read(job.path) if job.text is None else job.text
    except OSError:
        return  # which is a finding
    defined = set(_CLASS.findall(text))
    for relay, contract in relays:
        is_named = relay.qualname.encode() in defined
        if is_named and not is_module(identity_of(str(job.path)), relay.module):
            yield (
                f"{job.path}: it defines `{relay.qualname}`, but is not `{relay.module}` by its "
                f"path: what contract `{contract.engine.name}` says of that module was not "
                f"applied; if it is a copy, lint it as `{relay.module.replace('.', '/')}.py`"
            )


def _kept(outcome: Outcome, request: Request) -> Iterator[tuple[str, str]]:
    """Yields the files with fixes that `--fix` leaves, or has left, as they are, and why."""
    if request.stdin is not None:
        return
    from fmcheck.files.atomic import refusal

    left = dict([*outcome.refused, *outcome.unwritten])
    for path in {one.path: None for one in outcome.findings if one.edits}:
        if why := left.get(path) or refusal(path, request.paths):
            yield path, why.removeprefix("cannot be rewritten: ")


def _not_followed(links: Sequence[Path]) -> Iterator[str]:
    """Yields a note on links that lead out of the tree, if there are any."""
    if links:
        more = f" and {len(links) - 3:,} more" if len(links) > 3 else ""
        names = ", ".join(map(str, links[:3]))
        yield f"not followed out of the tree: {names}{more} (links; name a file to have it checked)"


def lint_all(
    jobs: Sequence[Job], request: Request, inputs: Inputs | None
) -> Iterator[tuple[Job, list[Finding]]]:
    """Yields each job with its findings, suppressed ones included, in the same order."""
    if request.stdin is not None:
        yield from ((job, lint_as(job, request.stdin)) for job in jobs)
        return
    work = Work([task_for(job) for job in jobs], request.cache, inputs)
    results = work.results(request.jobs, progress=request.progress)
    for job, packed in zip(jobs, results, strict=True):
        yield job, convert(packed, list[Finding])


def _fix(
    job: Job, found: list[Finding], reported: list[Finding], request: Request, outcome: Outcome
) -> list[Finding]:
    """Fixes what is reported of a file, and nothing else; returns what is reported then."""

    def fits(finding: Finding) -> bool:
        return finding.safe or request.unsafe_fixes

    path = str(job.path)
    state: State | None = None
    if not any(one.edits and fits(one) for one in reported) and job.text is None:
        return reported
    from fmcheck.lint.run.fix import fix_text, unified_diff

    text = job.text
    if text is None:
        try:
            text, state = read_with_state(path)
        except OSError as err:
            outcome.unwritten.append((path, f"cannot be read: {err.strerror or err}"))
            return reported
    outcome.stdin = job.text
    withheld = _Withheld(found, reported, outcome.lines_of(path))
    fixed = fix_text(
        text,
        lambda now: lint_as(job, now),
        lambda left, now: filter(fits, withheld.taken_from(left, now)),
    )
    if fixed.refused:
        outcome.refused.append((path, fixed.refused))
        return reported
    if request.fixing is Fixing.DIFF:
        outcome.fixed += fixed.count
        if fixed.text != text:
            outcome.diffs.append(unified_diff(path, text, fixed.text))
        return reported
    if job.text is not None:
        outcome.stdin = fixed.text
    elif fixed.text != text and (why := _rewrite(job.path, fixed.text, state, request)):
        outcome.unwritten.append((path, why))
        return reported
    outcome.fixed += fixed.count
    outcome.show(path, fixed.text)
    return withheld.taken_from(lint_as(job, fixed.text), fixed.text)


def _rewrite(path: Path, text: bytes, state: State | None, request: Request) -> str:
    """Gives a file that was read in this state another text; returns why not, "" if it was done."""
    from fmcheck.files.atomic import replace_file

    try:
        replace_file(path, text, expected=state, named=request.paths)
    except OSError as err:
        return f"cannot be rewritten: {err.strerror or err}"
    return ""


class _Withheld:
    """The findings of a file that are not reported, known again after a fix moved them."""

    def __init__(
        self, findings: Sequence[Finding], reported: Sequence[Finding], lines: Sequence[str]
    ) -> None:
        self._keys = Counter(_key(one, lines) for one in findings)
        self._keys.subtract(_key(one, lines) for one in reported)

    def taken_from(self, findings: Iterable[Finding], text: bytes) -> list[Finding]:
        """Returns the findings of `text` less those that are withheld or suppressed."""
        left, lines, through = Counter(self._keys), _lines(text), []
        for finding in findings:
            key = _key(finding, lines)
            if left[key] > 0:
                left[key] -= 1
            elif not finding.suppressed:
                through.append(finding)
        return through


def _key(finding: Finding, lines: Sequence[str]) -> tuple[str, str]:
    return finding.code, finding.fingerprint(lines)


def _lines(text: bytes) -> Sequence[str]:
    try:
        return split_lines(decode(text).source)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return ()
