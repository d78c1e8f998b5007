"""Operators: each one that torch runs in a session that follows streams, and what it touches.

One mode of torch's dispatcher sees the operators, a few wrapped methods of tensors see the host
read values past it. Both only translate into a `OperatorCall`, for all who listen. On a CPU a
thread is watched from its first use of streams in a test: it enters one, records or waits. On a
device it is from the first stream that it enters, or a relay buffer that it made. Before, an engine
pays nothing on a CPU, and what it sets up is not held against what streams do later. Where hooks of
a backward pass are the first to use them, it is watched in these passes alone.

The mode is beneath all others of its thread, so that none of them is taken off in its stead. What
has no memory of its own, as sparse, nested, fake and wrapped tensors, is passed on as it is.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
from torch._C import _len_torch_dispatch_stack as modes_on

from fmcheck.runtime.core.containment import broke, contained, made_once
from fmcheck.runtime.core.patches import patch
from fmcheck.runtime.core.site import is_here
from fmcheck.runtime.order import virtual
from fmcheck.runtime.steps import placements, step_syncs
from fmcheck.runtime.steps.factories import (
    FactoryMode,
    hear_backward,
    is_own,
    listen,
    passes_on,
)
from fmcheck.runtime.steps.operators import COPIES, Operator, tensors_at, tensors_written
from fmcheck.runtime.steps.placements import tensors_in
from fmcheck.runtime.steps.torch_modes import (
    OperatorMode,
    any_mode_sees_us,
    called,
    has_memory,
    is_traced,
    put_beneath,
    take_out,
    unheard,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.order.blocks import Block, Blocks
    from fmcheck.runtime.order.fences import Fences, Lane
    from fmcheck.runtime.steps.moves import Moves
    from fmcheck.runtime.steps.step_syncs import StepMode

    #: What makes a call of an operator.
    Make = Callable[[Operator, Any, Any], Any]

#: Methods by which the host reads values; torch runs no operator for most of them on a CPU.
HOST_READS = (
    *("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"),
    *("__complex__", "__array__", "is_nonzero"),
)
#: Functions that take a tensor apart to make another one over the same memory.
_COPYING = (copy.copy.__code__,)
#: What the closing section calls the checks that hear of operators.
CHECK = "following operators on streams (FR401 to FR404)"


class OperatorCall(msgspec.Struct, eq=False):
    """One operator that ran, or one read by the host.

    `reads` and `writes` are the tensors among its arguments, `made` those of its results that
    share no argument's memory; none of them is without memory. `host` tells of a read by the host,
    which has waited for `lane`. `device` is the one that it runs on, None for the CPU. One that
    `is_view` made an array over the host's own memory: that waits for nothing, and is read later.
    """

    plan: Operator
    args: Any
    kwargs: Any
    lane: Lane
    reads: list[torch.Tensor]
    writes: list[torch.Tensor]
    made: list[torch.Tensor] = []
    host: bool = False
    device: torch.device | None = None
    #: Whether this copies without the host waiting for it.
    is_async_copy: bool = False
    #: Whether the host waits for it, as for a copy to the host that says nothing of that.
    is_waited_for: bool = False
    is_view: bool = False
    #: The array that such a read returned.
    view: Any = None
    _read_in: list[Block] | None = None
    _made_in: list[Block] | None = None
    _site: int = -1
    _now: tuple[Lane, int, int] | None = None

    def now(self, fences: Fences) -> tuple[Lane, int, int]:
        """Returns whose call it is, that lane's own time and the moment, looked for once."""
        now = self._now
        if now is None:
            tally = fences.tally
            if self._site < 0:
                self._site = tally.sites.here(3)
            lane = fences.host if self.host else self.lane
            now = lane, fences.time(lane), tally.moments.on(lane.name, self._site)
            self._now = now
        return now

    @property
    def has_line(self) -> bool:
        """Tells whether a line of the program makes this call, once `now` was asked."""
        return self._site != 0

    def read_in(self, blocks: Blocks) -> list[Block]:
        """Returns the blocks of `reads`, looked for once."""
        if self._read_in is None:
            self._read_in = blocks.of_all(self.reads)
        return self._read_in

    def made_in(self, blocks: Blocks) -> list[Block]:
        """Returns the blocks of `made`, looked for once."""
        if self._made_in is None:
            self._made_in = blocks.of_all(self.made)
        return self._made_in

    def moment_on(self, lane: Lane) -> int:
        """Returns the moment of the call as if it were a lane's."""
        return lane.fences.tally.moments.on(lane.name, self._site)

    @property
    def name(self) -> str:
        """The operator's name without its overload, or the method's."""
        return self.plan.name

    @property
    def fills(self) -> bool:
        """Tells whether the new tensors hold values of this call."""
        return self.plan.fills


