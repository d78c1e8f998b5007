"""Streams: all that a session follows of them, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmcheck.runtime import virtual
from fmcheck.runtime.fences import Fences
from fmcheck.runtime.handover import Handover
from fmcheck.runtime.ops import Ops
from fmcheck.runtime.races import RelayLanes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.runtime.buffer import RelayBuffer
    from fmcheck.runtime.fences import Lane
    from fmcheck.runtime.hold import Undo
    from fmcheck.runtime.tally import Tally

#: Followed not at all; followed; with writes that others see no sooner than a fence makes them;
#: with writes that others see at random moments up to then.
MODES = ("off", "tracked", "delayed", "random")


class Streams:
    """The streams of a session: fences, operators, and what is judged by them."""

    def __init__(self, tally: Tally, mode: str = "tracked", seed: int = 0) -> None:
        self.tally = tally
        self.mode = mode
        self.fences = Fences(tally, seed if mode == "random" else None)
        self.ops = Ops(tally)
        self.handover = Handover(self.fences)
        self.ops.listeners.append(self.handover)

    def follow(self) -> Iterator[Undo]:
        """Begins to follow streams, yielding how to let go of each part."""
        self.tally.streams = self
        yield from virtual.follow(self.fences)
        yield from self.ops.follow()

    def lanes_for(self, buffer: RelayBuffer) -> RelayLanes | None:
        """Returns what keeps a relay buffer's accesses lane by lane, None where nothing can."""
        return RelayLanes(buffer, self.fences) if buffer.device == "cpu" else None

    def lane(self) -> Lane:
        """Returns the lane that launches go to now."""
        return virtual.current_lane()

    def leave_out(self, tensor: Any) -> None:
        """A relay buffer's memory is judged by its rows."""
        self.handover.leave_out(tensor)
