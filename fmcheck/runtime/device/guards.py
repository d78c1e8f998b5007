"""Guards: the buffers of a session whose ledgers lie on devices, and what was found there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.runtime.core.unfollowed import unfollowed
from fmcheck.runtime.device.ring import FIELDS, Record, Rings, by_violation
from fmcheck.runtime.steps import capturing

if TYPE_CHECKING:
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.device.guard import GuardedBuffer


class Guards:
    """The guarded buffers of a session, and the ring of each device."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.rings: Rings[GuardedBuffer, Record] = Rings(Record, FIELDS)

    def drain(self) -> None:
        """Reports what the kernels found since the last drain. Waits for each device."""
        for device, ring in self.rings.by_device.items():
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
                buffer = self.rings.holder(number)
                if buffer is not None:
                    buffer.tell(kind, moment, [rows[row] for row in sorted(rows)])
        self.rings.let_go()
