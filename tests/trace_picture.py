"""A picture of a trace: `python -m tests.trace_picture TRACE.json OUT.html` shows a finding.

Perfetto is out of reach of a build machine: this page shows the same lanes, slices, arrows and
marks, and `chromium --headless --screenshot` makes the picture of README from it.
"""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH, LANE, LEFT, TOP = 1500, 96, 150, 70
BEFORE, AFTER = 255, 45
COLOURS = {"fence": "#b9c6d8", "access": "#8fc79a"}
RED = "#e05a4f"


def picture(trace: str) -> str:
    """Returns a page that shows the happenings around the first finding of a trace.

    Raises:
        StopIteration: if the trace has no finding.
    """
    events = json.loads(trace)["traceEvents"]
    mark = next(one for one in events if one["ph"] == "i")
    lanes = {one["tid"]: one["args"]["name"] for one in events if one.get("name") == "thread_name"}
    begin, end = mark["ts"] - BEFORE, mark["ts"] + AFTER
    shown = [one for one in events if begin <= one.get("ts", begin - 1) <= end]
    height = TOP + len(lanes) * LANE
    size = f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12"'

    def x(time: float) -> float:
        return LEFT + (time - begin) / (end - begin) * (WIDTH - LEFT - 20)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        _text(10, 24, f"{mark['name']} in {mark['args']['buffer']}", "font-weight='bold'"),
        _text(10, 44, f"missing: {mark['args']['missing']}", "fill='#555'"),
        *(_text(10, _y(row) + 38, name, "font-weight='bold'") for row, name in lanes.items()),
        *(part for one in shown if one["ph"] == "X" for part in _slice(one, x)),
        *_arrows(shown, x),
        f'<path d="M{x(mark["ts"]) - 7:.0f},52 h14 l-7,12 z" fill="{RED}"/>',
        "</svg>",
    ]
    return f'<body style="margin:0;background:white">{"".join(parts)}</body>\n'


def _y(row: int) -> int:
    return TOP + row * LANE


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y}" {style}>{html.escape(text)}</text>'


def _slice(one: dict[str, Any], x: Any) -> Iterator[str]:
    left, right, top = x(one["ts"]), x(one["ts"] + one["dur"]), _y(one["tid"])
    colour = RED if "cname" in one else COLOURS[one["cat"]]
    box = f'x="{left:.0f}" y="{top + 8}" width="{right - left:.0f}" height="30"'
    yield f'<rect {box} rx="3" fill="{colour}"/>'
    place = f"translate({(left + right) / 2:.0f},{top + 44}) rotate(28)"
    yield f'<text transform="{place}" font-size="10">{html.escape(one["name"])}</text>'


def _arrows(shown: list[dict[str, Any]], x: Any) -> Iterator[str]:
    begins = {one["id"]: one for one in shown if one["ph"] == "s"}
    for one in shown:
        begin = begins.get(one.get("id")) if one["ph"] == "f" else None
        if begin is not None:
            left, right = x(begin["ts"]), x(one["ts"])
            top, bottom = _y(begin["tid"]) + 23, _y(one["tid"]) + 23
            bend = f"{left + 30:.0f},{top} {right - 30:.0f},{bottom}"
            path = f"M{left:.0f},{top} C{bend} {right:.0f},{bottom}"
            yield f'<path d="{path}" fill="none" stroke="#555" stroke-width="1.4"/>'
            yield f'<circle cx="{right:.0f}" cy="{bottom}" r="4" fill="#555"/>'


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture(Path(sys.argv[1]).read_text()))
