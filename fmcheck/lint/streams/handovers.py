"""Handovers: what one stream produces and another one uses, in one function.

Each question is answered with yes only where it is plain. A wait of any kind between the two, a
helper of the package that waits, and a call that is handed the stream or its event are unknown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.model.expressions import (
    bound_names,
    dotted,
    keywords,
    last_name,
    receiver,
)
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.sieve import Sieve, any_between
from fmcheck.lint.model.vocabulary import (
    CLASS,
    IN_PLACE,
    ON_HOST,
    PARTS,
    READS,
    looks_like_event,
)
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from fmcheck.lint.streams.effects import orders_streams
from fmcheck.lint.streams.function_streams import (
    ANYTHING,
    CURRENT,
    HOST,
    RECORDS,
    is_non_blocking,
    streams_of,
)
from fmcheck.lint.streams.stream_kinds import is_side, may_be_side
from fmcheck.lint.streams.tensor_use import (
    MOVES,
    is_blocking,
    is_collective,
    is_written,
    launches,
    scope_of,
    values_used,
)
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function
    from fmcheck.lint.streams.function_streams import Context, FunctionStreams, Wait


#: Calls that are handed a stream or an event and order nothing by themselves.
_MARKS = RECORDS | {"StreamContext", "getattr", "record_stream", "stream"}
#: How functions are named that may only copy what they are handed, perhaps from the host.
_CARRIES = regex(r"copy|device|fetch|h2d|load|move|put|send|stage|transfer")
#: How names end of what is waited for, and is no tensor.
_HANDLES = regex(r"(^|_)(fut|future|handle|job|pending|req|request|task|ticket|work)s?$")


class StreamHandover(Struct, frozen=True):
    """A tensor that is produced on one stream, and used on another that has not waited."""

    name: str
    producer: CSTNode
    consumer: CSTNode
    stream: str
    context: Context


def _contexts(streams: FunctionStreams) -> Sequence[Context]:
    """Returns the bodies that run on a stream, none where the function changes the current one."""
    return () if changes_stream(streams.function) else may_be_side(streams)


def _is_side(context: Context, streams: FunctionStreams) -> bool:
    """Tells whether that is a side stream; asked late, for the class may have to be read for it."""
    return is_side(context.item, streams.function)


def results_used_early(streams: FunctionStreams) -> Iterator[StreamHandover]:
    """Yields results of a side stream's body that another stream uses with no wait between."""
    for context in _contexts(streams):
        seen: set[str] = set()
        for name, producer, is_sure in _produced(
            streams, context.stream, context.order, context.end
        ):
            if name in seen:
                continue
            for consumer, is_plain in _consumed(name, producer, context, streams):
                if is_sure or is_plain or _is_result(name, context, streams):
                    # What is used still later is ordered too.
                    if _is_side(context, streams) and not _may_be_ordered(
                        streams, context, producer, consumer
                    ):
                        seen.add(name)
                        yield StreamHandover(name, producer, consumer, context.stream, context)
                    break


def _is_result(name: str, context: Context, streams: FunctionStreams) -> bool:
    """Tells whether what a body binds is a tensor where nobody says it: the streams are fenced."""
    return streams.is_fenced(context.stream) and not _HANDLES.search(name)


def inputs_read_early(streams: FunctionStreams) -> Iterator[StreamHandover]:
    """Yields what the current stream produces first and a side stream reads with no wait between.

    One for each body and name.
    """
    contexts = _contexts(streams)
    launched: dict[str, list[_Producer]] = {}
    until = max((one.order for one in contexts), default=0)
    for name, node, is_sure in _produced(streams, CURRENT, 0, until):
        launched.setdefault(name, []).append(_Producer(node, streams.order[node], is_sure))
    for context in contexts if launched else ():
        read: dict[str, CSTNode] = {}
        for node in streams.nodes(context.order, context.end):
            if isinstance(node, (cst.Name, cst.Attribute)):
                read.setdefault(dotted(node) or "", node)
        for name, node in list(read.items()):
            read.setdefault(_viewed(name, streams), node)
        found = [
            (producer.order, StreamHandover(name, producer.node, node, context.stream, context))
            for name, node in read.items()
            if name in launched
            for producer in [_read_early(name, node, launched[name], context, streams)]
            if producer is not None
        ]
        if found and _is_side(context, streams):
            yield from (one for _, one in sorted(found, key=itemgetter(0)))


