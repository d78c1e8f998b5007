"""The picture of what led to a violation: a lane a stream, arrows for fences, the finding marked.

It is SVG that stands inside the page and takes its colours from there.
"""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING

from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Site
    from fmcheck.report.run.timeline import Mark, Timeline

# Lengths are in CSS pixels.
LABEL, STEP, LANE, TOP, RADIUS = 100, 118, 88, 18, 8
#: The heads of the arrows, which stand once in a page.
HEADS = (
    '<svg width="0" height="0" class="heads" aria-hidden="true"><defs>'
    + "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path class="{name}-head" d="M0 0L8 4L0 8z"/></marker>'
        for name in ("fence", "gap")
    )
    + "</defs></svg>"
)
#: A sign in the circle of each kind of event.
_SIGNS = {
    "write": "W",
    "fill": "W",
    "gather": "G",
    "peek": "P",
    "copy": "C",
    "record": "R",
    "wait": "‖",
    "synchronize": "S",
    "alloc": "A",
    "free": "F",
    "reset": "0",
}


def picture(line: Timeline, name: str) -> str:
    """Returns the SVG of a timeline; `name` is what a screen reader calls it."""
    width = LABEL + STEP * len(line.marks)
    height = TOP + LANE * len(line.lanes)
    parts = [*_lanes(line, width), *_fences(line), *_gaps(line)]
    parts += [part for index, mark in enumerate(line.marks) for part in _mark(line, index, mark)]
    return (
        f'<svg class="story" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" aria-label="{escape(name)}">{"".join(parts)}</svg>'
    )


def _lanes(line: Timeline, width: int) -> Iterator[str]:
    for lane in line.lanes:
        y = _y(line, lane)
        yield f'<line class="lane" x1="{LABEL - 14}" y1="{y}" x2="{width - 6}" y2="{y}"/>'
        yield f'<text class="stream" x="2" y="{y + 4}">{escape(printable(_cut(lane, 13)))}</text>'


def _fences(line: Timeline) -> Iterator[str]:
    records = {mark.event.number: index for index, mark in enumerate(line.marks)}
    for index, mark in enumerate(line.marks):
        if mark.event.after in records:
            yield _arrow(line, records[mark.event.after], index, "fence")


def _gaps(line: Timeline) -> Iterator[str]:
    """A broken arrow from what nothing orders to the finding."""
    for index, mark in enumerate(line.marks):
        if mark.kind == "unordered":
            yield _arrow(line, index, line.finding, "gap")


def _arrow(line: Timeline, start: int, end: int, kind: str) -> str:
    (x1, y1), (x2, y2) = (_point(line, index) for index in (start, end))
    if y1 == y2:  # on one lane: a bow above it
        path = f"M{x1} {y1 - RADIUS}Q{(x1 + x2) / 2:g} {y1 - 44} {x2} {y2 - RADIUS - 2}"
    else:
        down = 1 if y2 > y1 else -1
        y1, y2 = y1 + down * RADIUS, y2 - down * (RADIUS + 2)
        half = (y1 + y2) // 2
        path = f"M{x1} {y1}C{x1} {half} {x2} {half} {x2} {y2}"
    return f'<path class="{kind}" d="{path}" marker-end="url(#{kind})"/>'


def _mark(line: Timeline, index: int, mark: Mark) -> Iterator[str]:
    x, y = _point(line, index)
    event = mark.event
    if mark.kind == "finding":
        yield f'<circle class="halo" cx="{x}" cy="{y}" r="{RADIUS + 5}"/>'
    kind = f"event {mark.kind}".rstrip()
    yield f'<circle class="{kind}" cx="{x}" cy="{y}" r="{RADIUS}"/>'
    yield f'<text class="sign" x="{x}" y="{y + 4}">{_SIGNS.get(event.what, "•")}</text>'
    label = f"no {event.what}" if mark.kind == "missing" else event.what
    lines = [(f"what {mark.kind}".rstrip(), label)]
    if event.step is not None:
        lines.append(("place", f"step {event.step}"))
    if event.site is not None:
        lines.append(("place", _place(event.site)))
    for number, (kind, text) in enumerate(lines):
        below = y + 26 + 14 * number
        yield f'<text class="{kind}" x="{x}" y="{below}">{escape(printable(_cut(text, 20)))}</text>'


def _point(line: Timeline, index: int) -> tuple[int, int]:
    return LABEL + STEP * index + STEP // 2, _y(line, line.marks[index].event.stream)


def _y(line: Timeline, lane: str) -> int:
    return TOP + LANE * line.lanes.index(lane) + 14


def _place(site: Site) -> str:
    return f"{os.path.basename(site.path)}:{site.line}"


def _cut(text: str, most: int) -> str:
    """Returns the end of a text that is too long: a number stands there."""
    return text if len(text) <= most else f"…{text[1 - most :]}"
