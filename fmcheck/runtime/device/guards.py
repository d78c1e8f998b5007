"""Guards: the buffers of a session whose ledgers lie on devices, and what was found there."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

from fmcheck.runtime.core.unfollowed import unfollowed
from fmcheck.runtime.device.ring import FIELDS, KernelRecord, Rings, by_violation
from fmcheck.runtime.steps import capturing

if TYPE_CHECKING:
    from fmcheck.runtime.core.tally import Tally


class KernelReporter(Protocol):
    """What reports the findings of one buffer."""

    def report_found(self, kind: int, moment: int, records: list[KernelRecord]) -> None:
        """Reports what a kernel found in some rows at one moment."""


class Guards:
    """The guarded buffers of a session, and the ring of each device."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.rings: Rings[KernelReporter, KernelRecord] = Rings(KernelRecord, FIELDS)

    @classmethod
    def of(cls, tally: Tally) -> Guards:
        """Returns those of a session, whose books are `tally`."""
        kept = _by_tally.get(tally)
        known = None if kept is None else kept()
        if known is None:
            known = cls(tally)
            _by_tally[tally] = weakref.ref(known)
            tally.pending.append(known.drain)
        return known

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
                    buffer.report_found(kind, moment, [rows[row] for row in sorted(rows)])
        self.rings.let_go()


# Weak both ways: those of a session live as long as its books, which drain them.
_by_tally: weakref.WeakKeyDictionary[Tally, weakref.ref[Guards]] = weakref.WeakKeyDictionary()
