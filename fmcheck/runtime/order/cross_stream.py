"""Cross-stream tensors: any memory that one lane writes and another touches, declared or not.

A relay buffer has a shadow of its own, row by row. Of all other memory each storage keeps its last
writes and reads, with the bytes that they reached: all of a range, the elements of a strided view,
or those that an index picked. Where that cannot be known, nothing is reported and it is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from fmcheck.runtime.core.site import is_made_here
from fmcheck.runtime.order.blocks import Block, Blocks, BlockTouch, BlockUse, span
from fmcheck.runtime.order.extents import (
    PARTLY,
    READS,
    WRITES,
    Picked,
    Some,
    Strided,
    is_certain,
    picked,
)
from fmcheck.runtime.order.races import INCOMPLETE, Party, race
from fmcheck.runtime.order.virtual import lane_of
from fmcheck.runtime.steps.placements import Placement, is_sure, origin_of, placement_of
from fmcheck.runtime.steps.writes import address_of

if TYPE_CHECKING:
    from fmcheck.finding import Site
    from fmcheck.runtime.order.fences import Fences, Lane
    from fmcheck.runtime.order.ops import OperatorCall

#: Accesses of one storage that are remembered, each way.
_REMEMBERED = 8
_UNCOMPARED = "they touch too many pieces, or an index on a device picks them"
_MASKED = "an index writes what was gathered before, of which the reader may use a part alone"
_UNSURE = "nothing tells whether what `to` was called on is the host's, which no stream waits for"
_WHOSE = (
    "nothing tells whether memory that is copied without waiting is the host's: `host_values` in "
    "the contract names what is"
)
_APART = "who uses memory that was sent to the device may go on with what the host has"
_OF_TORCH = "they are torch's own, in threads where no line of the program is"
_HALF_SEEN = "one of the two is torch's own, of a backward pass say, which orders streams unseen"
_EVICTED = f"more than {_REMEMBERED} accesses of one tensor are not remembered"


class CrossStreamTensors:
    """Listens to operators, and judges what they touch."""

    check = "FR401"

    def __init__(self, fences: Fences) -> None:
        self.fences = fences
        self.blocks = Blocks()
        # A fence that is missing lets every tensor of a step race: one report for all of them.
        self._reported: dict[tuple[str, str, str, int], tuple[str, str, Site]] = {}

    def leave_out(self, tensor: torch.Tensor) -> None:
        """A tensor's memory is followed by other means, or not at all."""
        self.blocks.of(tensor).left_out = True

    def share(self, tensor: torch.Tensor) -> None:
        """Memory that others follow is the engine's own as well, which has a tensor of its own."""
        self.blocks.of(tensor).shared = True

    def before(self, call: OperatorCall) -> None:
        """The host has launched the call, and has waited for what it is about to read itself.

        It waits for nothing where it reads memory that is its own beyond doubt.
        """
        if call.host and not call.is_view and not all(map(self._is_the_hosts, call.reads)):
            self.fences.read_by_host(call.lane)
        else:
            self.fences.launch(call.lane)

    def _is_the_hosts(self, tensor: torch.Tensor) -> bool:
        """Tells whether memory is the host's beyond doubt, and known as such to no stream."""
        is_host = is_sure(tensor) and placement_of(tensor) is Placement.HOST
        return is_host and self.blocks.of(tensor).on_host

    def begin_test(self) -> None:
        """Tells each gap again, and holds nothing against what comes."""
        self._reported.clear()
        for block in self.blocks:
            block.writes.clear()
            block.reads.clear()
            block.sent.clear()
            block.by_index = block.on_host = block.is_apart = False
            block.homes = frozenset()

    def is_late(self, block: Block, tensor: torch.Tensor, lane: Lane) -> bool:
        """Tells whether a lane may miss a write to what a tensor shows."""
        touch = _touch_of(tensor, lane, 0, 0, is_copy=False)
        touch.sent = origin_of(tensor) if block.is_apart else None
        return any(self._misses(block, early, touch) for early in block.writes)

    def arrived(
        self, tensor: torch.Tensor, lane: Lane, is_guess: bool, is_waited_for: bool, is_apart: bool
    ) -> BlockTouch:
        """A lane sent to the device what may be the host's: what was done before ends there.

        The host's own work no stream waits for. On a device each stream that sends it has a copy,
        the first that its stream does to memory of its own. Of memory that nobody made in sight,
        and that is not known by another tensor from then on, nobody says that it was not on the
        device all along. Who used it before has the host's; without any it is the default stream.
        """
        block, tally = self.blocks.of(tensor), self.fences.tally
        moment = tally.moments.on(lane.name, tally.sites.here(3))
        use = BlockUse(lane, self.fences.time(lane), moment)
        if is_guess and self.is_late(block, tensor, lane):
            tally.untrack("accesses", _UNSURE)
        # On a CPU, memory of another owner is NumPy's, or another process's.
        is_foreign = not tensor.untyped_storage().resizable()
        is_known = bool(block.made or block.uses or block.writes) or is_foreign
        if is_known:
            block.made, block.former, block.uses = use, None, {lane.number: use}
        # Had it been on the device, the host would not have waited for the stream's work.
        by = self.fences.host if is_guess and is_waited_for else lane
        touch = _touch_of(tensor, by, self.fences.time(by), moment, not is_waited_for)
        touch.is_arrival, touch.sent = True, touch if is_apart else None
        home = lane_of(torch.cpu._default_cpu_stream)
        before = {one.lane.number for one in (*block.writes, *block.reads)} or {home.number}
        block.homes |= before - block.sent.keys()
        block.sent[lane.number] = touch
        block.is_apart = is_apart
        block.writes = list(block.sent.values()) if is_known or is_apart else []
        block.reads.clear()
        block.image, block.out = None, False
        return touch

    def after(self, call: OperatorCall) -> None:
        """Judges the accesses of a call."""
        now, plan = call.now(self.fences), call.plan
        name, reads = plan.name, call.reads
        if reads:
            is_loose = not plan.of_torch or name in PARTLY
            picks = name in READS
            for tensor, block in zip(reads, call.read_in(self.blocks), strict=True):
                if block.left_out and _is_followed_by_others(block):
                    continue
                late = self._late(call, tensor, block, now)
                if picks and tensor is call.args[0]:
                    late.extent = picked(READS, name, call.args)
                if is_loose:
                    late.is_loose = True
                self._read(block, late)
        for tensor in call.writes:
            block = self.blocks.of(tensor)
            if not (block.left_out and _is_followed_by_others(block)):
                late = self._late(call, tensor, block, now)
                if name not in WRITES or self._picks(block, late, call):
                    self._write(block, late)
        if call.made and plan.fills:
            for tensor, block in zip(call.made, call.made_in(self.blocks), strict=True):
                if not block.left_out:
                    late = self._late(call, tensor, block, now)
                    if block.writes or block.reads:
                        self._write(block, late)
                    else:  # most are new
                        block.writes.append(late)
                        block.out = False

    def _picks(self, block: Block, late: BlockTouch, call: OperatorCall) -> bool:
        """Lets a touch be what an index picks; tells whether that is anything for certain."""
        block.by_index = True
        late.extent = picked(WRITES, call.name, call.args)
        if isinstance(late.extent, Some) and not is_certain(WRITES, call.name, call.args):
            self.fences.tally.untrack(
                "accesses", "a mask that is not looked at says what is written"
            )
            return False
        return True

    def _late(
        self, call: OperatorCall, tensor: torch.Tensor, block: Block, now: tuple[Lane, int, int]
    ) -> BlockTouch:
        """Returns a call's touch: of the host's memory only copies are in a stream's order."""
        lane, count, moment = now
        is_copy = call.is_async_copy
        if block.on_host and not is_copy:
            host = self.fences.host
            if lane is not host:
                lane, count, moment = host, self.fences.time(host), call.moment_on(host)
        touch = _touch_of(tensor, lane, count, moment, is_copy)
        if block.is_apart:
            touch.sent = origin_of(tensor)
        if block.made is None and placement_of(tensor) is Placement.UNKNOWN:
            touch.either_way = is_copy or all(
                placement_of(one) is Placement.HOST or (one.dim() == 0 and known.made is None)
                for one, known in zip(call.reads, call.read_in(self.blocks), strict=True)
            )  # a number comes as a tensor that nobody made
        return touch

    # --- judging ---

    def _read(self, block: Block, late: BlockTouch) -> None:
        lane = late.lane
        for early in block.writes:
            if early.lane is lane or self._is_the_hosts_before(early, late):
                continue
            if self._misses(block, early, late):
                self._report("write-read", block, early, late)
                break
        self._remember(block.reads, late)

    def _write(self, block: Block, late: BlockTouch) -> None:
        for early in block.writes:
            if early.lane is late.lane or (early.is_arrival and self._has_copy(block, late.lane)):
                continue
            if self._is_the_hosts_before(early, late) or not self._clash(early, late):
                continue
            # What nobody made in sight may have been on the device, where nothing is copied.
            is_copied = early.is_arrival and block.made is not None
            if is_copied or not self._is_other(block, early, late):
                self._report("write-write", block, early, late)
                break
        for early in block.reads:
            if early.lane is late.lane or not self._clash(early, late):
                continue
            if not (self._is_apart(block, early, late) or self._may_be_masked(early, late)):
                self._report("read-write", block, early, late)
                break
        if late.extent is None and block.writes:
            block.writes = [one for one in block.writes if not late.covers(one)]
        self._remember(block.writes, late)
        block.out = False

    def _is_the_hosts_before(self, early: BlockTouch, late: BlockTouch) -> bool:
        """Tells whether a write may be what the host did before it gave a copy to a stream.

        Of memory that was there before anybody looked nobody says whose it is. The host's own
        writes come before all that is launched behind them.
        """
        if not (early.either_way and late.either_way and late.is_copy and not early.is_copy):
            return False
        self.fences.tally.untrack("accesses", _WHOSE)
        return True

    def _misses(self, block: Block, early: BlockTouch, late: BlockTouch) -> bool:
        """Tells whether a read may miss a write."""
        if early.is_arrival and self._has_copy(block, late.lane):
            return False
        if not self._clash(early, late):
            return False
        if early.is_arrival and not block.is_apart and late.lane.number in block.homes:
            self.fences.tally.untrack("accesses", _APART)
            return False
        return not self._is_other(block, early, late)

    def _is_other(self, block: Block, early: BlockTouch, late: BlockTouch) -> bool:
        """Tells whether two accesses may be of two copies, or one of what the host kept."""
        if not block.is_apart or early.sent is late.sent:
            return False
        self.fences.tally.untrack("accesses", _APART)
        return True

    def _has_copy(self, block: Block, lane: Lane) -> bool:
        """Tells whether a lane has what was sent to the device, by itself or by a wait."""
        if block.is_apart:
            return False  # each copy is known by its tensor
        known = self.fences.clocks.known
        return lane.number in block.sent or any(
            one.count <= known(lane.number, one.lane.number) for one in block.sent.values()
        )

    def _is_apart(self, block: Block, early: BlockTouch, late: BlockTouch) -> bool:
        """Tells whether a read may be of what a lane was sent, and a write of what the host kept.

        Without a wait for the copy, the write comes too soon for both.
        """
        if block.is_apart:
            return self._is_other(block, early, late)
        sent = block.sent.get(early.lane.number)
        if sent is None or sent.is_copy or late.lane.number not in block.homes:
            return False
        self.fences.tally.untrack("accesses", _APART)
        return True

    def _may_be_masked(self, early: BlockTouch, late: BlockTouch) -> bool:
        """Tells whether an index writes what one gathered before: that may be masked, as in tables.

        A table of slots is gathered by whole rows, and what lies behind a row's length is not used.
        """
        if not (isinstance(early.extent, Picked) and isinstance(late.extent, Picked)):
            return False
        self.fences.tally.untrack("accesses", _MASKED)
        return True

    def _remember(self, kept: list[BlockTouch], late: BlockTouch) -> None:
        """Keeps an access; it stands for earlier ones of its lane that it covers."""
        if not kept:
            kept.append(late)
            return
        if late.extent is None and not late.is_loose:  # else it covers none
            lane, low, high = late.lane, late.low, late.high
            one = kept[0]
            if len(kept) == 1 and one.lane is lane and low <= one.low and one.high <= high:
                kept[0] = late
                return
            kept[:] = [one for one in kept if one.lane is not lane or not late.covers(one)]
        if len(kept) == _REMEMBERED:
            past = self._past(kept)
            if past is None:
                self.fences.tally.untrack("accesses", _EVICTED)
            del kept[past or 0]
        kept.append(late)

    def _past(self, kept: list[BlockTouch]) -> int | None:
        """Returns the place of the first that the host has waited for, None without one.

        Then whatever is launched next has waited for it: it decides nothing any more.
        """
        lane, upto = None, 0
        for place, one in enumerate(kept):
            if one.lane is not lane:
                lane = one.lane
                upto = self.fences.clocks.known(self.fences.host.number, lane.number)
            if one.count <= upto:
                return place
        return None

    def _clash(self, early: BlockTouch, late: BlockTouch) -> bool:
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

    def _report(self, kind: str, block: Block, early: BlockTouch, late: BlockTouch) -> None:
        fences, tally = self.fences, self.fences.tally
        if tally.sites.is_showing():
            return
        lines = [tally.moments.site(one.moment) for one in (early, late)]
        if not any(lines):
            tally.untrack("accesses", _OF_TORCH)
            return
        with tally.lock:
            gap = self._gap(kind, early, late)
            if gap in self._reported and tally.seen_again(self._reported[gap]):
                return
            verb, _, later = kind.partition("-")
            before = Party(verb, early.moment, early.lane)
            after = Party(later, late.moment, late.lane)
            name = self._name(block.writes[0].moment if block.writes else early.moment)
            first = fences.add_event(early.lane, verb, early.moment, about=name)
            last = fences.add_event(late.lane, later, late.moment, about=name, ordered=False)
            found = race(fences, kind, before, after, (first, last))
            found = replace(found, buffer=name, device=str(block.device))
            if not all(lines):
                notes = (*found.notes, _HALF_SEEN)
                found = replace(found, notes=notes, confidence=INCOMPLETE)
            self._reported[gap] = found.key
            tally.report(found)

    def _gap(self, kind: str, early: BlockTouch, late: BlockTouch) -> tuple[str, str, str, int]:
        """Returns what is missing: the two streams, and how far the later one had waited."""
        wait = late.lane.waits.get(early.lane.number)
        upto = -1 if wait is None or wait.after is None else wait.after.happening.moment
        sites = self.fences.tally.moments.site(upto) if upto >= 0 else -1
        return kind, early.lane.name, late.lane.name, sites

    def _name(self, moment: int) -> str:
        """Names memory by the line that made it, or wrote it first as far as is known."""
        tally = self.fences.tally
        site = tally.site_of(moment)
        return f"tensor of {site.short} in {site.function}"


def _is_followed_by_others(block: Block) -> bool:
    """Tells whether an access of a block that is left out is followed by other means."""
    return not block.shared or is_made_here(1)


def _touch_of(
    tensor: torch.Tensor, lane: Lane, count: int, moment: int, is_copy: bool
) -> BlockTouch:
    """Returns an access of what a tensor shows."""
    if tensor.is_contiguous():
        low = address_of(tensor)
        return BlockTouch(lane, count, moment, low, low + tensor.nbytes, None, is_copy)
    low, high = span(tensor)
    extent = Strided(low, tensor.shape, tensor.stride(), tensor.itemsize)
    return BlockTouch(lane, count, moment, low, high, extent, is_copy)
