"""FM405: memory is freed while a side stream may still use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.devices.pinned import makes_pinned
from fmcheck.lint.model.expressions import dotted, last_name
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.vocabulary import CLASS, COPIES, ENTERED, LAUNCHES
from fmcheck.lint.source.walking import walk
from fmcheck.lint.streams.function_streams import ANYTHING, CURRENT, FunctionStreams, streams_of
from fmcheck.lint.streams.handovers import callers_order, freed_to_side, is_within_side_stream
from fmcheck.lint.streams.stream_kinds import is_kept_current

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Part
    from fmcheck.lint.streams.function_streams import Context, Wait

#: Functions that allocate a tensor, whether or not they launch anything.
ALLOCATES = LAUNCHES | {"empty", "empty_like", "new_empty", "new_zeros"}


class MissingRecordStream(FunctionRule):
    """A tensor goes out of scope while a side stream may still use its memory.

    ## What it does
    Looks at `with stream(side):` bodies that use a tensor which this function made on its own
    stream, or a pinned tensor that is handed to anything but a copy, and that nothing keeps: it is
    not returned, stored, captured by an inner function or put into anything. It also looks at the
    other direction: a tensor that the body allocates, on a side stream that never waits for the
    current one, and that the current stream uses after the body. It is silent where the
    function calls `record_stream` on it, or where any stream or the host waits for `side`
    afterwards, for then the memory cannot be handed out again too early. The contract's
    `streams.joins` names pairs of streams that wait for each other elsewhere. Off by default: of
    three findings on code that it was not written on none was right.

    ## Why is this bad
    When the last reference is gone, the caching allocator gives the block to the next allocation of
    the stream that it was made on. That stream does not wait for `side`, so the next kernel writes
    the memory while `side` still reads it. An event that orders the read after the write does not
    tell the allocator anything. Whether it shows depends on the allocator: one such fault gave
    wrong results in 19 of 20 runs with expandable segments, and in none of 40 without.

    ## Example
    ```python
    rows = torch.cat(parts)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        self.out.copy_(rows)
    ```

    ## Use instead
    ```python
    rows = torch.cat(parts)
    side.wait_stream(torch.cuda.current_stream())
    rows.record_stream(side)
    with torch.cuda.stream(side):
        self.out.copy_(rows)
    ```
    or join: `current_stream().wait_stream(side)` before the tensor goes.
    """

    code = "FM405"
    name = "missing-record-stream"
    severity = Severity.WARNING
    on_by_default = False
    words = (("tream",), ENTERED, ("with ", "with("))
    seen_in = (
        "https://github.com/vllm-project/vllm-ascend/pull/13394",
        "https://github.com/InternLM/lmdeploy/pull/4792",
        "https://github.com/ModelTC/LightLLM/pull/1180",
        "https://github.com/sgl-project/sglang/pull/34076",
    )
    bad = (
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    self.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
        self.saved.record()
""",
            at=((7, 24),),
        ),
        Example(
            """\
def offload(self, pages, device_module):
    with device_module.stream(self.offload_stream):
        offload_kernel(torch.tensor(pages, pin_memory=True), self.pool)
""",
            at=((3, 24),),
        ),
        Example(
            """\
import torch

def save(self, parts, lens):
    rows, count = torch.cat(parts), len(parts)
    kept = torch.cat(lens)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
        self.lens.copy_(kept)
    kept.record_stream(self.side)
    with torch.cuda.stream(self.other):
        self.counts[0] = count
    torch.cuda.current_stream().wait_stream(self.other)
""",
            at=((7, 24),),
        ),
        Example(
            """\
def offload(self, pages, device_module):
    with device_module.stream(stream=self.offload_stream):
        if (rows := device_module.zeros(8, device=self.device)) is not None:
            offload_kernel(pages.pin_memory(), rows)
""",
            at=((4, 28),),
        ),
    )
    good = (
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    self.side.wait_stream(torch.cuda.current_stream())
    rows.record_stream(self.side)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
"""
        ),
        Example(
            """\
import torch

def save(self, parts):
    main = torch.cuda.current_stream()
    rows = torch.cat(parts)
    self.side.wait_stream(main)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
        saved = self.side.record_event()
    main.wait_event(saved)
"""
        ),
        Example(
            """\
import torch

def keep(self, parts):
    rows = torch.cat(parts)
    self.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
    self.pending.append((rows, self.out))

def give(self, parts):
    rows = torch.cat(parts)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
    return rows

def stage(self, pages, side):
    pinned = torch.tensor(pages, pin_memory=True)
    with torch.cuda.stream(self.side):
        self.rows.copy_(pinned, non_blocking=True)
        rows = torch.tensor(pages, pin_memory=True).to("cuda", non_blocking=True)
        return rows
"""
        ),
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    with torch.cuda.stream(self.forward_stream):
        self.out.copy_(rows)
""",
            contract='engine.name = "mine"\n'
            'streams.joins = [["forward_stream", "schedule_stream"]]\n',
        ),
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
        self.publish()
    torch.cuda.current_stream().wait_event(self.published)
"""
        ),
        Example(
            """\
import torch

class Saver:
    def __init__(self):
        self.compute = torch.cuda.current_stream()

    def save(self, parts):
        rows = torch.cat(parts)
        with torch.cuda.stream(self.compute):
            self.out.copy_(rows)
