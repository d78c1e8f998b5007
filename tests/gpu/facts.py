"""A fact: one thing that a part saw on the device, and whether it is as it should be."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

#: Holds, for a part, when its time is up.
UNTIL = "FMCHECK_GPU_UNTIL"
_MARGIN = 4.0


def seconds_left(otherwise: float) -> float:
    """Returns how long this part may go on, with a margin to end well in."""
    until = os.environ.get(UNTIL)
    return otherwise if until is None else float(until) - time.time() - _MARGIN


@dataclass(frozen=True)
class Fact:
    """What was seen. `ok` is None for a figure that has no goal."""

    what: str
    value: float | int | str | None
    unit: str = ""
    goal: str = ""
    ok: bool | None = None

    def __str__(self) -> str:
        reported = {True: "ok    ", False: "MISSED", None: "      "}[self.ok]
        value = f"{self.value:.4g}" if isinstance(self.value, float) else self.value
        goal = f"  (goal: {self.goal})" if self.goal else ""
        return f"{reported} {self.what}: {value}{' ' * bool(self.unit)}{self.unit}{goal}"


def at_most(what: str, value: float, goal: float, unit: str = "") -> Fact:
    """A figure that may not be larger than its goal."""
    return Fact(what, value, unit, f"at most {goal:g}", value <= goal)


def exactly(what: str, value: float | int | str, goal: float | int | str, unit: str = "") -> Fact:
    """A figure that is to be its goal."""
    return Fact(what, value, unit, str(goal), value == goal)


def not_shown(what: str, reason: str) -> Fact:
    """Something that this device cannot show: a goal that was missed, never one reached."""
    return Fact(what, f"not shown: {reason}", "", "shown", False)
