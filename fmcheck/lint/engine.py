"""Runs rules over files: `ast`, then needles, then libcst, each for what the one before left."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

from fmcheck.finding import Finding, Severity, Span
from fmcheck.lint.block import Block
from fmcheck.lint.facts import ModuleFacts
from fmcheck.lint.rule import Scope
from fmcheck.lint.source import decode, read, split_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fmcheck.lint.rule import Rule

#: The code of a file that could not be read or parsed. No selection turns it off.
UNREADABLE = "FM001"


def lint_file(path: Path, rules: Sequence[Rule]) -> list[Finding]:
    """Returns the findings of one file, sorted; a file that cannot be read is one finding."""
    try:
        text = read(path)
    except OSError as err:
        return [_unreadable(str(path), f"cannot be read: {err.strerror or err}")]
    return lint_text(text, str(path), rules)


def lint_text(text: bytes, path: str, rules: Sequence[Rule]) -> list[Finding]:
    """Returns the findings of a file's bytes, as `path` would be linted."""
    try:
        source = decode(text).source
    except (SyntaxError, UnicodeDecodeError, LookupError) as err:
        return [_unreadable(path, f"cannot be decoded: {err}")]
    try:
        tree = _parse(source)
    except SyntaxError as err:
        return [_unreadable(path, f"does not parse: {err.msg}", err.lineno or 1, err.offset or 1)]
    except (ValueError, RecursionError, MemoryError) as err:
        return [_unreadable(path, f"does not parse: {str(err) or type(err).__name__}")]
    # Only now: a file that does not parse is told of, whether or not a rule is concerned.
    concerned = [rule for rule in rules if rule.concerns(text)]
    if not concerned:
        return []
    facts = ModuleFacts(tree, path)
    lines = split_lines(source)
    found = [finding for rule in concerned for finding in _check(rule, facts, lines)]
    return sorted(found, key=lambda finding: finding.sort_key)


def _check(rule: Rule, facts: ModuleFacts, lines: Sequence[str]) -> Iterator[Finding]:
    for node in _scopes(facts.tree, rule.scope):
        if rule.suspects(node, facts):
            first, last = _extent(node, lines)
            try:
                yield from rule.check(Block(facts, lines[first - 1 : last], first))
            except (SyntaxError, RecursionError) as err:
                why = f"could not be checked for {rule.code}: {err}"
                yield _unreadable(facts.path, why, first, left_out="this part of the file")


def _scopes(tree: ast.Module, scope: Scope) -> Iterator[ast.AST]:
    """Yields the nodes that a rule of this scope is handed: together they cover the module."""
    if scope is Scope.MODULE:
        yield tree
        return
    for statement in tree.body:
        if scope is Scope.FUNCTION and isinstance(statement, ast.ClassDef):
            yield from statement.body
        else:
            yield statement


def _extent(node: ast.AST, lines: Sequence[str]) -> tuple[int, int]:
    """Returns the first and last line of a node, decorators included."""
    if isinstance(node, ast.Module):
        return 1, len(lines)
    assert isinstance(node, ast.stmt)
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return first, node.end_lineno or node.lineno


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        # A linted file's own SyntaxWarnings are not our user's business.
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _unreadable(
    path: str, why: str, line: int = 1, column: int = 1, left_out: str = "this file"
) -> Finding:
    column = max(column, 1)
    return Finding(
        path=path,
        span=Span(line, column, line, column + 1),
        code=UNREADABLE,
        severity=Severity.ERROR,
        message=f"file {why}",
        help=f"{left_out} was not checked",
    )
