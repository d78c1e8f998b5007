"""Handed-over tensors: any memory that one lane writes and another touches, declared or not.

A relay buffer has a shadow of its own, row by row. Of all other memory each storage keeps its last
write and, a lane each, its last reads, with the bytes that they reached. Memory that is written by
index is left out from then on: other rows of it may well be in use elsewhere.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.races import Party, race

if TYPE_CHECKING:
    import torch

    from fmcheck.finding import Site
    from fmcheck.runtime.fences import Fences, Lane
    from fmcheck.runtime.ops import Call

#: Operators that write the elements that an index picks, or read those.
_WRITES_BY_INDEX = frozenset(
    {
        *("index_put_", "_index_put_impl_", "index_copy_", "index_fill_", "index_add_"),
        *("index_reduce_", "scatter_", "scatter_add_", "scatter_reduce_", "masked_fill_"),
        *("masked_scatter_", "put_"),
    }
)
_REMEMBERED = 8


@dataclass(eq=False, slots=True)  # frozen, it would take four times as long to make
class Touch:
    """One access of a storage: bytes [low, high), all of them if `dense`.

    `is_copy` tells of a copy that the host does not wait for: what the host does beside it is
    judged elsewhere.
    """

    lane: Lane
    count: int
    moment: int
    low: int
    high: int
    dense: bool
    is_copy: bool

    def meets(self, other: Touch) -> bool:
        """Tells whether both reach some byte, as far as that is certain."""
        if self.low >= other.high or other.low >= self.high:
            return False
        if self.dense and other.dense:
            return True
        if self.dense or other.dense:
            wide, narrow = (self, other) if self.dense else (other, self)
            return wide.low <= narrow.low and narrow.high <= wide.high
        return (self.low, self.high) == (other.low, other.high)


@dataclass(eq=False, slots=True)
class Memory:
    """What is known of one storage. `by_parts` ends it.

    `image` is what its last write in place went over, where writes are delayed; `out` tells that
    everybody sees that write. What is `on_host` only copies touch in a stream's order: all else the
    host does itself, at once.
    """

    storage: weakref.ref[Any]
    device: torch.device
    writes: list[Touch] = field(default_factory=list)
    reads: dict[int, Touch] = field(default_factory=dict)
    by_parts: bool = False
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
        self.memory_of(tensor).by_parts = True

    def before(self, call: Call) -> None:
        """The host has launched the call, and has waited for what it is about to read itself."""
        if call.host:
            self.fences.read_by_host(call.lane)
        else:
            self.fences.launch(call.lane)

    def is_late(self, memory: Memory, tensor: torch.Tensor, lane: Lane) -> bool:
        """Tells whether a lane may miss a write to what a tensor shows."""
        touch = _touch(tensor, lane, 0, 0, is_copy=False)
        return any(self._clash(early, touch) for early in memory.writes)

    def after(self, call: Call) -> None:
        """Judges the accesses of a call."""
        lane = self.fences.host if call.host else call.lane
        site = call.site(self.fences.tally.sites)
        for tensor in call.reads:
            memory = self.memory_of(tensor)
            if not memory.by_parts:
                self._read(memory, self._touch(memory, tensor, lane, site, call))
        for tensor in call.writes:
            memory = self.memory_of(tensor)
            if memory.by_parts:
                continue
            if call.name in _WRITES_BY_INDEX:
                memory.by_parts = True
                memory.writes.clear()
                memory.reads.clear()
            else:
                self._write(memory, self._touch(memory, tensor, lane, site, call))
        if call.fills:
            for tensor in call.made:
                memory = self.memory_of(tensor)
                if not memory.by_parts:
                    self._write(memory, self._touch(memory, tensor, lane, site, call))

    def _touch(
        self, memory: Memory, tensor: torch.Tensor, lane: Lane, site: int, call: Call
    ) -> Touch:
        fences = self.fences
        is_copy = call.is_async_copy
        if memory.on_host and not is_copy:
            lane = fences.host
        moment = fences.tally.moments.on(lane.name, site)
        return _touch(tensor, lane, fences.time(lane), moment, is_copy)

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
            if self._clash(early, late):
                self._report("write-read", memory, early, late)
                break
        memory.reads[late.lane.number] = late

    def _write(self, memory: Memory, late: Touch) -> None:
        for early in memory.writes:
            if self._clash(early, late):
                self._report("write-write", memory, early, late)
                break
        for early in memory.reads.values():
            if self._clash(early, late):
                self._report("read-write", memory, early, late)
                break
        if late.dense:
            memory.writes = [
                one for one in memory.writes if one.low < late.low or one.high > late.high
            ]
        memory.writes.append(late)
        memory.out = False
        del memory.writes[:-_REMEMBERED]

    def _clash(self, early: Touch, late: Touch) -> bool:
        if early.lane is late.lane:
            return False
        if early.count <= self.fences.clocks.known(late.lane.number, early.lane.number):
            return False
        host = self.fences.host
        beside_a_copy = (early.is_copy and late.lane is host) or (
            late.is_copy and early.lane is host
        )
        return not beside_a_copy and early.meets(late)

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


def _touch(tensor: torch.Tensor, lane: Lane, count: int, moment: int, is_copy: bool) -> Touch:
    low = tensor.data_ptr()
    if tensor.is_contiguous():
        return Touch(lane, count, moment, low, low + tensor.nbytes, True, is_copy)
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return Touch(lane, count, moment, low, low + (reach + 1) * tensor.itemsize, False, is_copy)
