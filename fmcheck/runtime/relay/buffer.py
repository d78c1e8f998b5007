"""A relay buffer under watch: its memory, poison and ledger, and the verdict on a gather."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fmcheck.runtime.core import verdicts, violations
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.ledger import NEVER, Ledger, State
from fmcheck.runtime.core.rows import EVERYTHING
from fmcheck.runtime.relay import indexing, scope
from fmcheck.runtime.relay.other_writers import OtherWriters
from fmcheck.runtime.relay.row_layout import PLAIN, Layout
from fmcheck.runtime.relay.row_lists import RowLists

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    import torch

    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.core.verdicts import Poison
    from fmcheck.runtime.relay.memory import Veil, Window
    from fmcheck.runtime.relay.owners import Owners
    from fmcheck.runtime.relay.row_layout import UnitOwners


@dataclass(eq=False)
class PutOff:
    """A gather whose rows are consumed at the end of a scope, unless they are written before."""

    window: Window
    expression: Any
    rows: npt.NDArray[Any]
    moment: int
    written: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int64))

    def leave_out(self, rows: npt.NDArray[Any]) -> None:
        """The rows hold something new."""
        self.written = np.union1d(self.written, np.intersect1d(self.rows, rows))
        self.rows = np.setdiff1d(self.rows, rows)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a judge saw of a gather: whether each row held a value, and none of poison."""

    all_live: bool = False


@dataclass(frozen=True, slots=True)
class WriteEffect:
    """What a write did: whether it went into what stood there, and whether it wrote one number.

    A constant is a number in the engine's source; a tensor of values is never one. `picks` tells
    that an index picked the rows: one such has its owners in mind.
    """

    updates: bool = False
    constant: bool = False
    picks: bool = False


class TakenFor(NamedTuple):
    """Who held the row of a unit when a view of it was taken, and the line that took it.

    An `owner` without a name is told by the row's generation.
    """

    unit: int
    owner: str
    generation: int
    site: int


#: As many rows are looked at one by one; of more, each one once.
_FEW = 64

#: A write of values, all of them or a slice, and one to rows that an index picks.
VALUES = WriteEffect()
PICKED = WriteEffect(picks=True)


#: A gather that nobody has judged, or of no rows.
UNSEEN = Seen()


class Lanes(Protocol):
    """What keeps the accesses of a buffer stream by stream. Rows are as the buffer has them."""

    def wrote(self, rows: Any, moment: int) -> None:
        """The current stream wrote rows."""

    def gathered(self, rows: Any, moment: int) -> None:
        """The current stream gathered rows."""

    def peeked(self, rows: Any, site: int, by_host: bool) -> None:
        """The current stream read rows, or the host did."""

    def reused(self, rows: npt.NDArray[Any], drained: bool | None) -> None:
        """The host gave rows to new owners, `drained` as it was said of them."""


class StreamFollower(Protocol):
    """What follows the streams of a session."""

    def adopt(self, buffer: RelayBuffer) -> None:
        """Gives a new buffer its lanes."""

    def bound(self, buffer: RelayBuffer) -> None:
        """The engine has bound a new buffer with values: whoever made those has written it."""


