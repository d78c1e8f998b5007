"""Clashes: accesses that a kernel found unordered, and what the lanes had behind them then."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from fmcheck.runtime.core.unfollowed import unfollowed
from fmcheck.runtime.device.ring import Rings
from fmcheck.runtime.steps import capturing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.device.ring import Ring
    from fmcheck.runtime.order.fences import Happening, Lane, Snapshot

#: Lanes of which one launch judges a row.
SLOTS = 4
KINDS = ("write-read", "read-write", "write-write")
VERBS = ("gather", "write", "peek", "hand-out")
#: Launches since the last drain of which the snapshot is kept.
KEPT = 4096


class Clash(NamedTuple):
    """What a kernel found in one row: an access of the lane in `slot` that the late one races with.

    `kind` and `verb` are places in `KINDS` and `VERBS`, `earlier` and `earlier_number` are the
    moment of the access in `slot` and its number among the happenings, `moment` and `number` those
    of the late one, `own` the slot of its lane. The rest is what the row's ledger said then.
    """

    buffer: int
    kind: int
    row: int
    slot: int
    earlier: int
    earlier_number: int
    number: int
    moment: int
    own: int
    verb: int
    last_write: int
    written_in: int
    last_read: int
    read_in: int
    generation: int

    def in_order_of_issue(self) -> Clash:
        """Returns what a CPU would have found: the access that was issued later is the late one.

        A device may run the two the other way round. Of a read nothing tells a peek then.
        """
        if self.earlier_number <= self.number:
            return self
        kind = _TURNED[self.kind]
        return self._replace(
            kind=kind,
            slot=self.own,
            own=self.slot,
            earlier=self.moment,
            moment=self.earlier,
            earlier_number=self.number,
            number=self.earlier_number,
            verb=VERBS.index("gather" if KINDS[kind] == "write-read" else "write"),
        )


FIELDS = len(Clash._fields)
_TURNED = tuple(KINDS.index("-".join(reversed(kind.split("-")))) for kind in KINDS)


class Launched(NamedTuple):
    """An access that was launched: `lanes` are those of the buffer's slots."""

    happened: Happening
    lanes: tuple[Lane, ...]
    snapshot: Snapshot


class ClashReporter(Protocol):
    """What reports the clashes of one buffer."""

    def report_found(self, clashes: Sequence[Sequence[Clash]], launched: Launched | None) -> None:
        """Reports what a late access clashed with; `launched` is None of one long ago."""


class Clashes:
    """What the clock kernels of a session find, on all its devices."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rings: Rings[ClashReporter, Clash] = Rings(Clash, FIELDS)
        self._launched: dict[int, Launched] = {}

    def add(self, lanes: ClashReporter, device: torch.device) -> tuple[Ring[Clash], int]:
        """Returns the ring for a new buffer and the number that its records bear."""
        if not self._rings.by_device:
            self._tally.pending.append(self.drain)
        return self._rings.add(lanes, device)

    def launch(self, number: int, lanes: ClashReporter, launched: Launched) -> None:
        """Keeps a launch in mind, and its buffer alive, until the next drain."""
        self._rings.touch(number, lanes)
        self._launched[launched.happened.number] = launched
        if len(self._launched) > KEPT:
            del self._launched[next(iter(self._launched))]

    def drain(self) -> None:
        """Reports what the kernels found since the last drain. Waits for each device."""
        with self._tally.lock, unfollowed():
            if any(capturing.on(device) for device in self._rings.by_device):
                return
            for device, ring in self._rings.by_device.items():
                records, lost, _ = ring.drain()
                if lost:
                    self._tally.note(
                        f"{lost} races on {device} did not fit into the {ring.capacity} of its ring"
                    )
                for (number, access), clashes in by_access(records).items():
                    lanes = self._rings.holder(number)
                    if lanes is not None:
                        lanes.report_found(clashes, self._launched.get(access))
            self._rings.let_go()
            self._launched.clear()


def by_access(records: Iterable[Clash]) -> dict[tuple[int, int], list[list[Clash]]]:
    """Returns records by buffer and late access, in order of issue.

    There they are in a list for each kind and lane, with each row once, the first one first.
    """
    found: dict[tuple[int, int], dict[tuple[int, int], dict[int, Clash]]] = {}
    turned = (record.in_order_of_issue() for record in records)
    for record in sorted(turned, key=lambda one: (one.number, -one.kind, one.slot, one.row)):
        kinds = found.setdefault((record.buffer, record.number), {})
        kinds.setdefault((record.kind, record.slot), {}).setdefault(record.row, record)
    return {
        access: [list(rows.values()) for rows in kinds.values()] for access, kinds in found.items()
    }