"""
        ),
    )
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        streams = [one.streams for one in contracts]
        self._ordered_by = {name for one in streams for name in one.ordered_by}
        self._joined = {name for one in streams for pair in one.joins for name in pair}

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each tensor that nothing keeps until the side stream is done."""
        for function in functions(part):
            streams = streams_of(function, self._ordered_by)
            kept = {*streams.kept, *_kept_names(streams)} if streams.contexts else set()
            for context in streams.contexts:
                leaf = context.stream.rpartition(".")[2]
                if leaf not in self._joined and not streams.may_be_current(context.stream):
                    yield from self._freed(context, kept, streams, part)
            yield from self._freed_to_side(streams, part)

    def _freed_to_side(self, streams: FunctionStreams, part: Part) -> Iterator[Finding]:
        function = streams.function
        for one in freed_to_side(streams):
            if one.stream.rpartition(".")[2] in self._joined:
                continue
            if is_within_side_stream(function) or callers_order(function, one.stream):
                continue
            yield part.finding(
                self,
                one.consumer,
                f"`{one.stream}` may reuse the memory of `{one.name}` while this runs",
                note=f"`{one.stream}` never waits for the stream that uses `{one.name}` here",
                help=f"`{one.name}.record_stream(current_stream())`, or have `{one.stream}` wait "
                "for the current stream before its body",
                related=[(one.producer, "allocated here")],
            )

    def _freed(
        self, context: Context, kept: Collection[str], streams: FunctionStreams, part: Part
    ) -> Iterator[Finding]:
        if _is_joined(context, streams):
            return
        reported: set[str] = set()
        for call in streams.nodes(context.order, context.end):
            if not isinstance(call, cst.Call):
                continue
            for arg in call.args:
                name = last_name(arg.value) if isinstance(arg.value, cst.Name) else ""
                if name in reported or not _is_temporary(arg.value, call, context, kept, streams):
                    continue
                if is_kept_current(context.item, streams.function):
                    return
                reported.add(name or part.code(arg.value))
                yield part.finding(
                    self,
                    arg.value,
                    f"`{name or 'this pinned tensor'}` may be reused before "
                    f"`{part.code(context.item)}` is done with it",
                    note="its memory belongs to another stream, and is used on this one",
                    help=(
                        f"`{name}.record_stream({part.code(context.item)})`, or join the streams "
                        "before it is freed"
                    )
                    if name and not _is_pinned(arg.value, streams)
                    else "keep the tensor until the stream is done with it, or copy it into a "
                    "device buffer",
                )


def _is_joined(context: Context, streams: FunctionStreams) -> bool:
    """Tells whether anything waits for the side stream after its body has begun."""
    stream = context.stream

    def joins(wait: Wait) -> bool:
        return wait.waiter != stream and (
            wait.waiter == ANYTHING or streams.may_be_for(wait, stream)
        )

    return streams.wait_sieve("joined", stream, passes=joins).first(context.order - 1) is not None


def _is_temporary(
    value: CSTNode,
    call: cst.Call,
    context: Context,
    kept: Collection[str],
    streams: FunctionStreams,
) -> bool:
    """Tells whether an argument is a tensor that this function alone knows, made off the stream."""
    if not isinstance(value, cst.Name):
        return makes_pinned(value, streams.part) and not _may_keep(call)
    values = streams.names.bound(value)
    if len(values) != 1 or value.value in kept:
        return False
    if _is_pinned(value, streams):
        return not _may_keep(call)
    made = streams.order.get(values[0], context.order)
    return (
        made < context.order
        and streams.stream_at(made) == CURRENT
        and (
            streams.launches(values[0]) or last_name(getattr(values[0], "func", value)) in ALLOCATES
        )
        and "cpu" not in streams.part.code(values[0])
    )


def _is_pinned(value: CSTNode, streams: FunctionStreams) -> bool:
    if isinstance(value, cst.Name):
        return any(makes_pinned(one, streams.part) for one in streams.names.bound(value))
    return makes_pinned(value, streams.part)


def _may_keep(call: cst.Call) -> bool:
    """Tells whether a call keeps pinned memory until it is done: a copy, or an object's method."""
    held = call.func.value if isinstance(call.func, cst.Attribute) else None
    name = dotted(held) if held is not None else None
    return _copies(call) or (name is not None and name.startswith("self."))


def _copies(call: cst.Call) -> bool:
    """Tells whether a call is a copy, for which the pinned allocator keeps the memory itself."""
    return last_name(call.func) in (*COPIES, "pin_memory", "record_stream", "cuda")


def _kept_names(streams: FunctionStreams) -> Iterator[str]:
    """Yields the names that may live on after the function, or in an inner one."""
    kinds = (cst.Return, cst.Yield, cst.Assign, cst.Call, cst.FunctionDef, cst.Lambda)
    for node in streams.function.of(*kinds):
        bound: CSTNode | None = None
        if isinstance(node, (cst.Return, cst.Yield)):
            held: CSTNode | None = node.value
        elif isinstance(node, cst.Assign):
            held = bound = node.value
        elif isinstance(node, cst.Call) and (
            CLASS.match(last_name(node.func)) or last_name(node.func) in ("append", "put", "submit")
        ):
            held = node
        elif isinstance(node, (cst.FunctionDef, cst.Lambda)):
            held = node.body
        else:
            continue
        for one in walk(held) if held is not None else ():
            # What makes a tensor of itself, as `x = x + 1` does, keeps nothing.
            if isinstance(one, cst.Name) and (
                bound is None or streams.names.values(one.value) != [bound]
            ):
                yield one.value
