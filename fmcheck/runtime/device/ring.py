"""The ring: what kernels find of guarded buffers is left in device memory, until somebody asks.

`Guards` are the buffers of a session whose ledgers lie on devices, `Clashes` the accesses that a
kernel found unordered.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import torch

from fmcheck.runtime.core.site import unfollowed
from fmcheck.runtime.core.tally import UNREAD
from fmcheck.runtime.steps import capturing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.order.fences import Happening, Lane, Snapshot


#: Records that fit between two drains, on each device. Further ones are counted, and that is
#: reported.
CAPACITY = 4096
UNSEEN = 0
#: FR105 of a write; 105 is that of a gather.
INVALID_WRITE = 1105


class KernelRecord(NamedTuple):
    """What a kernel found in one row.

    `kind` is the number of an FR1xx check, UNSEEN or INVALID_WRITE.
    """

    buffer: int
    kind: int
    row: int
    bits: int
    moment: int
    last_write: int
    written_in: int
    last_read: int
    read_in: int
    generation: int


FIELDS = len(KernelRecord._fields)
#: What a record says of a row's ledger, last in each: `Clash` ends as `KernelRecord` does.
BOOK = KernelRecord._fields[KernelRecord._fields.index("last_write") :]
_Made = TypeVar("_Made")
_Holder = TypeVar("_Holder")


class Ring(Generic[_Made]):
    """Records of the kernels on one device, and how often the kernels of gather and write ran.

    `made` makes a record of its `fields` numbers, the first of which is never 0. Kernels write them
    to pinned memory of the host: when an assert on the device, the engine's own say, has ended its
    context, what was found before can still be read.
    """

    def __init__(self, device: torch.device, made: Callable[..., _Made], fields: int) -> None:
        self.device = device
        self.capacity = CAPACITY
        self.lost = ""
        self._made = made
        pinned = device.type == "cuda"
        self.records = torch.zeros(
            (CAPACITY, fields), dtype=torch.int64, device="cpu", pin_memory=pinned
        )
        #: Records, those that did not fit included, and launches of gather and write.
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)

    def drain(self) -> tuple[list[_Made], int, tuple[int, int]]:
        """Returns the records since it was last asked, how many more were lost, and the launches.

        Waits for the device, which is the only host sync of the guard; it is not to be followed. Of
        a device that is gone the launches are not known; `lost` then says what torch says of it.
        """
        try:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            found, gathers, writes = self.counts.tolist()
            self.counts.zero_()
        except torch.AcceleratorError as err:
            self.lost = str(err).partition("\n")[0]
            found, gathers, writes = int(self.records[:, 0].count_nonzero()), 0, 0
        kept = self.records[: min(found, self.capacity)]
        made = [self._made(*record) for record in kept.tolist()]
        kept.zero_()
        return made, max(0, found - self.capacity), (gathers, writes)


class Rings(Generic[_Holder, _Made]):
    """The ring of each device, and who has records in them: each holder by a number of its own.

    What was touched since the last drain is kept, so that what was found in it can be reported.
    """

    def __init__(self, made: Callable[..., _Made], fields: int) -> None:
        self.by_device: dict[torch.device, Ring[_Made]] = {}
        self._record = made, fields
        self._numbers = itertools.count(1)
        self._touched: dict[int, _Holder] = {}
        self._known: weakref.WeakValueDictionary[int, _Holder] = weakref.WeakValueDictionary()

    def add(self, holder: _Holder, device: torch.device) -> tuple[Ring[_Made], int]:
        """Returns the ring for a new holder and the number that its records bear."""
        if device not in self.by_device:
            self.by_device[device] = Ring(device, *self._record)
        number = next(self._numbers)
        self._known[number] = holder
        return self.by_device[device], number

    def touch(self, number: int, holder: _Holder) -> None:
        """Keeps a holder alive until the next drain."""
        self._touched[number] = holder

    def holder(self, number: int) -> _Holder | None:
        """Returns who bears a number, None if it is gone."""
        return self._known.get(number)

    def let_go(self) -> None:
        """Ends a drain: nobody is kept alive any more."""
        self._touched.clear()


def by_violation(
    records: Iterable[KernelRecord],
) -> dict[tuple[int, int, int], dict[int, KernelRecord]]:
    """Returns records by buffer, kind and moment, and there by row: of a row the first one."""
    found: dict[tuple[int, int, int], dict[int, KernelRecord]] = {}
    for record in records:
        rows = found.setdefault((record.buffer, record.kind, record.moment), {})
        rows.setdefault(record.row, record)
    return found


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
            if ring.lost:
                self._tally.note(UNREAD.format(ring.lost))
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


CLASH_FIELDS = len(Clash._fields)
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
        self._rings: Rings[ClashReporter, Clash] = Rings(Clash, CLASH_FIELDS)
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
