"""FR401 stream-race: two accesses, one of them a write, and no fence between their streams."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from msgspec.structs import replace

from fmcheck.finding import CHECKS, Access, Violation
from fmcheck.runtime.core import violations
from fmcheck.runtime.core.clocks import Shadow
from fmcheck.runtime.core.rows import EVERYTHING
from fmcheck.runtime.order.virtual import has_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from fmcheck.runtime.core.clocks import Conflict
    from fmcheck.runtime.order.fences import Fences, Happening, Lane, Snapshot
    from fmcheck.runtime.relay.buffer import RelayBuffer

CODE = "FR401"
INCOMPLETE = "incomplete"
#: Marks beside a read's moment, far above a step's number: it takes nothing; it is of all rows.
_PEEK, _WHOLE = 1 << 62, 1 << 61


class Party(NamedTuple):
    """One of the two accesses: `verb` as a report has it, where, and on which lane."""

    verb: str
    moment: int
    lane: Lane


class Delaying(Protocol):
    """What lets a write be late for whoever did not wait for it."""

    def adopt(self, buffer: RelayBuffer) -> None:
        """Writes to a buffer may be late from now on."""

    def wrote(self, buffer: RelayBuffer, rows: Any, lane: Lane) -> None:
        """A lane wrote rows of a buffer."""


class RelayLanes:
    """What every lane did to each row of one relay buffer. `current` gives the current stream's."""

    def __init__(
        self,
        buffer: RelayBuffer,
        fences: Fences,
        current: Callable[[], Lane],
        delay: Delaying | None = None,
    ) -> None:
        self.buffer = buffer
        self.current = current
        self.delay = delay
        self.fences = fences
        self.shadow = Shadow(len(buffer.ledger), fences.clocks)

    def wrote(self, rows: Any, moment: int) -> None:
        """The current stream wrote rows."""
        lane = self._lane()
        self._enter("write", rows, moment, lane, writes=True)
        if self.delay is not None:
            self.delay.wrote(self.buffer, rows, lane)

    def was_written(self, lane: Lane, count: int, moment: int) -> None:
        """A lane had written all rows before this was a relay buffer."""
        self.shadow.enter_write(lane.number, count, moment)

    def gathered(self, rows: Any, moment: int) -> None:
        """The current stream gathered rows."""
        self._enter("gather", rows, moment, self._lane())

    def _lane(self) -> Lane:
        """Returns who touches the buffer now.

        An engine that makes no stream has no fences for its asynchronous copies either.
        """
        buffer = self.buffer
        by_host = buffer.is_by_host or (buffer.is_hosts and not has_streams())
        return self.fences.host if by_host else self.current()

    def peeked(self, rows: Any, site: int, by_host: bool) -> None:
        """The current stream read rows, or the host did, which has waited for that stream."""
        lane = self._lane()
        if by_host:
            self.fences.read_by_host(lane)
            lane = self.fences.host
        moment = self.fences.tally.moments.on(lane.name, site)
        is_whole = rows is EVERYTHING or len(rows) == len(self.buffer.ledger)
        self._enter("peek", rows, moment | _PEEK | _WHOLE * is_whole, lane)

    def reused(self, rows: npt.NDArray[Any], drained: bool | None) -> None:
        """The host gave rows to new owners: nothing that was launched may still use them.

        Where the contract does not say whether the engine waits for that, it is told what happens.
        """
        tally = self.fences.tally
        if drained is None:
            if self.shadow.in_use(rows, self.fences.host.number):
                tally.note(
                    f"buffer `{self.buffer.name}`: rows were handed out while a stream may still "
                    "use them for their last owner: if the engine means to wait for that, say "
                    "`drained = true` in `owners`, else `drained = false`"
                )
            return
        moment = tally.moments.on(self.fences.host.name, tally.sites.here())
        self._enter("hand-out", rows, moment, self.fences.host, writes=True)

    def _enter(self, verb: str, rows: Any, moment: int, lane: Lane, writes: bool = False) -> None:
        self.fences.now(lane)
        touch = self.shadow.write if writes else self.shadow.read
        self._judge(touch(rows, lane.number, moment), Party(verb, unmarked(moment), lane))

    def _judge(self, found: Iterable[Conflict], late: Party) -> None:
        happened = self.fences.add_event(
            late.lane, late.verb, late.moment, about=self.buffer.name, ordered=not found
        )
        for conflict in found:
            rows = conflict.rows[~np.isin(conflict.rows, self.buffer.sink_rows)]
            if late.verb == "hand-out":
                # What this thread launches next comes behind what it has launched on its stream.
                if conflict.lane == self.current().number:
                    continue
                moments = conflict.moments[np.searchsorted(conflict.rows, rows)]
                rows = rows[(moments & _WHOLE) == 0]
            if not rows.size:
                continue
            moment = int(conflict.moments[np.searchsorted(conflict.rows, rows[0])])
            early = early_party(conflict.kind, moment, self.fences.lanes[conflict.lane])
            snapshot = self.fences.snapshot((early.lane, late.lane))
            self._report(conflict.kind, rows, early, late, happened, snapshot)

    def _report(
        self,
        kind: str,
        rows: npt.NDArray[Any],
        early: Party,
        late: Party,
        happened: Happening,
        snapshot: Snapshot,
        at_the_time: AbstractContextManager[None] | None = None,
    ) -> None:
        """Reports a race. `at_the_time` sets the ledger back to what it held then."""
        buffer, tally = self.buffer, self.buffer.tally
        if tally.sites.is_showing():
            return
        site = tally.site_of(late.moment)
        if tally.seen_again((CODE, buffer.name, site)):
            return
        first = int(rows[0])
        found = race(self.fences, kind, early, late, [happened], snapshot)
        shown, _ = violations.shown_rows(buffer, rows)
        with at_the_time or nullcontext():
            last_write, last_read = violations.last_accesses(buffer, first)
            generation = int(buffer.ledger.generation[first])
            tally.report(
                replace(
                    found,
                    buffer=buffer.name,
                    rows=tuple(shown[: violations.SHOWN].tolist()),
                    row_count=len(shown),
                    notes=(*violations.positions(buffer, rows), *found.notes),
                    device=buffer.device,
                    access=violations.access(buffer, late.verb, late.moment, first, generation),
                    last_write=found.last_write or last_write,
                    last_read=found.last_read or last_read,
                    owner=_owner(buffer, first, generation),
                    neighbours=tuple(violations.neighbours(buffer, rows[: violations.SHOWN])),
                )
            )


