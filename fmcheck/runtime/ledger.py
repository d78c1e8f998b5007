"""The ledger: what each row of one relay buffer holds, and who touched it last.

PYTEST_DONT_REWRITE: rows and sites come and go as plain values; no tensor is in sight.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

NOWHERE = -1
"""The site of an access that never happened."""


class State(enum.IntEnum):
    """What a row holds."""

    EMPTY = 0
    LIVE = 1
    CONSUMED = 2


# As plain numbers: NumPy takes an enum member apart at each comparison.
_EMPTY, _LIVE, _CONSUMED = (np.uint8(state) for state in State)


class Ledger:
    """The state of each row, with the sites (as numbers) of its last write and last read.

    `rows` is anything that indexes a NumPy array of one dimension: numbers may be negative and
    may repeat, a mask has one entry a row.
    """

    def __init__(self, rows: int) -> None:
        self.state: npt.NDArray[np.uint8] = np.full(rows, State.EMPTY, np.uint8)
        self._last_write: npt.NDArray[np.int32] = np.full(rows, NOWHERE, np.int32)
        self._last_read: npt.NDArray[np.int32] = np.full(rows, NOWHERE, np.int32)

    def __len__(self) -> int:
        return len(self.state)

    def stash(self, rows: Any, site: int) -> None:
        """A value was written: the rows are live, whatever they were."""
        self.state[rows] = _LIVE
        self._last_write[rows] = site

    def consume(self, rows: Any, site: int, all_live: bool = False) -> None:
        """A gather took the rows. What was empty stays empty: nobody has written it yet.

        `all_live` spares a look at the rows where the caller has had it.
        """
        if all_live:
            self.state[rows] = _CONSUMED
        else:
            empty = self.state[rows] == _EMPTY
            self.state[rows] = np.where(empty, _EMPTY, _CONSUMED)
        self._last_read[rows] = site

    def invalidate(self, rows: Any, site: int) -> None:
        """The poison itself was written, as an engine's own guard does after a gather."""
        live = np.unique(np.asarray(rows)[self.state[rows] == _LIVE])
        self.state[live] = _CONSUMED
        self._last_read[live] = site

    def adopt(self, live: npt.NDArray[np.bool_]) -> None:
        """Takes over a buffer that has values already: `live` tells which rows do."""
        self.state[:] = np.where(live, State.LIVE, State.EMPTY)

    def is_live(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Tells which of the rows hold a value that nobody has gathered."""
        return np.asarray(self.state[rows] == _LIVE)

    def is_empty(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Tells which of the rows were never written."""
        return np.asarray(self.state[rows] == _EMPTY)

    def last_write(self, row: int) -> int:
        """Returns the site of the row's last write."""
        return int(self._last_write[row])

    def last_read(self, row: int) -> int:
        """Returns the site of the row's last gather."""
        return int(self._last_read[row])
