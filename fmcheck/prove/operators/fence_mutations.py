"""Faults in the order of streams: a wait that is missing or late, a record that comes early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fmcheck.prove.operators.engine_names import called, last_name
from fmcheck.prove.operators.mutation_operator import MutationOperator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.prove.operators.engine_names import EngineNames
    from fmcheck.prove.operators.mutant import Fault
    from fmcheck.prove.operators.parsed import ParsedModule, Statement

WAITS = ("wait", "wait_event", "wait_stream", "synchronize")
RECORDS = ("record", "record_event")
#: A module that says none of these has no streams.
STREAM_WORDS = ("Stream", "Event", "get_device_module", "current_stream", "wait_stream")
_COPIES = ("copy_", "to", "cpu")


def _dropped(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for one in _calling(tree, WAITS):
        yield tree.dropped(one, f"`{_text(tree, one)}` is dropped")


def _late(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for one in _calling(tree, (*WAITS, *_wrappers(tree, WAITS))):
        later = [other for other in tree.siblings(one) if other.index > one.index]
        while later and _leaves(later[-1]):
            later.pop()
        if later:
            yield tree.moved_after(
                one, later[-1], f"`{_text(tree, one)}` is moved after the access"
            )


def _early(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for one in _calling(tree, (*RECORDS, *_wrappers(tree, RECORDS))):
        moved, target = _ahead_of_writes(tree, one, names)
        if target is not None:
            yield tree.moved_before(
                moved, target, f"`{_text(tree, one)}` is moved before the write"
            )


DROP_WAIT = MutationOperator("drop-wait", "A stream, or the host, does not wait.", _dropped)
MOVE_WAIT = MutationOperator("move-wait", "A wait is moved after the access that it orders.", _late)
RECORD_EARLY = MutationOperator(
    "record-early", "An event is recorded before the write that it signals.", _early
)


def _calling(tree: ParsedModule, functions: Sequence[str]) -> Iterator[Statement]:
    """Yields the statements that only call one of these, in a module with streams."""
    if not any(word in tree.source for word in STREAM_WORDS):
        return
    for one in tree.statements:
        call = _call(one)
        if call is not None and isinstance(call.func, cst.Attribute) and called(call) in functions:
            yield one


def _call(one: Statement) -> cst.Call | None:
    node = one.node
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return None
    small = node.body[0]
    return (
        small.value if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) else None
    )


def _wrappers(tree: ParsedModule, functions: Sequence[str]) -> tuple[str, ...]:
    """Returns the methods of the module that call one of these in a statement of their own."""
    return tuple({one.function for one in _calling(tree, functions)} - {"", *WAITS, *RECORDS})


def _ahead_of_writes(
    tree: ParsedModule, one: Statement, names: EngineNames
) -> tuple[Sequence[Statement], Statement | None]:
    """Returns what to move, and ahead of which earlier statement: of the last write before it.

    The statement that makes the event goes along. Where its own block writes nothing before, the
    statement around that block is moved.
    """
    unit: Statement | None = one
    event = _event(one)
    while unit is not None:
        before = [other for other in tree.siblings(unit) if other.index < unit.index]
        made = [other for other in before if event and _makes(other, event)]
        writes = [other for other in before if other not in made and _writes(other, names)]
        if writes:
            along = [other for other in made if other.index > writes[-1].index]
            return (*along, unit), writes[-1]
        unit = tree.enclosing(unit)
        if unit is not None and isinstance(unit.node, (cst.With, cst.For, cst.While, cst.Try)):
            return (), None
    return (), None


def _event(one: Statement) -> str:
    call = _call(one)
    if call is None or not isinstance(call.func, cst.Attribute):
        return ""
    if called(call) == "record":
        return last_name(call.func.value)
    return ""


def _makes(one: Statement, event: str) -> bool:
    """Tells whether a statement binds the event, at whatever depth."""
    return any(
        isinstance(node, cst.AssignTarget) and last_name(node.target) == event
        for node in _inside(one.node)
    )


def _writes(one: Statement, names: EngineNames) -> bool:
    for node in _inside(one.node):
        if called(node) in _COPIES or called(node).removeprefix("on_") in names.writers:
            return True
        if isinstance(node, cst.AssignTarget) and names.buffer_at(node.target):
            return True
    return False


def _leaves(one: Statement) -> bool:
    node = one.node
    return isinstance(node, cst.SimpleStatementLine) and isinstance(
        node.body[-1], (cst.Return, cst.Raise, cst.Break, cst.Continue, cst.Pass)
    )


def _inside(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _inside(child)


def _text(tree: ParsedModule, one: Statement) -> str:
    return " ".join(tree.text(one.node).split())
