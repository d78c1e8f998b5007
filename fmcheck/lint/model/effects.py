"""Effects: what a call of a function does for its caller, followed through the file.

Followed so far and no further: a function that calls itself, or a chain that is longer, is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.lint.lazy import cst
from fmcheck.lint.model.streams import ANYTHING, HOST, goes_to_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.lint.model.function import Function
    from fmcheck.lint.model.streams import Streams

#: How many calls are followed, one from another.
MOST_CALLS = 3


@dataclass(frozen=True, slots=True)
class Effects:
    """`waits`: each call of it waits on the host. `copy`: what it returns is copied to the host.

    The copy is one that nothing in the function waits for.
    """

    waits: bool = False
    copy: cst.Call | None = None


UNKNOWN = Effects()


def effects(function: Function, followed: int = 0) -> Effects:
    """Returns what a call of a function does for its caller; nothing where that is unknown."""
    if function.effects is None:
        function.effects = UNKNOWN  # of one that calls itself
        if followed < MOST_CALLS:
            function.effects = _effects(function, followed)
    return function.effects


def _effects(function: Function, followed: int) -> Effects:
    streams = function.streams()
    waits = [one.node for one in streams.waits if one.waiter in (HOST, ANYTHING)]
    for call in function.calls:
        callee = function.called(call)
        if callee is not None and effects(callee, followed + 1).waits:
            waits.append(call)
    flow = function.flow
    reached = [one for one in waits if flow.contains(one)]
    is_waiting = bool(reached) and flow.any_on_every_path(reached)
    return Effects(is_waiting, None if waits else _returned_copy(function, streams))


def _returned_copy(function: Function, streams: Streams) -> cst.Call | None:
    """Returns the copy to the host that each return of a function gives."""
    returns = [node.value for node in function.nodes if isinstance(node, cst.Return)]
    copies = {one.node: one for one in streams.copies if one.target is None}
    found: list[cst.Call] = []
    for value in returns:
        given = [one for one in _values(value, function) if isinstance(one, cst.Call)]
        copied = [one for one in given if one in copies and goes_to_host(one)]
        if not given or len(copied) != len(given):
            return None
        found += copied
    return found[0] if found else None


def _values(value: cst.CSTNode | None, function: Function) -> Iterator[cst.CSTNode]:
    """Yields what an expression is, or what its name is bound to."""
    if isinstance(value, cst.Name):
        yield from function.names.values(value.value)
    elif value is not None:
        yield value
