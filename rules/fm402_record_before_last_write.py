"""FM402: an event is recorded before the last write that it is to protect."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.devices.writes import device_writes
from fmcheck.lint.model.expressions import last_name
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.positions import may_cover
from fmcheck.lint.model.vocabulary import ON_HOST
from fmcheck.lint.source.globs import fits
from fmcheck.lint.streams.function_streams import (
    ANYTHING,
    HOST,
    FunctionStreams,
    goes_to_host,
    streams_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.devices.writes import DeviceWrite
    from fmcheck.lint.source.module import Part
    from fmcheck.lint.streams.function_streams import AsyncCopy, EventRecord


class RecordBeforeLastWrite(FunctionRule):
    """An event is recorded, and what it protects is written again after it.

    ## What it does
    Looks for `event.record()` and `stream.record_event()` between two writes on one stream: to the
    same tensor, or to two relay buffers of the contract by the same rows. It is silent if any event
    is recorded after the last write, and about what was written before a copy to the host that the
    record follows. `record()` of anything that is no event by its name or its argument (a metric, a
    profiler) is left alone, and so are writes to host memory.

    ## Why is this bad
    An event covers what was enqueued before it. Who waits for it then reads the rows while the
    later write is still queued: the old token beside the new length, or the next owner's row
    overwritten by the last one.

    ## Example
    ```python
    self.new_seq_lens_buf[rows] = seq_lens
    self.publish_ready.record()
    self.output_tokens_buf[rows] = tokens
    ```

    ## Use instead
    ```python
    self.new_seq_lens_buf[rows] = seq_lens
    self.output_tokens_buf[rows] = tokens
    self.publish_ready.record()
    ```
    """

    code = "FM402"
    name = "record-before-last-write"
    severity = Severity.WARNING
    warns_undeclared = False
    words = ((".record(", "record_event("),)
    seen_in = ("https://github.com/sgl-project/sglang/pull/35748",)
    bad = (
        Example(
            """\
class Relay:
    def publish(self, rows, lens, tokens):
        self.new_seq_lens_buf[rows] = lens
        self.publish_ready.record()
        self.output_tokens_buf[rows] = tokens
""",
            at=((5, 9),),
        ),
        Example(
            """\
def stage(self, batch, n):
    inputs = self.inputs[:n]
    inputs.copy_(batch.inputs)
    ready = self.device_module.current_stream().record_event()
    self.inputs.masked_fill_(self.mask, 0)
    return ready
""",
            at=((5, 5),),
        ),
    )
    good = (
        Example(
            """\
def measure(buffer, run, start_event, end_event):
    start_event.record()
    buffer.zero_()
    run()
    end_event.record()
    buffer.zero_()
    return start_event.elapsed_time(end_event)

def reuse(self, batch):
    self.inputs.copy_(batch.inputs)
    self.ready_event.record()
    self.ready_event.synchronize()
    self.inputs.zero_()
"""
        ),
        Example(
            """\
class Relay:
    def publish(self, rows, lens, tokens, other):
        self.new_seq_lens_buf[rows] = lens
        self.ready.record()
        self.output_tokens_buf[other] = tokens

    def stash(self, rows, lens, tokens):
        self.new_seq_lens_buf[rows] = lens
        self.ready.record()
        self.output_tokens_buf[rows] = tokens
        self.done.record()
"""
        ),
        Example(
            """\
def count(self, kind, values):
    self.stats[kind] = values
    self.recorder.record(kind)
    self.stats[kind] = None
    self.totals.zero_()
    self.metric.record()
    self.totals.zero_()
"""
        ),
        Example(
            """\
def stage(self, batch, side):
    self.inputs.copy_(batch.inputs)
    self.ready.record()
    with self.device_module.stream(side):
        self.inputs.zero_()
    self.staged_ids[0] = batch
    self.cpu_inputs.zero_()
"""
        ),
        Example(
            """\
def issue(ring, batch):
    ring["rows"][:4].copy_(batch.rows)
    ready = device_module.Event()
    ready.record()
    ring["event"] = ready
"""
        ),
        Example(
            """\
def stage(self, batch, is_first):
    if is_first:
        self.inputs.copy_(batch.inputs)
        self.ready.record()
        return
    self.inputs.zero_()
