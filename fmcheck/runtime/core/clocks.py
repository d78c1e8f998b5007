"""Clocks: what happened before what, among lanes of work that run side by side.

PYTEST_DONT_REWRITE: lanes, rows and moments come and go as plain numbers; no stream and no tensor
is in sight. A lane is a stream, or the host.

The idea is FastTrack's (Flanagan and Freund, PLDI 2009): an access is kept as an epoch, the lane
that made it and how far that lane had come, and it happened before another if that one's lane knew
of it. FastTrack keeps one epoch a variable and a vector where reads run side by side; here each row
has one a lane that ever touched the buffer, seldom more than three. So the verdict stays exact
after a first race, and a lane alone on a buffer compares nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fmcheck.runtime.core.rows import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_FIRST_LANES = 8


class Epoch(NamedTuple):
    """A point in a lane's own time; 0 of any lane lies before everything."""

    lane: int
    time: int


class Clocks:
    """A vector clock a lane: row `lane` of a matrix of int64, a column for each lane it knows of.

    A lane's own count grows when others may learn of it, at a record: all that it did between two
    of them has one epoch.
    """

    def __init__(self) -> None:
        self._known: npt.NDArray[np.int64] = np.zeros((_FIRST_LANES, _FIRST_LANES), np.int64)
        self.lanes = 0

    def add(self) -> int:
        """Opens a lane that knows of nothing, and returns its number."""
        lane = self.lanes
        self.lanes += 1
        size = len(self._known)
        if lane == size:
            grown = np.zeros((2 * size, 2 * size), np.int64)
            grown[:size, :size] = self._known
            self._known = grown
        self._known[lane, lane] = 1
        return lane

    def reopen(self, lane: int) -> None:
        """Lets a lane begin again: it knows of nothing, and nobody of what it does next."""
        time = self._known[lane, lane]
        self._known[lane] = 0
        self._known[lane, lane] = time + 1

    def now(self, lane: int) -> Epoch:
        """Returns the epoch that an access of the lane has now."""
        return Epoch(lane, self._known.item(lane, lane))

    def release(self, lane: int) -> npt.NDArray[np.int64]:
        """Returns all that the lane knows, itself included; what it does next is not in it."""
        vector = self._known[lane].copy()
        self._known[lane, lane] += 1
        return vector  # type: ignore[no-any-return]

    def acquire(self, lane: int, vector: npt.NDArray[np.int64]) -> bool:
        """Lets a lane know what a release gave out; tells whether anything of it was new."""
        known = self._known[lane, : len(vector)]
        if not (vector > known).any():
            return False
        np.maximum(known, vector, out=known)
        return True

    def pass_on(self, lane: int, other: int) -> None:
        """Releases a lane, and lets another one acquire that at once: without a copy in between."""
        known = self._known[other]
        np.maximum(known, self._known[lane], out=known)
        self._known[lane, lane] += 1

    def covers(self, lane: int, epoch: Epoch) -> bool:
        """Tells whether an epoch happened before all that the lane does from now on."""
        return epoch.time <= self._known.item(lane, epoch.lane)

    def known(self, lane: int, of: int) -> int:
        """Returns how much of another lane's time a lane knows."""
        return self._known.item(lane, of)


class Conflict(NamedTuple):
    """Rows that a lane touches with nothing to order it after what another lane did to them.

    `kind` is `write-read`, `read-write` or `write-write`, the earlier access first; `moments` are
    those of the earlier accesses, a row each.
    """

    kind: str
    lane: int
    rows: npt.NDArray[np.int64]
    moments: npt.NDArray[np.int64]


class _Touched:
    """When and where one lane last wrote, or last read, each row."""

    __slots__ = ("counts", "moments")

    def __init__(self, rows: int) -> None:
        self.counts = Column(np.zeros(rows, np.int64))
        self.moments = Column(np.full(rows, -1, np.int64))

    def after(self, rows: Any, time: int) -> npt.NDArray[np.bool_] | None:
        """Tells which of the rows were touched after a time of the lane, None for none."""
        count = self.counts.common(rows)
        if count is not None and count <= time:
            return None
        late = self.counts.values[rows] > time
        return late if late.any() else None


class Shadow:
    """The last accesses of each row of a buffer, lane by lane.

    `rows` is anything that indexes a NumPy array of one dimension, as for the ledger.
    """

    def __init__(self, rows: int, clocks: Clocks) -> None:
        self.rows = rows
        self.clocks = clocks
        self._writes: dict[int, _Touched] = {}
        self._reads: dict[int, _Touched] = {}

    def read(self, rows: Any, lane: int, moment: int) -> list[Conflict]:
        """A lane reads rows: each lane's last write has to have happened before."""
        found = list(self._unordered("write-read", self._writes, rows, lane))
        self._touch(self._reads, rows, lane, moment)
        return found

    def write(self, rows: Any, lane: int, moment: int) -> list[Conflict]:
        """A lane writes rows: each lane's last write and last read have to have happened before."""
        found = list(self._unordered("write-write", self._writes, rows, lane))
        found += self._unordered("read-write", self._reads, rows, lane)
        self._touch(self._writes, rows, lane, moment)
        return found

    def enter_write(self, lane: int, time: int, moment: int) -> None:
        """A lane wrote all rows, at some time of its own."""
        touched = self._writes.setdefault(lane, _Touched(self.rows))
        touched.counts.values[:] = np.maximum(touched.counts.values, time)
        touched.moments.values[:] = moment

    def in_use(self, rows: Any, lane: int) -> bool:
        """Tells whether anything done to the rows is not ordered before what a lane does now."""
        return any(
            other != lane and touched.after(rows, self.clocks.known(lane, other)) is not None
            for by_lane in (self._writes, self._reads)
            for other, touched in by_lane.items()
        )

    def forget(self, rows: Any) -> None:
        """Nothing that was done to the rows so far is held against anybody."""
        for touched in (*self._writes.values(), *self._reads.values()):
            touched.counts.values[rows] = 0

    def unseen_writes(self, rows: Any, lane: int) -> npt.NDArray[np.bool_]:
        """Tells for each of the rows whether some write to it is not ordered before the lane."""
        unseen = np.zeros(np.shape(np.empty(self.rows)[rows]), bool)
        for other, touched in self._writes.items():
            if other != lane:
                unseen |= touched.counts.values[rows] > self.clocks.known(lane, other)
        return unseen

    def _unordered(
        self, kind: str, by_lane: dict[int, _Touched], rows: Any, lane: int
    ) -> Iterator[Conflict]:
        for other, touched in by_lane.items():
            if other == lane:
                continue
            late = touched.after(rows, self.clocks.known(lane, other))
            if late is not None:
                numbers = np.unique(np.arange(self.rows)[rows][late])
                yield Conflict(kind, other, numbers, touched.moments.values[numbers])

    def _touch(self, by_lane: dict[int, _Touched], rows: Any, lane: int, moment: int) -> None:
        touched = by_lane.get(lane)
        if touched is None:
            touched = by_lane[lane] = _Touched(self.rows)
        touched.counts.put(rows, self.clocks.now(lane).time)
        touched.moments.put(rows, moment)
