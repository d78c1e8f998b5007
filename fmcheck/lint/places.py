"""Places: where the nodes of a tree stand in its text, brackets around them told apart from theirs.

A place is a stretch of offsets. Nodes know it as one of: a node of `ast`; a pair of offsets; a pair
of nodes, the first and the last part; or a node of `ast` and how many of its last characters.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fmcheck.lint.nodes import walk
from fmcheck.lint.source import line_starts
from fmcheck.lint.tree import BaseExpression, CSTNode

if TYPE_CHECKING:
    from collections.abc import Sequence

_AFTER = re.compile(r"(?:\s|\\\n|#[^\n]*)*")
_OPENED = re.compile(r"\([ \t]*#[^\n]*$")


class Places:
    """The places in a text whose lines end in `\\n`.

    The lines of `parsed`, its tree, are by `moved` further down than its own.
    """

    def __init__(self, text: str, parsed: ast.Module, moved: int) -> None:
        self.text = text
        self._parsed = parsed
        self._moved = moved
        self._is_ascii = text.isascii()
        self._starts = line_starts(text)

    def _offset(self, line: int, column: int) -> int:
        """Returns the offset of one of `ast`'s places, whose columns count bytes."""
        line -= self._moved
        start = self._starts[line - 1]
        if self._is_ascii:
            return start + column
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        found = self.text[start:end]
        if found.isascii():
            return start + column
        return start + len(found.encode()[:column].decode(errors="replace"))

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Returns line and column of an offset, both from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def of(self, at: Any) -> tuple[int, int]:
        """Returns the stretch of a place, of a node or of a node of `ast`, brackets left out."""
        if isinstance(at, CSTNode):
            return self.of(at.at)
        if isinstance(at, tuple):
            first, last = at
            if isinstance(first, CSTNode):
                return self.whole(first)[0], self.whole(last)[1]
            if isinstance(first, ast.AST):
                end = self._stretch(first)[1]
                return end - last, end
            return first, last
        if at is None:
            return 0, len(self.text)
        start, end = self._stretch(at)
        is_bracketed = isinstance(at, ast.GeneratorExp) or (
            isinstance(at, ast.Tuple) and self.has_own_brackets(at)
        )
        return self._inside(start, end) if is_bracketed else (start, end)

    def _stretch(self, node: Any) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _inside(self, start: int, end: int) -> tuple[int, int]:
        """Returns a bracketed stretch without its brackets and the spaces in them."""
        match = _AFTER.match(self.text, start + 1)
        assert match is not None
        inner = self.text[match.end() : end - 1]
        return match.end(), match.end() + len(inner.rstrip())

    def text_at(self, node: ast.AST) -> str:
        """Returns the source of a node of `ast`."""
        start, end = self._stretch(node)
        return self.text[start:end]

    def whole(self, node: CSTNode) -> tuple[int, int]:
        """Returns the stretch of a node with the brackets around it that are its own."""
        if not isinstance(node, BaseExpression):
            return self.of(node)
        bare = vars(node).get("bare", 0)
        at = node.at
        if isinstance(at, ast.GeneratorExp):
            start, end = self._stretch(at)
            if bare and self.text[self._before(start)] != "(":
                return self._inside(start, end)
        elif isinstance(at, ast.Tuple):
            start, end = self._stretch(at)
        else:
            start, end = self.of(at)
        return self._bracketed(start, end, bare)

    def code(self, node: CSTNode) -> str:
        """Returns the source of a node, less what its lines are indented by as a statement's."""
        start, end = self.whole(node)
        found = self.text[start:end]
        if "\n" not in found or '"""' in found or "'''" in found:
            return found
        indent = self._indent_at(start)
        return found.replace(f"\n{indent}", "\n") if indent else found

    def _bracketed(self, start: int, end: int, bare: int = 0) -> tuple[int, int]:
        found = [(start, end)]
        while True:
            before, after = self._before(start), self._after(end)
            if before < 0 or self.text[before] != "(" or self.text[after : after + 1] != ")":
                break
            start, end = before, after + 1
            found.append((start, end))
        return found[max(len(found) - 1 - bare, 0)]

    def _before(self, at: int) -> int:
        """Returns the offset of what stands before, spaces and comments left out; -1 if nothing."""
        text, at = self.text, at - 1
        while at >= 0:
            if text[at] in " \t\f":
                at -= 1
            elif text[at] == "\n":
                start = text.rfind("\n", 0, at) + 1
                line = text[start:at]
                opened = _OPENED.search(line)
                if opened is not None:
                    return start + opened.start()
                if line.lstrip().startswith("#"):
                    at = start - 1
                else:
                    at -= 2 if line.endswith("\\") else 1
            else:
                return at
        return -1

    def _after(self, at: int) -> int:
        match = _AFTER.match(self.text, at)
        return match.end() if match else at

    def has_own_brackets(self, node: ast.Tuple) -> bool:
        """Tells whether the bracket that a tuple starts with is around all of it."""
        start, _ = self._stretch(node)
        if self.text[start : start + 1] != "(":
            return False
        return not node.elts or self._bracketed(*self._stretch(node.elts[0]))[0] > start

    def starts_line(self, node: ast.stmt) -> bool:
        """Tells whether nothing but spaces stands before a statement on its line."""
        start = self._starts[node.lineno - 1 - self._moved]
        return not self.text[start : start + node.col_offset].strip()

    def is_elif(self, node: ast.stmt) -> bool:
        """Tells whether a statement is written as an `elif`."""
        return isinstance(node, ast.If) and self.text.startswith("elif", self._stretch(node)[0])

    def name_after(self, node: ast.stmt, word: str, name: str) -> tuple[int, int]:
        """Returns the place of the name that a `def` or a `class` gives."""
        return self.next_name(self._stretch(node)[0], word, name)

    def next_name(self, start: int, word: str, name: str) -> tuple[int, int]:
        """Returns the place of a name that stands after a word, which stands after an offset."""
        found = self.text.find(name, self.text.find(word, start) + len(word))
        return (found, found + len(name)) if found >= 0 else (start, start)

    def parsed(self, code: str, start: int) -> ast.expr:
        """Parses an expression that stands at an offset, as if it stood alone.

        Raises:
            SyntaxError: if it is none.
        """
        found = ast.parse(f"({code})", mode="eval").body
        line, column = self.line_and_column(start)
        before = self.text[self._starts[line - 1] : self._starts[line - 1] + column - 1]
        # One for the bracket that is ours.
        moved = len(before.encode()) - 1
        for node in ast.walk(found):
            if isinstance(node, (ast.expr, ast.keyword, ast.arg)):
                if node.lineno == 1:
                    node.col_offset += moved
                if node.end_lineno == 1 and node.end_col_offset is not None:
                    node.end_col_offset += moved
                node.lineno += line - 1 + self._moved
                node.end_lineno = (node.end_lineno or 1) + line - 1 + self._moved
        return found

    @cached_property
    def _indents(self) -> tuple[Sequence[int], Sequence[str]]:
        """The offsets of statements in order, and what each is indented by."""
        found = {}
        for node in walk(self._parsed):
            if isinstance(node, ast.stmt):
                decorators = getattr(node, "decorator_list", [])
                first = min(one.lineno for one in (node, *decorators)) - self._moved
                start = self._starts[first - 1]
                line = self.text[start : self._after(start)]
                found[start] = line.rpartition("\n")[2]
        return sorted(found), [found[at] for at in sorted(found)]

    def _indent_at(self, offset: int) -> str:
        starts, indents = self._indents
        at = bisect_right(starts, offset) - 1
        return indents[at] if at >= 0 else ""
