"""Runs rules over files: bytes, words, slices, libcst's tree of each slice, the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import convert, to_builtins

from fmcheck.finding import Finding, Severity, Span
from fmcheck.lint.own import RULE_FAILED, UNREADABLE
from fmcheck.lint.source.cuts import TooDeepError
from fmcheck.lint.source.decoding import read, source_of
from fmcheck.lint.source.file import File
from fmcheck.lint.source.module import CutError, Module
from fmcheck.lint.time_limit import OutOfTimeError, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fmcheck.lint.rule import Rule
    from fmcheck.lint.source.file import Consulted

#: What a rule may end with: one that calls `sys.exit` would end the run with a status of its own.
FAILURES = (Exception, SystemExit)
#: Seconds of processor time for the rules of one file, and more for each of its characters: a file
#: that is all findings takes 6 s for a million, on a slow machine twice that.
MOST_SECONDS, MORE_SECONDS = 4.0, 20e-6


def lint_file(path: Path, rules: Sequence[Rule]) -> list[Finding]:
    """Returns the findings of one file, sorted; a file that cannot be read is one finding."""
    try:
        raw = read(path)
    except OSError as err:
        return [unreadable(str(path), f"cannot be read: {err.strerror or err}")]
    return lint_text(raw, str(path), rules)


def lint_text(
    raw: bytes,
    path: str,
    rules: Sequence[Rule],
    *,
    whole: bool = False,
    consulted: Consulted | None = None,
) -> list[Finding]:
    """Returns the findings of a file's bytes, as `path` would be linted.

    `whole` has it parsed in one piece, and every part of it given to every rule. `consulted` takes
    in the files of its package that were looked at for it.
    """
    try:
        file = File(path, source_of(raw), consulted)
    except (SyntaxError, UnicodeDecodeError, LookupError) as err:
        return [unreadable(path, f"cannot be decoded: {err}")]
    found: list[Finding] = []
    concerned = [rule for rule in rules if _concerns(rule, file, found)]
    if concerned:
        found += _lint(file, concerned, whole)
    return sorted(found, key=lambda finding: finding.sort_key)


def _concerns(rule: Rule, file: File, failed: list[Finding]) -> bool:
    """Tells whether a rule may find anything in a file, by its path and its words."""
    try:
        return rule.applies(file) and file.holds_all(rule.words)
    except FAILURES as err:
        failed.append(_failed(rule, file.path, err))
        return False


def _lint(file: File, rules: Sequence[Rule], whole: bool) -> list[Finding]:
    """Lints decoded source; one finding tells of source that cannot be parsed."""
    if not whole:
        try:
            return _by_rules(Module(file), rules)
        except CutError:
            pass  # A slice may have been cut wrongly: the whole file decides.
    try:
        return _by_rules(Module(file, whole=True), rules)
    except CutError as err:
        why, line, column = err.where(file.text)
        return [unreadable(file.path, f"does not parse: {why}", line, column)]


def _by_rules(module: Module, rules: Sequence[Rule]) -> list[Finding]:
    found: list[Finding] = []
    done = 0
    most = MOST_SECONDS + MORE_SECONDS * len(module.text)
    try:
        with within(most):
            for rule in rules:
                for piece in _pieces(rule, module, found):
                    _check(rule, piece, module, found)
                done += 1
    except OutOfTimeError:
        left = ", ".join(one.code for one in rules[done:])
        why = f"could not be checked for {left}: rules took over {most:.1f} s"
        found.append(unreadable(module.path, f"{why} of processor time", left_out="the rest"))
    for at, why in module.too_deep.items():
        message = f"could not be checked: {why}"
        line = module.line_of(at)
        found.append(unreadable(module.path, message, line, left_out="this part of the file"))
    module.forget()
    return found


def _pieces(rule: Rule, module: Module, found: list[Finding]) -> Iterator[Any]:
    """Yields the pieces that a rule is handed, and adds one finding if they cannot be had."""
    try:
        yield from rule.pieces(module)
    except CutError:
        raise
    except FAILURES as err:
        found.append(_failed(rule, module.path, err))


def _check(rule: Rule, piece: Any, module: Module, found: list[Finding]) -> None:
    """Adds what a rule finds in one piece of a module, and one finding more if it fails.

    Raises:
        CutError: if a slice does not parse by itself.
    """
    try:
        # One by one: what it finds before an error is kept.
        for one in rule.check(piece):
            found.append(_valid(one, rule))
    except CutError:
        raise
    except (TooDeepError, RecursionError, MemoryError) as err:
        why = f"could not be checked for {rule.code}: {str(err) or type(err).__name__}"
        line = piece.first_line
        found.append(unreadable(module.path, why, line, left_out="the rest of this part"))
    except FAILURES as err:
        found.append(_failed(rule, module.path, err, piece.first_line))


def _valid(found: Any, rule: Rule) -> Finding:
    """Returns what a rule yields if every report can show it.

    Raises:
        TypeError, msgspec.ValidationError: if it is no finding, or none of this rule.
    """
    if not isinstance(found, Finding):
        raise TypeError(f"expected a finding, got {type(found).__name__}")
    valid = convert(to_builtins(found), Finding)
    if valid.code != rule.code:
        raise TypeError(f"expected a finding of {rule.code}, got one of {valid.code}")
    return valid


def _failed(rule: Rule, path: str, err: BaseException, line: int = 1) -> Finding:
    """Tells of an error in a rule: which, where in the rule, and on which file."""
    import traceback

    last = traceback.extract_tb(err.__traceback__)[-1]
    where = f"in `{last.name}`, line {last.lineno}"
    if last.filename == __file__:
        where = "in what it yields"
    return Finding(
        path=path,
        span=Span(line, 1, line, 2),
        code=RULE_FAILED,
        severity=Severity.ERROR,
        message=f"rule {rule.code} failed here: {type(err).__name__}: {err}",
        help=(f"a bug in the rule, {where}; its other findings in this file may be missing"),
    )


def unreadable(
    path: str, why: str, line: int = 1, column: int = 1, left_out: str = "this file"
) -> Finding:
    """Tells of a file that could not be checked."""
    column = max(column, 1)
    return Finding(
        path=path,
        span=Span(line, column, line, column + 1),
        code=UNREADABLE,
        severity=Severity.ERROR,
        message=f"file {why}",
        help=f"{left_out} was not checked",
    )
