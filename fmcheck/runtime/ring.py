"""The ring: findings that kernels leave in device memory, read when somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Records that fit between two drains, on each device. Further ones are counted, and that is told.
CAPACITY = 4096
UNSEEN = 0


class Record(NamedTuple):
    """What a kernel found in one row. `kind` is the number of an FR1xx check, or UNSEEN."""

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


FIELDS = len(Record._fields)
_Made = TypeVar("_Made")


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


def by_violation(records: Iterable[Record]) -> dict[tuple[int, int, int], dict[int, Record]]:
    """Returns records by buffer, kind and moment, and there by row: of a row the first one."""
    found: dict[tuple[int, int, int], dict[int, Record]] = {}
    for record in records:
        rows = found.setdefault((record.buffer, record.kind, record.moment), {})
        rows.setdefault(record.row, record)
    return found