class _Producer(Struct, frozen=True):
    """What launches the work that a name stands for, and whether that is sure."""

    node: CSTNode
    order: int
    is_sure: bool


def _read_early(
    name: str,
    consumer: CSTNode,
    producers: Sequence[_Producer],
    context: Context,
    streams: FunctionStreams,
) -> _Producer | None:
    """Returns the first of the producers of a name whose work a body reads too early."""
    last, stream = streams.order[consumer], context.stream
    flow, scope = streams.flow, scope_of(context.node, streams)
    if (
        streams.stream_at(last) != stream
        or (used := values_used(consumer, streams)) is None
        or not (used or streams.is_fenced(stream))
        or is_written(consumer, streams)
        or scope_of(consumer, streams) is not scope
        or name == _leaf(stream)
        or looks_like_event(name)
    ):
        return None
    wait = _waits_by(stream, streams).last(-1, last)
    bound = streams.assigned.get(name, ())
    earlier = bisect_left(bound, last, key=streams.order.__getitem__)
    rebound = streams.order[bound[earlier - 1]] if earlier else -1
    first = max(rebound, -1 if wait is None else wait.order)
    is_computed_with = _is_computed_with(consumer, streams)
    start = bisect_left(producers, first, key=attrgetter("order"))
    for one in producers[start : bisect_left(producers, context.order, key=attrgetter("order"))]:
        if (
            (one.is_sure or is_computed_with)
            and scope_of(one.node, streams) is scope
            and flow.contains(one.node)
            and flow.may_follow(one.node, consumer)
            and not flow.excludes(one.node, consumer)
            and not _is_stopped(streams, stream, streams.end(one.node) - 1, last)
        ):
            return one
    return None


def _is_stopped(streams: FunctionStreams, stream: str, after: int, end: int) -> bool:
    """Tells whether a call between may put a side stream behind the current one."""
    return (
        any_between(streams.reads.get(CURRENT, ()), after, end)
        or helpers(streams).first(after, end) is not None
        or _handed(streams, "", is_held=False).first(after, end) is not None
        or _handed(streams, _leaf(stream), is_held=False).first(after, end) is not None
    )


def helpers(streams: FunctionStreams) -> Sieve[cst.Call]:
    """Returns the calls that lead to a function of the package that may wait or order streams."""
    return streams.call_sieve("helpers", passes=lambda one: helper_waits(one, streams.function))


def _handed(streams: FunctionStreams, leaf: str, *, is_held: bool) -> Sieve[cst.Call]:
    """Returns the calls that are handed a stream, or events where `leaf` is "".

    `is_held` has what a method is called on count too.
    """
    leaves = {_leaf(one.event) for one in streams.records} if is_held and not leaf else {leaf}

    def passes(call: cst.Call) -> bool:
        held = [call.func.value] if is_held and isinstance(call.func, cst.Attribute) else []
        return (
            last_name(call.func) not in _MARKS
            and call not in streams.wait_at
            and not streams.awaits_itself(call)
            and any(
                last_name(one) in leaves or (not leaf and looks_like_event(last_name(one)))
                for given in (*call.args, *held)
                for one in walk(given)
                if isinstance(one, (cst.Name, cst.Attribute))
            )
        )

    return streams.call_sieve("handed", leaf, str(is_held), passes=passes)


def _waits_by(stream: str, streams: FunctionStreams) -> Sieve[Wait]:
    """Returns the waits that may be a stream's own."""
    return streams.wait_sieve("by", stream, passes=lambda one: _may_be_by(one, stream))


def _may_be_by(wait: Wait, stream: str) -> bool:
    """Tells whether a stream may be what waits here: not if an object has both under two names."""
    is_another = wait.waiter != stream and wait.waiter[:5] == stream[:5] == "self."
    return wait.waiter != CURRENT and wait.on != stream and not is_another


