"""Imports of a module, read off its text without parsing the rest of it."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fmcheck.lint.slices import Cuts

_IMPORT = re.compile(r"import\b")
_FROM = re.compile(r"^[ \t\f]*from\b[ \t.\w]*\Z")
#: What may stand before a statement on its line: another one, or the head of a block.
_STATEMENT_BEFORE = re.compile(r"[;:][ \t]*(?:from\b[ \t.\w]*)?\Z")


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yields each local name that an import makes, with the dotted name that it stands for."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield alias.asname or top, alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def scan_imports(text: str, cuts: Cuts) -> list[ast.stmt] | None:
    """Returns a module's import statements, however deep, in source order.

    None where the text does not settle it: an import that is not at the start of its line.
    """
    if not cuts.certain:
        return None
    statements: list[str] = []
    for match in _IMPORT.finditer(text):
        line = text.rfind("\n", 0, match.start()) + 1
        before = text[line : match.start()]
        if before and (before[-1].isalnum() or before[-1] == "_"):
            continue  # the end of another word
        if before.strip() and not _FROM.match(before):
            is_continued = text.endswith("\\\n", 0, line)
            if is_continued or (_STATEMENT_BEFORE.search(before) and "#" not in before):
                return None
            continue
        number = bisect_right(cuts.strings, (match.start(),)) - 1
        if number >= 0 and match.start() < cuts.strings[number][1]:
            continue
        if text.endswith("\\\n", 0, line):
            return None
        statement = _statement(text, line, match.end())
        if statement is None:
            return None
        statements.append(statement.strip())
    try:
        return ast.parse("\n".join(statements)).body
    except SyntaxError:
        return None


def _statement(text: str, start: int, after: int) -> str | None:
    """Returns the statement from `start` on: its line, or up to the bracket that it opens."""
    end = text.find("\n", after)
    end = len(text) if end < 0 else end
    line = text[start:end]
    code = line.partition("#")[0].rstrip()
    if code.endswith("\\") or ";" in code:
        return None
    if "(" not in code:
        return code
    closing = _closing_bracket(text, start + line.index("(") + 1)
    rest = text[closing : text.find("\n", closing)] if closing else ";"
    return None if ";" in rest else text[start:closing]


def _closing_bracket(text: str, position: int) -> int | None:
    """Returns the offset after the next `)` that is not in a comment."""
    for match in re.compile(r"#[^\n]*|\)").finditer(text, position):
        if match[0] == ")":
            return match.end()
    return None
