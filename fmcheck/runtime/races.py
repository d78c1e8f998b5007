"""FR401 stream-race: two accesses, one of them a write, and no fence between their streams."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fmcheck.finding import CHECKS, Access, Violation
from fmcheck.runtime import story, virtual
from fmcheck.runtime.clocks import Shadow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from fmcheck.runtime.buffer import RelayBuffer
    from fmcheck.runtime.clocks import Conflict
    from fmcheck.runtime.delay import Delay
    from fmcheck.runtime.fences import Fences, Happening, Lane

CODE = "FR401"
INCOMPLETE = "incomplete"


class Party(NamedTuple):
    """One of the two accesses: `verb` as a report has it, where, and on which lane."""

    verb: str
    moment: int
    lane: Lane


class RelayLanes:
    """What every lane did to each row of one relay buffer."""

    def __init__(self, buffer: RelayBuffer, fences: Fences, delay: Delay | None = None) -> None:
        self.buffer = buffer
        self.delay = delay
        self.fences = fences
        self.shadow = Shadow(len(buffer.ledger), fences.clocks)

    def wrote(self, rows: Any, moment: int) -> None:
        """The current stream wrote rows."""
        lane = virtual.current_lane()
        self._write("write", rows, moment, lane)
        if self.delay is not None:
            self.delay.wrote(self.buffer, rows, lane)

    def gathered(self, rows: Any, moment: int) -> None:
        """The current stream gathered rows."""
        self._read("gather", rows, moment, virtual.current_lane())

    def peeked(self, rows: Any, site: int, by_host: bool) -> None:
        """The current stream read rows, or the host did, which has waited for that stream."""
        lane = virtual.current_lane()
        if by_host:
            self.fences.read_by_host(lane)
            lane = self.fences.host
        moment = self.fences.tally.moments.on(lane.name, site)
        self._read("peek", rows, moment, lane)

    def reused(self, rows: npt.NDArray[Any]) -> None:
        """The host gave rows to new owners: nothing that was launched may still use them."""
        tally = self.fences.tally
        moment = tally.moments.on(self.fences.host.name, tally.sites.here())
        self._write("hand-out", rows, moment, self.fences.host)

    def _write(self, verb: str, rows: Any, moment: int, lane: Lane) -> None:
        self.fences.now(lane)
        self._judge(self.shadow.write(rows, lane.number, moment), Party(verb, moment, lane))

    def _read(self, verb: str, rows: Any, moment: int, lane: Lane) -> None:
        self.fences.now(lane)
        self._judge(self.shadow.read(rows, lane.number, moment), Party(verb, moment, lane))

    def _judge(self, found: Iterable[Conflict], late: Party) -> None:
        happened = self.fences.tell(
            late.lane, late.verb, late.moment, about=self.buffer.name, ordered=not found
        )
        for conflict in found:
            rows = conflict.rows[~np.isin(conflict.rows, self.buffer.sink_rows)]
            if not rows.size:
                continue
            moment = int(conflict.moments[np.searchsorted(conflict.rows, rows[0])])
            verb = "gather" if conflict.kind == "read-write" else "write"
            early = Party(verb, moment, self.fences.lanes[conflict.lane])
            self._report(conflict.kind, rows, early, late, happened)

    def _report(
        self,
        kind: str,
        rows: npt.NDArray[Any],
        early: Party,
        late: Party,
        happened: Happening,
    ) -> None:
        buffer, tally = self.buffer, self.buffer.tally
        if tally.sites.is_showing():
            return
        site = tally.sites[tally.moments.site(late.moment)]
        if tally.seen_again((CODE, buffer.name, site)):
            return
        first = int(rows[0])
        found = race(self.fences, kind, early, late, [happened])
        last_write, last_read = story.last_accesses(buffer, first)
        tally.report(
            replace(
                found,
                buffer=buffer.name,
                rows=tuple(int(row) for row in rows[: story.SHOWN]),
                row_count=len(rows),
                device=buffer.device,
                access=story.access(buffer, late.verb, late.moment, first),
                last_write=found.last_write or last_write,
                last_read=found.last_read or last_read,
                owner=buffer.owners.owner(first) if buffer.owners else "",
                neighbours=tuple(story.neighbours(buffer, first)),
            )
        )


def race(
    fences: Fences, kind: str, early: Party, late: Party, last: Iterable[Happening] = ()
) -> Violation:
    """Returns a race as it is told; whose buffer it is, is left to the caller to enter."""
    tally = fences.tally
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
        rows=(),
        row_count=0,
        values=(),
        access=_access(fences, late),
        last_write=last_write,
        last_read=last_read,
        test=tally.test,
        device="cpu",
        pid=os.getpid(),
        missing=_missing(fences, early, late),
        notes=tuple(_notes(fences, kind, early, late)),
        history=fences.history((early.lane, late.lane), last),
        confidence=INCOMPLETE if fences.doubts or fences.gate(kind) else "",
    )


def _access(fences: Fences, party: Party) -> Access:
    tally = fences.tally
    return Access(
        party.verb,
        tally.sites[tally.moments.site(party.moment)],
        tally.moments.step_of(party.moment),
        party.lane.name,
    )


def _missing(fences: Fences, early: Party, late: Party) -> str:
    after = _line(fences, early.moment)
    return (
        f"{_a_wait(late.lane)} for an event recorded after {after} on {_who(early.lane)}"
        if early.lane is not fences.host
        else f"a launch on {_who(late.lane)} after {after}"
    )


def _notes(fences: Fences, kind: str, early: Party, late: Party) -> Iterator[str]:
    yield f"{kind}: {early.verb} on {_who(early.lane)}, then {late.verb} on {_who(late.lane)}"
    for lane in (late.lane, early.lane):
        yield f"{_who(lane)} had waited for {_waits(fences, lane)}"
    gate = fences.gate(kind)
    if gate:
        yield f"the contract says: {gate}"
    yield from fences.out_of_sight()
    if fences.seed is not None:
        yield f"streams were perturbed: --fmcheck-streams=random --fmcheck-seed {fences.seed}"


def _waits(fences: Fences, lane: Lane) -> str:
    told = [
        f"{_who(wait.after.lane)} up to {_line(fences, wait.after.happening.moment)}"
        for wait in fences.waited(lane)
        if wait.after is not None
    ]
    return ", ".join(told) or "nothing"


def _a_wait(lane: Lane) -> str:
    return "a wait of the host" if lane.number == 0 else f"a wait of stream `{lane.name}`"


def _who(lane: Lane) -> str:
    return "the host" if lane.number == 0 else f"stream `{lane.name}`"


def _line(fences: Fences, moment: int) -> str:
    site = fences.tally.sites[fences.tally.moments.site(moment)]
    return f"{PurePath(site.path).name}:{site.line}"
