"""Handovers: what one stream produces and another one uses, in one function.

Each question is answered with yes only where it is plain. A wait of any kind between the two, a
helper of the file that waits, and a call that is handed the stream or its event are unknown.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.lint.lazy import cst
from fmcheck.lint.model.effects import orders_streams
from fmcheck.lint.model.expressions import dotted, is_name, last_name
from fmcheck.lint.model.stream_kinds import is_side
from fmcheck.lint.model.streams import ANYTHING, CURRENT, HOST, is_non_blocking
from fmcheck.lint.model.vocabulary import CLASS, IN_PLACE, LAUNCHES, ON_HOST, VIEWS
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function
    from fmcheck.lint.model.streams import Context, Streams, Wait

#: Methods that copy a tensor to where they name.
_MOVES = frozenset({"cuda", "npu", "to", "xpu"})
#: Methods that launch work, or read the values, and do not only look at the shape.
_USES = (
    LAUNCHES
    | IN_PLACE
    | {"all", "any", "argsort", "cpu", "exp", "float", "half", "item", "log", "max", "mean", "min"}
    | {"bfloat16", "div", "div_", "add", "mul", "sub", "sort", "sum", "tolist", "nonzero", "norm"}
)
#: Calls that wait for the stream that is current, by reading a value.
_READS = frozenset({"cpu", "item", "nonzero", "tolist"})
#: Functions that look at a tensor and not into it, or that keep it.
_LOOKS = frozenset(
    ("append", "appendleft", "assert_shape", "callable", "debug", "dir", "empty_like", "enumerate")
    + ("extend", "format", "get", "getattr", "hasattr", "id", "info", "isinstance", "insert")
    + ("is_tensor", "iter", "len", "list", "next", "pop", "print", "put", "put_nowait", "range")
    + ("record_stream", "repr", "reversed", "set", "setattr", "setdefault", "str", "submit")
    + ("tuple", "type", "update", "warning", "weakref", "zip", "cast", "deepcopy", "hash")
)
#: Names of functions that give something else than what has just been computed.
_NO_RESULT = re.compile(r"_?(alloc|build|create|get|has|init|is|load|make|new|prepare|read)(_|$|ate)")
#: Methods of a tensor that write it in place, by how they are named.
_WRITES = re.compile(r"[a-z]\w*[a-z0-9]_$")
#: Functions of `torch` that launch nothing.
_NO_WORK = frozenset(
    ("new_empty", "new_empty_strided", "Event", "Generator", "Size", "Stream", "as_strided", "can_cast", "compile", "device")
    + ("empty", "empty_like", "empty_strided", "finfo", "from_numpy", "get_device_module", "iinfo")
    + ("is_tensor", "current_stream", "current_device", "no_grad", "numel", "stream", "manual_seed")
    + ("set_device", "get_device_properties", "is_available", "is_current_stream_capturing")
    + ("memory_allocated", "empty_cache", "save", "load", "barrier", "get_rank", "get_world_size")
)


@dataclass(frozen=True, slots=True)
class Handover:
    """A tensor that is produced on one stream, and used on another that has not waited."""

    name: str
    producer: CSTNode
    consumer: CSTNode
    stream: str
    context: Context


def results_used_early(streams: Streams) -> Iterator[Handover]:
    """Yields results of a side stream's body that another stream uses with no wait between."""
    function = streams.function
    if changes_stream(function):
        return
    for context in streams.contexts:
        if not is_side(context.item, function):
            continue
        seen: set[str] = set()
        for name, producer, is_sure in _produced(context, streams):
            if name in seen:
                continue
            for consumer, is_plain in _consumed(name, producer, context, streams):
                if (is_sure or is_plain) and not _may_be_ordered(
                    streams, context, producer, consumer
                ):
                    seen.add(name)
                    yield Handover(name, producer, consumer, context.stream, context)
                    break