class OperatorListener(Protocol):
    """A listener to operator calls. `before` may return what is to be called after the call.

    `check` is what the closing section calls it, should it fail.
    """

    check: str

    def before(self, call: OperatorCall) -> Callable[[], None] | None:
        """A call is about to run, or the host about to read."""

    def after(self, call: OperatorCall) -> None:
        """A call ran; `made` holds its new tensors."""


class OnDevice(Protocol):
    """What makes calls on devices whose streams are followed, and tells of them."""

    fences: Fences
    devices: Mapping[str, Any]

    def device_of(self, tensors: Iterable[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
        """Returns the followed device that a call runs on, None if it runs on none."""

    def run(self, call: OperatorCall, device: torch.device, function: Callable[[], Any]) -> Any:
        """Makes a call, an operator or a read by the host, and tells of it."""

    def after_backward(self) -> None:
        """A backward pass is over."""

    @property
    def is_copying(self) -> bool:
        """Tells whether a device may still be copying from or to the host's memory."""

    def before_by_hand(self, call: OperatorCall) -> None:
        """The host itself is about to run an operator, while a device may be copying."""


class Ops:
    """What listens to the operators of a session."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.listeners: list[OperatorListener] = []
        self.on_device: OnDevice | None = None
        #: What the listeners know of memory.
        self.blocks: Blocks | None = None
        self.moves: Moves | None = None
        self._is_watching = False
        self._here = _Here()

    def follow(self) -> Iterator[Undo]:
        """Begins to watch, yielding how to let go of each part."""
        yield virtual.on_use(self._uses_streams)
        yield hear_backward(self._before_backward, self._after_backward)
        for name in HOST_READS:
            method = getattr(torch.Tensor, name, None)
            if method is not None:
                yield patch(torch.Tensor, name, self._host_read(name, method))
        reduce = torch.Tensor.__reduce_ex__
        yield patch(torch.Tensor, "__reduce_ex__", self._pickling(reduce))
        yield self.stop

    # --- threads ---

    def follow_contexts(self, context: Any) -> Iterator[Undo]:
        """Watches each thread that enters a stream of a device by such contexts."""
        yield patch(context, "__enter__", self._entering(context.__enter__))

    def watch_here(self) -> None:
        """Watches this thread from now on."""
        if self._here.mode is None:
            self._begin(virtual=False)

    def misses_here(self) -> bool:
        """Tells whether this thread is not watched, and another one is."""
        return self._is_watching and self._here.mode is None

    def _begin(self, virtual: bool) -> None:
        here = self._here
        self._is_watching, here.of_device = True, not virtual
        here.mode = Mode(self)
        put_beneath(here.mode)
        step_syncs.carry(here.mode)
        if virtual:
            here.factories = listen(self.tally, self.moves)

    def _entering(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(enter)
        def __enter__(context: Any) -> Any:  # noqa: N807
            # What fmcheck enters itself is no stream of the engine's.
            if self.tally.active and not is_here() and context.stream is not None:
                with contained(self.tally, CHECK):
                    self.watch_here()
            return enter(context)

        return __enter__

    def _uses_streams(self) -> None:
        """This thread uses virtual streams: what it does on the default one counts from now on."""
        here = self._here
        here.only_passes |= here.in_pass
        if (here.mode is not None and not here.of_device) or not self.tally.active:
            return
        if here.only_passes:
            return
        with contained(self.tally, CHECK):
            if here.mode is None and not virtual.follows_other(self.tally):
                self._begin(virtual=True)
            here.of_device = False

    def stop(self) -> None:
        """Ends the watch of this thread; other threads' modes do nothing from now on."""
        mode, self._here.mode = self._here.mode, None
        factories, self._here.factories = self._here.factories, None
        if mode is not None:
            take_out(mode)
            step_syncs.carry(None)
            if mode.step is not None:
                mode.step.alone()
        if factories is not None:
            factories.end()

    def begin_test(self) -> None:
        """Leaves this thread until it uses streams again, as it was before any test did so."""
        is_of_device = self.on_device is not None and self.on_device.devices
        self._here.only_passes = False
        if not (is_of_device or virtual.is_in_stream()):
            self.stop()

    def _before_backward(self) -> bool:
        """Watches this thread for a backward pass, where there are streams: tells whether it does.

        torch runs each hook with the modes that were on when the pass began, so that what the first
        one began would end with it. What comes behind the pass is not followed: the engine's own
        memory, which was made before, may be on either side.
        """
        here, on_device = self._here, self.on_device
        if here.mode is not None or on_device is None or not self.tally.active:
            return False
        if on_device.devices or not virtual.has_streams():
            return False
        with contained(self.tally, CHECK):
            if not virtual.follows_other(self.tally):
                self._begin(virtual=True)
        here.in_pass = here.mode is not None
        return here.in_pass

    def _after_backward(self, begun: bool) -> None:
        if begun and self.on_device is not None:
            self._here.in_pass = False
            with contained(self.tally, CHECK):
                self.on_device.fences.settle()  # for all that anybody knows
                self.stop()
            return
        if self.on_device is not None and self.tally.active:
            with contained(self.tally, CHECK):
                self.on_device.after_backward()

    # --- calls ---

    def run(self, plan: Operator, args: Any, kwargs: Any, make: Make) -> Any:
        """Runs an operator, by `make`, between what the listeners want before and after it."""
        here = self._here
        if (
            here.quiet
            or here.reading
            or (modes_on() and is_traced())
            or not self.tally.active
            or is_here()
        ):
            return make(plan, args, kwargs)
        call, is_heard = None, any_mode_sees_us()
        try:
            call = self._call(plan, args, kwargs, is_heard)
        except Exception as err:
            broke(self.tally, CHECK, err)
        if call is None:
            return make(plan, args, kwargs)
        if call.device is not None:
            return self._made_on_device(call, lambda: make(plan, args, kwargs))
        return self._made(call, is_heard, make, plan, args, kwargs)

    def is_watched(self) -> bool:
        """Tells whether the listeners hear of this thread's accesses."""
        here = self._here
        off = here.mode is None or here.of_device or here.quiet or here.reading
        return self.tally.active and not off

    def ran(self, name: str, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> None:
        """Tells of what ran on the current stream without an operator of torch's."""
        lane = virtual.current_lane()
        if lane.fences.tally is self.tally:
            plan = Operator(None, name, is_view=False, of_torch=True)
            call = OperatorCall(plan, (), {}, lane, reads, writes)
            self._undo(self.before(call))
            self.after(call)

    def _call(self, plan: Operator, args: Any, kwargs: Any, is_heard: bool) -> OperatorCall | None:
        """Returns an operator's call as listeners receive it, None if none does.

        Where what is done here `is_heard` by modes of the program, no tensor is asked for anything.
        """
        if plan.unknown:
            self.tally.untrack("operators", plan.unknown)
            return None
        reads = tensors_at(plan.reads, args, kwargs) if plan.reads else []
        writes = tensors_written(plan, args, kwargs) if plan.writes or plan.trained else []
        blocks = None if is_heard or self.blocks is None else self.blocks.of_known(reads)
        are_plain = blocks is not None or all(map(has_memory, reads))
        if not (are_plain and all(map(has_memory, writes))):
            self.tally.untrack("operators", _NO_MEMORY)
            if plan.name in COPIES:  # judged by both of its ends
                return None
            reads, writes = list(filter(has_memory, reads)), list(filter(has_memory, writes))
        by_host = plan.name == "_local_scalar_dense"
        if by_host and not reads:  # of a traced graph's constant, handed on as a number
            return None
        if self.on_device is not None and self.on_device.devices:
            with unheard():
                # What reads and writes nothing, as `zeros_like`, is where it was given a tensor.
                given = [*reads, *writes] or tensors_in(args)
                device = self.on_device.device_of(given, kwargs)
            if device is not None:
                host = self.on_device.fences.host
                call = OperatorCall(
                    plan, args, kwargs, host, reads, writes, host=by_host, device=device
                )
                call.is_async_copy = plan.name in COPIES and _is_asynchronous(call)
                return call
        if plan.is_view:
            return None
        if self._here.of_device:
            if self.on_device is not None and self.on_device.is_copying:
                host = self.on_device.fences.host
                call = OperatorCall(plan, args, kwargs, host, reads, writes)
                self._judge_by_hand(self.on_device, call)
            return None
        lane = virtual.lane_of(None)
        if lane.fences.tally is not self.tally:  # a probe's
            return None
        call = OperatorCall(plan, args, kwargs, lane, reads, writes, host=by_host)
        if plan.name in COPIES:
            call.is_async_copy = _is_asynchronous(call)
        call._read_in = blocks
        # Behind the call, more frames of ours would lie between.
        call._site = self.tally.sites.here(3)
        return call

    def _judge_by_hand(self, on_device: OnDevice, call: OperatorCall) -> None:
        """Tells of an operator that the host itself is about to run."""
        self._here.quiet = True
        try:
            with unheard():
                on_device.before_by_hand(call)
        finally:
            self._here.quiet = False

    def _made(
        self, call: OperatorCall, is_heard: bool, make: Callable[..., Any], *given: Any
    ) -> Any:
        """Makes a call between what the listeners want before and after it."""
        undo = self.before(call) if is_heard else self._before(call)
        try:
            result = make(*given)
        finally:
            if undo:
                self._undo(undo)
        try:
            if call.is_view:
                call.view = result
            elif not (call.writes or call.host):
                call.made = _made(result)
            if call.made or call.plan.name != "_to_copy":
                if is_heard:
                    self.after(call)
                else:
                    self._after(call)
        except Exception as err:
            broke(self.tally, CHECK, err)
        return result

    def _made_on_device(self, call: OperatorCall, make: Callable[[], Any]) -> Any:
        on_device, device = self.on_device, call.device
        if on_device is None or device is None:
            return make()
        return made_once(self.tally, CHECK, lambda once: on_device.run(call, device, once), make)

    def before(self, call: OperatorCall) -> list[tuple[str, Callable[[], None]]]:
        """Tells the listeners of what is about to be done; returns what to call after it."""
        with unheard():
            return self._before(call)

    def _before(self, call: OperatorCall) -> list[tuple[str, Callable[[], None]]]:
        here = self._here
        here.quiet = True
        undo: list[tuple[str, Callable[[], None]]] = []
        try:
            for listener in self.listeners:
                try:
                    one = listener.before(call)
                except Exception as err:
                    broke(self.tally, listener.check, err)
                    continue
                if one is not None:
                    undo.append((listener.check, one))
        except BaseException:
            self._undo(undo)
            raise
        finally:
            here.quiet = False
        return undo

    def _undo(self, undo: list[tuple[str, Callable[[], None]]]) -> None:
        self._here.quiet = True
        try:
            with unheard():
                for check, one in reversed(undo):
                    with contained(self.tally, check):
                        one()
        finally:
            self._here.quiet = False

    def after(self, call: OperatorCall) -> None:
        """Tells the listeners of what was done."""
        with unheard():
            self._after(call)

    def _after(self, call: OperatorCall) -> None:
        here = self._here
        here.quiet = True
        try:
            for listener in self.listeners:
                try:
                    listener.after(call)
                except Exception as err:
                    broke(self.tally, listener.check, err)
        finally:
            here.quiet = False

    def _host_read(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        plan = Operator(method, name, is_view=False, of_torch=True)

        @functools.wraps(method)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            here = self._here
            # On a relay tensor the method comes back for the plain one underneath.
            is_plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
            if here.quiet or here.reading or not is_plain or not self.tally.active:
                return method(tensor, *args, **kwargs)
            if not has_memory(tensor) or is_traced():
                return method(tensor, *args, **kwargs)
            if is_own(sys._getframe(1).f_code):
                return method(tensor, *args, **kwargs)
            here.reading = True
            try:
                call = None
                with contained(self.tally, CHECK):
                    call = self._read_by_host(plan, tensor, args, kwargs)
                if call is None:
                    return method(tensor, *args, **kwargs)
                if call.device is not None:
                    return self._made_on_device(call, lambda: method(tensor, *args, **kwargs))
                return self._made(call, True, lambda: method(tensor, *args, **kwargs))
            finally:
                here.reading = False

        passes_on(read)
        return read

    def _pickling(self, reduce: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method by which the host reads a tensor of its own: to pickle or to save it."""
        read = self._host_read("pickle", reduce)

        @functools.wraps(reduce)
        def __reduce_ex__(tensor: Any, *args: Any) -> Any:  # noqa: N807
            with unheard():
                is_read = tensor.is_cpu and sys._getframe(1).f_code not in _COPYING
            return (read if is_read else reduce)(tensor, *args)

        passes_on(__reduce_ex__)
        return __reduce_ex__

    def _read_by_host(
        self, plan: Operator, tensor: torch.Tensor, args: Any, kwargs: Any
    ) -> OperatorCall:
        on_device = self.on_device
        if on_device is not None and on_device.devices:
            with unheard():  # a function mode of the program hears who asks for a device
                device = tensor.device
            if device.type in on_device.devices:
                host = on_device.fences.host
                return OperatorCall(
                    plan, args, kwargs, host, [tensor], [], host=True, device=device
                )
        return OperatorCall(plan, args, kwargs, virtual.current_lane(), [tensor], [], host=True)


class _Here(threading.local):
    """What a thread is at: its mode, and whether we look elsewhere.

    One `of_device` has entered no virtual stream: what it does with the host's memory is no launch.
    """

    def __init__(self) -> None:
        self.mode: Mode | None = None
        self.factories: FactoryMode | None = None
        self.of_device = False
        #: Whether it is in a backward pass that is watched by itself, and whether such a one was
        #: the first to use streams: then these alone are watched.
        self.in_pass = self.only_passes = False
        self.quiet = False
        self.reading = False


class Mode(OperatorMode):
    """Sees each operator of a thread."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops = ops
        #: The step that this thread is in; it receives each operator that ran.
        self.step: StepMode | None = None

    def failed(self, err: Exception) -> None:
        """Counts an error of our own code."""
        broke(self.ops.tally, CHECK, err)

    def run(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """Runs an operator, of which the step and the listeners are notified."""
        make = called if self.step is None else self.step.run
        if operator.only_shows:
            result = make(operator, args, kwargs)
            if placements.elsewhere and self.step is None:
                placements.move_views(args, result)
            return result
        return self.ops.run(operator, args, kwargs, make)


_NO_MEMORY = (
    "a sparse, nested or wrapped tensor has no plain memory by which accesses could be recognized"
)


def _made(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result] if has_memory(result) else []
    return [*filter(has_memory, tensors_in([result]))]


def _is_asynchronous(call: OperatorCall) -> bool:
    """Tells whether one of the operators that copy was told not to wait."""
    place = 2 if call.plan.name == "copy_" else len(call.args)
    args = call.args
    return bool(args[place] if place < len(args) else call.kwargs.get("non_blocking"))
