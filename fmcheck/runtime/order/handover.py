"""Handed-over tensors: any memory that one lane writes and another touches, declared or not.

A relay buffer has a shadow of its own, row by row. Of all other memory each storage keeps its last
writes and reads, with the bytes that they reached: all of a range, the elements of a strided view,
or those that an index picked. Where that cannot be told, nothing is reported and it is counted.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.order.extents import (
    PARTLY,
    READS,
    WRITES,
    Picked,
    Some,
    Strided,
    is_certain,
    meet,
    meets_range,
    picked,
)
from fmcheck.runtime.order.races import Party, race
from fmcheck.runtime.relay.relay_tensor import is_made_by_relay

if TYPE_CHECKING:
    import torch

    from fmcheck.finding import Site
    from fmcheck.runtime.order.extents import Extent
    from fmcheck.runtime.order.fences import Fences, Lane
    from fmcheck.runtime.order.ops import Call

#: Accesses of one storage that are remembered, each way.
_REMEMBERED = 8
_UNCOMPARED = "they touch too many pieces, or an index on a device picks them"
_MASKED = "an index writes what was gathered before, of which the reader may use a part alone"
_EVICTED = f"more than {_REMEMBERED} accesses of one tensor are not remembered"


@dataclass(eq=False, slots=True)  # frozen, it would take four times as long to make
class Touch:
    """One access of a storage: bytes [low, high), of which `extent` tells some, None all.

    `is_copy` tells of a copy that the host does not wait for: what the host does beside it is
    judged elsewhere. `is_loose` tells that it may leave out any of them.
    """

    lane: Lane
    count: int
    moment: int
    low: int
    high: int
    extent: Extent | None
    is_copy: bool
    is_loose: bool = False

    def meets(self, other: Touch) -> bool | None:
        """Tells whether both reach some byte; None where there is no telling."""
        if self.low >= other.high or other.low >= self.high:
            return False
        if self.extent is None and other.extent is None:
            return True
        if self.extent is not None and other.extent is not None:
            return meet(self.extent, other.extent)
        whole, part = (self, other) if self.extent is None else (other, self)
        assert part.extent is not None
        covers = whole.low <= part.low and part.high <= whole.high
        if isinstance(part.extent, Some):
            return True if covers and not whole.is_loose else None
        if covers and isinstance(part.extent, Strided):
            return True
        found = meets_range(part.extent, whole.low, whole.high)
        return None if found and whole.is_loose and isinstance(part.extent, Picked) else found

    def covers(self, other: Touch) -> bool:
        """Tells whether this reaches all that another did."""
        is_whole = self.extent is None and not self.is_loose
        return is_whole and self.low <= other.low and other.high <= self.high


@dataclass(eq=False, slots=True)
class Memory:
    """What is known of one storage. `left_out` is what others follow, but for what reaches memory
    that is `shared` by the tensor that the engine itself has, and not by the relay's.

    Where writes are delayed, `image` is what its last write in place went over, `out` tells that
    everybody sees that write; memory that is written `by_index` is shown as it is. What is
    `on_host` only copies touch in a stream's order: all else the host does itself, at once.
    """

    storage: weakref.ref[Any]
    device: torch.device
    writes: list[Touch] = field(default_factory=list)
    reads: list[Touch] = field(default_factory=list)
    left_out: bool = False
    shared: bool = False
    by_index: bool = False
    on_host: bool = False
    image: torch.Tensor | None = None
    out: bool = False


class Handover:
    """Listens to operators, and judges what they touch."""

    check = "FR401"

    def __init__(self, fences: Fences) -> None:
        self.fences = fences
        self._memory: dict[int, Memory] = {}
        # A fence that is missing lets every tensor of a step race: one report for all of them.
        self._told: dict[tuple[str, str, str, int], tuple[str, str, Site]] = {}

    def leave_out(self, tensor: torch.Tensor) -> None:
        """A tensor's memory is followed by other means, or not at all."""
        self.memory_of(tensor).left_out = True

    def share(self, tensor: torch.Tensor) -> None:
        """Memory that others follow is the engine's own as well, which has a tensor of its own."""
        self.memory_of(tensor).shared = True

    def before(self, call: Call) -> None:
        """The host has launched the call, and has waited for what it is about to read itself."""
        if call.host and not call.is_view:
            self.fences.read_by_host(call.lane)
        else:
            self.fences.launch(call.lane)

    def begin_test(self) -> None:
        """Tells each gap again, and holds nothing against what comes."""
        self._told.clear()
        for memory in list(self._memory.values()):
            memory.writes.clear()
            memory.reads.clear()
            memory.by_index = memory.on_host = False

    def is_late(self, memory: Memory, tensor: torch.Tensor, lane: Lane) -> bool:
        """Tells whether a lane may miss a write to what a tensor shows."""
        touch = _touch(tensor, lane, 0, 0, is_copy=False)
        return any(self._clash(early, touch) for early in memory.writes)

    def after(self, call: Call) -> None:
        """Judges the accesses of a call."""
        fences = self.fences
        lane = fences.host if call.host else call.lane
        moment = fences.tally.moments.on(lane.name, call.site(fences.tally.sites))
        now = lane, fences.time(lane), moment
        for tensor in call.reads:
            memory = self.memory_of(tensor)
            if not _is_followed_by_others(memory):
                late = self._touch(memory, tensor, now, call)
                if call.plan.name in READS and tensor is call.args[0]:
                    late.extent = picked(READS, call.name, call.args)
                late.is_loose = not call.plan.of_torch or call.plan.name in PARTLY
                self._read(memory, late)
        for tensor in call.writes:
            memory = self.memory_of(tensor)
            if not _is_followed_by_others(memory):
                late = self._touch(memory, tensor, now, call)
                if call.plan.name not in WRITES or self._picks(memory, late, call):
                    self._write(memory, late)
        if call.plan.fills:
            for tensor in call.made:
                memory = self.memory_of(tensor)
                if not memory.left_out:
                    self._write(memory, self._touch(memory, tensor, now, call))

    def _picks(self, memory: Memory, late: Touch, call: Call) -> bool:
        """Lets a touch be what an index picks; tells whether that is anything for certain."""
        memory.by_index = True
        late.extent = picked(WRITES, call.name, call.args)
        if isinstance(late.extent, Some) and not is_certain(WRITES, call.name, call.args):
            self.fences.tally.untrack(
                "accesses", "a mask that is not looked at says what is written"
            )
            return False
        return True

    def _touch(
        self, memory: Memory, tensor: torch.Tensor, now: tuple[Lane, int, int], call: Call
    ) -> Touch:
        lane, count, moment = now
        if memory.on_host and not call.is_async_copy and lane is not self.fences.host:
            lane = self.fences.host
            count = self.fences.time(lane)
            moment = self.fences.tally.moments.on(lane.name, call.site(self.fences.tally.sites))
        return _touch(tensor, lane, count, moment, call.is_async_copy)

    def memory_of(self, tensor: torch.Tensor) -> Memory:
        """Returns what is known of a tensor's storage, for as long as that lives."""
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        known = self._memory.get(key)
        if known is None:
            gone = weakref.ref(storage, lambda _: self._memory.pop(key, None))
            known = self._memory[key] = Memory(gone, tensor.device)
        return known

    # --- judging ---

    def _read(self, memory: Memory, late: Touch) -> None:
        for early in memory.writes:
            if early.lane is not late.lane and self._clash(early, late):
                self._report("write-read", memory, early, late)
                break
        self._remember(memory.reads, late)

    def _write(self, memory: Memory, late: Touch) -> None:
        for early in memory.writes:
            if early.lane is not late.lane and self._clash(early, late):
                self._report("write-write", memory, early, late)
                break
        for early in memory.reads:
            if early.lane is late.lane:
                continue
            if self._clash(early, late) and not self._may_be_masked(early, late):
                self._report("read-write", memory, early, late)
                break
        if late.extent is None and memory.writes:
            memory.writes = [one for one in memory.writes if not late.covers(one)]
        self._remember(memory.writes, late)
        memory.out = False

    def _may_be_masked(self, early: Touch, late: Touch) -> bool:
        """Tells whether an index writes what one gathered before: that may be masked, as in tables.

        A table of slots is gathered by whole rows, and what lies behind a row's length is not used.
        """
        if not (isinstance(early.extent, Picked) and isinstance(late.extent, Picked)):
            return False
        self.fences.tally.untrack("accesses", _MASKED)
        return True

    def _remember(self, kept: list[Touch], late: Touch) -> None:
        """Keeps an access; it stands for earlier ones of its lane that it covers."""
        if len(kept) == 1 and kept[0].lane is late.lane and late.covers(kept[0]):
            kept[0] = late
            return
        if kept:
            kept[:] = [one for one in kept if one.lane is not late.lane or not late.covers(one)]
            if len(kept) == _REMEMBERED:
                # What all have waited for decides nothing any more.
                past = next((one for one in kept if self._is_past(one)), None)
                if past is None:
                    self.fences.tally.untrack("accesses", _EVICTED)
                kept.remove(kept[0] if past is None else past)
        kept.append(late)

    def _is_past(self, one: Touch) -> bool:
        """Tells whether the host has waited for an access: then whatever is launched next has."""
        return one.count <= self.fences.clocks.known(self.fences.host.number, one.lane.number)

    def _clash(self, early: Touch, late: Touch) -> bool:
        if early.lane is late.lane:
            return False
        if early.count <= self.fences.clocks.known(late.lane.number, early.lane.number):
            return False
        host = self.fences.host
        beside_a_copy = (early.is_copy and late.lane is host) or (
            late.is_copy and early.lane is host
        )
        if beside_a_copy:
            return False
        found = early.meets(late)
        if found is None:
            self.fences.tally.untrack("accesses", _UNCOMPARED)
        return bool(found)

    def _report(self, kind: str, memory: Memory, early: Touch, late: Touch) -> None:
        fences, tally = self.fences, self.fences.tally
        if tally.sites.is_showing():
            return
        with tally.lock:
            gap = self._gap(kind, early, late)
            if gap in self._told and tally.seen_again(self._told[gap]):
                return
            verb, _, later = kind.partition("-")
            before = Party(verb, early.moment, early.lane)
            after = Party(later, late.moment, late.lane)
            name = self._name(memory.writes[0].moment if memory.writes else early.moment)
            first = fences.tell(early.lane, verb, early.moment, about=name)
            last = fences.tell(late.lane, later, late.moment, about=name, ordered=False)
            found = race(fences, kind, before, after, (first, last))
            found = replace(found, buffer=name, device=str(memory.device))
            self._told[gap] = found.key
            tally.report(found)

    def _gap(self, kind: str, early: Touch, late: Touch) -> tuple[str, str, str, int]:
        """Returns what is missing: the two streams, and how far the later one had waited."""
        wait = late.lane.waits.get(early.lane.number)
        upto = -1 if wait is None or wait.after is None else wait.after.happening.moment
        sites = self.fences.tally.moments.site(upto) if upto >= 0 else -1
        return kind, early.lane.name, late.lane.name, sites

    def _name(self, moment: int) -> str:
        """Names memory by the line that made it, or wrote it first as far as is known."""
        tally = self.fences.tally
        site = tally.sites[tally.moments.site(moment)]
        return f"tensor of {PurePath(site.path).name}:{site.line} in {site.function}"


def _is_followed_by_others(memory: Memory) -> bool:
    return memory.left_out and not (memory.shared and not is_made_by_relay(sys._getframe(1)))


def _touch(tensor: torch.Tensor, lane: Lane, count: int, moment: int, is_copy: bool) -> Touch:
    low = tensor.data_ptr()
    if tensor.is_contiguous():
        return Touch(lane, count, moment, low, low + tensor.nbytes, None, is_copy)
    shape, strides, itemsize = tensor.shape, tensor.stride(), tensor.itemsize
    if not tensor.numel():
        return Touch(lane, count, moment, low, low, None, is_copy)
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    extent = Strided(low, shape, strides, itemsize)
    return Touch(lane, count, moment, low, low + (reach + 1) * itemsize, extent, is_copy)