class RelayBuffer:
    """One watched buffer. All that happens to it goes through here, under the session's lock.

    `base` is the tensor that was instrumented, `veil` what is poisoned of it where the memory is
    left alone; nothing here looks into them. `lanes` are there once a session follows the device's
    streams. Without `owners` no row is ever handed out; `overwrite` is the contract's word on
    writing over unread values. `streams` are the session's, None where it follows none.
    """

    base: Any
    veil: Veil | None = None
    #: Its values may be those of a placeholder: the first write or gather decides.
    is_on_trust = False
    #: Whether its ledger lies beside it on its device.
    is_on_device = False
    streams: StreamFollower | None = None
    #: Whether its memory is known to be the host's.
    is_hosts = False
    #: Whether it is the host that touches it now, in no stream's order. Its own memory it does, but
    #: for copies that it does not wait for.
    is_by_host = False

    def __init__(
        self,
        name: str,
        relay: str,
        whole: Window,
        poison: Poison,
        sink_rows: Sequence[int],
        tally: Tally,
        device: str,
        owners: Owners | UnitOwners | None = None,
        overwrite: str = "never",
        layout: Layout = PLAIN,
        per_row: int = 1,
    ) -> None:
        self.name = name
        self.relay = relay
        self.whole = whole
        self.poison = poison
        self.ledger = Ledger(len(whole.rows))
        self.tally = tally
        self.device = device
        self.on_cuda = device.startswith("cuda")
        self.layout = layout
        #: Units to a row, each of which the ledger has an entry for.
        self.per_row = per_row
        self.owners = owners
        self.overwrite = overwrite
        self.others = OtherWriters(len(self.ledger))
        self._gathered = False
        self._judges_values = poison.certain or poison.bound is not None
        self._guards_writes = owners is not None and overwrite == "never"
        self._lists = RowLists(len(self.ledger))
        #: Whether rows were handed out since this was made: only then is an unowned row a fault.
        self.has_owners = False
        self.set_sinks(sink_rows)
        self._put_off: list[PutOff] = []
        # When each row was reset by what took it back, NEVER if not or if it was written since.
        self._reset_at: npt.NDArray[np.int64] | None = None
        self.lanes: Lanes | None = None
        if owners is not None:
            self.ledger.generation[:] = owners.generations(np.arange(len(self.ledger)))
            owners.add_sinks(self._sink.tolist())
            owners.followers.add(self)

    def set_sinks(self, rows: Sequence[int]) -> None:
        """Says which rows padded entries point at; a negative number counts from the end."""
        count = len(self.ledger) // self.per_row
        self._lists.forget()
        numbers = [row + count if row < 0 else row for row in rows]
        first = np.array([row for row in numbers if 0 <= row < count], np.int64) * self.per_row
        self._sink = (first[:, None] + np.arange(self.per_row)).reshape(-1)
        self.sink_rows: Sequence[int] = self._sink.tolist()
        # A row at a time: nearly every sink is one row, and these are kept on each gather.
        self._sink_places = [slice(start, start + self.per_row) for start in first.tolist()]

    def learn_sinks(self, rows: Sequence[int]) -> None:
        """Says the same of a buffer that has been poisoned already: a sink never is."""
        with self.tally.lock:
            known = set(self.sink_rows)
            self.set_sinks(rows)
            fresh = np.array([row for row in self.sink_rows if row not in known], np.int64)
            self.whole.memory.uncover(fresh)
            if self.owners is not None:
                self.owners.add_sinks(fresh.tolist())

    def lose_sinks(self, rows: npt.NDArray[np.int64]) -> None:
        """Says that some rows were no sinks: somebody is about to be given them."""
        with self.tally.lock:
            sinks = {unit // self.per_row for unit in self.sink_rows}
            self.set_sinks(sorted(sinks.difference(rows.tolist())))

    def take(self, base: Any, veil: Veil | None) -> None:
        """Instruments a tensor, from what was done to it so far."""
        self.base, self.veil = base, veil
        self.others.begin(base, counts=veil is not None)

    @property
    def escapes(self) -> dict[tuple[str, int], int]:
        """How often its memory was handed to untracked code, by how and where."""
        return self.others.escapes

    @property
    def is_lost(self) -> bool:
        """Whether an error has ended the device's context, so that nothing there can be read."""
        return False

    def lay_poison(self) -> None:
        """Fills every row but the sinks with poison: the buffer is new, nobody has written it."""
        with self.tally.lock:
            self._poison_over(self.whole, EVERYTHING)

    def adopt_values(self, bound: bool = False) -> None:
        """Takes the buffer as it is: rows of poison are empty, all others live.

        If it was `bound` by the engine just now, that is what wrote them.
        """
        with self.tally.lock:
            bits = self.whole.memory.read(EVERYTHING)
            live = ~_rows_all(self.poison.is_poison(bits))
            sites, moments = self.tally.sites, self.tally.moments
            moment = moments.now(sites.here(), self.device) if bound else NEVER
            self.ledger.adopt(live, moment)

    def bound_over(self, old: RelayBuffer) -> None:
        """The engine has bound this in place of another buffer: that is a write of all rows.

        What differs was written; what nobody had gathered of it there is lost.
        """
        alike = len(old.ledger) == len(self.ledger) and old.poison == self.poison
        if self.owners is None or not alike or self.is_on_device or not self.tally.active:
            return
        with self.tally.lock:
            rows = self._owned(np.arange(len(self.ledger)))
            held = rows[self.owners.held(rows)]
            self._gathered, self._guards_writes = old._gathered, old._guards_writes
            self.has_owners = old.has_owners
            if not held.size:
                return
            before, after = (one.whole.memory.read(held) for one in (old, self))
            differs = (before != after).reshape(len(held), -1).any(axis=1)
            awaited = old.ledger.is_awaited(held)
            lost = held[awaited & differs]
            if lost.size and self._guards_writes:
                moment = self.tally.moments.now(self.tally.sites.here(), self.device)
                bits = after[awaited & differs].reshape(len(lost), -1)[:, 0]
                violations.report(old, f"FR{verdicts.LOST}", lost, bits, moment, verb="write")
            self.ledger.await_again(held[self.ledger.is_live(held)])

    def fill(self) -> tuple[bool, bool]:
        """Tells whether the buffer holds one number throughout, and whether that marks emptiness.

        Zero does, the poison, what the contract calls invalid, and a float that is not finite.
        """
        bits = self.whole.memory.read(EVERYTHING).reshape(-1)
        if not bits.size:
            return True, True
        if not (bits == bits[0]).all():
            return False, False
        value = self.poison.values(bits[:1])
        marks = self.poison.is_poison(bits[:1]) | self.poison.is_invalid(bits[:1])
        return True, bool(marks[0] or value[0] == 0 or not np.isfinite(value[0]))

    def _settle(self, window: Window, expression: Any, how: WriteEffect) -> None:
        """The first write to a buffer on trust: what it was bound with is a placeholder.

        An update goes into values, and the sink is nobody's.
        """
        if how.updates:
            self.is_on_trust = False
        elif not np.isin(window.touched(expression) % len(self.ledger), self._sink).all():
            self.is_on_trust = False
            values = window.memory.read(expression)
            self._poison_over(self.whole, EVERYTHING)
            window.memory.write(expression, values)
            window.memory.uncover(expression)
            self.ledger.adopt(np.zeros(len(self.ledger), bool))

    # --- the whole buffer, by an index that torch has as a tensor ---

    def order(self) -> None:
        """An access is about to be made."""

    def gather_rows(self, index: Any, result: Any, site: int) -> None:
        """A gather of whole rows, after it was made: `index` holds their numbers."""
        if not self.is_captured():
            self.gather(self.whole, np.atleast_1d(self._rows_of(index)), site)

    def judge_rows(self, index: Any, site: int) -> None:
        """A gather of whole rows that is about to be made: the verdict alone."""
        if not self.is_captured():
            self.judge(self.whole, indexing.host(index), site)

    def retire_rows(self, index: Any, site: int) -> None:
        """A gather of whole rows that was judged has been made."""
        if not self.is_captured():
            self.retire(self.whole, indexing.host(index), site)

    def stash_rows(
        self,
        expression: Any,
        site: int,
        how: WriteEffect = VALUES,
        values: torch.Tensor | None = None,
    ) -> None:
        """A write into the whole buffer, after it was made."""
        if not self.is_captured():
            self.stash(self.whole, self._rows_of(expression), site, how, values)

    def _rows_of(self, index: Any) -> Any:
        """Returns an index as NumPy's."""
        rows = indexing.host(index)
        if self.veil is None:
            return rows
        return self._lists.often(rows, self._sink, self.tally.lock)

    def is_captured(self) -> bool:
        """Tells whether what is launched goes into a graph; if so, counts an unchecked call."""
        if not self.on_cuda:
            return False
        capturing = indexing.is_capturing()
        self.tally.unchecked += capturing
        return capturing

    # --- by an index expression of NumPy ---

    def peek(self, window: Window, site: int, by_host: bool = False) -> None:
        """A read that does not consume; the host's own waits for what it reads."""
        if not self.tally.active:
            return
        self.tally.peeks += 1
        if self.lanes is not None:
            with self.tally.lock:
                self.lanes.peeked(
                    EVERYTHING if window.whole else np.unique(window.rows), site, by_host
                )

    def stash(
        self,
        window: Window,
        expression: Any,
        site: int,
        how: WriteEffect = VALUES,
        values: torch.Tensor | None = None,
    ) -> None:
        """A write, after it was made: the rows are live, and their values judged.

        One that updates what stood there (`add_`) loses nothing. Rows that a constant has filled
        with poison are not live: that is how an engine takes values out. `values` are what was
        written, where they are known.
        """
        if not self.tally.active:
            return
        with self.tally.lock:
            self.tally.writes += 1
            self.tally.touched.add(self.relay)
            self.others.heed(self.base, own=1)
            rows = window.touched(expression)
            if rows.size == 0:
                return
            moment = self.tally.moments.now(site, self.device)
            named = None
            if how.picks and values is not None:
                named = self._lists.named_twice(window.rows, expression, rows, values)
            if self.lanes is not None:
                self.lanes.wrote(rows, moment)
            window.memory.uncover(expression)
            if self.is_on_trust:
                self._settle(window, expression, how)
            invalid = retired = None
            if self._judges_values:
                bits = window.memory.read(expression)
                if not self.poison.clears(bits):
                    invalid = self._judge_values(rows, bits, how, moment)
                    retired = self._rows_of_poison(rows, bits, how)
            if retired is not None:
                self.ledger.invalidate(retired, moment)
                rows = np.setdiff1d(rows % len(self.ledger), retired)
            if scope.is_changing_owners():  # whose rows these are is known at its end
                whole = rows % len(self.ledger)
                scope.note_write(scope.Written(self, whole, moment, how.picks))
            else:
                if self.has_owners and how.picks:
                    self._judge_owners(rows, moment)
                if self._guards_writes and not how.updates:
                    self._judge_write(window, expression, rows, moment)
            self.ledger.stash(rows, moment)
            if self._reset_at is not None:
                self._reset_at[rows % len(self.ledger)] = NEVER
            if invalid is not None:
                self.ledger.report(invalid)
            if named is not None and values is not None:
                self._judge_repeats(named, values, moment)
            for waiting in self._put_off:
                waiting.leave_out(rows % len(self.ledger))

    def gather(self, window: Window, expression: Any, site: int) -> None:
        """A gather, after it was made: the verdict, then poison over what was gathered."""
        if not self.tally.active:
            return
        with self.tally.lock:
            rows = window.touched(expression)
            moment = self.tally.moments.now(site, self.device)
            seen = self._judge(window, expression, rows, moment)
            self._retire(window, expression, rows, moment, seen)

    def judge(self, window: Window, expression: Any, site: int) -> None:
        """A gather that is about to be made: the verdict alone."""
        if not self.tally.active:
            return
        with self.tally.lock:
            moment = self.tally.moments.now(site, self.device)
            self._judge(window, expression, window.touched(expression), moment)

    def retire(self, window: Window, expression: Any, site: int) -> None:
        """A gather that was judged has been made: poison over what was gathered."""
        if not self.tally.active:
            return
        with self.tally.lock:
            moment = self.tally.moments.now(site, self.device)
            self._retire(window, expression, window.touched(expression), moment, UNSEEN)

    def hand_out(self, rows: npt.NDArray[np.int64]) -> None:
        """Rows have new owners: they are empty, with poison over what the old ones left.

        What the hand-out itself wrote stays, and may be overwritten unread. On a device, the
        poison must not overtake gathers that are still in flight for the old owners; here each
        gather has been waited for.
        """
        if not self.tally.active or self.owners is None:
            return
        with self.tally.lock:
            rows = self._owned(rows)
            if not rows.size:
                return
            generations = self.owners.generations(rows)
            self.has_owners = True
            begun = [
                (mine, moment, self.whole.memory.keep(mine)) for mine, moment in self._begun(rows)
            ]
            if self.lanes is not None and self.owners.drained is not False:
                # What the hand-out did itself is no last owner's; a note is of rows that had one.
                own = (mine for mine, *_ in begun)
                again = rows if self.owners.drained else rows[generations > 1]
                again = functools.reduce(np.setdiff1d, own, again)
                self.lanes.reused(again, self.owners.drained)
            self._poison_over(self.whole, rows)
            self.ledger.hand_out(rows, generations)
            for mine, moment, kept in begun:
                self.whole.memory.put_back(mine, kept)
                self.ledger.stash(mine, moment)
                self.ledger.spare(mine)
            for waiting in self._put_off:
                waiting.leave_out(rows)

    def _begun(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[npt.NDArray[np.int64], int]]:
        """Yields which of some rows begin with what stands there, and when that was written.

        Whoever hands them out has done so just now, or whoever took them back has reset them.
        """
        if self._reset_at is not None:
            moments = self._reset_at[rows]
            for moment in np.unique(moments[moments != NEVER]).tolist():
                yield rows[moments == moment], moment
            self._reset_at[rows] = NEVER
        for one in scope.written_to(self):
            mine = np.intersect1d(one.rows, rows)
            if mine.size:
                yield mine, one.moment

    def spare(self, rows: npt.NDArray[np.int64]) -> None:
        """Rows were taken back, or go on to the next chunk: what they hold may be overwritten."""
        if self.tally.active:
            with self.tally.lock:
                self.ledger.spare(self._owned(rows))

    def declare_host(self) -> None:
        """The memory is the host's: no stream touches it but by copies."""
        self.is_hosts = self.is_by_host = True

    def escape(self, how: str, site: int) -> None:
        """The buffer's memory was handed to code that goes by no function of torch."""
        if not self.tally.active:
            return
        with self.tally.lock:
            self.others.escape(how, site)
            self.tally.note(
                f"buffer `{self.name}`: `{how}` at {self.tally.sites[site]} lets untracked code "
                "reach its memory: name the function under `opaque` in the contract"
            )

    def _owned(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns those of the rows that this buffer has and that are no sink."""
        rows = rows[(rows >= 0) & (rows < len(self.ledger))]
        return rows[~np.isin(rows, self._sink)]

    def _retire(
        self, window: Window, expression: Any, rows: npt.NDArray[Any], moment: int, seen: Seen
    ) -> None:
        if rows.size == 0:
            return
        within = self.scope()
        if within is not None:
            self.ledger.spare(np.unique(rows % len(self.ledger)))
        if within is scope.Scope.PEEK:
            return
        if self.has_owners:
            self._judge_batch(rows, moment, "gather")
        if within is scope.Scope.AT_RETURN:
            gathered = np.unique(rows % len(self.ledger))
            waiting = PutOff(window, expression, gathered, moment)
            self._put_off.append(waiting)
            scope.put_off(lambda: self._retire_now(waiting))
            return
        self._poison_over(window, expression)
        self.others.settle(rows)
        self.ledger.consume(rows, moment, seen.all_live)

    @contextmanager
    def by_the_host(self, is_so: bool = True) -> Iterator[None]:
        """What is told in a block the host does itself, at once; or, if not, a stream does it."""
        outer, self.is_by_host = self.is_by_host, is_so
        try:
            yield
        finally:
            self.is_by_host = outer

    def scope(self) -> scope.Scope | None:
        """Returns when what is gathered now is consumed, None for at once."""
        return scope.Scope.PEEK if self.layout.reads_many else scope.current()

    def _retire_now(self, waiting: PutOff) -> None:
        with self.tally.lock:
            self._put_off.remove(waiting)
            self._retire_but_for_written(waiting)

    def _retire_but_for_written(self, waiting: PutOff) -> None:
        kept = self.whole.memory.keep(waiting.written)
        self._poison_over(waiting.window, waiting.expression)
        self.whole.memory.put_back(waiting.written, kept)
        self.ledger.consume(waiting.rows, waiting.moment)

    def _poison_over(self, window: Window, expression: Any) -> None:
        if self.poison.bits is None:
            return
        if expression is self._lists.kept:
            window.memory.cover(expression, self.poison.bits)
            return
        whole = self.whole.memory
        kept = whole.keep_sinks(self._sink_places)
        window.memory.cover(expression, self.poison.bits)
        whole.put_back_sinks(self._sink_places, kept)

    def _judge_values(
        self, rows: npt.NDArray[Any], bits: npt.NDArray[Any], how: WriteEffect, moment: int
    ) -> npt.NDArray[Any] | None:
        """Reports values just written that the contract calls invalid; returns their rows."""
        if self.poison.bound is None:
            return None
        bad = self.poison.is_invalid(bits)
        if how.constant or self.poison.is_float:
            bad &= ~self.poison.is_poison(bits)
        places = np.broadcast_to(_beside(rows, bits), bits.shape)[bad] % len(self.ledger)
        found = bits[bad]
        judged = self._owes_a_value(rows, places, how)
        places, first = np.unique(places[judged], return_index=True)
        if not places.size:
            return None
        violations.report(self, "FR105", places, found[judged][first], moment, verb="write")
        return places

    def _owes_a_value(
        self, rows: npt.NDArray[Any], places: npt.NDArray[Any], how: WriteEffect
    ) -> npt.NDArray[np.bool_]:
        """Tells which of the places a write owes a valid value to.

        A constant over the whole buffer, or over rows that were gathered, marks that there is no
        value; an update of what holds none cannot make one.
        """
        owes = ~np.isin(places, self._sink)
        if how.updates:
            return owes & self.ledger.is_live(places)
        if not how.constant:
            return owes
        if np.unique(rows % len(self.ledger)).size == len(self.ledger):
            return np.zeros(places.shape, bool)
        return owes & ~self.ledger.is_consumed(places)

    def _rows_of_poison(
        self, rows: npt.NDArray[Any], bits: npt.NDArray[Any], how: WriteEffect
    ) -> npt.NDArray[Any] | None:
        """Returns which of the rows just written hold nothing but poison, None if none does.

        Where a valid value may have the poison's bits, a write of it is taken for a value, and so
        is a whole number that was computed: that is judged as a value.
        """
        if not self.poison.certain or not self.poison.is_in(bits):
            return None
        if not how.constant and not self.poison.is_float:
            return None
        whole = np.unique(rows % len(self.ledger))
        retired = whole[_rows_all(self.poison.is_poison(self.whole.memory.read(whole)))]
        return retired if retired.size else None

    def _judge_write(
        self, window: Window, expression: Any, rows: npt.NDArray[Any], moment: int
    ) -> None:
        """Reports values of this generation that a write went over before anybody gathered them.

        A write of some columns may be the rest of a row, so that only whole rows are judged.
        """
        assert self.owners is not None
        if not self.ledger.awaits_any(rows):
            return
        written = self._owned(np.unique(rows % len(self.ledger)))
        held = self.owners.held(written).astype(np.int8)
        loses = verdicts.losses()[self.ledger.state[written], held]
        lost = written[loses & self._is_covered(window, expression)[written]]
        self._report_rows(verdicts.LOST, lost, moment)

    def judge_late(self, rows: npt.NDArray[Any], moment: int) -> None:
        """Judges the owners of rows that a hand-out wrote, now that it has ended."""
        if self.has_owners and self.tally.active:
            with contained(self.tally, scope.CHECK), self.tally.lock:
                self._judge_owners(rows, moment)

    def keep_resets(self, rows: npt.NDArray[Any], moment: int) -> None:
        """Keeps what a take-back wrote to rows that nobody has now, for their next owners."""
        if self.owners is None or not self.tally.active:
            return
        with self.tally.lock:
            rows = self._owned(np.unique(rows))
            rows = rows[~self.owners.held(rows) & self.ledger.is_live(rows)]
            if rows.size and self._reset_at is None:
                self._reset_at = np.full(len(self.ledger), NEVER)
            if self._reset_at is not None:
                self._reset_at[rows] = moment

    def _judge_owners(self, rows: npt.NDArray[Any], moment: int) -> None:
        """Reports rows that values were written to while nobody held them.

        A step in flight may still write for an owner that is gone.
        """
        assert self.owners is not None
        if not self.owners.holds_all(rows):
            rows = self._owned(np.unique(rows % len(self.ledger)))
            is_nobodys = self.owners.unowned(rows, self.tally.moments.step_of(moment))
            self._report_rows(verdicts.UNOWNED, rows[is_nobodys], moment)
            rows = rows[~is_nobodys]
        self._judge_batch(rows, moment, "write")

    def _judge_batch(self, rows: npt.NDArray[np.int64], moment: int, verb: str) -> None:
        """Reports rows of requests that are not in the batch that is served."""
        serving = scope.serving(self.relay)
        if serving is None or self.owners is None:
            return
        numbers = (rows % len(self.ledger)).reshape(-1)
        everyone = set(self.owners.names(np.unique(numbers) if numbers.size > _FEW else numbers))
        if everyone <= serving.names:
            return
        strangers = serving.strangers(everyone)
        rows = self._owned(np.unique(rows % len(self.ledger)))
        wrong = np.array([name in strangers for name in self.owners.names(rows)], bool)
        self._report_rows(verdicts.WRONG_OWNER, rows[wrong], moment, verb, serving.described)

    def taken_for(self, unit: int, site: int) -> TakenFor | None:
        """Returns who holds the row of a unit that a view is taken of, None where nobody does."""
        owners = self.owners
        if owners is None or unit < 0 or not owners.held(np.array([unit]))[0]:
            return None
        return TakenFor(unit, owners.owner(unit), owners.generation(unit), site)

    def judge_view(self, taken: TakenFor, site: int, verb: str) -> None:
        """Reports the use of a view whose row has gone to another owner since it was taken."""
        owners = self.owners
        if owners is None or not self.tally.active:
            return
        with self.tally.lock:
            if owners.generation(taken.unit) == taken.generation:
                return
            now = owners.owner(taken.unit)
            is_another = now != taken.owner if now and taken.owner else True
            if is_another and owners.held(np.array([taken.unit]))[0]:
                moment = self.tally.moments.now(site, self.device)
                who, where = taken.owner or "its former owner", self.tally.sites[taken.site]
                note = f"a view of the row was taken at {where}, when {who} had it"
                rows = np.array([taken.unit])
                self._report_rows(verdicts.WRONG_OWNER, rows, moment, verb, note)

    def _report_rows(
        self,
        check: int,
        rows: npt.NDArray[Any],
        moment: int,
        verb: str = "write",
        note: str = "",
    ) -> None:
        """Reports an access of rows, if there are any, by what stands first in each."""
        if rows.size:
            bits = self.whole.memory.read(rows).reshape(len(rows), -1)[:, 0]
            violations.report(self, f"FR{check}", rows, bits, moment, verb=verb, note=note)

    def _judge_repeats(self, rows: npt.NDArray[Any], values: torch.Tensor, moment: int) -> None:
        """Reports rows that a write by a list of row numbers gave two values."""
        twice = self._lists.given_two_values(rows, values) % len(self.ledger)
        self._report_rows(verdicts.REPEATED, self._owned(np.unique(twice)), moment)

    def _is_covered(self, window: Window, expression: Any) -> npt.NDArray[np.bool_]:
        """Tells of each row whether an index expression reaches all of its elements."""
        reached = np.zeros(window.rows.shape, bool)
        reached[expression] = True
        counts = np.bincount(window.rows[reached], minlength=len(self.ledger))
        return np.asarray(counts == self.whole.rows[:1].size)

    def _judge(self, window: Window, expression: Any, rows: npt.NDArray[Any], moment: int) -> Seen:
        """Reports what is wrong with a gather; returns what it saw."""
        self.tally.gathers += 1
        self.tally.touched.add(self.relay)
        self.is_on_trust = False
        if rows.size == 0:
            return UNSEEN
        if self.lanes is not None:
            self.lanes.gathered(rows, moment)
        if not self._gathered:
            self._gathered = True
            self._guards_writes = self.owners is not None and self.overwrite != "always"
        self.others.heed(self.base)
        bits = window.memory.read(expression)
        if self.layout.sink_holds is not None:
            self._judge_sinks(rows, moment)
        all_live = self.ledger.all_live(rows)
        if all_live and self.poison.clears(bits):
            return Seen(all_live=True)
        live = self.ledger.is_live(rows)
        state, stale = self.ledger.state[rows], self.ledger.is_stale(rows)
        codes = verdicts.judge(self.poison, bits, _beside(state, bits), _beside(stale, bits))
        # What was reported when it was written is not reported again.
        spoken_of = self.ledger.is_reported(rows)
        if self.per_row > 1:
            spoken_of = spoken_of | self._is_behind_the_end(expression, rows, state)
        codes = np.where(_beside(spoken_of, bits), np.uint8(verdicts.GOOD), codes)
        bad = codes != verdicts.GOOD
        if bad.any() and self.others.are_known(self.whole.memory):
            doubted = _beside(self.others.may_have_written(rows) & ~live, bits)
            bad = self._without_doubted(bad, doubted & window.memory.unchanged(expression))
        if bad.any():
            places = np.broadcast_to(_beside(rows, bits), bits.shape)
            self._accuse(bits[bad], places[bad] % len(self.ledger), codes[bad], moment)
        if not all_live:
            self._note_unseen(rows[~live & ~spoken_of], rows, bits, bad, moment)
        return UNSEEN

    def _judge_sinks(self, rows: npt.NDArray[Any], moment: int) -> None:
        """Reports sinks that are read, and hold something else than the contract says."""
        read = np.intersect1d(rows % len(self.ledger), self._sink)
        if not read.size:
            return
        bits = self.whole.memory.read(read).reshape(len(read), -1)
        wrong = self.poison.values(bits) != self.layout.sink_holds
        bad = wrong.any(axis=1)
        if bad.any():
            found = bits[bad, wrong[bad].argmax(axis=1)]
            violations.report(self, f"FR{verdicts.SINK_CONTENT}", read[bad], found, moment)

    def _is_behind_the_end(
        self, expression: Any, rows: npt.NDArray[Any], state: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.bool_]:
        """Tells which units lie behind the last written one, in a stretch of each row.

        Rows of several lengths are gathered as a rectangle: nobody uses what lies behind a row's
        own end. A row of which nothing was written has none, and a list of positions means each.
        """
        is_list = rows.ndim == 1 and isinstance(expression, tuple)
        is_list = is_list and isinstance(expression[-1], np.ndarray)
        steps = np.diff(rows, axis=-1) if rows.ndim and not is_list else np.array([-1])
        if not steps.size or steps.min() < 0 or steps.max() > 1:
            return np.zeros(rows.shape, bool)
        written = state != np.uint8(State.EMPTY)
        so_far = np.logical_or.accumulate(written[..., ::-1], axis=-1)[..., ::-1]
        return np.asarray(~so_far & written.any(axis=-1, keepdims=True))

    def _without_doubted(
        self, bad: npt.NDArray[np.bool_], doubted: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Leaves out what untracked code may have written with the very value that stood there.

        It is known to write this buffer, and a write by torch, or of memory that was handed out,
        is not to be told from none: where that cannot be known, nothing is reported.
        """
        if (bad & doubted).any():
            why = f"`{self.name}` is written by untracked code, perhaps with the value before"
            self.tally.untrack("gathers", why)
        return np.asarray(bad & ~doubted)

    def _note_unseen(
        self,
        dead: npt.NDArray[Any],
        rows: npt.NDArray[Any],
        bits: npt.NDArray[Any],
        bad: npt.NDArray[np.bool_],
        moment: int,
    ) -> None:
        """Enters rows that hold a real value although the ledger saw no write of it."""
        if self.poison.bits is None:
            return
        accused = np.broadcast_to(_beside(rows, bits), bits.shape)[bad]
        unseen = np.setdiff1d(dead % len(self.ledger), accused % len(self.ledger))
        unseen = np.setdiff1d(unseen, self._sink)
        if unseen.size:
            self.others.are_known(self.whole.memory)
            self.tally.unseen_writes += int(unseen.size)
            self.tally.note(violations.of_unseen_write(self, moment))
            self.ledger.stash(unseen, NEVER)

    def _accuse(
        self,
        bits: npt.NDArray[Any],
        rows: npt.NDArray[Any],
        codes: npt.NDArray[np.uint8],
        moment: int,
    ) -> None:
        """Reports bad elements, each with its row and its check, one violation for each check."""
        owned = ~np.isin(rows, self._sink)
        places, found, codes = rows[owned], bits[owned], codes[owned]
        for code in dict.fromkeys(codes.tolist()):
            chosen = codes == code
            unique, first = np.unique(places[chosen], return_index=True)
            violations.report(self, f"FR{code}", unique, found[chosen][first], moment)


def _beside(rows: npt.NDArray[Any], bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Gives rows the inner dimensions that the elements have and they lack."""
    return rows.reshape(rows.shape + (1,) * (bits.ndim - rows.ndim))


def _rows_all(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Tells for each row whether all its elements are set."""
    return np.asarray(mask.all(axis=tuple(range(1, mask.ndim))))
