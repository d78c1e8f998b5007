"""Device streams: the Python calls of an accelerator's streams and events, followed by wrapping.

The device does what it always did; the session's fences are informed as well. torch's methods
call one another: what the engine called is followed, once, and what fmcheck does itself is not.
What C++ does to a stream, and what a graph that was captured does when it is replayed, is out of
sight: from the first sign of it on, no race is certain.

Stalls hold a stream up after its records and waits. What no fence orders then runs in another order
than it is launched in, and an engine's own test has a chance to notice. What fences order is only
later: no result of a healthy engine changes.
"""

from __future__ import annotations

import functools
import random
import sys
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.core.containment import broke
from fmcheck.runtime.core.moment import index_of
from fmcheck.runtime.core.naming import holder_of
from fmcheck.runtime.core.patches import patch, rebind
from fmcheck.runtime.core.site import is_here, unfollowed
from fmcheck.runtime.order.virtual import CHECK
from fmcheck.runtime.steps.torch_modes import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.order.fences import FenceRecord, Fences, Lane


#: The longest stall, in cycles of the device: about a millisecond.
LONGEST = 2_000_000


class Stalls:
    """Holds up the streams of a device's module.

    Without a seed each record and each wait is followed by the longest stall. With one, a coin says
    whether there is a stall, and how long it is.
    """

    def __init__(self, module: Any, seed: int | None) -> None:
        self._module = module
        self._random = None if seed is None else random.Random(seed)

    def after(self, stream: Any) -> None:
        """Holds up what is launched next on a stream, the current one for None; no capture ever."""
        cycles = self._drawn()
        module = self._module
        if not cycles:
            return
        with unfollowed(), module.stream(module.current_stream() if stream is None else stream):
            if not module.is_current_stream_capturing():
                module._sleep(cycles)

    def _drawn(self) -> int:
        if self._random is None:
            return LONGEST
        return self._random.choice((0, self._random.randint(1, LONGEST)))


_COLLECTIVES = "distributed_c10d.py"
#: What of a device's module is followed, by the class that has it; "" for the module itself.
_FOLLOWED = {
    "": ("Stream", "Event", "current_stream", "stream"),
    "Stream": ("wait_stream", "wait_event", "synchronize", "record_event", "query"),
    "Event": ("record", "wait", "synchronize", "query"),
}
_HEAP_TYPE = 1 << 9  # Python's flag of a class that takes attributes


def why_not(module: Any) -> str:
    """Returns why the streams of a device's module cannot be followed, "" if they can."""
    for owner, names in _FOLLOWED.items():
        holder = getattr(module, owner) if owner else module
        for name in names:
            if not hasattr(holder, name):
                return f"its module has no `{owner}{'.' * bool(owner)}{name}`"
        if owner and not holder.__flags__ & _HEAP_TYPE:
            return f"its `{owner}` is a class of C++, whose methods cannot be wrapped"
    if context_of(module) is None:
        return "its module has no class `StreamContext`"
    return ""


def context_of(module: Any) -> Any:
    """Returns the class by which a stream is entered, None if there is none."""
    named = getattr(module, "StreamContext", module.stream)
    return named if isinstance(named, type) else None


