"""Guards: the buffers of a session whose ledgers lie on devices, and what was found there."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from fmcheck.runtime import capturing
from fmcheck.runtime.ring import FIELDS, Record, Ring, by_violation
from fmcheck.runtime.unfollowed import unfollowed

if TYPE_CHECKING:
    import torch

    from fmcheck.runtime.guard import GuardedBuffer
    from fmcheck.runtime.tally import Tally


class Guards:
    """The guarded buffers of a session, and the ring of each device."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rings: dict[torch.device, Ring[Record]] = {}
        self._made = 0
        # What was touched since the last drain is kept, so that what was found in it can be told.
        self._touched: dict[int, GuardedBuffer] = {}
        self._known: weakref.WeakValueDictionary[int, GuardedBuffer] = weakref.WeakValueDictionary()

    def add(self, buffer: GuardedBuffer, device: torch.device) -> tuple[Ring[Record], int]:
        """Returns the ring for a new buffer and the number that its records bear."""
        if device not in self._rings:
            self._rings[device] = Ring(device, Record, FIELDS)
        self._made += 1
        self._known[self._made] = buffer
        return self._rings[device], self._made

    def touch(self, number: int, buffer: GuardedBuffer) -> None:
        """Keeps a buffer alive until the next drain."""
        self._touched[number] = buffer

    def drain(self) -> None:
        """Reports what the kernels found since the last drain. Waits for each device."""
        for device, ring in self._rings.items():
            if capturing.on(device):
                continue
            with unfollowed():
                records, lost, (gathers, writes) = ring.drain()
            # Replays of a graph launch what no call of ours has counted.
            self._tally.gathers += gathers
            self._tally.writes += writes
            if lost:
                self._tally.note(
                    f"{lost} findings on {device} did not fit into the {ring.capacity} of its ring"
                )
            for (number, kind, moment), rows in by_violation(records).items():
                buffer = self._known.get(number)
                if buffer is not None:
                    buffer.tell(kind, moment, [rows[row] for row in sorted(rows)])
        self._touched.clear()