def inputs_read_early(streams: Streams) -> Iterator[Handover]:
    """Yields what the current stream produces and a side stream's body reads with no wait between."""
    function = streams.function
    if changes_stream(function):
        return
    for context in streams.contexts:
        if not is_side(context.item, function):
            continue
        inside = streams.nodes(context.order, context.end)
        read = {dotted(one): one for one in reversed(inside) if isinstance(one, cst.Name)}
        for node, order in streams.order.items():
            if order >= context.order or not isinstance(node, cst.Assign):
                continue
            for name in (one for target in node.targets for one in _names(target.target)):
                consumer = read.get(name)
                if consumer is not None and _reads_early(name, node, consumer, context, streams):
                    yield Handover(name, node, consumer, context.stream, context)
                    break


def _reads_early(
    name: str, producer: cst.Assign, consumer: CSTNode, context: Context, streams: Streams
) -> bool:
    first, last = streams.order[producer], streams.order[consumer]
    flow, scope = streams.flow, _scope(context.node, streams)
    if (
        streams.stream_at(first) != CURRENT
        or streams.stream_at(last) != context.stream
        or _launches(producer.value, streams) is None
        or not _use(consumer, streams)
        or _is_written(consumer, streams)
        or _scope(producer, streams) is not scope
        or _scope(consumer, streams) is not scope
        or not flow.contains(producer)
        or not flow.may_follow(producer, consumer)
        or flow.excludes(producer, consumer)
    ):
        return False
    for node in streams.nodes(first + 1, last):
        if isinstance(node, cst.Assign) and node is not producer:
            if any(name in _names(one.target) for one in node.targets):
                return False
    if any(
        first < wait.order < last and wait.waiter != CURRENT and wait.on != context.stream
        for wait in streams.waits
    ):
        return False
    stream = _leaf(context.stream)
    for call in streams.function.calls:
        order = streams.order[call]
        if first < order < last and order not in range(first, streams.end(producer)):
            if last_name(call.func) in _READS and streams.stream_at(order) == CURRENT:
                return False
            if _helper_waits(call, streams.function):
                return False
            if last_name(call.func) not in ("record_stream", "stream", "record") and any(
                last_name(one) == stream for arg in call.args for one in walk(arg)
            ):
                return False
    return True


def joined_only(streams: Streams) -> Iterator[tuple[str, CSTNode, Context, Wait]]:
    """Yields arguments that a side stream reads, which is awaited afterwards and waits for nothing."""
    function = streams.function
    if changes_stream(function):
        return
    for context in streams.contexts:
        if not is_side(context.item, function):
            continue
        if any(
            wait.order < context.end and wait.waiter != CURRENT and wait.on != context.stream
            for wait in streams.waits
        ) or any(
            streams.order[call] < context.end and _helper_waits(call, function)
            for call in function.calls
        ):
            continue
        joins = [
            wait
            for wait in streams.waits
            if wait.order > context.end
            and wait.waiter in (CURRENT, HOST)
            and may_be_for(wait, context.stream, streams)
        ]
        read = _argument_read(context, streams) if joins else None
        if read is not None:
            yield last_name(read), read, context, joins[0]


def _argument_read(context: Context, streams: Streams) -> CSTNode | None:
    """Returns a read of an argument's values in a body: what brings it to the host, or computes."""
    tensors = {
        node.name.value
        for node in walk(streams.function.node.params)
        if isinstance(node, cst.Param)
        and node.annotation is not None
        and "Tensor" in streams.part.code(node.annotation.annotation)
        and "[" not in streams.part.code(node.annotation.annotation)
        and not ON_HOST.search(node.name.value)
    }
    for node in streams.nodes(context.order, context.end):
        if not isinstance(node, cst.Name) or not _argument(node.value, streams) <= tensors:
            continue
        parent = streams.parents.get(node)
        if isinstance(parent, cst.Attribute):
            is_read = parent.attr.value in _READS
        else:
            is_read = bool(_use(node, streams)) and not _is_written(node, streams)
        if is_read and (not _is_copied(node, streams) or node.value in streams.kept):
            return node
    return None