class DeviceStreams:
    """Follows one device module: `torch.cuda`, or what has its names.

    A stream is known by its device and its number, as two objects may stand for the same one.
    `stalls` hold streams up after what they record and wait for.
    """

    def __init__(
        self, fences: Fences, module: Any, kind: str, stalls: Stalls | None = None
    ) -> None:
        self.fences = fences
        self.stalls = stalls
        self.module = module
        self.kind = kind
        self._lanes: dict[tuple[int, int], Lane] = {}

    def follow(self, accelerator: Any = None) -> Iterator[Undo]:
        """Begins to follow, yielding how to let go of each part.

        `accelerator` is `torch.accelerator`, where it stands for this module.
        """
        stream, event = self.module.Stream, self.module.Event
        yield from self._wrap(stream, "wait_stream", self._wait_stream)
        yield from self._wrap(stream, "wait_event", lambda s, event: self._wait(event, s))
        yield from self._wrap(stream, "synchronize", self._synchronize)
        yield from self._wrap_result(stream, "record_event", self._recorded)
        yield from self._wrap_result(stream, "query", self._stream_done)
        yield from self._wrap(event, "record", self._record)
        yield from self._wrap(event, "wait", self._wait)
        yield from self._wrap(event, "synchronize", lambda e: self.fences.synchronize(self._met(e)))
        yield from self._wrap_result(event, "query", self._event_done)
        # What is current later has a name by the object that was entered alone.
        yield from self._wrap(context_of(self.module), "__enter__", self._entered)
        for owner in (self.module, accelerator):
            if owner is not None and hasattr(owner, "synchronize"):
                yield from self._wrap_function(owner.synchronize, self.fences.synchronize_all)
        if accelerator is not None and hasattr(accelerator, "current_stream"):
            yield from self._wrap_function(accelerator.current_stream, self._hands_out_a_stream)
        captured = "a graph was captured, and what its replays touch is not seen"
        # It waits for the device before it captures.
        yield from self._doubt_after("graph", "__enter__", captured, self.fences.synchronize_all)
        replayed = "a graph was replayed, and what it touches is not seen"
        for graph in self._graphs():
            yield from self._doubt_after(graph, "capture_begin", captured)
            yield from self._doubt_after(graph, "replay", replayed)
        external = getattr(self.module, "ExternalStream", None)
        if isinstance(external, type):
            made = self._observed(external.__new__, self._comes_from_outside)
            yield patch(external, "__new__", staticmethod(made))

    def follow_work(self, work: type) -> Iterator[Undo]:
        """Doubts races from the first wait on, by an engine, for work that a collective left.

        It makes the current stream wait for one of the collective's own, which is out of sight.
        What torch waits for in the collective itself has the stream that it was launched on.
        """
        wait = work.wait  # type: ignore[attr-defined]

        @functools.wraps(wait)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = wait(*args, **kwargs)
            if not sys._getframe(1).f_code.co_filename.endswith(_COLLECTIVES):
                self.fences.doubt(
                    "a collective was waited for, which orders streams where fmcheck cannot see it"
                )
            return result

        yield patch(work, "wait", call)

    def lane(self, stream: Any = None) -> Lane:
        """Returns a stream's lane, that of the current one for None."""
        if stream is None:
            stream = self.module.current_stream()
        number = getattr(stream, "stream_id", None)
        if not isinstance(stream, self.module.Stream):
            self.fences.doubt(f"a stream of {type(stream).__name__}, whose waits are not seen")
        if number is None:
            number = id(stream)
        key = (int(getattr(stream, "device_index", 0) or 0), int(number))
        lane = self._lanes.get(key)
        if lane is None:
            name = f"{self.kind}/default stream"
            if number:
                name = holder_of(stream) or f"{self.kind}/stream {number}"
            lane = self._lanes[key] = self.fences.open(lambda: name)
        return lane

    def lane_on(self, device: str) -> Lane:
        """Returns the lane of a device's current stream."""
        return self.lane(self.module.current_stream(index_of(device)))

    def name_of_current(self, device: str) -> str:
        """Returns the name of a device's current stream."""
        return self.lane_on(device).name

    # --- what the calls tell ---

    def _record(self, event: Any, stream: Any = None) -> None:
        before = self._record_of(event)
        event._fmcheck_record = made = self.fences.record(self.lane(stream))
        if before is not None:
            self.fences.record_again(before, made)
        self._stall(stream)

    def _wait(self, event: Any, stream: Any = None) -> None:
        self.fences.wait(self.lane(stream), self._met(event))
        self._stall(stream)

    def _wait_stream(self, stream: Any, other: Any) -> None:
        self.fences.wait_lane(self.lane(stream), self.lane(other))
        self._stall(stream)

    def _synchronize(self, stream: Any) -> None:
        self.fences.synchronize_lane(self.lane(stream))

    def _recorded(self, made: Any, stream: Any, event: Any = None) -> None:
        self._record(made, stream)

    def _stream_done(self, done: bool, stream: Any) -> None:
        if done:
            self.fences.found_lane_done(self.lane(stream))

    def _event_done(self, done: bool, event: Any) -> None:
        if done:
            self.fences.found_done(self._met(event))

    def _comes_from_outside(self, *_: Any, **__: Any) -> None:
        self.fences.doubt(
            "a stream came from outside of torch, and what else waits on it is not seen"
        )

    def _hands_out_a_stream(self) -> None:
        self.fences.doubt("torch.accelerator handed out a stream, whose waits are not seen")

    def _entered(self, context: Any) -> None:
        if context.stream is not None:
            self.lane(context.stream)

    def _stall(self, stream: Any) -> None:
        if self.stalls is not None:
            self.stalls.after(stream)

    def _met(self, event: Any) -> FenceRecord | None:
        record = self._record_of(event)
        if record is None and not isinstance(event, self.module.Event):
            self.fences.doubt(f"an event of {type(event).__name__}, whose records are not seen")
        return record

    def _record_of(self, event: Any) -> FenceRecord | None:
        """Returns an event's last record of this session."""
        # Not by a weak reference: torch 2.11 frees a CUDA event and leaves those to it dangling.
        record: FenceRecord | None = getattr(event, "_fmcheck_record", None)
        return None if record is None or record.lane.fences is not self.fences else record

    # --- wrapping ---

    def _wrap(self, class_: type, name: str, observe: Callable[..., None]) -> Iterator[Undo]:
        def observe_call(result: Any, *args: Any, **kwargs: Any) -> None:
            observe(*args, **kwargs)

        yield from self._wrap_result(class_, name, observe_call)

    def _wrap_result(self, class_: type, name: str, observe: Callable[..., None]) -> Iterator[Undo]:
        method = getattr(class_, name)

        call = self._observed(method, observe)
        try:
            yield patch(class_, name, call)
        except TypeError:  # a class of C++ that takes no attributes
            self.fences.doubt(f"{class_.__name__}.{name} cannot be followed")

    def _graphs(self) -> list[str]:
        """Returns the names of the module's classes of graphs: `CUDAGraph`, `XPUGraph` and such."""
        return [name for name in dir(self.module) if name.endswith("Graph")]

    def _doubt_after(
        self, class_: str, name: str, reason: str, waits: Callable[[], None] | None = None
    ) -> Iterator[Undo]:
        """Doubts races from the first call of a method on, where the module has its class.

        Where it `waits`, what that tells of is seen.
        """

        def observe(*_: Any, **__: Any) -> None:
            if waits is not None:
                waits()
            self.fences.doubt(reason)

        owner = getattr(self.module, class_, None)
        if isinstance(owner, type) and hasattr(owner, name):
            yield from self._wrap(owner, name, observe)

    def _observed(
        self, function: Callable[..., Any], observe: Callable[..., None]
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_here():
                return function(*args, **kwargs)
            with unfollowed():
                result = function(*args, **kwargs)
            if self.fences.tally.active:
                try:
                    observe(result, *args, **kwargs)
                except Exception as err:
                    self.fences.doubt("fmcheck failed to follow a call of a stream or event")
                    broke(self.fences.tally, CHECK, err)
            return result

        return left_alone(call)

    def _wrap_function(
        self, function: Callable[..., Any], observe: Callable[[], None]
    ) -> Iterator[Undo]:
        call = self._observed(function, lambda *_, **__: observe())
        rebind(function, call)
        yield lambda: rebind(call, function)