"""
        ),
    )
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self._relays = [
            buffer.name for one in contracts for relay in one.relay for buffer in relay.buffer
        ]

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each write that comes too late for its event."""
        for function in functions(part):
            streams = streams_of(function)
            if not streams.records:
                continue
            writes = _Writes(streams, self._is_relay)
            timed = _timed(streams)
            for record in streams.records:
                if record.event in timed:
                    continue
                late = writes.late(record)
                if late is not None:
                    yield part.finding(
                        self,
                        late.node,
                        f"written after `{record.event}` was recorded",
                        note="a wait for the event does not cover it",
                        help=f"record `{record.event}` after the last write",
                        related=[(record.node, "recorded here")],
                    )

    def _is_relay(self, write: DeviceWrite) -> bool:
        return any(fits(path.rpartition(".")[2], self._relays) for path in write.buffers)


class _Writes:
    """What a function writes in place, by what an event may be to protect."""

    def __init__(self, streams: FunctionStreams, is_relay: Callable[[DeviceWrite], bool]) -> None:
        self._streams = streams
        last = streams.records[-1].order
        #: What is written after the last record, by its stream.
        self._late: dict[str, list[DeviceWrite]] = {}
        #: What is written earlier on a stream, by its buffers and, of a relay's, by its rows.
        self._early: dict[tuple[str, str, str], list[DeviceWrite]] = {}
        for one in device_writes(streams):
            if one.order > last:
                self._late.setdefault(one.stream, []).append(one)
            else:
                for key in self._keys(one, is_relay):
                    self._early.setdefault(key, []).append(one)
        # What is copied to the host right before a record is what it is for.
        self._copied = [one.order for one in streams.copies if _is_to_host(one)]
        self._is_relay = is_relay

    def _keys(
        self, one: DeviceWrite, is_relay: Callable[[DeviceWrite], bool]
    ) -> Iterator[tuple[str, str, str]]:
        for path in one.buffers:
            yield one.stream, path, ""
        if one.index and is_relay(one):
            yield one.stream, "", one.index

    def late(self, record: EventRecord) -> DeviceWrite | None:
        """Returns the first write that comes after a record which is to protect it too."""
        streams, served = self._streams, (ANYTHING, record.event, record.stream)
        wait = streams.wait_sieve(
            "host on", *served, passes=lambda one: one.waiter == HOST and one.on in served
        ).first(record.order)
        for late in self._late.get(record.stream, ()):
            if wait is not None and wait.order < late.order:
                return None  # The host has waited for the record: it has served.
            if (
                streams.flow.may_follow(record.node, late.node)
                and self._is_joined(late, record)
                # Another buffer than when the event was recorded is none of its.
                and not any(
                    self._is_rebound(path, record.order, late.order) for path in late.buffers
                )
            ):
                return late
        return None

    def _is_rebound(self, path: str, first: int, end: int) -> bool:
        """Tells whether a name is given another value from one order on, before another one."""
        order = self._streams.order.__getitem__
        bound = self._streams.function.bindings.get(path, ())
        place = bisect_left(bound, first, key=order)
        return place < len(bound) and order(bound[place]) < end

    def _is_joined(self, late: DeviceWrite, record: EventRecord) -> bool:
        """Tells whether what is written before a record is to be protected with a late write."""
        copied = bisect_left(self._copied, record.order)
        start = self._copied[copied - 1] if copied else -1
        by_order = attrgetter("order")
        for key in self._keys(late, self._is_relay):
            these = self._early.get(key, [])
            first = bisect_right(these, start, key=by_order)
            before = islice(these, first, bisect_left(these, record.order, key=by_order))
            may_follow = self._streams.flow.may_follow
            if any(_are_one(one, late) and may_follow(one.node, record.node) for one in before):
                return True
        return False


def _are_one(early: DeviceWrite, late: DeviceWrite) -> bool:
    """Tells whether one event is to protect both writes, which share a buffer or rows."""
    if early.buffers & late.buffers:
        return (early.is_tensor or late.is_tensor) and _may_meet(early, late)
    return True  # of two buffers of one relay


def _may_meet(one: DeviceWrite, other: DeviceWrite) -> bool:
    """Tells whether two writes to a buffer may write the same rows: the halves of one are two."""
    pairs = [(mine, its) for mine in one.regions for its in other.regions]
    return not pairs or any(may_cover(*pair) or may_cover(*reversed(pair)) for pair in pairs)


def _is_to_host(copy: AsyncCopy) -> bool:
    """Tells whether a copy goes to memory of the host, by its name or its call."""
    if copy.target is None:
        return goes_to_host(copy.node)
    base = copy.target
    while isinstance(base, cst.Subscript):
        base = base.value
    return bool(ON_HOST.search(last_name(base)))


def _timed(streams: FunctionStreams) -> set[str]:
    """Returns the events that are there to measure time: they order nothing."""
    return {
        streams.text(one)
        for node in streams.order
        if isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "elapsed_time"
        for one in (node.func.value, *(arg.value for arg in node.args))
    }
