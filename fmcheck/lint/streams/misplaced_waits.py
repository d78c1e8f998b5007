"""Misplaced waits: for another stream than the one that works, by another one, or by none."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING

from fmcheck.lint.model.expressions import dotted, last_name, receiver, targets
from fmcheck.lint.model.function import attribute_values
from fmcheck.lint.model.sieve import any_between
from fmcheck.lint.model.vocabulary import READS, looks_like_context
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from fmcheck.lint.streams.function_streams import (
    ANYTHING,
    CURRENT,
    HOST,
    is_non_blocking,
    streams_of,
)
from fmcheck.lint.streams.handovers import changes_stream, helper_waits, may_be_for, waits_for
from fmcheck.lint.streams.stream_kinds import is_side, may_be_side
from fmcheck.lint.streams.tensor_use import launches
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function
    from fmcheck.lint.model.sieve import Sieve
    from fmcheck.lint.streams.function_streams import Context, FunctionStreams, Wait

#: Names of what copies from or to the host, a helper's too.
_MOVES = regex(r"^(copy_|cuda|to|to_\w+|\w*to_device\w*|move\w*)$")


def waits_for_another(streams: FunctionStreams) -> Iterator[tuple[Context, Wait, str]]:
    """Yields bodies that nothing waits for, with the wait right after them for another stream."""
    function = streams.function
    for context in may_be_side(streams):
        if (
            waits_for(context.stream, streams).first(context.order) is not None
            or streams.last_record.get(context.stream, -1) > context.order
        ):
            continue
        _, after = streams.beside.get(context.node, (None, None))
        for wait in _waits_in(after, streams):
            # What the class may have to be read for is asked late.
            if wait.waiter not in (CURRENT, HOST) or not is_side(context.item, function):
                continue
            other = _awaited_stream(wait, streams)
            if other is not None and other != context.stream and other not in streams.entered:
                yield context, wait, other


def _awaited_stream(wait: Wait, streams: FunctionStreams) -> str | None:
    """Returns the side stream that a wait is for, None if that is unknown."""
    on = wait.named
    is_stream = last_name(wait.node.func) == "wait_stream" or (
        on is not None and last_name(on).endswith("stream")
    )
    if isinstance(on, cst.Call) and last_name(on.func) == "record_event":
        on, is_stream = receiver(on), True
    if on is not None and is_stream and is_side(on, streams.function):
        return streams.text(on)
    return None


def another_waits(streams: FunctionStreams) -> Iterator[tuple[Context, Wait]]:
    """Yields bodies whose stream waits for nothing, with the wait of another one there."""
    function = streams.function
    for context in streams.contexts:
        if last_name(context.item) == "":
            continue
        before, after = streams.beside.get(context.node, (None, None))
        for wait in (*_waits_in(before, streams), *_waits_in(context.node, streams)):
            if last_name(wait.node.func) != "wait_stream" or wait.receiver is None:
                continue
            if wait.waiter == context.stream or wait.on != CURRENT:
                continue
            if wait.waiter in streams.entered:
                continue
            is_meant = _is_meant(context, wait, after, streams)
            if not is_meant and not (
                is_side(context.item, function) and is_side(wait.receiver, function)
            ):
                continue
            start = wait.order if is_meant else -1
            if streams.waits_of(context.stream, CURRENT).first(start, context.end) is None:
                yield context, wait


def _is_meant(
    context: Context, wait: Wait, after: CSTNode | None, streams: FunctionStreams
) -> bool:
    """Tells whether a wait was plainly to be the body's: its stream is awaited right after that."""
    # The name of a context manager does not say which stream that enters.
    if looks_like_context(last_name(context.item)):
        return False
    if all(one.on != wait.waiter for one in _waits_in(after, streams)):
        return False
    held = [one for one in (context.item, wait.receiver) if isinstance(one, cst.Attribute)]
    return all(
        isinstance(value, cst.Call)  # another one is perhaps the other stream, by another name
        for one in held
        for value, _ in attribute_values(one.attr.value, streams.function)
    )


def waits_for_itself(streams: FunctionStreams) -> Iterator[tuple[Context, Wait]]:
    """Yields bodies with a wait that their stream has for itself, and no other in its place.

    In the body `current_stream()` is the stream of the body, so that such a wait orders nothing.
    """
    for context in streams.contexts:
        for wait in _waits_in(context.node, streams):
            if (
                not wait.waiter == wait.on == context.stream
                or last_name(wait.node.func) != "wait_stream"
            ):
                continue
            if isinstance(wait.receiver, cst.Call):  # the stream around the body was meant to wait
                found = waits_for(context.stream, streams).first(wait.order) or _host_waits_for(
                    context.stream, streams
                ).first(context.order)
            else:
                found = streams.waits_of(context.stream, CURRENT).first(-1, context.end)
            if found is None:
                yield context, wait


def _host_waits_for(stream: str, streams: FunctionStreams) -> Sieve[Wait]:
    return streams.wait_sieve(
        "host for",
        stream,
        passes=lambda one: one.waiter in (HOST, ANYTHING) and may_be_for(one, stream, streams),
    )


def _waits_in(node: CSTNode | None, streams: FunctionStreams) -> Iterator[Wait]:
    """Yields the waits that stand in a statement, in order."""
    for inner in walk(node) if node is not None else ():
        if inner in streams.wait_at:
            yield streams.wait_at[inner]


