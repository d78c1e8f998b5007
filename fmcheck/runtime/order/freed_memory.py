"""FR402: memory that is freed on the lane that allocated it while another lane's use is not done.

What is freed stays with its lane: nobody gets that memory before the lane's next allocation, so a
wait that comes in between is in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.runtime.order.blocks import BlockUse, Freed

if TYPE_CHECKING:
    from fmcheck.runtime.order.blocks import Block
    from fmcheck.runtime.order.fences import Fences, Lane
    from fmcheck.runtime.order.ops import OperatorCall
    from fmcheck.runtime.order.too_soon import TooSoon


class FreedMemory:
    """What lanes have freed since their last allocation, and what others may still do to it."""

    def __init__(self, fences: Fences, reports: TooSoon) -> None:
        self._fences, self._reports = fences, reports
        self.in_use: dict[int, list[Freed]] = {}
        self._former: dict[int, BlockUse] = {}

    def begin_test(self) -> None:
        """Forgets what was freed."""
        self.in_use.clear()
        self._former.clear()

    def former(self, lane: Lane) -> BlockUse | None:
        """Returns the last use of memory that a lane has freed, None if it has freed none."""
        return self._former.get(lane.number)

    def freed(self, block: Block) -> None:
        """Keeps what other lanes may still do to memory that goes back to the allocator."""
        if block.made is None:
            return
        lane = block.made.lane
        own, former = block.uses.get(lane.number, block.made), self._former.get(lane.number)
        if former is None or former.lane is not lane or former.count < own.count:
            self._former[lane.number] = own
        for use in block.uses.values():
            if use.lane is lane:
                continue
            # The host's allocator waits for the copies from and to its memory.
            is_kept = block.is_host and not use.by_kernel
            is_own = use.lane.number in block.sent
            if is_own or is_kept or self._is_lent(block, use):
                continue
            if not self._fences.ordered(use.epoch, lane):
                freed = Freed(block.made, use, self._reports.here())
                self.in_use.setdefault(lane.number, []).append(freed)
                return

    def _is_lent(self, block: Block, use: BlockUse) -> bool:
        """Tells whether a lane that the memory is lent to does the use, or comes behind it."""
        clocks = self._fences.clocks
        return any(
            number == use.lane.number or clocks.covers(number, use.epoch) for number in block.lent
        )

    def allocated(self, lane: Lane) -> None:
        """Judges what a lane freed since its last allocation: this one may get that memory."""
        for freed in self.in_use.pop(lane.number, ()):
            if freed.made.lane is lane and not self._fences.ordered(freed.use.epoch, lane):
                self._reused(freed)

    def _reused(self, freed: Freed) -> None:
        use, lane = freed.use, freed.made.lane
        used, owner = f"stream `{use.lane.name}`", f"stream `{lane.name}`"
        self._reports.report(
            "FR402",
            BlockUse(lane, use.count, freed.moment),
            "free",
            use,
            "use",
            f"`record_stream({use.lane.name})`, an owner that keeps it until that stream is done, "
            f"or a wait of {owner} for {used}",
            f"the memory belongs to {owner}, which allocated again before it waited for {used}",
            freed.made,
        )

    def taken(self, call: OperatorCall, made: BlockUse) -> None:
        """Reports a lane that comes to what another one allocated, perhaps before that is its."""
        lane, count, moment = call.now(self._fences)
        used, owner = f"stream `{lane.name}`", f"stream `{made.lane.name}`"
        self._reports.report(
            "FR402",
            BlockUse(lane, count, moment),
            call.name.rstrip("_"),
            made,
            "allocation",
            f"a wait of {used} for {owner} after {self._reports.line(made.moment)}",
            f"the memory belongs to {owner}, whose work with what was there before may not be done",
            doubt="memory that was never used before may be taken at once; the allocator decides",
        )
