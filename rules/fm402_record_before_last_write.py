"""FM402: an event is recorded before the last write that it is to protect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.device_writes import device_writes
from fmcheck.lint.model.expressions import dotted, last_name, targets
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.positions import may_cover
from fmcheck.lint.model.streams import ANYTHING, HOST, FunctionStreams, goes_to_host, streams_of
from fmcheck.lint.model.vocabulary import ON_HOST
from fmcheck.lint.source.globs import fits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.model.device_writes import DeviceWrite
    from fmcheck.lint.model.streams import AsyncCopy, EventRecord
    from fmcheck.lint.source.module import Part


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
            writes = list(device_writes(streams))
            timed = _timed(streams)
            for record in streams.records:
                if record.event in timed:
                    continue
                late = self._late_write(record, writes, streams)
                if late is not None:
                    yield part.finding(
                        self,
                        late.node,
                        f"written after `{record.event}` was recorded",
                        note="a wait for the event does not cover it",
                        help=f"record `{record.event}` after the last write",
                        related=[(record.node, "recorded here")],
                    )

    def _late_write(
        self, record: EventRecord, writes: Sequence[DeviceWrite], streams: FunctionStreams
    ) -> DeviceWrite | None:
        mine = [one for one in writes if one.stream == record.stream]
        last = max(one.order for one in streams.records)
        done = [
            one
            for one in streams.waits
            if one.waiter == HOST and one.on in (ANYTHING, record.event, record.stream)
        ]
        # What is copied to the host right before a record is what it is for.
        copied = max(
            (one.order for one in streams.copies if one.order < record.order and _is_to_host(one)),
            default=-1,
        )
        before = [
            one
            for one in mine
            if copied < one.order < record.order and streams.flow.may_follow(one.node, record.node)
        ]
        for late in mine:
            is_last = late.order > last and streams.flow.may_follow(record.node, late.node)
            if any(record.order < one.order < late.order for one in done):
                break  # The host has waited for the record: it has served.
            if (
                is_last
                and any(self._are_one(early, late) for early in before)
                and not _is_rebound(late, record, streams)
            ):
                return late
        return None

    def _are_one(self, early: DeviceWrite, late: DeviceWrite) -> bool:
        """Tells whether one event is to protect both writes."""
        if early.buffers & late.buffers:
            return (early.is_tensor or late.is_tensor) and _may_meet(early, late)
        is_relay = all(any(self._is_relay(path) for path in one.buffers) for one in (early, late))
        return is_relay and early.index == late.index != ""

    def _is_relay(self, path: str) -> bool:
        leaf = path.rpartition(".")[2]
        return fits(leaf, self._relays)


def _may_meet(one: DeviceWrite, other: DeviceWrite) -> bool:
    """Tells whether two writes to a buffer may write the same rows: the halves of one are two."""
    pairs = [(mine, its) for mine in one.regions for its in other.regions]
    return not pairs or any(may_cover(*pair) or may_cover(*reversed(pair)) for pair in pairs)


def _is_rebound(late: DeviceWrite, record: EventRecord, streams: FunctionStreams) -> bool:
    """Tells whether a written buffer is another one than when the event was recorded."""
    between = streams.nodes(record.order, late.order)
    return any(dotted(target) in late.buffers for node in between for target in targets(node))


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