def lost_streams(streams: FunctionStreams) -> Iterator[Context]:
    """Yields bodies on a stream that nobody can wait for, and that nothing waits for in them."""
    function = streams.function
    if function.name.startswith("test"):
        return  # which leaves the order to what it tests
    records = [one.order for one in streams.records]
    items = {one.item for one in streams.contexts}
    for context in streams.contexts:
        if not _is_lost(context.item, items, streams):
            continue
        if streams.waits and streams.waits[-1].order > context.order:
            continue
        if any_between(records, context.order - 1, context.end):
            continue
        first, end = (bisect_left(streams.call_orders, at) for at in (context.order, context.end))
        calls = function.calls[first:end]
        if not any(launches(one, streams) is not None for one in calls):
            continue
        if any(
            last_name(one.func) in READS
            or _is_captured(one)
            or _may_block(one)
            or _orders_others(one, function)
            for one in calls
        ):
            continue
        yield context


def _orders_others(call: cst.Call, function: Function) -> bool:
    """Tells whether a helper may order any stream but the one that it is called on."""
    callee = function.called(call)
    return callee is not None and (
        any(wait.waiter != CURRENT for wait in streams_of(callee).waits)
        or any(helper_waits(one, callee) for one in callee.calls)
    )


def _may_block(call: cst.Call) -> bool:
    """Tells whether this is a copy that returns when it is done, if one of its ends is the host."""
    return _MOVES.search(last_name(call.func)) is not None and not is_non_blocking(call)


def _is_captured(call: cst.Call) -> bool:
    return "graph" in last_name(call.func).lower() or "capture" in last_name(call.func).lower()


def _is_lost(item: CSTNode, items: Collection[CSTNode], streams: FunctionStreams) -> bool:
    """Tells whether a stream is made where it is entered, or by a name used for nothing else."""
    if isinstance(item, cst.Call):
        return last_name(item.func) == "Stream"
    if isinstance(item, cst.Attribute):
        return _is_only_entered(item, streams.function)
    if not isinstance(item, cst.Name) or item.value in streams.parameters:
        return False
    values = streams.names.bound(item)
    if len(values) != 1 or not (
        isinstance(values[0], cst.Call) and last_name(values[0].func) == "Stream"
    ):
        return False
    uses = streams.function.named[item.value]
    return len(uses) == 1 + sum(one in items for one in uses)


def _is_only_entered(stream: cst.Attribute, function: Function) -> bool:
    """Tells whether a class makes a private stream, and all that the file does is to enter it once.

    Bodies of one stream may work for each other.
    """
    name = stream.attr.value
    if not (dotted(stream) or "").startswith("self._") or not is_side(stream, function):
        return False
    # Once for each name: a function may enter a stream a thousand times.
    known: dict[str, list[CSTNode]] = function.module.memo.setdefault("uses of attributes", {})
    if name not in known:
        nodes = [node for part in function.module.naming(name) for node in part.nodes()]
        bound = {one for node in nodes for one in targets(node)}
        known[name] = [
            node
            for node in nodes
            if isinstance(node, cst.Attribute) and node.attr.value == name and node not in bound
        ]
    return all(node is stream for node in known[name])


def gradients_used_early(streams: FunctionStreams) -> Iterator[tuple[cst.Call, cst.Call]]:
    """Yields `backward()` on one stream with an optimizer's step on another that has not waited."""
    function = streams.function
    called = (one for one in function.calls if last_name(one.func) == "backward")
    backward = [one for one in called if isinstance(one.func, cst.Attribute)]
    if not backward or changes_stream(function):
        return
    sides: dict[str, bool] = {}
    for first in backward:
        order = streams.order[first]
        stream = streams.stream_at(order)
        wait = streams.wait_sieve("off", stream, passes=partial(_is_off, stream)).first(order)
        steps = streams.call_sieve("steps off", stream, passes=partial(_steps_off, stream, streams))
        for call in steps.between(order, None if wait is None else wait.order + 1):
            both = {stream, streams.stream_at(streams.order[call])} & streams.entered.keys()
            for one in both - sides.keys():
                sides[one] = all(is_side(held.item, function) for held in streams.entered[one])
            if both and all(map(sides.get, both)) and streams.flow.may_follow(first, call):
                yield first, call
                break


def _is_off(stream: str, wait: Wait) -> bool:
    return wait.waiter != stream


def _steps_off(stream: str, streams: FunctionStreams, call: cst.Call) -> bool:
    """Tells whether a call on another stream has an optimizer use the gradients."""
    is_off = streams.stream_at(streams.order[call]) != stream
    return is_off and isinstance(call.func, cst.Attribute) and _steps(call, streams.function)


def _steps(call: cst.Call, function: Function, depth: int = 0) -> bool:
    """Tells whether a call has an optimizer use the gradients, itself or in a helper."""
    word = last_name(call.func)
    held = call.func.value if isinstance(call.func, cst.Attribute) else None
    if word in ("step", "zero_grad", "unscale_") and held is not None:
        return "opt" in last_name(held).lower() or word == "unscale_"
    if word in ("clip_grad_norm_", "clip_grad_value_"):
        return True
    callee = function.called(call) if depth == 0 else None
    return callee is not None and any(_steps(one, callee, 1) for one in callee.calls)