def joined_only(streams: FunctionStreams) -> Iterator[tuple[str, CSTNode, Context, Wait]]:
    """Yields arguments that a side stream reads which waits for nothing, and is awaited later."""
    tensors = {
        node.name.value
        for node in walk(streams.function.node.params)
        if isinstance(node, cst.Param)
        and node.annotation is not None
        and "Tensor" in streams.part.code(node.annotation.annotation)
        and "[" not in streams.part.code(node.annotation.annotation)
        and not ON_HOST.search(node.name.value)
    }
    for context in _contexts(streams):
        if (
            _waits_by(context.stream, streams).first(-1, context.end) is not None
            or helpers(streams).first(-1, context.end) is not None
        ):
            continue
        join = _joins(context.stream, streams).first(context.end)
        read = _argument_read(context, tensors, streams) if join is not None else None
        if join is not None and read is not None and _is_side(context, streams):
            yield last_name(read), read, context, join


def _joins(stream: str, streams: FunctionStreams) -> Sieve[Wait]:
    """Returns the waits of the current stream or the host that may be for a side stream."""
    return streams.wait_sieve(
        "joins",
        stream,
        passes=lambda one: one.waiter in (CURRENT, HOST) and may_be_for(one, stream, streams),
    )


def _argument_read(
    context: Context, tensors: Collection[str], streams: FunctionStreams
) -> CSTNode | None:
    """Returns a read of an argument's values in a body: what brings it to the host, or computes."""
    for node in streams.nodes(context.order, context.end):
        if not isinstance(node, cst.Name) or _viewed(node.value, streams) not in tensors:
            continue
        parent = streams.parents.get(node)
        if isinstance(parent, cst.Attribute):
            is_read = parent.attr.value in READS
        else:
            is_read = values_used(node, streams) is not None and not is_written(node, streams)
        if is_read and (not _is_copied(node, streams) or node.value in streams.kept):
            return node
    return None


def _viewed(name: str, streams: FunctionStreams) -> str:
    """Returns the name whose tensor a name is, or is a part or view of; "" if it may be another."""
    values = streams.names.values(name)
    if not values:
        return name
    base: CSTNode | None = values[0]
    while True:
        if isinstance(base, cst.Subscript):
            base = base.value
        elif isinstance(base, cst.Call) and last_name(base.func) in PARTS - {"contiguous"}:
            base = receiver(base)
        else:
            break
    return base.value if len(values) == 1 and isinstance(base, cst.Name) else ""


def _is_computed_with(node: CSTNode, streams: FunctionStreams) -> bool:
    """Tells whether a function is handed a tensor to compute with: no copy, and no arithmetic."""
    return isinstance(streams.parents.get(node), cst.Arg) and not _is_copied(node, streams)


def _is_copied(node: CSTNode, streams: FunctionStreams) -> bool:
    """Tells whether a tensor is the source of a copy, which may as well be on the host."""
    arg = streams.parents.get(node)
    call = streams.parents.get(arg) if isinstance(arg, cst.Arg) else None
    word = last_name(call.func) if isinstance(call, cst.Call) else ""
    return word in MOVES or bool(_CARRIES.search(word))


def freed_to_side(streams: FunctionStreams) -> Iterator[StreamHandover]:
    """Yields memory of a side stream that the current one uses last, and that nobody keeps."""
    awaited = {wait.on for wait in streams.waits if wait.waiter != CURRENT}
    for context in _contexts(streams):
        if _is_made_here(context.item, streams):
            continue
        if awaited - {context.stream}:
            continue  # it waits for the current stream before it writes the memory again
        for node in streams.nodes(context.order, context.end):
            if (
                not isinstance(node, cst.Assign)
                or streams.stream_at(streams.order[node]) != context.stream
                or not isinstance(node.targets[0].target, cst.Name)
                or not _allocates(node.value, streams)
            ):
                continue
            name = node.targets[0].target.value
            if name in streams.kept or len(streams.names.values(name)) != 1:
                continue
            if _outlives(name, streams):
                continue
            for consumer, is_plain in _consumed(name, node, context, streams):
                if is_plain and _is_side(context, streams):
                    yield StreamHandover(name, node, consumer, context.stream, context)
                    break


