"""Violations: each with all that the ledger, the owners and the memory know of its rows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fmcheck.finding import CHECKS, Access, Neighbour, Violation
from fmcheck.runtime.core import verdicts
from fmcheck.runtime.core.ledger import NEVER, State
from fmcheck.runtime.core.verdicts import Allocation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from fmcheck.finding import Site
    from fmcheck.runtime.core.ledger import Ledger
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.core.verdicts import Poison

#: Rows that a report shows, and rows on each side of the first one.
SHOWN = 8
BESIDE = 2


class Reader(Protocol):
    """What reads the elements of a buffer as bits."""

    def read(self, expression: Any) -> npt.NDArray[Any]:
        """Returns the elements that an index expression picks."""


class Whole(Protocol):
    """All of a buffer."""

    @property
    def memory(self) -> Reader:
        """Its elements."""


class RowOwners(Protocol):
    """Who holds which row, now and before."""

    def generation(self, row: int) -> int:
        """Returns how often a row was handed out."""

    def owner(self, row: int) -> str:
        """Returns who holds a row now."""

    def name(self, row: int, generation: int) -> str:
        """Returns who held a row then."""

    def held(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tells which rows somebody holds."""


class ReportedLayout(Protocol):
    """How a buffer is read."""

    @property
    def sink_holds(self) -> int | None:
        """What its sinks hold, None where that is not said."""


class ReportedBuffer(Protocol):
    """What a violation says of the buffer that it was found in."""

    tally: Tally
    name: str
    device: str
    ledger: Ledger
    poison: Poison
    sink_rows: Sequence[int]
    per_row: int

    @property
    def escapes(self) -> dict[tuple[str, int], int]:
        """How often its memory was handed to untracked code, by how and where."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing of it can be read any more."""

    @property
    def layout(self) -> ReportedLayout:
        """How it is read."""

    @property
    def whole(self) -> Whole:
        """All of it."""

    @property
    def owners(self) -> RowOwners | None:
        """Who holds its rows, None where that is not known."""


def report(
    buffer: ReportedBuffer,
    code: str,
    rows: npt.NDArray[Any],
    bits: npt.NDArray[Any],
    moment: int,
    verb: str = "gather",
    note: str = "",
) -> None:
    """Reports `code` in `rows`, each once, whose elements at fault are `bits`."""
    tally = buffer.tally
    site = tally.site_of(moment)
    if tally.seen_again((code, buffer.name, site)):
        return
    first = int(rows[0])
    last_write, last_read = last_accesses(buffer, first)
    shown, at = shown_rows(buffer, rows)
    tally.report(
        Violation(
            code=code,
            name=CHECKS[code],
            buffer=buffer.name,
            rows=tuple(shown[:SHOWN].tolist()),
            row_count=len(shown),
            values=tuple(_texts(buffer, bits[at[:SHOWN]])),
            access=access(buffer, verb, moment, first),
            last_write=last_write,
            last_read=last_read,
            test=tally.test,
            device=buffer.device,
            pid=os.getpid(),
            owner=buffer.owners.owner(first) if buffer.owners else "",
            previous_owner=_previous_owner(buffer, code, first),
            neighbours=tuple(neighbours(buffer, rows[:SHOWN])),
            expected=_expected(buffer, code),
            notes=(*positions(buffer, rows), *_notes(buffer, code, first), *filter(None, [note])),
        )
    )


class Misgiven(NamedTuple):
    """What is wrong with a hand-out, take-back or use of a row: the check, and who is involved.

    `since` is when `before` was given the row or gave it back, as `allocation` says.
    """

    check: int
    row: int
    owner: str
    before: str
    since: int | None
    allocation: Allocation


_NO_ROW = "{row} is the number of no row: it was freed at {where}, as if it were one"
_BEFORE = {
    Allocation.HELD: "row {row} was allocated to {who} at {where} and not freed since",
    Allocation.FREED: "row {row}, last held by {who}, was freed at {where} and has no owner since",
}


def of_owners(
    tally: Tally,
    whose: str,
    verb: str,
    faults: Sequence[Misgiven],
    moment: int,
    called: Site | None = None,
) -> None:
    """Reports what is wrong with rows that change hands or are used, a violation for each check.

    `called` is where the function is defined that uses them.
    """
    for check in dict.fromkeys(fault.check for fault in faults):
        found = [fault for fault in faults if fault.check == check]
        code, first = f"FR{check}", found[0]
        site = tally.site_of(moment)
        if tally.seen_again((code, whose, site)):
            continue
        notes: list[str] = []
        if first.since is not None and (first.row < 0 or check != verdicts.SINK):
            text = _NO_ROW if first.row < 0 else _BEFORE[first.allocation]
            where = tally.site_of(first.since).short
            who = first.before or "an owner without a name"
            notes = [text.format(row=first.row, who=who, where=where)]
        owner, previous = first.owner, first.before
        if check == verdicts.WRONG_OWNER:
            if first.owner:
                notes.append(f"it is used for {first.owner}")
            # Whose the row is, not for whom somebody takes it.
            is_held = first.allocation is Allocation.HELD
            owner, previous = (first.before, first.owner) if is_held else ("", first.before)
        rows = tuple(dict.fromkeys(fault.row for fault in found))
        tally.report(
            Violation(
                code=code,
                name=CHECKS[code],
                buffer=whose,
                rows=rows[:SHOWN],
                row_count=len(rows),
                access=Access(verb, site, tally.moments.step_of(moment)),
                test=tally.test,
                device="host",
                pid=os.getpid(),
                owner=owner,
                previous_owner=previous,
                passed=() if called is None else (Access("call", called),),
                notes=tuple(notes),
            )
        )


