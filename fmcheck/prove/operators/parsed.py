"""A module as the operators see it: its statements with their places, blocks and functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from fmcheck.finding import Edit, Span
from fmcheck.lint.source import split_lines
from fmcheck.prove.operators.mutant import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

N = TypeVar("N", bound=cst.CSTNode)
Block = cst.IndentedBlock | cst.Module


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement in a block, with the index that it has there.

    `function` and `owner` are the names of the innermost function and class around it, "" for none.
    """

    node: cst.SimpleStatementLine | cst.BaseCompoundStatement
    block: Block
    index: int
    function: str
    owner: str


class ParsedModule:
    """A parsed module. `path` is the file's path from the import root, for the contract's globs."""

    def __init__(self, source: str, path: str) -> None:
        self.path = path
        self.source = source
        self._lines = split_lines(source)
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
        self.module = wrapper.module
        self._places = wrapper.resolve(PositionProvider)
        self._parents: Mapping[cst.CSTNode, cst.CSTNode] = wrapper.resolve(ParentNodeProvider)

    # --- places ---

    def span(self, node: cst.CSTNode) -> Span:
        """Returns where a node stands; a statement without its comment and its line's end."""
        at = self._places[node]
        start, end = at.start, at.end
        return Span(start.line, start.column + 1, end.line, end.column + 1)

    def text(self, node: cst.CSTNode) -> str:
        """Returns a node's source, as it is written."""
        span = self.span(node)
        lines = self._lines[span.line - 1 : span.end_line]
        lines[-1] = lines[-1][: span.end_column - 1]
        lines[0] = lines[0][span.column - 1 :]
        return "".join(lines)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Returns the node around a node."""
        return self._parents.get(node)

    def around(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yields the nodes around a node, the innermost first."""
        at = self.parent(node)
        while at is not None:
            yield at
            at = self.parent(at)

    # --- what there is ---

    @cached_property
    def nodes(self) -> Sequence[cst.CSTNode]:
        """All nodes in the order of the source, one ahead of what is in it."""
        return tuple(sorted(filter(self._places.__contains__, self._parents), key=self._order))

    def _order(self, node: cst.CSTNode) -> tuple[int, int, int, int]:
        at = self._places[node]
        return at.start.line, at.start.column, -at.end.line, -at.end.column

    def every(self, kind: type[N]) -> Iterator[N]:
        """Yields all nodes of a kind, in the order of the source."""
        for node in self.nodes:
            if isinstance(node, kind):
                yield node

    @cached_property
    def statements(self) -> Sequence[Statement]:
        """All statements that stand in blocks with lines of their own, in order."""
        blocks: list[Block] = [self.module, *self.every(cst.IndentedBlock)]
        found = [one for block in blocks for one in self._statements(block)]
        return sorted(found, key=lambda one: self.span(one.node))

    @cached_property
    def _by_node(self) -> Mapping[cst.CSTNode, Statement]:
        return {one.node: one for one in self.statements}

    def _statements(self, block: Block) -> Iterator[Statement]:
        function = owner = ""
        for outer in self.around(block):
            if isinstance(outer, cst.FunctionDef) and not owner:
                function = function or outer.name.value
            elif isinstance(outer, cst.ClassDef):
                owner = owner or outer.name.value
        for index, one in enumerate(block.body):
            yield Statement(one, block, index, function, owner)  # type: ignore[arg-type]

    def statement_of(self, node: cst.CSTNode) -> Statement | None:
        """Returns the simple statement that a node is part of; None in a compound one's head."""
        for outer in (node, *self.around(node)):
            if isinstance(outer, cst.BaseCompoundStatement):
                return None
            if outer in self._by_node:
                return self._by_node[outer]
        return None

    def enclosing(self, one: Statement) -> Statement | None:
        """Returns the statement whose block holds `one`, unless that is a function or a class."""
        for outer in self.around(one.block):
            if isinstance(outer, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
                return None
            if outer in self._by_node:
                return self._by_node[outer]
        return None

    def siblings(self, one: Statement) -> Sequence[Statement]:
        """Returns the statements of the block in which `one` stands, `one` included."""
        return [self._by_node[node] for node in one.block.body if node in self._by_node]

    def function_around(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Returns the innermost function around a node."""
        return next((one for one in self.around(node) if isinstance(one, cst.FunctionDef)), None)

    def function_at(self, line: int) -> str:
        """Returns the innermost function around a line, `Class.method`; "" at the top."""
        kinds = (cst.FunctionDef, cst.ClassDef)
        outer = [node for node in self.nodes if isinstance(node, kinds) and self._holds(node, line)]
        return ".".join(node.name.value for node in outer)

    def _holds(self, node: cst.CSTNode, line: int) -> bool:
        span = self.span(node)
        return span.line <= line <= span.end_line

    # --- faults ---

    def replaced(self, node: cst.CSTNode, text: str, title: str) -> Fault:
        """Plants `text` where a node stands."""
        span = self.span(node)
        return Fault(span, _single(self.text(node)), title, (Edit(span, text),))

    def dropped(self, one: Statement, title: str) -> Fault:
        """Plants `pass` where a statement stands."""
        return self.replaced(one.node, "pass", title)

    def preceded(self, one: Statement, text: str, node: cst.CSTNode, title: str) -> Fault:
        """Plants a line of `text` ahead of a statement, for the sake of `node` in it."""
        return Fault(self.span(node), _single(self.text(node)), title, (self._before(one, text),))

    def moved_before(self, moved: Sequence[Statement], target: Statement, title: str) -> Fault:
        """Plants statements of one block ahead of an earlier one."""
        texts = [self.text(one.node) for one in moved]
        last = moved[-1].node
        edits = [self._before(target, self._joined(texts, target))]
        edits += [Edit(self.span(one.node), "pass") for one in moved]
        return Fault(self.span(last), _single(self.text(last)), title, tuple(edits))

    def moved_after(self, moved: Statement, target: Statement, title: str) -> Fault:
        """Plants a statement behind another."""
        text = self.text(moved.node)
        line = self._last_line(target.node)
        written = self._lines[line - 1].rstrip("\r\n")
        place = Span(line, len(written) + 1, line, len(written) + 1)
        edits = (
            Edit(self.span(moved.node), "pass"),
            Edit(place, f"\n{self._indent(target)}{text}"),
        )
        return Fault(self.span(moved.node), _single(text), title, edits)

    def swapped(self, one: cst.CSTNode, other: cst.CSTNode, title: str) -> Fault:
        """Plants each of two nodes in the other's place."""
        edits = (
            Edit(self.span(one), self.text(other)),
            Edit(self.span(other), self.text(one)),
        )
        return Fault(self.span(one), _single(self.text(one)), title, edits)

    def _before(self, target: Statement, text: str) -> Edit:
        span = self.span(target.node)
        line, column = span.line, span.column
        # A decorator stands ahead of what PositionProvider calls a function's start: none is here,
        # for nothing is moved ahead of a definition.
        return Edit(Span(line, column, line, column), f"{text}\n{self._indent(target)}")

    def _joined(self, texts: Sequence[str], target: Statement) -> str:
        return f"\n{self._indent(target)}".join(texts)

    def _indent(self, one: Statement) -> str:
        span = self.span(one.node)
        return self._lines[span.line - 1][: span.column - 1]

    def _last_line(self, node: cst.CSTNode) -> int:
        return max(self.span(one).end_line for one in _walk(node) if _is_small(one))


def _is_small(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.BaseSmallStatement)


def _single(text: str) -> str:
    return " ".join(text.split())


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
