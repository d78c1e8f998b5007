"""Guarded lanes: what every lane did to each row of a relay buffer, kept beside it on its device.

The host follows the fences, so that at each launch it knows the current lane's clock: the clock
goes along as plain numbers, and a kernel holds it against the epochs of the rows. That is one
launch an access for each four lanes that ever touched the buffer, and no host sync; what it finds
is reported at the next drain, by a snapshot of the access. The host waits for the device when a
buffer is instrumented, and when a fifth lane, a ninth and so on first touches it.

A device runs what nothing orders in any order, and of two accesses that race the one that runs last
meets the other. What the host does itself is done when it is issued, whenever its kernel runs: that
judges nothing issued later, and misses what a later access of the same lane has covered by then.

Nothing is launched into a capture: its clock would be that of the capture at each replay. From the
first capture on no race is certain anyway (see `device_streams.py`), and a replay that a contract
declares is entered when it was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcheck.runtime.core.rows import EVERYTHING
from fmcheck.runtime.core.site import unfollowed
from fmcheck.runtime.device import clock_kernels
from fmcheck.runtime.device.ring import KINDS, SLOTS, VERBS, Launched
from fmcheck.runtime.order.fences import Happening
from fmcheck.runtime.order.races import Party, RelayLanes, early_party, is_of_all, unmarked
from fmcheck.runtime.steps import capturing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fmcheck.runtime.device.guard import GuardedBuffer
    from fmcheck.runtime.device.ring import Clash, Clashes
    from fmcheck.runtime.order.fences import Fences, Lane

_BLOCK = 64
_ANY = (1 << 63) - 1


class GuardedLanes(RelayLanes):
    """The twin of `RelayLanes` for a guarded buffer. Rows come as NumPy has them or on the device.

    Each lane has a slot. Slots come in pages that are never moved, for kernels of several streams
    are at work on them: times, moments and numbers of the last writes and reads of `SLOTS` lanes.
    """

    def __init__(
        self,
        guard: GuardedBuffer,
        fences: Fences,
        current: Callable[[], Lane],
        clashes: Clashes,
    ) -> None:
        super().__init__(guard, fences, current)
        self._guard = guard
        self._clashes = clashes
        self._device = torch.device(guard.device)
        self._slots: dict[int, int] = {}
        self._lanes: list[Lane] = []
        self._pages: list[torch.Tensor] = []
        self._every = torch.arange(len(guard.ledger), device=self._device)
        self._ring, self._number = clashes.add(self, self._device)
        self._add_page()
        self._warm_up()

    def report_found(self, clashes: Sequence[Sequence[Clash]], launched: Launched | None) -> None:
        """Reports what a kernel found about one access: records of one kind and lane in each list.

        `launched` is None of an access so long ago that its snapshot is not kept any more.
        """
        first = clashes[0][0]
        what = VERBS[first.verb] if launched is None else launched.happened.what
        if what == "hand-out":
            kept = [[one for one in found if not is_of_all(one.earlier)] for found in clashes]
            clashes = [found for found in kept if found]
            if not clashes:
                return
        if launched is None:
            lanes = tuple(self._lanes)
            late, moment = lanes[first.own], unmarked(first.moment)
            happened = Happening(
                first.number, late, what, moment, 0, about=self.buffer.name, ordered=False
            )
            launched = Launched(happened, lanes, self.fences.snapshot(lanes).before(first.number))
        happened, lanes, snapshot = launched
        self.fences.unordered.add(happened.number)
        party = Party(happened.what, happened.moment, happened.lane)
        for records in clashes:
            one = records[0]
            kind = KINDS[one.kind]
            self._report(
                kind,
                np.array([record.row for record in records], np.int64),
                early_party(kind, one.earlier, lanes[one.slot]),
                party,
                happened,
                snapshot,
                self._guard.as_of(one),
            )

    def _enter(self, verb: str, rows: Any, moment: int, lane: Lane, writes: bool = False) -> None:
        if capturing.on(self._device):
            return
        time = self.fences.time(lane)
        happened = self.fences.add_event(lane, verb, unmarked(moment), about=self.buffer.name)
        own = self._slot(lane)
        snapshot = self.fences.snapshot(self._lanes)
        self._clashes.launch(self._number, self, Launched(happened, tuple(self._lanes), snapshot))
        index = self._index(rows)
        if index.numel():
            self._launch(index, lane, own, (time, moment, happened.number), verb, writes)

    def _launch(
        self,
        index: torch.Tensor,
        lane: Lane,
        own: int,
        now: tuple[int, int, int],
        verb: str,
        writes: bool,
    ) -> None:
        clocks = self.fences.clocks
        known = [clocks.known(lane.number, one.number) for one in self._lanes]
        known += [0] * (SLOTS * len(self._pages) - len(known))
        before = now[2] if lane is self.fences.host else _ANY
        # Its own page is first: of two accesses, one has to be entered before the other is judged.
        pages = sorted(range(len(self._pages)), key=lambda number: number != own // SLOTS)
        for number in pages:
            first = number * SLOTS
            arguments = (
                index,
                self._pages[number],
                self._guard.owned_rows,
                self._guard.book,
                self._ring.records,
                self._ring.counts,
                self._ring.capacity,
                index.numel(),
                len(self._every),
                self._number,
                first,
                own,
                *known[first : first + SLOTS],
                *now,
                before,
                VERBS.index(verb),
            )
            constants = {
                "WRITES": writes,
                "ENTERS": first <= own < first + SLOTS,
                "BLOCK": _BLOCK,
            }
            programs = max(1, -(-index.numel() // _BLOCK))
            self._guard.launch(clock_kernels.touch_rows, programs, arguments, constants)

    def _index(self, rows: Any) -> torch.Tensor:
        """Returns row numbers on the device."""
        if isinstance(rows, torch.Tensor):
            return rows
        if rows is EVERYTHING:
            return self._every
        numbers = np.arange(len(self._every))[rows]
        return self._guard.upload(np.unique(numbers))

    def _slot(self, lane: Lane) -> int:
        slot = self._slots.get(lane.number)
        if slot is None:
            slot = self._slots[lane.number] = len(self._lanes)
            self._lanes.append(lane)
            if slot == SLOTS * len(self._pages):
                self._add_page()
        elif self._lanes[slot] is not lane:  # a stream that came after one that is gone
            self._lanes[slot] = lane
        return slot

    def _add_page(self) -> None:
        """Adds slots that nothing is entered in, for every stream to find so.

        What was launched before does not look there, and must not meet what comes.
        """
        self._wait()
        shape = (6, SLOTS, len(self._every))
        self._pages.append(torch.zeros(shape, dtype=torch.int64, device=self._device))
        self._wait()

    def _wait(self) -> None:
        """Waits for the device."""
        if self._device.type == "cuda" and not capturing.on(self._device):
            with unfollowed():
                torch.cuda.synchronize(self._device)

    def _warm_up(self) -> None:
        """Compiles the kernels now: the first access of a step is no time for it."""
        none = self._every[:0]
        for writes in (False, True):
            for own in (-1, 0):
                self._launch(none, self.fences.host, own, (0, 0, 0), VERBS[0], writes)
