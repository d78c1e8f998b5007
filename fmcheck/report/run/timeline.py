"""What led to a violation, laid out in time: the events, and the marks that a picture needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fmcheck.finding import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.finding import Access, Violation

#: The lane of an access whose stream is not known.
UNKNOWN = "stream"
#: Checks whose last read came after the last write.
_READ_LAST = frozenset({"FR102"})


class Mark(Struct, frozen=True):
    """An event in its place: `kind` is `finding`, `unordered`, `missing` or "" for all else.

    `detail` says whose and at which step, "" where that is not known.
    """

    event: Event
    kind: str = ""
    detail: str = ""


class Timeline(Struct, frozen=True):
    """The events in the order in which they were issued, and the lanes they are on."""

    marks: tuple[Mark, ...]
    lanes: tuple[str, ...]

    @property
    def finding(self) -> int:
        """The index of the finding's mark."""
        return next(index for index, mark in enumerate(self.marks) if mark.kind == "finding")


def timeline(violation: Violation) -> Timeline:
    """Returns what led to a violation, by its history or by the last accesses of its row."""
    marks = _of_history(violation) if violation.history else _of_row(violation)
    return Timeline(tuple(marks), tuple(dict.fromkeys(mark.event.stream for mark in marks)))


def _of_history(violation: Violation) -> list[Mark]:
    events = sorted(violation.history, key=lambda event: event.number)
    at = [index for index, one in enumerate(events) if one.site == violation.access.site]
    if not at:  # the history holds what came before
        number = events[-1].number + 1
        events.append(_event(violation.access, number))
    last = at[-1] if at else len(events) - 1
    return [
        Mark(event, "finding" if index == last else "" if event.ordered else "unordered")
        for index, event in enumerate(events)
    ]


def _of_row(violation: Violation) -> list[Mark]:
    """The row's last write and read, what was missing, and the access in question."""
    write, read = violation.last_write, violation.last_read
    before = (write, read) if violation.code in _READ_LAST else (read, write)
    marks = [
        Mark(_event(access, number), detail=_detail(access))
        for number, access in enumerate(before)
        if access is not None
    ]
    lane = _lane(violation.access)
    if missing := _MISSING_EVENT.get(violation.code):
        marks.append(Mark(Event(len(marks), lane, missing), "missing"))
    finding = _event(violation.access, len(marks))
    return [*marks, Mark(finding, "finding", _detail(violation.access))]


#: The event whose absence is the fault, by check.
_MISSING_EVENT = {
    "FR101": "write",
    "FR102": "write",
    "FR103": "gather",
    "FR104": "write",
    "FR201": "reset",
}


def _event(access: Access, number: int) -> Event:
    return Event(number, _lane(access), access.verb, access.site, access.step)


def _lane(access: Access) -> str:
    return access.stream or UNKNOWN


def _detail(access: Access) -> str:
    parts = [access.owner] if access.owner else []
    if access.generation is not None:
        parts.append(f"generation {access.generation}")
    return ", ".join(parts)


def as_text(line: Timeline, places: Sequence[str]) -> list[str]:
    """Returns a sentence for each event, for those who do not see the picture."""
    sentences = []
    for mark, place in zip(line.marks, places, strict=True):
        event = mark.event
        text = f"{event.stream}: {_WORDS.get(mark.kind, '{}').format(event.what)}"
        if place:
            text += f" at {place}"
        if event.step is not None:
            text += f", step {event.step}"
        if event.after is not None:
            text += f", meets record {event.after}"
        if mark.detail:
            text += f", {mark.detail}"
        sentences.append(text)
    return sentences


_WORDS = {
    "finding": "{}, the finding",
    "unordered": "{}, which nothing orders before the finding",
    "missing": "missing: a {}",
}


def shortened(line: Timeline, most: int) -> Timeline:
    """Returns the last `most` events; a wait for a record that is cut off keeps no number of it."""
    if len(line.marks) <= most:
        return line
    marks = line.marks[-most:]
    numbers = {mark.event.number for mark in marks}
    kept = tuple(
        mark
        if mark.event.after is None or mark.event.after in numbers
        else replace(mark, event=replace(mark.event, after=None))
        for mark in marks
    )
    return Timeline(kept, tuple(dict.fromkeys(mark.event.stream for mark in kept)))