def _is_made_here(item: CSTNode, streams: FunctionStreams) -> bool:
    values = streams.names.bound(item) if isinstance(item, cst.Name) else [item]
    return any(isinstance(one, cst.Call) and last_name(one.func) == "Stream" for one in values)


def _allocates(value: CSTNode, streams: FunctionStreams) -> bool:
    if not isinstance(value, cst.Call) or ON_HOST.search(streams.part.code(value)):
        return False
    words = ("empty", "empty_like", "new_empty", "new_zeros")
    return last_name(value.func) in words or streams.launches(value)


def _outlives(name: str, streams: FunctionStreams) -> bool:
    """Tells whether a name is returned, stored, or handed to what may keep it."""
    for node in streams.function.named.get(name, ()):
        held = streams.parents.get(node)
        while isinstance(held, (cst.Element, cst.Tuple, cst.List, cst.Dict, cst.DictElement)):
            held = streams.parents.get(held)
        if isinstance(held, (cst.Assign, cst.Return, cst.Yield)):
            return True
        if isinstance(held, cst.Arg):
            call = streams.parents.get(held)
            word = last_name(call.func) if isinstance(call, cst.Call) else ""
            if CLASS.match(word) or word in ("append", "put", "submit", "setdefault", "update"):
                return True
    return False


def _produced(
    streams: FunctionStreams, stream: str, first: int, end: int
) -> Iterator[tuple[str, CSTNode, bool]]:
    """Yields the names that a stream binds to, or writes by, what is launched; True where sure."""
    for node in streams.nodes(first, end):
        if type(node) not in (cst.Assign, cst.Call):
            continue  # by class: it is asked of every node
        if streams.stream_at(streams.order[node]) != stream:
            continue
        if isinstance(node, cst.Assign) and launches(node.value, streams) is not None:
            is_sure = bool(launches(node.value, streams))
            for target in node.targets:
                for one in bound_names(target.target):
                    yield one, node, is_sure
        elif isinstance(node, cst.Call) and last_name(node.func) in IN_PLACE:
            name = _whole(receiver(node))
            if name and not ON_HOST.search(name) and not is_blocking(node):
                yield name, node, last_name(node.func) != "copy_" or is_non_blocking(node)
        elif isinstance(node, cst.Call) and node.args and is_collective(node, streams):
            name = _whole(node.args[0].value)
            if name and "async_op" not in keywords(node):
                yield name, node, True


def _whole(base: CSTNode | None) -> str | None:
    """Returns the path of the tensor that this is a part of."""
    while isinstance(base, cst.Subscript):
        base = base.value
    return None if base is None else dotted(base)


def _consumed(
    name: str, producer: CSTNode, context: Context, streams: FunctionStreams
) -> Iterator[tuple[CSTNode, bool]]:
    """Yields what uses a produced tensor on another stream; True where only a tensor is used so."""
    scope, flow = scope_of(context.node, streams), streams.flow
    if not flow.contains(producer):
        return
    # What `x = x + 1` reads is still the old value.
    bound = streams.assigned.get(name, ())
    later = bisect_right(bound, streams.order[producer], key=streams.order.__getitem__)
    rebound = next(
        (node for node in bound[later:] if not _is_other_branch(producer, node, streams)), None
    )
    end = None if rebound is None else streams.end(rebound)
    for node in _uses_off(context.stream, name, streams).between(context.end - 1, end):
        if (
            scope_of(node, streams) is scope
            and flow.contains(node)
            and not flow.excludes(producer, node)
            and flow.may_follow(producer, node)
        ):
            yield node, bool(values_used(node, streams))


def _uses_off(stream: str, name: str, streams: FunctionStreams) -> Sieve[CSTNode]:
    """Returns where the values of what a name stands for may be used, on another stream."""
    return streams.named_sieve(
        name,
        stream,
        passes=lambda one: (
            streams.stream_at(streams.order[one]) != stream
            and values_used(one, streams) is not None
        ),
    )


