"""The ring: findings that kernels leave in device memory, read when somebody asks."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
_Made = TypeVar("_Made")
_Holder = TypeVar("_Holder")


class Ring(Generic[_Made]):
    """Records of the kernels on one device, and how often the kernels of gather and write ran.

    `made` makes a record of its `fields` numbers.
    """

    def __init__(self, device: torch.device, made: Callable[..., _Made], fields: int) -> None:
        self.device = device
        self.capacity = CAPACITY
        self._made = made
        self.records = torch.zeros((CAPACITY, fields), dtype=torch.int64, device=device)
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self.launches = torch.zeros(2, dtype=torch.int64, device=device)

    def drain(self) -> tuple[list[_Made], int, tuple[int, int]]:
        """Returns the records since it was last asked, how many more were lost, and the launches.

        Waits for the device, which is the only host sync of the guard; it is not to be followed.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        found = int(self.count)
        kept = self.records[: min(found, self.capacity)].tolist()
        gathers, writes = self.launches.tolist()
        self.count.zero_()
        self.launches.zero_()
        return (
            [self._made(*record) for record in kept],
            max(0, found - self.capacity),
            (gathers, writes),
        )


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
