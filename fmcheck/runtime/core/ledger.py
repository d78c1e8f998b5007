"""The ledger: what each row of one relay buffer holds, and who touched it last.

PYTEST_DONT_REWRITE: rows and moments come and go as plain values; no tensor is in sight.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from fmcheck.runtime.core.rows import Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

NEVER = -1
"""The moment of an access that was never made."""
PAST = 1 << 62
"""The bit of a moment that lies before the row was handed out."""


class State(enum.IntEnum):
    """What a row holds. A spared value is a live one that may be overwritten unread."""

    EMPTY = 0
    LIVE = 1
    CONSUMED = 2
    SPARED = 3

    def __str__(self) -> str:
        return "live" if self is State.SPARED else self.name.lower()


# As plain numbers: NumPy takes an enum member apart at each comparison.
_EMPTY, _LIVE, _CONSUMED, _SPARED = (np.uint8(state) for state in State)
_HOLDS_VALUE = np.uint8(1)  # the bit that LIVE and SPARED have, and no other


class Ledger:
    """The state of each row, its generation, and the moments of its last write and last read.

    `rows` is anything that indexes a NumPy array of one dimension: numbers may be negative and
    may repeat, a mask has one entry a row. A moment is a number that says where, in which step
    and on which stream.

    An access is not asked for its generation: whatever touched a row since it was handed out
    belongs to the generation of now, and what came before is set down when it is handed out.
    """

    def __init__(self, rows: int) -> None:
        self._state = Column(np.full(rows, State.EMPTY, np.uint8))
        self.generation: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self._last_write = Column(np.full(rows, NEVER, np.int64))
        self._last_read = Column(np.full(rows, NEVER, np.int64))
        # Of the past: whether the row's last value was left unread, and the generations of that
        # value and of the last read.
        self._left_live: npt.NDArray[np.bool_] = np.zeros(rows, bool)
        self._written_in: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self._read_in: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        # Whether the row's last write was reported for its value.
        self._reported: npt.NDArray[np.bool_] = np.zeros(rows, bool)
        self._any_reported = False

    def __len__(self) -> int:
        return len(self._state)

    @property
    def state(self) -> npt.NDArray[np.uint8]:
        """The state of each row."""
        return self._state.values

    def stash(self, rows: Any, moment: int) -> None:
        """A value was written: the rows are live, whatever they were."""
        self._state.put(rows, _LIVE)
        self._last_write.put(rows, moment)
        if self._any_reported:
            self._reported[rows] = False

    def report(self, rows: Any) -> None:
        """The values just written were reported: the gather that brings them is not."""
        self._reported[rows] = self._any_reported = True

    def consume(self, rows: Any, moment: int, all_live: bool = False) -> None:
        """A gather took the rows. What was empty stays empty: nobody has written it yet.

        `all_live` spares a look at the rows where the caller has had it.
        """
        if all_live:
            self._state.put(rows, _CONSUMED)
        else:
            empty = self.state[rows] == _EMPTY
            self.state[rows] = np.where(empty, _EMPTY, _CONSUMED)
        self._last_read.put(rows, moment)

    def invalidate(self, rows: Any, moment: int) -> None:
        """The poison itself was written, as an engine's own guard does after a gather."""
        live = np.unique(np.asarray(rows)[self.is_live(rows)])
        self.state[live] = _CONSUMED
        self._last_read.values[live] = moment

    def spare(self, rows: Any) -> None:
        """Nobody waits for the values any more, or somebody saw them: they may be overwritten."""
        live = np.unique(np.asarray(rows)[self.is_live(rows)])
        self.state[live] = _SPARED

    def await_again(self, rows: Any) -> None:
        """Somebody waits for the values that the rows hold: they may not be overwritten unread."""
        self.state[rows] = _LIVE

    def hand_out(self, rows: npt.NDArray[np.int64], generations: Any) -> None:
        """The rows go to new owners: they are empty, and what they held is of the past."""
        written = rows[self.state[rows] != _EMPTY]
        self._left_live[written] = self.is_live(written)
        for moments, made_in in (
            (self._last_write.values, self._written_in),
            (self._last_read.values, self._read_in),
        ):
            fresh = rows[(moments[rows] & PAST) == 0]  # NEVER has every bit
            made_in[fresh] = self.generation[fresh]
            moments[fresh] |= PAST
        self.generation[rows] = generations
        self.state[rows] = _EMPTY

    def adopt(self, live: npt.NDArray[np.bool_], moment: int = NEVER) -> None:
        """Takes over a buffer that has values already: `live` tells which rows do.

        For whom they were written is not known: they may be overwritten. At `moment` they came.
        """
        self.state[:] = np.where(live, State.SPARED, State.EMPTY)
        self._last_write.values[:] = np.where(live, moment, NEVER)

    def load(self, entries: Mapping[str, npt.NDArray[Any]]) -> None:
        """Takes over what `dump` gave: one array of an entry a row for each name."""
        for name, kept in self._arrays().items():
            kept[:] = entries[name]
        self._any_reported = True

    def dump(self) -> dict[str, npt.NDArray[Any]]:
        """Returns all that is kept, as integers."""
        return {
            name: kept.view(np.int8) if kept.itemsize == 1 else kept
            for name, kept in self._arrays().items()
        }

    def recall(
        self, row: int, last_write: tuple[int, int], last_read: tuple[int, int], generation: int
    ) -> None:
        """Sets a row back to the accesses, each with its generation, that it had at a finding."""
        self._last_write.values[row], self._written_in[row] = last_write
        self._last_read.values[row], self._read_in[row] = last_read
        self.generation[row] = generation

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "state": self.state,
            "generation": self.generation,
            "last_write": self._last_write.values,
            "last_read": self._last_read.values,
            "left_live": self._left_live,
            "written_in": self._written_in,
            "read_in": self._read_in,
            "reported": self._reported,
        }

    def is_live(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Tells which of the rows hold a value that nobody has gathered."""
        return np.asarray((self.state[rows] & _HOLDS_VALUE).view(np.bool_))

    def all_live(self, rows: npt.NDArray[Any]) -> bool:
        """Tells whether each of the rows, of which there are some, holds such a value."""
        common = self._state.common(rows)
        if common is not None:
            return bool(common & _HOLDS_VALUE)
        return bool(np.count_nonzero(self._state.values[rows] & _HOLDS_VALUE) == rows.size)

    def awaits_any(self, rows: npt.NDArray[Any]) -> bool:
        """Tells whether any of the rows is awaited."""
        common = self._state.common(rows)
        if common is not None:
            return bool(common == _LIVE)
        # A search through bytes: a third of what a comparison and a reduction take.
        return b"\x01" in self._state.values[rows].tobytes()

    def is_awaited(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Tells which of the rows hold a value that is lost if it is overwritten now."""
        return np.asarray(self.state[rows] == _LIVE)

    def is_consumed(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Tells which of the rows were gathered, or emptied, and not written since."""
        return np.asarray(self.state[rows] == _CONSUMED)

    def is_reported(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Tells which of the rows hold a value that was reported when it was written."""
        return np.asarray(self._reported[rows] & self.is_live(rows))

    def is_empty(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Tells which of the rows were not written since they were handed out."""
        return np.asarray(self.state[rows] == _EMPTY)

    def is_stale(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Tells which of the rows are empty over a value that an older owner left unread.

        But for the poison, a gather would get that value.
        """
        return np.asarray((self.state[rows] == _EMPTY) & self._left_live[rows])

    def last_write(self, row: int) -> tuple[int, int]:
        """Returns the moment of the row's last write, or NEVER, and its generation."""
        return self._access(self._last_write.values[row], self._written_in[row], row)

    def last_read(self, row: int) -> tuple[int, int]:
        """Returns the moment of the row's last gather, or NEVER, and its generation."""
        return self._access(self._last_read.values[row], self._read_in[row], row)

    def _access(self, moment: np.int64, made_in: np.int64, row: int) -> tuple[int, int]:
        if moment == NEVER:
            return NEVER, 0
        past = moment & PAST
        return int(moment & ~PAST), int(made_in if past else self.generation[row])
