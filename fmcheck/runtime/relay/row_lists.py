"""Lists of rows: the one that an engine indexes with all the time, and those that name a row twice.

A buffer is indexed by arrays of row numbers. None of this knows what the rows hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fmcheck.runtime.relay import indexing
from fmcheck.runtime.relay.memory import bits_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy.typing as npt
    import torch

#: What no list of rows is, and how often one comes in turn until its array is kept.
_NO_LIST: npt.NDArray[Any] = np.empty(0, np.int64)
_OFTEN = 3
_ROWS = np.dtype(np.int64)


class RowLists:
    """What is known of the lists that a buffer of `count` rows is indexed by.

    `kept` is the array of a list that came often in turn, which names each row once, as it is
    counted from the first one, and no sink. Whoever has an entry for each row knows the list by
    that very array, and enters it as a whole.
    """

    def __init__(self, count: int) -> None:
        # Of each row, where a list named it last; and places in order.
        self._last_place: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        self._order = np.arange(count)
        self.forget()

    def forget(self) -> None:
        """Other rows are sinks from now on."""
        self.kept = _NO_LIST
        # The list that came last, how often in turn, and its array once that is kept.
        self._latest: tuple[bytes, int, npt.NDArray[Any]] = b"", 0, _NO_LIST

    def often(
        self, rows: Any, sinks: npt.NDArray[np.int64], lock: AbstractContextManager[Any]
    ) -> Any:
        """Returns an index of NumPy's: the very array of before for a list that comes often."""
        if not (type(rows) is np.ndarray and rows.dtype is _ROWS and rows.ndim == 1):
            return rows
        named = rows.tobytes()
        last, times, kept = self._latest  # in one, as threads may come side by side
        if named != last:
            self._latest = named, 1, _NO_LIST
        elif kept is not _NO_LIST:
            return kept
        elif times < _OFTEN:
            with lock:
                if times == _OFTEN - 1 and self._are_plain(rows, sinks):
                    self.kept = kept = rows.copy()
                    kept.setflags(write=False)
                self._latest = named, times + 1, kept
        return rows

    def _are_plain(self, rows: npt.NDArray[np.int64], sinks: npt.NDArray[np.int64]) -> bool:
        """Tells whether each row is named once, and by its own number, and none is a sink."""
        is_plain = rows.size and rows.min() >= 0 and not np.isin(rows, sinks).any()
        return bool(is_plain) and not self._names_twice(rows)

    def _names_twice(self, rows: npt.NDArray[Any]) -> bool:
        """Tells whether a list of rows has one twice: each puts its place where it points."""
        if rows.ndim != 1 or rows.size < 2 or rows.size > len(self._order):
            return rows.ndim == 1 and rows.size > 1
        order = self._order[: rows.size]
        self._last_place[rows] = order
        return bool(self._last_place[rows].tobytes() != order.tobytes())

    def named_twice(
        self,
        shown: npt.NDArray[np.int64],
        expression: Any,
        rows: npt.NDArray[Any],
        values: torch.Tensor,
    ) -> npt.NDArray[Any] | None:
        """Returns the row that each entry of an index picks, if it picks one twice.

        `shown` has the row of each element of the tensor that is indexed. None if one value is
        written to all: values have to be as many as what is picked.
        """
        if expression is self.kept or not values.is_cpu:
            return None
        if rows.ndim == 1 and type(expression) is np.ndarray:
            is_each = values.dim() == shown.ndim and len(values) == rows.size
            return rows if is_each and self._names_twice(rows) else None
        lists = indexing.leading_lists(expression)
        if not lists or len(rows) < 2 or tuple(values.shape) != rows.shape:
            return None
        named = rows.reshape(len(rows), -1)[:, 0]
        if not self._names_twice(named):
            return None
        # Whether each list of the index leads to units of its own, as columns of a row do not.
        led = shown[(slice(None),) * lists + (0,) * (shown.ndim - lists)]
        return named if np.unique(led).size == led.size else None

    def given_two_values(self, rows: npt.NDArray[Any], values: torch.Tensor) -> npt.NDArray[Any]:
        """Returns which rows a list names twice whose values, one for each entry, differ."""
        given, order = bits_of(values), np.arange(rows.size)
        self._last_place[rows] = order
        last = self._last_place[rows]
        again = np.flatnonzero(last != order)
        differs = (given[again] != given[last[again]]).reshape(len(again), -1).any(axis=1)
        return np.asarray(rows[again[differs]])
