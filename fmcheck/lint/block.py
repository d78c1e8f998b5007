"""A block: the stretch of a module that a rule is handed, as a libcst tree with places."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fmcheck.finding import Edit, Finding, Severity, Span
from fmcheck.lint.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import libcst
    from libcst.metadata import CodeRange

    from fmcheck.lint.facts import ModuleFacts
    from fmcheck.lint.rule import Rule


class CstError(Exception):
    """libcst rejects what `ast` accepts."""


class Block:
    """Source lines of one function, class or module, parsed by libcst when first looked at.

    What is indented (`is_nested`: a method) is parsed inside an `if` of ours: columns stay those of
    the file, and lines are moved by `_shift`.
    """

    def __init__(self, facts: ModuleFacts, lines: Sequence[str], first_line: int) -> None:
        self.facts = facts
        self._lines = lines
        self.first_line = first_line
        self.is_nested = bool(lines) and lines[0][:1].isspace()
        self._text = "".join(["if True:\n", *lines] if self.is_nested else lines)
        self._shift = first_line - (2 if self.is_nested else 1)

    @property
    def path(self) -> str:
        """The file's path, as findings name it."""
        return self.facts.path

    @property
    def last_line(self) -> int:
        """The block's last line in the file."""
        return self.first_line + len(self._lines) - 1

    def part(self, first_line: int, last_line: int) -> Block:
        """Returns a smaller block: whole statements of this one, by their lines in the file."""
        start = first_line - self.first_line
        return Block(self.facts, self._lines[start : last_line - self.first_line + 1], first_line)

    @cached_property
    def syntax(self) -> ast.Module:
        """The block by `ast`, in a twentieth of libcst's time; its lines are not the file's."""
        return ast.parse(self._text)

    def part_of(self, node: ast.stmt) -> Block:
        """Returns the block of one statement of `syntax`, decorators included."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        last = node.end_lineno or node.lineno
        return self.part(first + self._shift, last + self._shift)

    @cached_property
    def module(self) -> libcst.Module:
        """The block as a libcst module; CstError where `ast` and libcst disagree."""
        try:
            tree: libcst.Module = cst.parse_module(self._text)
        except cst.ParserSyntaxError as err:
            raise CstError(f"libcst cannot parse this: {err.message}") from err
        return tree

    @cached_property
    def _ranges(self) -> dict[libcst.CSTNode, CodeRange]:
        from libcst.metadata import MetadataWrapper, PositionProvider

        # Positions cost twice the parse: asked for only once there is something to report.
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        return dict(wrapper.resolve(PositionProvider))

    def span(self, node: libcst.CSTNode) -> Span:
        """Returns where `node` stands in the file."""
        found = self._ranges[node]
        return Span(
            found.start.line + self._shift,
            found.start.column + 1,
            found.end.line + self._shift,
            found.end.column + 1,
        )

    def code(self, node: libcst.CSTNode) -> str:
        """Returns the source text of `node`."""
        return self.module.code_for_node(node)

    def nodes(self, root: libcst.CSTNode | None = None) -> Iterator[libcst.CSTNode]:
        """Yields every node of the block that is not whitespace, in source order."""
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


#: The fields of each class of node, last first; `_NO_NODE` for what is no node.
_FIELDS: dict[type, tuple[str, ...]] = {}
_NO_NODE = ("",)
_SKIPPED = ("whitespace", "leading_lines", "lpar", "rpar", "semicolon", "comma", "header", "footer")


def _fields(kind: type) -> tuple[str, ...]:
    if not issubclass(kind, cst.CSTNode):
        return _NO_NODE
    names = getattr(kind, "__dataclass_fields__", {})
    return tuple(name for name in names if not name.startswith(_SKIPPED))[::-1]


def walk(root: libcst.CSTNode) -> Iterator[libcst.CSTNode]:
    """Yields `root` and all below it in source order, whitespace and punctuation left out.

    An explicit stack over the fields: libcst's visitors cost ten times as much.
    """
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        kind = node.__class__
        if kind is list or kind is tuple:
            stack += node[::-1]
            continue
        fields = _FIELDS.get(kind)
        if fields is None:
            fields = _FIELDS[kind] = _fields(kind)
        if fields is not _NO_NODE:
            yield node
            for name in fields:
                value = getattr(node, name)
                if value is not None and value.__class__ is not str:
                    stack.append(value)
