"""Faults in graph inputs: a reset that is dropped, comes too late, or covers too little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fmcheck.prove.operators.engine_names import RESETS, called, constant, last_name, owner_of
from fmcheck.prove.operators.mutation_operator import MutationOperator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.prove.operators.engine_names import EngineNames
    from fmcheck.prove.operators.mutant import Fault
    from fmcheck.prove.operators.parsed import ParsedModule, Statement


def _dropped(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for one, name, _ in _resets(tree, names):
        yield tree.dropped(one, f"`{name}` is not reset")
    for policy, name, stale in _policies(tree, names):
        yield tree.replaced(policy, stale, f"the policy of `{name}` keeps its tail")


def _cleared_late(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for one, name, whole in _resets(tree, names):
        if not whole:
            continue  # a tail that is cleared late is cleared all the same
        copies = [other for other in tree.statements if _copies(tree, other, one, name)]
        if copies:
            yield tree.moved_after(one, copies[-1], f"`{name}` is cleared after it was filled")


def _narrowed(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for one, name, _ in _resets(tree, names):
        for part in _slices(tree, one):
            if part.lower is not None:
                text = f"{tree.text(part.lower)} + 1"
                yield tree.replaced(
                    part.lower, text, f"the reset of `{name}` starts one entry too late"
                )


DROP_RESET = MutationOperator(
    "drop-reset", "A graph input's tail is not reset, or its slot keeps it.", _dropped
)
CLEAR_AFTER_COPY = MutationOperator(
    "clear-after-copy", "A graph input is cleared after it was filled.", _cleared_late
)
NARROW_RESET = MutationOperator(
    "narrow-reset", "The reset of a tail starts one entry too late.", _narrowed
)


def _resets(tree: ParsedModule, names: EngineNames) -> Iterator[tuple[Statement, str, bool]]:
    """Yields statements that reset an input, the input's name, and whether they reset all of it.

    In the module that defines a class of slots, the reset of any slice is that of a slot's tail.
    """
    registry = any(one.name.value in names.slots for one in tree.every(cst.ClassDef))
    for one in tree.statements:
        receiver = _receiver(one)
        if receiver is None or one.function.startswith("__"):
            continue
        name = last_name(receiver)
        if names.is_input(name, owner_of(receiver)):
            yield one, name, not _is_cut(receiver)
        elif registry and one.function and any(_slices(tree, one)):
            yield one, name, False


def _receiver(one: Statement) -> cst.BaseExpression | None:
    """Returns what a statement resets as a whole: `X` of `X.zero_()`, `X[...]` of `X[...] = 0`."""
    small = _only(one)
    if isinstance(small, cst.Expr) and called(small.value) in RESETS:
        assert isinstance(small.value, cst.Call)
        function = small.value.func
        return function.value if isinstance(function, cst.Attribute) else None
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
        if isinstance(target, cst.Subscript) and _is_number(small.value):
            return target
    return None


def _only(one: Statement) -> cst.BaseSmallStatement | None:
    node = one.node
    return (
        node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
    )


def _is_number(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        node = node.expression
    return isinstance(node, cst.Integer)


def _is_cut(node: cst.BaseExpression) -> bool:
    """Tells whether an expression is a part of a buffer: with `[:]` or a name it is the whole."""
    while isinstance(node, cst.Subscript):
        part = node.slice[0].slice
        whole = isinstance(part, cst.Slice) and part.lower is None and part.upper is None
        name = isinstance(part, cst.Index) and bool(constant(part))
        if not whole and not name:
            return True
        node = node.value
    return False


def _copies(tree: ParsedModule, other: Statement, reset: Statement, name: str) -> bool:
    """Tells whether a statement fills the input, later in the reset's own function."""
    small = _only(other)
    if small is None or tree.span(other.node) <= tree.span(reset.node):
        return False
    if tree.function_around(other.node) is not tree.function_around(reset.node):
        return False
    target: cst.BaseExpression | None = None
    if isinstance(small, cst.Expr) and called(small.value) == "copy_":
        assert isinstance(small.value, cst.Call)
        function = small.value.func
        target = function.value if isinstance(function, cst.Attribute) else None
    elif isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Subscript):
        target = None if _is_number(small.value) else small.targets[0].target
    return target is not None and last_name(target) == name


def _policies(
    tree: ParsedModule, names: EngineNames
) -> Iterator[tuple[cst.BaseExpression, str, str]]:
    """Yields policies that reset a tail, the slot's name, and a policy that does not.

    A policy is an attribute of its enumeration, `Padding.ZERO`.
    """
    for call in tree.every(cst.Call):
        given = names.slots.get(called(call))
        name = next((text for arg in call.args if (text := constant(arg.value))), "")
        if given is None or not names.is_input(name):
            continue
        argument, default, stale = given
        for arg in call.args:
            if arg.keyword is None or arg.keyword.value != argument:
                continue
            if isinstance(arg.value, cst.Attribute) and arg.value.attr.value not in stale:
                yield arg.value, name, f"{tree.text(arg.value.value)}.{default}"


def _slices(tree: ParsedModule, one: Statement) -> Iterator[cst.Slice]:
    """Yields the slice that says where a reset begins: its own, or that of the name it resets."""
    receiver = _receiver(one)
    if isinstance(receiver, cst.Subscript):
        yield from _own_slices(receiver)
    elif isinstance(receiver, cst.Name):
        function = tree.function_around(one.node)
        for assign in tree.every(cst.Assign):
            target = assign.targets[0].target
            if (
                isinstance(target, cst.Name)
                and target.value == receiver.value
                and isinstance(assign.value, cst.Subscript)
                and tree.function_around(assign) is function
            ):
                yield from _own_slices(assign.value)


def _own_slices(node: cst.Subscript) -> Iterator[cst.Slice]:
    part = node.slice[0].slice
    if isinstance(part, cst.Slice):
        yield part