def _owner(buffer: RelayBuffer, row: int, generation: int) -> str:
    """Returns who held a row in a generation; in that of now, "" if nobody does any more."""
    owners = buffer.owners
    if owners is None:
        return ""
    is_past = generation != owners.generation(row)
    return owners.name(row, generation) if is_past else owners.owner(row)


def unmarked(moment: int) -> int:
    """Returns a moment without the marks of a read."""
    return moment & ~(_PEEK | _WHOLE)


def is_of_all(moment: int) -> bool:
    """Tells whether a marked moment is of a read of the whole buffer, whoever holds which row.

    It is no last owner's, so that a row may go on to another meanwhile.
    """
    return bool(moment & _WHOLE)


def early_party(kind: str, moment: int, lane: Lane) -> Party:
    """Returns the earlier access of a race of some kind, by its marked moment."""
    read = "peek" if moment & _PEEK else "gather"
    return Party(read if kind == "read-write" else "write", unmarked(moment), lane)


def race(
    fences: Fences,
    kind: str,
    early: Party,
    late: Party,
    last: Iterable[Happening] = (),
    snapshot: Snapshot | None = None,
) -> Violation:
    """Returns a race as it is reported; whose buffer it is, is left to the caller to enter.

    `snapshot` is what was behind the lanes at the later access, by default what is now.
    """
    tally = fences.tally
    lanes = (early.lane, late.lane)
    snapshot = fences.snapshot(lanes) if snapshot is None else snapshot
    accesses = {
        "write-read": (_access(fences, early), None),
        "write-write": (_access(fences, early), None),
        "read-write": (None, _access(fences, early)),
    }
    last_write, last_read = accesses[kind]
    return Violation(
        code=CODE,
        name=CHECKS[CODE],
        buffer="",
        access=_access(fences, late),
        last_write=last_write,
        last_read=last_read,
        test=tally.test,
        device="cpu",
        pid=os.getpid(),
        missing=_missing(fences, early, late),
        notes=tuple(_notes(fences, kind, early, late, snapshot)),
        history=snapshot.history(lanes, last),
        confidence=INCOMPLETE if snapshot.doubts or fences.gate(kind) else "",
    )


def _access(fences: Fences, party: Party) -> Access:
    return fences.tally.access(party.verb, party.moment, party.lane.name)


def _missing(fences: Fences, early: Party, late: Party) -> str:
    after = _line(fences, early.moment)
    return (
        f"{_a_wait(late.lane)} for an event recorded after {after} on {_who(early.lane)}"
        if early.lane is not fences.host
        else f"a launch on {_who(late.lane)} after {after}"
    )


def _notes(
    fences: Fences, kind: str, early: Party, late: Party, snapshot: Snapshot
) -> Iterator[str]:
    yield f"{kind}: {early.verb} on {_who(early.lane)}, then {late.verb} on {_who(late.lane)}"
    for lane in (late.lane, early.lane):
        yield f"{_who(lane)} had synchronized with {_waits(snapshot, lane)}"
    gate = fences.gate(kind)
    if gate:
        yield f"the contract says: {gate}"
    yield from snapshot.out_of_sight()
    if fences.seed is not None:
        yield f"streams were perturbed: --fmcheck-streams=random --fmcheck-seed {fences.seed}"


def _waits(snapshot: Snapshot, lane: Lane) -> str:
    parts = [
        f"{_who(wait.after.lane)} up to {_line(snapshot.fences, wait.after.happening.moment)}"
        for wait in snapshot.waited(lane)
        if wait.after is not None
    ]
    nothing = "nothing" if snapshot.all_waits else "nothing on record"
    return ", ".join(parts) or nothing


def _a_wait(lane: Lane) -> str:
    return "a wait of the host" if lane.number == 0 else f"a wait of stream `{lane.name}`"


def _who(lane: Lane) -> str:
    return "the host" if lane.number == 0 else f"stream `{lane.name}`"


def _line(fences: Fences, moment: int) -> str:
    return fences.tally.site_of(moment).short
