"""Faults in the relay: a write that is missing or misplaced, a gather too many."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import libcst as cst

from fmcheck.prove.operators.engine_names import called, is_reset
from fmcheck.prove.operators.mutation_operator import MutationOperator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.prove.operators.engine_names import EngineNames
    from fmcheck.prove.operators.mutant import Fault
    from fmcheck.prove.operators.parsed import ParsedModule, Statement


def _dropped(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for one in tree.statements:
        small = _only(one)
        if one.function.startswith("__"):
            continue
        if isinstance(small, cst.Assign):
            buffer = names.buffer_at(small.targets[0].target)
            buffer = buffer or _bound(small, names)
            if buffer and len(small.targets) == 1:
                yield tree.dropped(one, f"`{buffer}` is not written")
        elif writer := _writes(small, names):
            yield tree.dropped(one, f"`{writer}` is not called")


def _gathered_twice(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for node in tree.nodes:
        what = _gathers(tree, node, names)
        one = tree.statement_of(node)
        function = tree.function_around(node)
        if not what or one is None or function is None or _is_inner(tree, node):
            continue
        if function.name.value not in names.peeks:
            text = tree.text(node)
            # A slice alone is a view, and reads nothing.
            text = f"{text} + 0" if _is_view(node) else text
            yield tree.preceded(one, text, node, f"{what} is gathered twice")


def _swapped(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    calls = [(one, name) for one in tree.statements if (name := _writes(_only(one), names))]
    for (one, first), (other, second) in combinations(calls, 2):
        if one.block is other.block and first != second:
            yield tree.swapped(one.node, other.node, f"`{first}` and `{second}` are swapped")
    if len(names.swappable) < 2:
        return
    for node in tree.every(cst.AssignTarget):
        buffer = names.buffer_at(node.target)
        function = tree.function_around(node)
        if buffer not in names.swappable or function is None or _is_hidden(function.name.value):
            continue
        assert isinstance(node.target, cst.Subscript)
        assert isinstance(node.target.value, cst.Attribute)
        other_buffer = next(name for name in names.swappable if name != buffer)
        yield tree.replaced(
            node.target.value.attr, other_buffer, f"`{other_buffer}` is written for `{buffer}`"
        )


DROP_STASH = MutationOperator("drop-stash", "Relay rows are not written.", _dropped)
GATHER_TWICE = MutationOperator("gather-twice", "Relay rows are gathered twice.", _gathered_twice)
SWAP_PUBLISH_STASH = MutationOperator(
    "swap-publish-stash",
    "Two writes of a step are swapped, or one goes to the other's buffer.",
    _swapped,
)


def _only(one: Statement) -> cst.BaseSmallStatement | None:
    node = one.node
    return (
        node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
    )


def _is_hidden(function: str) -> bool:
    return function.startswith("__")


def _bound(small: cst.Assign, names: EngineNames) -> str:
    """Returns the relay buffer that is given a step's tensor, "" where it is created or let go."""
    target, value = small.targets[0].target, small.value
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        value = value.func.value  # a view of what the step made
    if not isinstance(target, cst.Attribute) or not isinstance(value, cst.Name):
        return ""
    is_made_here = value.value in ("None", "self", "torch")
    return target.attr.value if names.is_bound(target.attr.value) and not is_made_here else ""


def _writes(small: cst.BaseSmallStatement | None, names: EngineNames) -> str:
    """Returns the writer that a statement calls and does nothing else: `publish`, `on_publish`."""
    if not isinstance(small, cst.Expr):
        return ""
    name = called(small.value)
    return name if name.removeprefix("on_") in names.writers else ""


def _gathers(tree: ParsedModule, node: cst.CSTNode, names: EngineNames) -> str:
    """Returns what an expression gathers, "" if it gathers nothing."""
    if isinstance(node, cst.Subscript):
        if isinstance(tree.parent(node), cst.AssignTarget) or is_reset(tree, node):
            return ""
        function = tree.function_around(node)
        buffer = names.buffer_at(node, "" if function is None else function.name.value)
        return f"`{buffer}`" if buffer else ""
    name = called(node)
    return f"what `{name}` reads" if name in names.readers | names.kernels else ""


def _is_view(node: cst.CSTNode) -> bool:
    """Tells whether an expression takes a slice of rows."""
    return isinstance(node, cst.Subscript) and isinstance(node.slice[0].slice, cst.Slice)


def _is_inner(tree: ParsedModule, node: cst.CSTNode) -> bool:
    """Tells whether an expression may not be evaluated just once, ahead of its statement."""
    kinds = (cst.Lambda, cst.BaseComp, cst.IfExp, cst.BooleanOperation, cst.Decorator)
    for outer in tree.around(node):
        if isinstance(outer, cst.BaseSmallStatement):
            return False
        if isinstance(outer, kinds):
            return True
    return False
