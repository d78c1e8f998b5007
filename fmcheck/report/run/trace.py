"""The timeline: what happened on each stream, as a Chrome trace that Perfetto opens.

One lane a stream and one for the host; accesses are slices, a wait and the record that it met are
joined by an arrow, findings are marks. The trace-event format is that of chrome://tracing: JSON, in
microseconds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fmcheck.finding import Event, Site, Violation

HOST = "host"
#: How long a slice is drawn, in microseconds. What a thing took is not known: a launch is queued.
WIDTH = 8
#: Between two happenings, so that none covers another.
STEP = 10
_FENCES = frozenset({"record", "wait", "synchronize"})


def trace(
    events: Iterable[Event],
    violations: Iterable[Violation],
    root: Path,
    dropped: int = 0,
    pid: int = 0,
) -> str:
    """Returns the trace of a process as JSON.

    Happenings stand in the order in which they were issued, `STEP` apart: the picture is one of
    order, not of time. `dropped` is how many older ones were not kept.
    """
    ordered = sorted(events, key=lambda event: event.number)
    lanes = _lanes(ordered)
    places = {event.number: number * STEP for number, event in enumerate(ordered)}
    entries: list[dict[str, Any]] = list(_names(lanes, pid))
    for event in ordered:
        entries.append(_slice(event, places, lanes, root, pid))
        if event.after in places:
            entries += _arrow(event, ordered, places, lanes, pid)
    for violation in violations:
        entries += _marks(violation, places, lanes, root, pid)
    other = {"fmcheck": "order of issue, not time", "dropped": dropped}
    # NaN and infinity are no JSON: there is none in here.
    return json.dumps(
        {"traceEvents": entries, "displayTimeUnit": "ms", "otherData": other}, allow_nan=False
    )


def _lanes(events: Iterable[Event]) -> dict[str, int]:
    """Returns each lane's row: the host first, then streams as they appear."""
    streams = dict.fromkeys(event.stream for event in events if event.stream != HOST)
    return {name: row for row, name in enumerate((HOST, *streams))}


def _names(lanes: dict[str, int], pid: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "fmcheck"}}
    for name, row in lanes.items():
        shown = name if name == HOST or "stream" in name else f"stream {name}"
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": row, "args": {"name": shown}}
        order = {"sort_index": row}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": row, "args": order}


def _slice(
    event: Event, places: dict[int, int], lanes: dict[str, int], root: Path, pid: int
) -> dict[str, Any]:
    details: dict[str, Any] = {"number": event.number}
    if event.about:
        details["about"] = event.about
    if event.site is not None:
        details["site"] = _site(event.site, root)
    if event.step is not None:
        details["step"] = event.step
    if not event.ordered:
        details["ordered"] = "nothing orders this"
    shape: dict[str, Any] = {
        "ph": "X",
        "name": f"{event.what} {event.about.rpartition('.')[2]}".rstrip(),
        "cat": "fence" if event.what in _FENCES else "access",
        "ts": places[event.number],
        "dur": WIDTH,
        "pid": pid,
        "tid": lanes[event.stream],
        "args": details,
    }
    if not event.ordered:
        shape["cname"] = "terrible"
    return shape


def _arrow(
    event: Event,
    events: Iterable[Event],
    places: dict[int, int],
    lanes: dict[str, int],
    pid: int,
) -> Iterator[dict[str, Any]]:
    """Yields the two ends of an arrow from a record to the wait that met it."""
    record = next(one for one in events if one.number == event.after)
    common = {"name": "fence", "cat": "fence", "id": event.number, "pid": pid}
    begin = {"ph": "s", "ts": places[record.number] + WIDTH // 2, "tid": lanes[record.stream]}
    end = {"ph": "f", "bp": "e", "ts": places[event.number] + 1, "tid": lanes[event.stream]}
    yield {**common, **begin}
    yield {**common, **end}


def _marks(
    violation: Violation, places: dict[int, int], lanes: dict[str, int], root: Path, pid: int
) -> Iterator[dict[str, Any]]:
    """Yields the mark of a finding where its last happening stands; none if that is not there."""
    last = max((one.number for one in violation.history if one.number in places), default=None)
    if last is None:
        return
    details = {
        "buffer": violation.buffer,
        "site": _site(violation.access.site, root),
        "missing": violation.missing,
        "notes": list(violation.notes),
    }
    yield {
        "ph": "i",
        "s": "p",
        "name": f"{violation.code} {violation.name}",
        "cat": "finding",
        "ts": places[last] + WIDTH // 2,
        "pid": pid,
        "tid": lanes.get(violation.access.stream, 0),
        "args": details,
    }


def _site(site: Site, root: Path) -> str:
    from fmcheck.report.run.violation import short_path

    return f"{short_path(site.path, root)}:{site.line} in {site.function}"