def shown_rows(
    buffer: ReportedBuffer, units: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns the rows that some units belong to, each once, and the place of its first one."""
    return np.unique(units // buffer.per_row, return_index=True)


def positions(buffer: ReportedBuffer, units: npt.NDArray[Any]) -> Iterator[str]:
    """Yields a sentence on the place in its first row, where a row has several units."""
    if buffer.per_row > 1:
        row = int(units[0]) // buffer.per_row
        of_row = units[units // buffer.per_row == row] % buffer.per_row
        shown = ", ".join(str(one) for one in of_row[:SHOWN].tolist())
        more = f" and {len(of_row) - SHOWN} more" if len(of_row) > SHOWN else ""
        yield f"of row {row} it is about unit{'s' * (len(of_row) > 1)} {shown}{more}"


def of_unseen_write(buffer: ReportedBuffer, moment: int) -> str:
    """Returns a sentence on a gathered value that no write of ours explains, with suspects."""
    tally = buffer.tally
    escaped = [f"who took `{how}` at {tally.sites[site]}" for how, site in reversed(buffer.escapes)]
    undeclared = [f"`{name}` (declared opaque, not wrapped)" for name in tally.unwrapped]
    suspects = ", ".join([*undeclared, *escaped]) or "none known"
    return (
        f"buffer `{buffer.name}`: the gather at {tally.site_of(moment)} got "
        f"values that no tracked write had put there; suspects: {suspects}"
    )


def last_accesses(buffer: ReportedBuffer, row: int) -> tuple[Access | None, Access | None]:
    """Returns the last write and the last gather of a row, None where there was none."""
    ledger = buffer.ledger
    return (
        _past_access(buffer, "write", row, *ledger.last_write(row)),
        _past_access(buffer, "gather", row, *ledger.last_read(row)),
    )


def _past_access(
    buffer: ReportedBuffer, verb: str, row: int, moment: int, generation: int
) -> Access | None:
    return None if moment == NEVER else access(buffer, verb, moment, row, generation)


def access(
    buffer: ReportedBuffer, verb: str, moment: int, row: int, generation: int | None = None
) -> Access:
    """Returns an access of a row, in the generation of now unless another is given."""
    tally, owners = buffer.tally, buffer.owners
    if owners is None:
        owner, generation = "", None
    else:
        generation = owners.generation(row) if generation is None else generation
        owner = owners.name(row, generation)
    return Access(
        verb,
        tally.site_of(moment),
        tally.moments.step_of(moment),
        tally.moments.stream(moment),
        owner,
        generation,
    )


def _previous_owner(buffer: ReportedBuffer, code: str, row: int) -> str:
    """Returns whose value a stale row holds, else who had the row before."""
    if buffer.owners is None:
        return ""
    before = buffer.owners.generation(row) - 1
    return buffer.owners.name(row, buffer.ledger.last_write(row)[1] if code == "FR104" else before)


def neighbours(buffer: ReportedBuffer, rows: npt.NDArray[Any]) -> Iterator[Neighbour]:
    """Yields rows and those beside them, as they are now.

    Nothing where one has several units, or where the device cannot be read any more.
    """
    if buffer.per_row > 1 or buffer.is_lost:
        return
    near = {int(row) + step for row in rows for step in range(-BESIDE, BESIDE + 1)}
    for beside in sorted(row for row in near if 0 <= row < len(buffer.ledger)):
        bits = np.ascontiguousarray(buffer.whole.memory.read(slice(beside, beside + 1)))
        first = next(_texts(buffer, bits.reshape(-1)[:1]), "")
        state = "sink" if beside in buffer.sink_rows else str(State(buffer.ledger.state[beside]))
        owner = buffer.owners.owner(beside) if buffer.owners else ""
        yield Neighbour(beside, state, f"{first}, …" if bits.size > 1 else first, owner)


def _expected(buffer: ReportedBuffer, code: str) -> str:
    """Returns what a value had to be; what an access needed is the check's own sentence."""
    if code == "FR204":
        return f"{buffer.layout.sink_holds} in the sink row"
    if code != "FR105" or buffer.poison.bound is None:
        return ""
    sign, limit = buffer.poison.bound
    return f"a value {sign} {limit}"


def _notes(buffer: ReportedBuffer, code: str, row: int) -> Iterator[str]:
    if buffer.owners is None:
        return
    generation = buffer.owners.generation(row)
    if code == "FR104":
        written_in = buffer.ledger.last_write(row)[1]
        yield (
            f"the row was allocated again ({written_in} times before, {generation} by now) "
            "before its value was gathered"
        )
    elif generation and not buffer.owners.held(np.array([row]))[0]:
        yield "the row has no owner: it was freed"


def _texts(buffer: ReportedBuffer, bits: npt.NDArray[Any]) -> Iterator[str]:
    values: Sequence[Any] = buffer.poison.values(np.ascontiguousarray(bits)).tolist()
    for value in values:
        yield f"{value:.6g}" if isinstance(value, (float, complex)) else str(value)
