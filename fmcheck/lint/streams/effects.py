"""Effects: what a call of a function does for its caller, followed through the package.

Followed so far and no further: a function that calls itself, or a chain that is longer, is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint.model.vocabulary import ENDS
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.streams.function_streams import ANYTHING, HOST, goes_to_host, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.lint.model.function import Function

#: How many calls are followed, one from another.
MOST_CALLS = 3


def waits_on_host(function: Function, followed: int = 0) -> bool:
    """Tells whether each call of a function waits on the host; no where that is unknown."""
    if function.waits is None:
        function.waits = False  # of one that calls itself
        if function.is_abstract:
            function.waits = ENDS.search(function.name) is not None  # nothing else tells
        elif followed < MOST_CALLS:
            flow = function.flow
            reached = [one for one in host_waits(function, followed) if flow.contains(one)]
            function.waits = bool(reached) and flow.any_on_every_path(reached)
    return function.waits


def waits_at(call: cst.Call, function: Function, followed: int = 0) -> bool:
    """Tells whether a call runs a function that waits on the host each time."""
    return any(waits_on_host(one, followed) for one in function.runs(call))


def host_waits(function: Function, followed: int = 0) -> Iterator[cst.CSTNode]:
    """Yields what a function waits by on the host, calls of functions that do among it."""
    for wait in streams_of(function).waits:
        if wait.waiter in (HOST, ANYTHING):
            yield wait.node
    for call in function.calls:
        if waits_at(call, function, followed + 1):
            yield call


def returns_copy(function: Function) -> bool:
    """Tells whether each return gives a copy to the host that nothing in the function waits for."""
    copies = {one.node for one in streams_of(function).copies if one.target is None}
    if not copies:
        return False
    returns = [node.value for node in function.of(cst.Return)]
    for value in returns:
        given = [one for one in _values(value, function) if isinstance(one, cst.Call)]
        if not given or not all(one in copies and goes_to_host(one) for one in given):
            return False
    return bool(returns) and not any(True for _ in host_waits(function))


def _values(value: cst.CSTNode | None, function: Function) -> Iterator[cst.CSTNode]:
    """Yields what an expression is, or what its name is bound to."""
    if isinstance(value, cst.Name):
        yield from function.names.bound(value)
    elif value is not None:
        yield value


def orders_streams(function: Function, followed: int = 0) -> bool:
    """Tells whether a function may wait for anything, or have a stream wait."""
    if function.orders is None:
        function.orders = False  # of one that calls itself
        streams = streams_of(function)
        is_left_open = function.is_abstract and ENDS.search(function.name) is not None
        function.orders = bool(streams.waits or is_left_open) or any(
            followed < MOST_CALLS and orders_streams(callee, followed + 1)
            for call in function.calls
            for callee in function.runs(call)
        )
    return function.orders
