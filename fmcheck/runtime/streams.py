"""Streams: all that a session follows of them, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmcheck.runtime import virtual
from fmcheck.runtime.delay import Delay
from fmcheck.runtime.device_streams import DeviceStreams
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


class Streams:
    """The streams of a session: fences, operators, and what is judged by them."""

    def __init__(self, tally: Tally, mode: str = "tracked", seed: int = 0) -> None:
        self.tally = tally
        self.mode = mode
        self.fences = Fences(tally, seed if mode == "random" else None)
        self.ops = Ops(tally)
        self.handover = Handover(self.fences)
        self.ops.listeners.append(self.handover)
        self.delay: Delay | None = None
        if mode in ("delayed", "random"):
            self.delay = Delay(self.fences, self.handover, self.fences.seed)
            self.ops.listeners.append(self.delay)

    def follow(self) -> Iterator[Undo]:
        """Begins to follow streams, yielding how to let go of each part."""
        self.tally.streams = self
        yield from virtual.follow(self.fences)
        yield from self.ops.follow()
        if torch.cuda.is_available():
            device = DeviceStreams(self.fences, torch.cuda, "cuda")
            yield from device.follow(getattr(torch, "accelerator", None))

    def lanes_for(self, buffer: RelayBuffer) -> RelayLanes | None:
        """Returns what keeps a relay buffer's accesses lane by lane, None where nothing can."""
        return RelayLanes(buffer, self.fences, self.delay) if buffer.device == "cpu" else None

    def lane(self) -> Lane:
        """Returns the lane that launches go to now."""
        return virtual.current_lane()

    def adopt(self, buffer: RelayBuffer) -> None:
        """A relay buffer's memory is judged by its rows, and no further."""
        self.handover.leave_out(buffer.base)
        if self.delay is not None and buffer.lanes is not None:
            self.delay.adopt(buffer)
