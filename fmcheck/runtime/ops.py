"""Operators: each one that torch runs in a session that follows streams, and what it touches.

One mode of torch's dispatcher sees the operators, a few wrapped methods of tensors see the host
read values past it. Both only translate into a `Call`, for all who listen. A thread is watched from
the first stream that it enters, or from a relay buffer of a device that it made: without streams of
its own an engine pays nothing on a CPU.
"""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from fmcheck.runtime import virtual
from fmcheck.runtime.hold import patch
from fmcheck.runtime.unfollowed import is_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.device_ops import DeviceOps
    from fmcheck.runtime.fences import Lane
    from fmcheck.runtime.hold import Undo
    from fmcheck.runtime.tally import Tally

_OWN = str(Path(__file__).parent)
#: Methods by which the host reads values; torch runs no operator for most of them on a CPU.
HOST_READS = (
    *("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"),
    *("__complex__", "__array__", "is_nonzero"),
)
#: Operators that wait on a device for a value that their result's shape hangs on.
SHAPED_BY_VALUES = frozenset({"nonzero", "masked_select", "unique", "_unique2", "bincount"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operator does with its arguments, by its schema.

    `reads` and `writes` are places of tensor arguments, (position, name). A view touches nothing;
    what does not `fill` leaves its result's memory as it was found. On a device, the host `waits`
    for what its result hangs on.
    """

    name: str
    reads: tuple[tuple[int, str], ...]
    writes: tuple[tuple[int, str], ...]
    is_view: bool
    fills: bool = True
    waits: bool = False


@dataclass(eq=False, slots=True)
class Call:
    """One operator that ran, or one read by the host.

    `reads` and `writes` are the tensors among its arguments, `made` those of its results that
    share no argument's memory. `host` tells of a read by the host, which has waited for `lane`.
    """

    plan: Plan
    args: Any
    kwargs: Any
    lane: Lane
    reads: list[torch.Tensor]
    writes: list[torch.Tensor]
    made: list[torch.Tensor] = field(default_factory=list)
    host: bool = False

    @property
    def name(self) -> str:
        """The operator's name without its overload, or the method's."""
        return self.plan.name

    @property
    def fills(self) -> bool:
        """Tells whether the new tensors hold values of this call."""
        return self.plan.fills

    @property
    def is_async_copy(self) -> bool:
        """Tells whether this copies without the host waiting for it."""
        if self.plan.name == "copy_":
            return bool(_argument(self, 2, "non_blocking"))
        return self.plan.name == "_to_copy" and bool(self.kwargs.get("non_blocking"))


class Listener(Protocol):
    """Who is told of calls. `before` may return what is to be called once the call was made."""

    def before(self, call: Call) -> Callable[[], None] | None:
        """A call is about to run, or the host about to read."""

    def after(self, call: Call) -> None:
        """A call ran; `made` holds its new tensors."""


class Ops:
    """What listens to the operators of a session."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.listeners: list[Listener] = []
        self.on_device: DeviceOps | None = None
        self._is_watching = False
        self._here = _Here()

    def follow(self) -> Iterator[Undo]:
        """Begins to watch, yielding how to let go of each part."""
        yield from self.follow_contexts(torch.cpu.StreamContext, virtual=True)
        for name in HOST_READS:
            method = getattr(torch.Tensor, name, None)
            if method is not None:
                yield patch(torch.Tensor, name, self._host_read(name, method))
        yield self.stop

    # --- threads ---

    def follow_contexts(self, context: Any, virtual: bool = False) -> Iterator[Undo]:
        """Watches each thread that enters a stream, a `virtual` one perhaps, by such contexts."""
        yield patch(context, "__enter__", self._entering(context.__enter__, virtual))
        yield patch(context, "__exit__", self._leaving(context.__exit__))

    def watch_here(self) -> None:
        """Watches this thread from now on, unless somebody else's mode is at work in it."""
        if self._here.mode is None and not _get_current_dispatch_mode_stack():
            self._begin(stays=True, virtual=False)

    def misses_here(self) -> bool:
        """Tells whether this thread is not watched, and another one is."""
        return self._is_watching and self._here.mode is None

    def _begin(self, stays: bool, virtual: bool) -> None:
        here = self._here
        self._is_watching, here.stays, here.of_device = True, stays, not virtual
        here.mode = Mode(self)
        here.mode.__enter__()  # type: ignore[no-untyped-call]

    def _entering(self, enter: Callable[..., Any], virtual: bool) -> Callable[..., Any]:
        @functools.wraps(enter)
        def __enter__(context: Any) -> Any:  # noqa: N807
            here = self._here
            # What fmcheck enters itself, or torch for a capture, may be left elsewhere.
            context._fmcheck_entered = not is_here()
            if context._fmcheck_entered:
                if here.mode is None and context.stream is not None:
                    self._begin(not _get_current_dispatch_mode_stack(), virtual)
                here.of_device = here.of_device and not virtual
                here.depth += 1
            return enter(context)

        return __enter__

    def _leaving(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(leave)
        def __exit__(context: Any, *err: Any) -> Any:  # noqa: N807
            here = self._here
            if getattr(context, "_fmcheck_entered", False):  # not if it is older than the session
                here.depth -= 1
            # Under somebody else's mode ours has to go first; on top of none it may stay, to see
            # what goes on outside of streams' contexts.
            if here.depth == 0 and not here.stays:
                self._leave()
            return leave(context, *err)

        return __exit__

    def stop(self) -> None:
        """Ends the watch of this thread; other threads' modes do nothing from now on."""
        stack = _get_current_dispatch_mode_stack()
        if self._here.mode is not None and stack and stack[-1] is self._here.mode:
            self._leave()

    def _leave(self) -> None:
        mode, self._here.mode = self._here.mode, None
        if mode is not None:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    # --- calls ---

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator between what the listeners want before and after it."""
        plan = _plans.get(func)
        if plan is None:
            plan = _plans[func] = _plan(func)
        here = self._here
        seen = plan.waits or not plan.is_view
        if not seen or here.quiet or here.reading or is_here() or not self.tally.active:
            return func(*args, **kwargs)
        reads = _tensors(plan.reads, args, kwargs)
        writes = _tensors(plan.writes, args, kwargs)
        by_host = plan.name == "_local_scalar_dense"
        if self.on_device is not None and self.on_device.devices:
            device = self.on_device.device_of((*reads, *writes), kwargs)
            if device is not None:
                call = Call(plan, args, kwargs, self.on_device.fences.host, reads, writes)
                call.host = by_host
                return self.on_device.run(call, device, lambda: func(*args, **kwargs))
        if plan.is_view or here.of_device:
            return func(*args, **kwargs)
        lane = virtual.current_lane()
        if lane.fences.tally is not self.tally:  # a probe's
            return func(*args, **kwargs)
        call = Call(plan, args, kwargs, lane, reads, writes, host=by_host)
        undo = self.before(call)
        try:
            result = func(*args, **kwargs)
        finally:
            if undo:
                self._undo(undo)
        if not writes:
            call.made = _made(result)
        self.after(call)
        return result

    def before(self, call: Call) -> list[Callable[[], None]]:
        """Tells the listeners of what is about to be done; returns what to call after it."""
        here = self._here
        here.quiet = True
        undo = []
        try:
            for listener in self.listeners:
                one = listener.before(call)
                if one is not None:
                    undo.append(one)
        finally:
            here.quiet = False
        return undo

    def _undo(self, undo: list[Callable[[], None]]) -> None:
        self._here.quiet = True
        try:
            for one in undo:
                one()
        finally:
            self._here.quiet = False

    def after(self, call: Call) -> None:
        """Tells the listeners of what was done."""
        here = self._here
        here.quiet = True
        try:
            for listener in self.listeners:
                listener.after(call)
        finally:
            here.quiet = False

    def _host_read(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        plan = Plan(name, (), (), is_view=False)

        @functools.wraps(method)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            here = self._here
            # On a relay tensor the method comes back for the plain one underneath.
            is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
            if here.quiet or here.reading or not is_plain or not self.tally.active:
                return method(tensor, *args, **kwargs)
            if sys._getframe(1).f_code.co_filename.startswith(_OWN):
                return method(tensor, *args, **kwargs)
            here.reading = True
            try:
                if self.on_device is not None and tensor.device.type in self.on_device.devices:
                    host = self.on_device.fences.host
                    call = Call(plan, args, kwargs, host, [tensor], [], host=True)
                    return self.on_device.run(
                        call, tensor.device, lambda: method(tensor, *args, **kwargs)
                    )
                call = Call(plan, args, kwargs, virtual.current_lane(), [tensor], [], host=True)
                undo = self.before(call)
                try:
                    result = method(tensor, *args, **kwargs)
                finally:
                    self._undo(undo)
                self.after(call)
            finally:
                here.reading = False
            return result

        return read


class _Here(threading.local):
    """What a thread is at: its mode, how deep in streams it is, and whether we look elsewhere.

    One `of_device` has entered no virtual stream: what it does with the host's memory is no launch.
    """

    def __init__(self) -> None:
        self.mode: Mode | None = None
        self.stays = False
        self.of_device = False
        self.depth = 0
        self.quiet = False
        self.reading = False


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operator of a thread."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops = ops

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from wrapping the method below, which would import all of Dynamo."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leaves code compiled that is compiled: its operators are one call, out of sight."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.ops.run(func, args, kwargs or {})


# By torch's own word, what these bring or how much of it hangs on values: of a device the host has
# to wait for it. Of an index that holds for masks alone; of some others torch says nothing, as of
# the last step of `torch.tensor`, which has uploaded its values.
_WAITING = frozenset({"is_nonzero", "multinomial", "_linalg_check_errors", "lift_fresh"})
_BY_MASK = frozenset({"index"})
_BY_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
# They change what a tensor object shows, and no element.
_MOVES = frozenset({"set_", "resize_", "lift_fresh", "detach", "alias"})
_plans: dict[Any, Plan] = {}


def _plan(func: Any) -> Plan:
    schema = func._schema
    reads: list[tuple[int, str]] = []
    writes: list[tuple[int, str]] = []
    for position, argument in enumerate(schema.arguments):
        if "Tensor" not in str(argument.type):
            continue
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        (writes if is_written else reads).append((position, argument.name))
    name = schema.name.partition("::")[2]
    # Factories look at the shape of what they are given.
    makes_alike = name.endswith("_like") or name.startswith("new_")
    return Plan(
        name,
        () if makes_alike else tuple(reads),
        tuple(writes),
        is_view=bool(getattr(func, "is_view", False)) or name in _MOVES,
        fills=not name.removeprefix("new_").startswith("empty"),
        waits=name in _WAITING
        or (name not in _BY_MASK and not _BY_VALUES.isdisjoint(getattr(func, "tags", ()))),
    )


def _tensors(places: tuple[tuple[int, str], ...], args: Any, kwargs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for position, name in places:
        value = args[position] if position < len(args) else kwargs.get(name)
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [one for one in value if isinstance(one, torch.Tensor)]
    return found


def _made(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [one for one in result if isinstance(one, torch.Tensor)]
    return []


def _argument(call: Call, position: int, name: str) -> Any:
    return call.args[position] if position < len(call.args) else call.kwargs.get(name)
