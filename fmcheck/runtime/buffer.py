"""A relay buffer under watch: its memory, poison and ledger, and the verdict on a gather."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fmcheck.finding import CHECKS, Access, Violation
from fmcheck.runtime import scope
from fmcheck.runtime.ledger import NOWHERE, Ledger
from fmcheck.runtime.rows import EVERYTHING, row_dims, row_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from fmcheck.runtime.memory import Memory
    from fmcheck.runtime.poison import Poison
    from fmcheck.runtime.tally import Tally

_SHOWN = 8


@dataclass(eq=False)
class Window:
    """What a tensor shows of a relay buffer: all of it, or what a view reaches.

    `rows` has the row of each element, `dims` are the dimensions along which it changes.
    """

    rows: npt.NDArray[np.int64]
    memory: Memory
    whole: bool
    dims: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.dims = row_dims(self.rows)

    def touched(self, expression: Any) -> npt.NDArray[Any]:
        """Returns the rows that an index expression touches, in the shape of what it picks.

        Of a whole buffer that is one number a row, without its inner dimensions.
        """
        if not self.whole:
            return np.asarray(self.rows[expression])
        if isinstance(expression, np.ndarray) and expression.dtype != bool:
            return expression
        if isinstance(expression, tuple) or getattr(expression, "ndim", 1) > 1:
            return np.asarray(self.rows[expression])
        return np.asarray(np.arange(len(self.rows))[expression])


@dataclass(eq=False)
class _PutOff:
    """A gather whose rows are consumed at the end of a scope, unless they are written before."""

    rows: npt.NDArray[Any]
    site: int


class RelayBuffer:
    """One watched buffer. All that happens to it goes through here, under the session's lock.

    `base` is the tensor that was taken hold of; nothing here looks into it.
    """

    base: Any

    def __init__(
        self,
        name: str,
        relay: str,
        whole: Window,
        poison: Poison,
        sink_rows: Sequence[int],
        tally: Tally,
        device: str,
    ) -> None:
        self.name = name
        self.relay = relay
        self.whole = whole
        self.poison = poison
        self.ledger = Ledger(len(whole.rows))
        self.tally = tally
        self.device = device
        self.sink_rows = sink_rows
        self._sink = np.array([row for row in sink_rows if row < len(self.ledger)], np.int64)
        # A slice costs a fraction of an index array, and nearly every sink is one row.
        single = len(self._sink) == 1
        self._sink_place: Any = (
            slice(int(self._sink[0]), int(self._sink[0]) + 1) if single else self._sink
        )
        self._put_off: list[_PutOff] = []

    def lay_poison(self) -> None:
        """Fills every row but the sinks with poison: the buffer is new, nobody has written it."""
        with self.tally.lock:
            self._poison_over(self.whole, EVERYTHING)

    def adopt_values(self) -> None:
        """Takes the buffer as it is: rows of poison are empty, all others live."""
        with self.tally.lock:
            bits = self.whole.memory.read(EVERYTHING)
            self.ledger.adopt(~_rows_all(self.poison.is_poison(bits)))

    def peek(self) -> None:
        """A read that does not consume."""
        if self.tally.active:
            self.tally.peeks += 1

    def stash(self, window: Window, expression: Any, site: int) -> None:
        """A write, after it was made: the rows are live, those that hold only poison are not."""
        if not self.tally.active:
            return
        with self.tally.lock:
            self.tally.writes += 1
            self.tally.touched.add(self.relay)
            rows = window.touched(expression)
            if rows.size == 0:
                return
            retired = self._rows_of_poison(window, expression, rows)
            if retired is not None:
                self.ledger.invalidate(retired, site)
                rows = np.setdiff1d(rows % len(self.ledger), retired)
            self.ledger.stash(rows, site)
            for waiting in self._put_off:
                waiting.rows = np.setdiff1d(waiting.rows, rows % len(self.ledger))

    def gather(self, window: Window, expression: Any, site: int) -> None:
        """A gather, after it was made: the verdict, then poison in place of what was gathered."""
        if not self.tally.active:
            return
        with self.tally.lock:
            self.tally.gathers += 1
            self.tally.touched.add(self.relay)
            rows = window.touched(expression)
            if rows.size == 0:
                return
            live = self._judge(window, expression, rows, site)
            within = scope.current()
            if within is scope.Scope.PEEK:
                return
            if within is scope.Scope.AT_RETURN:
                waiting = _PutOff(np.unique(rows % len(self.ledger)), site)
                self._put_off.append(waiting)
                scope.put_off(lambda: self._consume_now(waiting))
                return
            self._poison_over(window, expression)
            self.ledger.consume(rows, site, live)

    def _consume_now(self, waiting: _PutOff) -> None:
        with self.tally.lock:
            self._put_off.remove(waiting)
            self._poison_over(self.whole, waiting.rows)
            self.ledger.consume(waiting.rows, waiting.site)

    def _poison_over(self, window: Window, expression: Any) -> None:
        if self.poison.bits is None:
            return
        if not self._sink.size:
            window.memory.write(expression, self.poison.bits)
            return
        kept = self.whole.memory.read(self._sink_place)
        window.memory.write(expression, self.poison.bits)
        self.whole.memory.write(self._sink_place, kept)

    def _rows_of_poison(
        self, window: Window, expression: Any, rows: npt.NDArray[Any]
    ) -> npt.NDArray[Any] | None:
        """Returns which of the rows just written hold nothing but poison, None if none does.

        Where a valid value may have the poison's bits, a write of it is taken for a value.
        """
        if not self.poison.certain:
            return None
        if not self.poison.is_poison(window.memory.read(expression)).any():
            return None
        whole = np.unique(rows % len(self.ledger))
        retired = whole[_rows_all(self.poison.is_poison(self.whole.memory.read(whole)))]
        return retired if retired.size else None

    def _judge(self, window: Window, expression: Any, rows: npt.NDArray[Any], site: int) -> bool:
        """Reports what is wrong with a gather; tells whether the ledger had all rows live."""
        bits = window.memory.read(expression)
        live = self.ledger.is_live(rows)
        bad = self.poison.suspects(bits, _beside(live, bits))
        if bad.any():
            self._accuse(bits, np.broadcast_to(_beside(rows, bits), bits.shape), bad, site)
        if live.all():
            return True
        self._note_unseen(rows[~live], rows, bits, bad)
        return False

    def _note_unseen(
        self,
        dead: npt.NDArray[Any],
        rows: npt.NDArray[Any],
        bits: npt.NDArray[Any],
        bad: npt.NDArray[np.bool_],
    ) -> None:
        """Enters rows that hold a real value although the ledger saw no write of it."""
        if self.poison.bits is None:
            return
        accused = np.broadcast_to(_beside(rows, bits), bits.shape)[bad]
        unseen = np.setdiff1d(dead % len(self.ledger), accused % len(self.ledger))
        unseen = np.setdiff1d(unseen, self._sink)
        if unseen.size:
            self.tally.unseen_writes += int(unseen.size)
            self.ledger.stash(unseen, NOWHERE)

    def _accuse(
        self,
        bits: npt.NDArray[Any],
        rows: npt.NDArray[Any],
        bad: npt.NDArray[np.bool_],
        site: int,
    ) -> None:
        """Reports the bad elements, one violation for each kind of fault."""
        places = rows[bad] % len(self.ledger)
        found = bits[bad]
        owned = ~np.isin(places, self._sink)
        places, found = places[owned], found[owned]
        codes = self._codes(places, found)
        for code in dict.fromkeys(codes.tolist()):
            chosen = codes == code
            unique, first = np.unique(places[chosen], return_index=True)
            shown = self.poison.values(np.ascontiguousarray(found[chosen][first[:_SHOWN]]))
            self._report(code, unique, [_shown(v, self.poison.dtype) for v in shown], site)

    def _codes(self, rows: npt.NDArray[Any], bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
        poisoned = self.poison.is_poison(bits) | (self.poison.bits is None)
        # A NaN of ours in a live row was left there by a write that did not reach all of it.
        partly = poisoned & self.poison.dtype.startswith(_FLOATS)
        of_live = np.where(partly, "FR101", "FR105")
        of_dead = np.where(self.ledger.is_empty(rows), "FR101", "FR102")
        of_dead = np.where(poisoned, of_dead, "FR105")
        return np.where(self.ledger.is_live(rows), of_live, of_dead)

    def _report(self, code: str, rows: npt.NDArray[Any], values: Sequence[str], site: int) -> None:
        first = int(rows[0])
        self.tally.report(
            Violation(
                code=code,
                name=CHECKS[code],
                buffer=self.name,
                rows=tuple(int(row) for row in rows[:_SHOWN]),
                row_count=len(rows),
                values=tuple(values),
                access=Access("gather", self.tally.sites[site]),
                last_write=self._access("write", self.ledger.last_write(first)),
                last_read=self._access("gather", self.ledger.last_read(first)),
                test=self.tally.test,
                device=self.device,
                pid=os.getpid(),
            )
        )

    def _access(self, verb: str, site: int) -> Access | None:
        return None if site == NOWHERE else Access(verb, self.tally.sites[site])


_FLOATS = ("float", "bfloat")


def window_of(
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    row_stride: int,
    memory: Memory,
    whole: bool,
) -> Window:
    """Returns the window of a tensor that lies at `offset` elements into a relay buffer."""
    return Window(row_map(shape, strides, offset, row_stride), memory, whole)


def _beside(rows: npt.NDArray[Any], bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Gives rows the inner dimensions that the elements have and they lack."""
    return rows.reshape(rows.shape + (1,) * (bits.ndim - rows.ndim))


def _rows_all(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Tells for each row whether all its elements are set."""
    return np.asarray(mask.reshape(len(mask), -1).all(axis=1))


def _shown(value: Any, dtype: str) -> str:
    return f"{value:.6g}" if dtype.startswith(_FLOATS) else str(value)
