"""A block: the stretch of a module that a rule is handed, as a tree with places."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fmcheck.finding import Edit, Finding, Severity, Span
from fmcheck.lint import tree
from fmcheck.lint.module import extent

if TYPE_CHECKING:
    from collections.abc import Sequence

    import libcst

    from fmcheck.lint.facts import ModuleFacts
    from fmcheck.lint.grow import Tree
    from fmcheck.lint.newer import Copied
    from fmcheck.lint.rule import Rule
    from fmcheck.lint.tree import CSTNode


#: Statements that share no line with another one.
_WHOLE_LINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Block:
    """Source lines of one function, class or module, parsed when first looked at.

    What is indented (`is_nested`: a method) is parsed inside an `if` of ours: columns stay those of
    the file, and lines are moved by `_shift`. A function or class that is parsed already is taken
    as it is, in the lines of the file.
    """

    def __init__(
        self,
        facts: ModuleFacts,
        lines: Sequence[str],
        first_line: int,
        parsed: ast.stmt | None = None,
    ) -> None:
        self.facts = facts
        self._lines = lines
        self._parsed = parsed if isinstance(parsed, _WHOLE_LINES) else None
        self.first_line = first_line
        self.is_nested = _is_indented(lines)
        self._text = "".join(["if True:\n", *lines] if self.is_nested else lines)
        self._shift = first_line - (2 if self.is_nested else 1)
        #: How far the lines of `syntax` are from those of the text.
        self._moved = 0 if self._parsed is None else self._shift

    @property
    def path(self) -> str:
        """The file's path, as findings name it."""
        return self.facts.path

    @property
    def identity(self) -> str:
        """Which file of an engine the block is in, for the contracts."""
        return self.facts.identity

    @property
    def last_line(self) -> int:
        """The block's last line in the file."""
        return self.first_line + len(self._lines) - 1

    @classmethod
    def at(
        cls, facts: ModuleFacts, first_line: int, last_line: int, parsed: ast.stmt | None = None
    ) -> Block:
        """Returns the block of these lines of a module, the same one whoever asks.

        `parsed` is what stands there, where somebody has parsed it.
        """
        key = first_line, last_line
        found = facts.blocks.get(key)
        if found is None:
            lines = facts.module.lines[first_line - 1 : last_line]
            found = facts.blocks[key] = Block(facts, lines, first_line, parsed)
        return found

    def part(self, first_line: int, last_line: int) -> Block:
        """Returns a smaller block: whole statements of this one, by their lines in the file."""
        start = first_line - self.first_line
        return Block(self.facts, self._lines[start : last_line - self.first_line + 1], first_line)

    @cached_property
    def syntax(self) -> ast.Module:
        """The block by `ast`; its lines are not the file's."""
        node = self._parsed
        if node is None:
            return ast.parse(self._text)
        return ast.Module([self._indented(node) if self.is_nested else node], [])

    def _indented(self, node: ast.stmt) -> ast.If:
        """Returns a parsed statement inside the `if` of ours."""
        line = self.first_line - 1
        test = ast.Constant(True, lineno=line, col_offset=3, end_lineno=line, end_col_offset=7)
        place = {"end_lineno": node.end_lineno, "end_col_offset": node.end_col_offset}
        found = ast.If(test, [node], [], lineno=line, col_offset=0)
        vars(found).update(place)
        return found

    def part_of(self, node: ast.stmt) -> Block:
        """Returns the block of one statement of `syntax`, decorators included."""
        first, last = extent(node)
        up = self._shift - self._moved
        return Block.at(self.facts, first + up, last + up, None if up else node)

    @cached_property
    def _tree(self) -> Tree | Copied:
        try:
            parsed = self.syntax
        except SyntaxError:
            # Newer grammar than the interpreter's: `engine` has seen to it that libcst knows it.
            from fmcheck.lint.newer import Copied

            found: Tree | Copied = Copied(self._text)
        else:
            from fmcheck.lint.grow import Tree

            found = Tree(parsed, self._text, self._moved)
        self.facts.grown.append(found)
        return found

    @cached_property
    def module(self) -> libcst.Module:
        """The block's tree; CstError where nobody parses it."""
        found: Any = self._tree.module
        assert found is not None
        return found  # type: ignore[no-any-return]

    def span(self, node: libcst.CSTNode) -> Span:
        """Returns where `node`, which is of this block, stands in the file."""
        assert _own(node).order is self._tree.order
        line, column, last_line, last_column = self._tree.span(_own(node))
        return Span(line + self._shift, column, last_line + self._shift, last_column)

    def code(self, node: libcst.CSTNode) -> str:
        """Returns the source text of `node`, whatever block it is of."""
        code: str = _own(node).order.owner.code(node)
        return code

    def nodes(self, root: libcst.CSTNode | None = None) -> Sequence[libcst.CSTNode]:
        """Returns every node of the block, or of `root`, in source order."""
        return walk(self.module if root is None else root)

    def finding(
        self,
        rule: Rule,
        node: libcst.CSTNode,
        message: str,
        *,
        help: str = "",
        severity: Severity | None = None,
        related: Sequence[tuple[libcst.CSTNode, str]] = (),
        edits: Sequence[Edit] = (),
        safe: bool = True,
    ) -> Finding:
        """Makes a finding of `rule` at `node`."""
        return Finding(
            path=self.path,
            span=self.span(node),
            code=rule.code,
            severity=severity or rule.severity,
            message=message,
            help=help,
            related=tuple((self.span(other), text) for other, text in related),
            edits=tuple(edits),
            safe=safe,
        )


def walk(root: libcst.CSTNode) -> Sequence[libcst.CSTNode]:
    """Returns `root` and all below it in source order."""
    found: Any = tree.walk(_own(root))
    return found  # type: ignore[no-any-return]


def _own(node: libcst.CSTNode) -> CSTNode:
    """Takes a node for what it is: type checkers are told that it is libcst's."""
    found: Any = node
    return found  # type: ignore[no-any-return]


def _is_indented(lines: Sequence[str]) -> bool:
    """Tells whether the first of the lines that is neither blank nor a comment is indented."""
    for line in lines:
        code = line.lstrip()
        if code and not code.startswith("#"):
            # A form feed sets the column back to the first.
            return not line[: -len(code)].endswith("\f") and code != line
    return False