def _argument(name: str, streams: Streams) -> set[str]:
    """Returns the argument that a name is, or is a view of; something else if it is none."""
    values = streams.names.values(name)
    if not values:
        return {name}
    base = values[0]
    while isinstance(base, cst.Call) and isinstance(base.func, cst.Attribute):
        if base.func.attr.value not in VIEWS:
            return {""}
        base = base.func.value
    is_view = len(values) == 1 and isinstance(base, cst.Name) and base.value != name
    return {base.value} if is_view and isinstance(base, cst.Name) else {""}


def _is_copied(node: CSTNode, streams: Streams) -> bool:
    """Tells whether a tensor is the source of a copy, which may as well be on the host."""
    arg = streams.parents.get(node)
    call = streams.parents.get(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and last_name(call.func) in ("copy_", *_MOVES)


def _is_written(node: CSTNode, streams: Streams) -> bool:
    """Tells whether a tensor is only the target of a copy."""
    parent = streams.parents.get(node)
    while isinstance(parent, cst.Subscript):
        parent = streams.parents.get(parent)
    return isinstance(parent, cst.Attribute) and parent.attr.value in (*IN_PLACE, *_MOVES)


def freed_to_side(streams: Streams) -> Iterator[Handover]:
    """Yields memory of a side stream that the current one uses last, and that nobody keeps."""
    function = streams.function
    if changes_stream(function):
        return
    for context in streams.contexts:
        if not is_side(context.item, function) or _is_made_here(context.item, streams):
            continue
        if any(
            wait.waiter != CURRENT and wait.on != context.stream
            for wait in streams.waits
        ):
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
                if is_plain:
                    yield Handover(name, node, consumer, context.stream, context)
                    break


def _is_made_here(item: CSTNode, streams: Streams) -> bool:
    values = streams.names.values(item.value) if isinstance(item, cst.Name) else [item]
    return any(isinstance(one, cst.Call) and last_name(one.func) == "Stream" for one in values)


def _allocates(value: CSTNode, streams: Streams) -> bool:
    if not isinstance(value, cst.Call) or ON_HOST.search(streams.part.code(value)):
        return False
    words = ("empty", "empty_like", "new_empty", "new_zeros")
    return last_name(value.func) in words or streams.launches(value)


def _outlives(name: str, streams: Streams) -> bool:
    """Tells whether a name is returned, stored, or handed to what may keep it."""
    for node in streams.order:
        if not is_name(node, name):
            continue
        held = streams.parents.get(node)
        while isinstance(held, (cst.Element, cst.Tuple, cst.List, cst.Dict, cst.DictElement)):
            held = streams.parents.get(held)
        if isinstance(held, (cst.Return, cst.Yield)):
            return True
        if isinstance(held, cst.Assign) and held.value is not node and node is not held:
            if not any(one.target is node for one in held.targets):
                return True
        if isinstance(held, cst.Assign) and held.value is node:
            return True
        if isinstance(held, cst.Arg):
            call = streams.parents.get(held)
            word = last_name(call.func) if isinstance(call, cst.Call) else ""
            if CLASS.match(word) or word in ("append", "put", "submit", "setdefault", "update"):
                return True
    return False


def changes_stream(function: Function) -> bool:
    """Tells whether a function makes another stream the current one for good."""
    return any(last_name(call.func) == "set_stream" for call in function.calls)


def is_within_side_stream(function: Function) -> bool:
    """Tells whether a caller in the file calls a function on another stream than its own."""
    return any(
        caller.streams().stream_at(caller.streams().order[call]) != CURRENT
        for caller, call in function.callers()
        if call in caller.streams().order
    )


def callers_order(function: Function, stream: str) -> bool:
    """Tells whether a caller in the file has streams wait for each other by itself."""
    return any(
        wait.waiter != HOST and stream.rpartition(".")[2] in f"{wait.waiter} {wait.on}"
        for caller, _ in function.callers()
        for wait in caller.streams().waits
    )


def _produced(context: Context, streams: Streams) -> Iterator[tuple[str, CSTNode, bool]]:
    """Yields the names that a body binds to, or writes by, what it launches; True where sure."""
    for node in streams.nodes(context.order, context.end):
        if streams.stream_at(streams.order[node]) != context.stream:
            continue
        if isinstance(node, cst.Assign) and _launches(node.value, streams) is not None:
            is_sure = bool(_launches(node.value, streams))
            for target in node.targets:
                for one in _names(target.target):
                    yield one, node, is_sure
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value in IN_PLACE:
                base = node.func.value
                while isinstance(base, cst.Subscript):
                    base = base.value
                name = dotted(base)
                if name and not ON_HOST.search(name) and not _is_blocking(node):
                    yield name, node, node.func.attr.value != "copy_" or is_non_blocking(node)


def _is_blocking(copy: cst.Call) -> bool:
    """Tells whether a copy says that it blocks: its source is the host's."""
    return any(
        arg.keyword is not None
        and arg.keyword.value == "non_blocking"
        and last_name(arg.value) == "False"
        for arg in copy.args
    )


def _names(target: CSTNode) -> Iterator[str]:
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _names(element.value)


def _launches(value: CSTNode, streams: Streams) -> bool | None:
    """Tells whether an expression is what has just been launched: None for no, False for maybe."""
    if isinstance(value, cst.IfExp):
        return _launches(value.body, streams)
    if not isinstance(value, cst.Call):
        return None
    word = last_name(value.func)
    code = streams.part.code(value.func)
    if word in _MOVES:
        given = streams.part.code(value)
        return None if '"cpu"' in given or "'cpu'" in given else is_non_blocking(value)
    if streams.launches(value):
        return True
    name = streams.part.module.resolve(dotted(value.func) or "")
    if word in _NO_WORK | _LOOKS | _READS | VIEWS or CLASS.match(word):
        return None
    if name.startswith(("torch.nn.functional.", "torch_npu.npu_")):
        return True
    if name.startswith(("torch.", "dist.", "numpy.", "np.", "time.", "os.", "math.")):
        return None
    if "." not in name and hasattr(builtins, word):
        return None
    if ON_HOST.search(code) or _NO_RESULT.match(word):
        return None
    return None if "async" in word else False


def _consumed(
    name: str, producer: CSTNode, context: Context, streams: Streams
) -> Iterator[tuple[CSTNode, bool]]:
    """Yields what uses a produced tensor on another stream; True where only a tensor is used so."""
    scope = _scope(context.node, streams)
    rebound = [
        order
        for node, order in streams.order.items()
        if isinstance(node, cst.Assign)
        and order > streams.order[producer]
        and any(name in _names(one.target) for one in node.targets)
    ]
    for node in streams.nodes(context.end):
        if not isinstance(node, (cst.Name, cst.Attribute)) or dotted(node) != name:
            continue
        order = streams.order[node]
        if rebound and min(rebound) < order:
            return
        if streams.stream_at(order) == context.stream or _scope(node, streams) is not scope:
            continue
        if not streams.flow.contains(node) or not streams.flow.contains(producer):
            continue
        if streams.flow.excludes(producer, node) or not streams.flow.may_follow(producer, node):
            continue
        used = _use(node, streams)
        if used is not None:
            yield node, used


def _use(node: CSTNode, streams: Streams) -> bool | None:
    """Tells whether a tensor's values are used here: None for no, False for maybe."""
    parents = streams.parents
    while True:
        inner, node = node, parents.get(node, streams.function.node)
        if isinstance(node, cst.Subscript) and inner is node.value:
            continue
        if isinstance(node, cst.Attribute):
            call = parents.get(node)
            word = node.attr.value
            if not isinstance(call, cst.Call) or call.func is not node:
                return None
            if word in VIEWS:
                node = call
                continue
            return True if word in _USES or _WRITES.match(word) else None
        if isinstance(node, cst.BinaryOperation):
            return not isinstance(node.operator, cst.Modulo)
        if isinstance(node, cst.AugAssign):
            return inner is node.value
        if isinstance(node, cst.Arg):
            call = parents.get(node)
            if not isinstance(call, cst.Call):
                return None
            word = last_name(call.func)
            if word in _LOOKS | _NO_WORK or CLASS.match(word):
                return None
            resolved = streams.part.module.resolve(dotted(call.func) or "")
            if streams.launches(call) or resolved.startswith("torch.nn.functional."):
                return True
            if word in IN_PLACE | LAUNCHES or (
                isinstance(call.func, cst.Attribute) and _WRITES.match(word)
            ):
                return True
            if resolved.startswith("torch.") or word.startswith(("is_", "has_", "_is", "assert")):
                return None
            return False
        return None


def _scope(node: CSTNode, streams: Streams) -> CSTNode | None:
    """Returns the inner function that a node stands in, None for the function itself."""
    held: CSTNode | None = streams.parents.get(node)
    while held is not None and held is not streams.function.node:
        if isinstance(held, (cst.FunctionDef, cst.Lambda)):
            return held
        held = streams.parents.get(held)
    return None


def _may_be_ordered(
    streams: Streams, context: Context, producer: CSTNode, consumer: CSTNode
) -> bool:
    """Tells whether anything between may put the consumer behind the producer."""
    first, last = streams.order[producer], streams.order[consumer]
    stream = context.stream
    for wait in streams.waits:
        if first < wait.order <= last and wait.waiter != stream and may_be_for(
            wait, stream, streams
        ):
            return True
    leaves = {stream.rpartition(".")[2], *(_leaf(one.event) for one in streams.records)}
    for call in streams.function.calls:
        order = streams.order[call]
        if not first < order <= last:
            continue
        if streams.stream_at(order) == stream and last_name(call.func) in _READS:
            return True
        callee = streams.function.called(call)
        if callee is not None and orders_streams(callee):
            return True
        if last_name(call.func) in ("record_stream", "record", "stream", "StreamContext"):
            continue
        given = (*call.args, call.func.value) if isinstance(call.func, cst.Attribute) else call.args
        if any(
            last_name(one) in leaves
            for arg in given
            for one in walk(arg)
            if isinstance(one, (cst.Name, cst.Attribute))
        ):
            return True
    return False


def may_be_for(wait: Wait, stream: str, streams: Streams) -> bool:
    """Tells whether a wait may be for work of a stream: not if it names another stream."""
    if wait.on in (stream, ANYTHING):
        return True
    if wait.on == CURRENT or any(one.stream == wait.on for one in streams.contexts):
        return False
    recorded = {one.stream for one in streams.records if one.event == wait.on}
    return stream in recorded if recorded else not wait.on.endswith("stream")


def _leaf(text: str) -> str:
    return text.rpartition(".")[2]


def waits_for_another(streams: Streams) -> Iterator[tuple[Context, Wait, str]]:
    """Yields bodies that nothing waits for, with the wait right after them for another stream."""
    function = streams.function
    for context in streams.contexts:
        if not is_side(context.item, function):
            continue
        if any(_waits_for(wait, context, streams) for wait in streams.waits):
            continue
        if any(
            one.stream == context.stream and one.order > context.order for one in streams.records
        ):
            continue
        after = _next_statement(context.node, streams)
        for wait in streams.waits:
            if after is None or wait.node not in walk(after):
                continue
            other = _awaited_stream(wait, streams)
            if (
                other is not None
                and other != context.stream
                and wait.waiter in (CURRENT, HOST)
                and not any(one.stream == other for one in streams.contexts)
            ):
                yield context, wait, other


def _waits_for(wait: Wait, context: Context, streams: Streams) -> bool:
    return wait.order > context.order and may_be_for(wait, context.stream, streams)


def another_waits(streams: Streams) -> Iterator[tuple[Context, Wait]]:
    """Yields bodies whose stream waits for nothing, with the wait there that another stream does."""
    function = streams.function
    for context in streams.contexts:
        if not is_side(context.item, function) or last_name(context.item) == "":
            continue
        waits = [wait for wait in streams.waits if wait.order < context.end]
        if any(streams.orders(one, context.stream, CURRENT) for one in waits):
            continue
        before = _statement_before(context.node, streams)
        for wait in waits:
            func = wait.node.func
            if last_name(func) != "wait_stream" or not isinstance(func, cst.Attribute):
                continue
            is_near = context.holds(wait.order) or (
                before is not None and wait.node in walk(before)
            )
            waiter = func.value
            if (
                is_near
                and wait.waiter != context.stream
                and wait.on == CURRENT
                and last_name(waiter).endswith("stream")
                and is_side(waiter, function)
                and not any(one.stream == wait.waiter for one in streams.contexts)
            ):
                yield context, wait


def _statement_before(node: CSTNode, streams: Streams) -> CSTNode | None:
    body = getattr(streams.parents.get(node), "body", None)
    if not isinstance(body, (list, tuple)) or node not in body:
        return None
    at = body.index(node)
    return body[at - 1] if at else None


def _awaited_stream(wait: Wait, streams: Streams) -> str | None:
    """Returns the side stream that a wait is for, None if that is unknown."""
    word, func = last_name(wait.node.func), wait.node.func
    on: CSTNode | None = None
    if word in ("wait_stream", "wait_event") and wait.node.args:
        on = wait.node.args[0].value
    elif isinstance(func, cst.Attribute):
        on = func.value
    if isinstance(on, cst.Call) and last_name(on.func) == "record_event":
        on = on.func.value if isinstance(on.func, cst.Attribute) else None
    if on is not None and is_side(on, streams.function) and last_name(on).endswith("stream"):
        return streams.text(on)
    return None


def _next_statement(node: CSTNode, streams: Streams) -> CSTNode | None:
    body = getattr(streams.parents.get(node), "body", None)
    if not isinstance(body, (list, tuple)) or node not in body:
        return None
    at = body.index(node) + 1
    return body[at] if at < len(body) else None


def lost_streams(streams: Streams) -> Iterator[Context]:
    """Yields bodies on a stream that nobody can wait for, and that nothing waits for in them."""
    function = streams.function
    for context in streams.contexts:
        item = context.item
        if not _is_lost(item, streams):
            continue
        if any(wait.order > context.order for wait in streams.waits):
            continue
        if any(context.holds(one.order) for one in streams.records):
            continue
        calls = [one for one in function.calls if context.holds(streams.order[one])]
        if not any(_launches(one, streams) is not None for one in calls):
            continue
        if any(
            last_name(one.func) in _READS or _is_captured(one) or _helper_waits(one, function)
            for one in calls
        ):
            continue
        yield context


def _is_captured(call: cst.Call) -> bool:
    return "graph" in last_name(call.func).lower() or "capture" in last_name(call.func).lower()


def _helper_waits(call: cst.Call, function: Function) -> bool:
    callee = function.called(call)
    return callee is not None and orders_streams(callee)


def _is_lost(item: CSTNode, streams: Streams) -> bool:
    """Tells whether a stream is made where it is entered, or by a name used for nothing else."""
    if isinstance(item, cst.Call):
        return last_name(item.func) == "Stream"
    if not isinstance(item, cst.Name) or item.value in streams.parameters:
        return False
    values = streams.names.values(item.value)
    if len(values) != 1 or not (
        isinstance(values[0], cst.Call) and last_name(values[0].func) == "Stream"
    ):
        return False
    uses = [one for one in streams.order if is_name(one, item.value)]
    entered = [one.item for one in streams.contexts]
    return len(uses) == 1 + sum(one in entered for one in uses)


def gradients_used_early(streams: Streams) -> Iterator[tuple[cst.Call, cst.Call]]:
    """Yields `backward()` on one stream with an optimizer's step on another that has not waited."""
    function = streams.function
    calls = [one for one in function.calls if isinstance(one.func, cst.Attribute)]
    backward = [one for one in calls if last_name(one.func) == "backward"]
    if not backward or changes_stream(function):
        return
    for first in backward:
        order = streams.order[first]
        stream = streams.stream_at(order)
        for call in calls:
            other = streams.stream_at(streams.order[call])
            if streams.order[call] <= order or other == stream or not _steps(call, function):
                continue
            side = [one for one in streams.contexts if one.stream in (stream, other)]
            if not side or not all(is_side(one.item, function) for one in side):
                continue
            if any(
                order < wait.order < streams.order[call] and wait.waiter != stream
                for wait in streams.waits
            ):
                continue
            if streams.flow.may_follow(first, call):
                yield first, call
                break


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
