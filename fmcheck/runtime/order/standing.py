"""Standing: what the lanes had behind them at one access, for a report that may come much later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fmcheck.finding import Event
    from fmcheck.runtime.order.fences import Fences, Happening, Lane


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand, by the numbers of lanes.

    `waits` are a lane's last waits, by the lane that was waited for, `rings` what it remembers,
    `doubts` the reasons to doubt a race. Without `all_waits`, older waits may have been forgotten.
    """

    fences: Fences
    waits: Mapping[int, Mapping[int, Happening]]
    rings: Mapping[int, tuple[Happening, ...]]
    doubts: tuple[str, ...]
    all_waits: bool = True

    def waited(self, lane: Lane) -> list[Happening]:
        """Returns the last wait of a lane for each other lane, oldest first."""
        return sorted(self.waits[lane.number].values(), key=lambda wait: wait.number)

    def history(self, lanes: Iterable[Lane], last: Iterable[Happening] = ()) -> tuple[Event, ...]:
        """Returns what the lanes remember, with the happenings at its end, in order of issue."""
        told = {one.number: one for lane in lanes for one in self.rings[lane.number]}
        told.update((one.number, one) for one in last)
        return tuple(self.fences.event(told[number]) for number in sorted(told))

    def before(self, number: int) -> Standing:
        """Returns how things stood before a happening, as far as the lanes still remember it."""
        rings = {
            lane: tuple(one for one in ring if one.number < number)
            for lane, ring in self.rings.items()
        }
        waits = {
            lane: {one.after.lane.number: one for one in ring if one.after is not None}
            for lane, ring in rings.items()
        }
        return replace(self, rings=rings, waits=waits, all_waits=False)

    def out_of_sight(self) -> list[str]:
        """Returns a sentence on each reason to doubt a race."""
        return [f"a fence may be out of sight: {reason}" for reason in self.doubts]
