"""Streams: all that a session follows of them, put together."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from fmcheck.runtime.core import moment
from fmcheck.runtime.device.device_ops import DeviceOps
from fmcheck.runtime.device.device_streams import DeviceStreams, Stalls, context_of, why_not
from fmcheck.runtime.device.ring import Clashes
from fmcheck.runtime.order import virtual
from fmcheck.runtime.order.cross_stream import CrossStreamTensors
from fmcheck.runtime.order.delay import Delay
from fmcheck.runtime.order.fences import Fences
from fmcheck.runtime.order.ops import Ops
from fmcheck.runtime.order.races import RelayLanes
from fmcheck.runtime.steps import placements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.device.guard import GuardedBuffer
    from fmcheck.runtime.order.fences import Lane
    from fmcheck.runtime.order.lifetimes import Lifetimes
    from fmcheck.runtime.relay.buffer import RelayBuffer


class FollowedStreams:
    """The streams of a session: fences, operators, and what is judged by them."""

    def __init__(self, tally: Tally, mode: str = "tracked", seed: int = 0) -> None:
        self.tally = tally
        self.mode = mode
        self.fences = Fences(tally, seed if mode == "random" else None)
        self.ops = Ops(tally)
        self.cross_stream = CrossStreamTensors(self.fences)
        self.ops.listeners.append(self.cross_stream)
        self.ops.blocks = self.cross_stream.blocks
        self.clashes = Clashes(tally)
        self.devices: dict[str, DeviceStreams] = {}
        self.on_device = DeviceOps(self.fences, self.cross_stream, self.devices)
        self.ops.on_device = self.on_device
        self.lifetimes: Lifetimes | None = None
        self.delay: Delay | None = None
        if mode in ("delayed", "random"):
            self.delay = Delay(self.fences, self.cross_stream, self.fences.seed)
            self.ops.listeners.append(self.delay)

    def judge_memory(self, lifetimes: Lifetimes) -> None:
        """Has memory judged by what streams still do with it.

        First of all: what the host reads, it has not waited for yet.
        """
        self.lifetimes = self.on_device.lifetimes = lifetimes
        self.ops.listeners.insert(0, lifetimes)

    def follow(self) -> Iterator[Undo]:
        """Begins to follow streams, yielding how to let go of each part."""
        placements.forget_names()
        yield from virtual.follow(self.fences)
        yield from self.ops.follow()
        for kind in _accelerators():
            module = torch.get_device_module(kind)
            reason = why_not(module)
            if reason:
                self._refuse(kind, reason)
                continue
            yield from self.follow_device(module, kind)
            work = getattr(getattr(torch._C, "_distributed_c10d", None), "Work", None)
            if work is not None:
                yield from self.devices[kind].follow_work(work)

    def follow_device(self, module: ModuleType, kind: str) -> Iterator[Undo]:
        """Begins to follow the streams of a device's module, yielding how to let go again."""
        stalls = self._stalls(module, kind)
        device = self.devices[kind] = DeviceStreams(self.fences, module, kind, stalls)
        moment.followed[kind] = device.name_of_current
        yield partial(self._let_go, kind)
        yield from device.follow(getattr(torch, "accelerator", None))
        yield from self.ops.follow_contexts(context_of(module))

    def _stalls(self, module: ModuleType, kind: str) -> Stalls | None:
        """Returns what holds streams up, None where nothing is to, or nothing can."""
        if self.mode == "tracked":
            return None
        if not hasattr(module, "_sleep"):
            self.tally.note(f"streams of `{kind}` are not delayed: its module has no `_sleep`")
            return None
        return Stalls(module, self.fences.seed)

    def _refuse(self, kind: str, reason: str) -> None:
        self.tally.note(f"streams of `{kind}` are not followed: {reason}")

    def _let_go(self, kind: str) -> None:
        del self.devices[kind]
        moment.followed.pop(kind, None)

    def begin_test(self) -> None:
        """Begins as if no test had run before: what they did is done, and decides nothing more."""
        self.ops.begin_test()
        self.fences.settle()
        self.cross_stream.begin_test()
        placements.forget_names()
        if self.lifetimes is not None:
            self.lifetimes.begin_test()
        if self.delay is not None:
            self.delay.begin_test()

    @contextmanager
    def follow_block(self, kind: str) -> Iterator[None]:
        """Lets these streams, and no session's, be notified in a block of what the engine does."""
        if kind == "cpu":
            with virtual.followed_by(self.fences):
                yield
            return
        outer = moment.followed.get(kind)
        undo = list(self.follow_device(torch.get_device_module(kind), kind))
        try:
            yield
        finally:
            self.ops.stop()
            for one in reversed(undo):
                one()
            if outer is not None:
                moment.followed[kind] = outer

    def lanes_for(self, buffer: RelayBuffer) -> RelayLanes | None:
        """Returns what keeps a relay buffer's accesses lane by lane, None where nothing can."""
        kind = buffer.device.partition(":")[0]
        current: Callable[[], Lane] = virtual.current_lane
        if kind in self.devices:
            self.ops.watch_here()
            current = partial(self._lane_on, self.devices[kind], buffer.device)
        elif kind != "cpu":
            if not any(note.startswith(f"streams of `{kind}` ") for note in self.tally.notes):
                self._refuse(kind, "torch does not name it as this machine's accelerator")
            return None
        if not buffer.is_on_device:
            return RelayLanes(buffer, self.fences, current, self.delay if kind == "cpu" else None)
        from fmcheck.runtime.device.guarded_lanes import GuardedLanes

        return GuardedLanes(cast("GuardedBuffer", buffer), self.fences, current, self.clashes)

    def _lane_on(self, streams: DeviceStreams, device: str) -> Lane:
        if self.ops.misses_here():
            self.fences.doubt("a thread's waits for the device are not seen")
        return streams.lane_on(device)

    def lane(self) -> Lane:
        """Returns the lane that launches go to now."""
        return virtual.current_lane()

    def adopt(self, buffer: RelayBuffer) -> None:
        """A relay buffer's memory is judged by its rows, and no further."""
        self.cross_stream.leave_out(buffer.base)
        buffer.lanes = lanes = self.lanes_for(buffer)
        if lanes is not None and lanes.delay is not None:
            lanes.delay.adopt(buffer)

    def bound(self, buffer: RelayBuffer) -> None:
        """The engine has bound a new buffer with values: whoever made those has written it.

        The engine may go on with the tensor that it has bound, beside the buffer.
        """
        self.cross_stream.share(buffer.base)
        if type(buffer.lanes) is RelayLanes:
            for write in self.cross_stream.blocks.of(buffer.base).writes:
                buffer.lanes.was_written(write.lane, write.count, write.moment)


def _accelerators() -> list[str]:
    """Returns the kinds of devices here that may have streams: CUDA, and what torch names."""
    found = ["cuda"] if torch.cuda.is_available() else []
    named = getattr(torch, "accelerator", None)
    if named is not None and named.is_available():
        kind = named.current_accelerator().type
        found += [] if kind in found else [kind]
    return found