def _is_other_branch(producer: CSTNode, node: CSTNode, streams: FunctionStreams) -> bool:
    """Tells whether a run that passes the producer never passes a node, by the tests of both."""
    return streams.flow.contains(node) and streams.flow.excludes(producer, node)


def _may_be_ordered(
    streams: FunctionStreams, context: Context, producer: CSTNode, consumer: CSTNode
) -> bool:
    """Tells whether anything between may put the consumer behind the producer."""
    stream = context.stream
    first, end = streams.order[producer], streams.order[consumer] + 1

    def orders(wait: Wait) -> bool:
        return wait.waiter != stream and may_be_for(wait, stream, streams)

    return (
        any(
            item in streams.wait_at or _leaving_waits(item, streams)
            for item in streams.left(producer, end)
        )
        or streams.wait_sieve("behind", stream, passes=orders).first(first, end) is not None
        or any_between(streams.reads.get(stream, ()), first, end)
        or helpers(streams).first(first, end) is not None
        or _handed(streams, "", is_held=True).first(first, end) is not None
        or _handed(streams, _leaf(stream), is_held=True).first(first, end) is not None
    )


def may_be_for(wait: Wait, stream: str, streams: FunctionStreams) -> bool:
    """Tells whether a wait may be for work of a stream: not if it names another stream."""
    if wait.on in (stream, ANYTHING) or streams.names.is_looped(wait.on):
        return True
    if wait.on == CURRENT or wait.on in streams.entered:
        return False
    if last_name(wait.node.func) == "wait_stream" and wait.on.startswith("self."):
        return False
    recorded = streams.recorded.get(wait.on)
    return stream in recorded if recorded else not wait.on.endswith("stream")


def waits_for(stream: str, streams: FunctionStreams) -> Sieve[Wait]:
    """Returns the waits that may be for work of a stream."""
    return streams.wait_sieve("for", stream, passes=lambda one: may_be_for(one, stream, streams))


def changes_stream(function: Function) -> bool:
    """Tells whether a function makes another stream the current one for good."""
    return any(last_name(call.func) == "set_stream" for call in function.calls)


def is_within_side_stream(function: Function) -> bool:
    """Tells whether a caller in the file calls a function on another stream than its own."""
    return any(
        streams_of(caller).stream_at(streams_of(caller).order[call]) != CURRENT
        for caller, call in function.callers()
        if call in streams_of(caller).order
    )


def callers_order(function: Function, stream: str) -> bool:
    """Tells whether a caller in the file has streams wait for each other by itself."""
    return any(
        wait.waiter != HOST and stream.rpartition(".")[2] in f"{wait.waiter} {wait.on}"
        for caller, _ in function.callers()
        for wait in streams_of(caller).waits
    )


def is_forked_elsewhere(function: Function, stream: str) -> bool:
    """Tells whether another function has a stream wait on which it puts no work itself."""
    leaf = _leaf(stream)
    return any(
        any(_leaf(wait.waiter) == leaf for wait in streams_of(one).waits)
        and all(_leaf(context.stream) != leaf for context in streams_of(one).contexts)
        for part in function.module.naming(leaf)
        for one in functions(part)
        if one is not function
    )


def callers_wait(function: Function) -> bool:
    """Tells whether a caller in the file waits for anything, or orders any streams."""
    return any(bool(streams_of(caller).waits) for caller, _ in function.callers())


def helper_waits(call: cst.Call, function: Function) -> bool:
    """Tells whether a call leads to a function of the package that may wait or order streams."""
    return any(map(orders_streams, function.runs(call))) and not streams_of(function).awaits_itself(
        call
    )


def _leaving_waits(item: cst.BaseExpression, streams: FunctionStreams) -> bool:
    """Tells whether what runs where a `with` is left may wait or order streams."""
    if isinstance(item, cst.Call) and helper_waits(item, streams.function):
        return True
    callee = streams.function.leaves(item)
    return callee is not None and orders_streams(callee)


def _leaf(text: str) -> str:
    return text.rpartition(".")[2]
