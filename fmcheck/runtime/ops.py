"""Operators: each one that torch runs in a session that follows streams, and what it touches.

One mode of torch's dispatcher sees the operators, a few wrapped methods of tensors see the host
read values past it. Both only translate into a `Call`, for all who listen. A thread is watched from
the first stream that it enters, or from a relay buffer of a device that it made: without streams of
its own an engine pays nothing on a CPU.

The mode is beneath all others of its thread, so that none of them is taken off in its stead. What
has no memory of its own, as sparse, nested, fake and wrapped tensors, is passed on as it is.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C import _len_torch_dispatch_stack as modes_on
from torch._C import _len_torch_function_stack as function_modes_on
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from fmcheck.runtime import virtual
from fmcheck.runtime.containment import broke, contained, made_once
from fmcheck.runtime.hold import patch
from fmcheck.runtime.homes import FactoryMode, tensors_in
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
#: What the closing section calls the checks that hear of operators.
CHECK = "following operators on streams (FR401 to FR404)"
_COPIES = frozenset({"copy_", "_to_copy"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operator does with its arguments, by its schema.

    `reads` and `writes` are places of tensor arguments, (position, name). A view touches nothing;
    what does not `fill` leaves its result's memory as it was found. On a device, the host `waits`
    for what its result hangs on. `unknown` says why a call cannot be told of, "" if it can.
    One that is not `of_torch` may leave out any of what it is given.
    """

    name: str
    reads: tuple[tuple[int, str], ...]
    writes: tuple[tuple[int, str], ...]
    is_view: bool
    fills: bool = True
    waits: bool = False
    unknown: str = ""
    of_torch: bool = True


@dataclass(eq=False, slots=True)
class Call:
    """One operator that ran, or one read by the host.

    `reads` and `writes` are the tensors among its arguments, `made` those of its results that
    share no argument's memory; none of them is without memory. `host` tells of a read by the host,
    which has waited for `lane`. `device` is the one that it runs on, None for the CPU.
    """

    plan: Plan
    args: Any
    kwargs: Any
    lane: Lane
    reads: list[torch.Tensor]
    writes: list[torch.Tensor]
    made: list[torch.Tensor] = field(default_factory=list)
    host: bool = False
    device: torch.device | None = None

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
    """Who is told of calls. `before` may return what is to be called once the call was made.

    `check` is what the closing section calls it, should it fail.
    """

    check: str

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
        if virtual:
            here.factories = FactoryMode(self.tally)
            here.factories.begin()

    def _entering(self, enter: Callable[..., Any], virtual: bool) -> Callable[..., Any]:
        @functools.wraps(enter)
        def __enter__(context: Any) -> Any:  # noqa: N807
            # What fmcheck enters itself is no stream of the engine's.
            if self.tally.active and not is_here() and context.stream is not None:
                with contained(self.tally, CHECK):
                    self._entered(virtual)
            return enter(context)

        return __enter__

    def _entered(self, is_virtual: bool) -> None:
        here = self._here
        if here.mode is None and not (is_virtual and virtual.follows_other(self.tally)):
            self._begin(is_virtual)
        here.of_device = here.of_device and not is_virtual

    def stop(self) -> None:
        """Ends the watch of this thread; other threads' modes do nothing from now on."""
        mode, self._here.mode = self._here.mode, None
        factories, self._here.factories = self._here.factories, None
        if mode is not None:
            take_out(mode)
        if factories is not None:
            factories.end()

    def begin_test(self) -> None:
        """Leaves this thread until it enters a stream again, as it was before any test did so."""
        is_of_device = self.on_device is not None and self.on_device.devices
        if not (is_of_device or virtual.is_in_stream()):
            self.stop()

    # --- calls ---

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator between what the listeners want before and after it."""
        plan = _plans.get(func)
        if plan is None:
            plan = _plans[func] = _planned(func, self.tally)
        here = self._here
        if (
            (plan.is_view and not plan.waits and not plan.unknown)
            or here.quiet
            or here.reading
            or (modes_on() and _is_traced())
            or is_here()
            or not self.tally.active
        ):
            return func(*args, **kwargs)
        call = None
        try:
            call = self._call(plan, args, kwargs)
        except Exception as err:
            broke(self.tally, CHECK, err)
        if call is None:
            return func(*args, **kwargs)
        return self._made(call, lambda: func(*args, **kwargs))

    def _call(self, plan: Plan, args: Any, kwargs: Any) -> Call | None:
        """Returns an operator's call as listeners are told of it, None if they are not."""
        if plan.unknown:
            self.tally.untrack("operators", plan.unknown)
            return None
        reads, writes = _tensors(plan.reads, args, kwargs), _tensors(plan.writes, args, kwargs)
        known = (
            [one for one in reads if has_memory(one)],
            [one for one in writes if has_memory(one)],
        )
        if len(known[0]) < len(reads) or len(known[1]) < len(writes):
            self.tally.untrack("operators", _NO_MEMORY)
            if plan.name in _COPIES:  # judged by both of its ends
                return None
            reads, writes = known
        by_host = plan.name == "_local_scalar_dense"
        device = self._device_of(reads, writes, kwargs)
        if device is not None:
            assert self.on_device is not None
            host = self.on_device.fences.host
            return Call(plan, args, kwargs, host, reads, writes, host=by_host, device=device)
        if plan.is_view or self._here.of_device:
            return None
        lane = virtual.current_lane()
        if lane.fences.tally is not self.tally:  # a probe's
            return None
        return Call(plan, args, kwargs, lane, reads, writes, host=by_host)

    def _device_of(self, reads: Any, writes: Any, kwargs: Any) -> torch.device | None:
        if self.on_device is None or not self.on_device.devices:
            return None
        return self.on_device.device_of((*reads, *writes), kwargs)

    def _made(self, call: Call, make: Callable[[], Any]) -> Any:
        """Makes a call between what the listeners want before and after it."""
        if call.device is not None and self.on_device is not None:
            on_device, device = self.on_device, call.device
            return made_once(
                self.tally, CHECK, lambda once: on_device.run(call, device, once), make
            )
        undo = self.before(call)
        try:
            result = make()
        finally:
            if undo:
                self._undo(undo)
        if not (call.writes or call.host):
            call.made = _made(result)
        if call.made or call.name != "_to_copy":
            self.after(call)
        return result

    def before(self, call: Call) -> list[tuple[str, Callable[[], None]]]:
        """Tells the listeners of what is about to be done; returns what to call after it."""
        here = self._here
        here.quiet = True
        undo: list[tuple[str, Callable[[], None]]] = []
        try:
            with _unheard():
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
            with _unheard():
                for check, one in reversed(undo):
                    with contained(self.tally, check):
                        one()
        finally:
            self._here.quiet = False

    def after(self, call: Call) -> None:
        """Tells the listeners of what was done."""
        here = self._here
        here.quiet = True
        try:
            with _unheard():
                for listener in self.listeners:
                    try:
                        listener.after(call)
                    except Exception as err:
                        broke(self.tally, listener.check, err)
        finally:
            here.quiet = False

    def _host_read(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        plan = Plan(name, (), (), is_view=False)

        @functools.wraps(method)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            here = self._here
            # On a relay tensor the method comes back for the plain one underneath.
            is_plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
            if here.quiet or here.reading or not is_plain or not self.tally.active:
                return method(tensor, *args, **kwargs)
            if not has_memory(tensor) or _is_traced():
                return method(tensor, *args, **kwargs)
            if sys._getframe(1).f_code.co_filename.startswith(_OWN):
                return method(tensor, *args, **kwargs)
            here.reading = True
            try:
                call = self._read_by_host(plan, tensor, args, kwargs)
                return self._made(call, lambda: method(tensor, *args, **kwargs))
            finally:
                here.reading = False

        return read

    def _read_by_host(self, plan: Plan, tensor: torch.Tensor, args: Any, kwargs: Any) -> Call:
        device = self._device_of([tensor], [], {})
        if device is not None and self.on_device is not None:
            lane = self.on_device.fences.host
        else:
            lane = virtual.current_lane()
        return Call(plan, args, kwargs, lane, [tensor], [], host=True, device=device)


class _Here(threading.local):
    """What a thread is at: its mode, and whether we look elsewhere.

    One `of_device` has entered no virtual stream: what it does with the host's memory is no launch.
    """

    def __init__(self) -> None:
        self.mode: Mode | None = None
        self.factories: FactoryMode | None = None
        self.of_device = False
        self.quiet = False
        self.reading = False


def _unheard() -> Any:
    """Keeps what our listeners do from modes of the program, which would take it for the program's.

    Of operators ours is told last; a read by the host comes to us before any of them.
    """
    return _Unheard() if function_modes_on() or modes_on() else _HEARD_BY_NOBODY


class _Unheard:
    def __enter__(self) -> None:
        self._guards = torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch()
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *_: object) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(None, None, None)


_HEARD_BY_NOBODY = nullcontext()


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operator of a thread."""

    # Else torch refuses to run `torch.cond` and its like.
    supports_higher_order_operators = True

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
        if decomposes(func, types, args):
            return taken_apart(self, func, args, kwargs)
        try:
            return self.ops.run(func, args, kwargs or {})
        except RuntimeError:
            tensors = _numbers_made_tensors(func, args)
            if tensors is None:
                raise
        return func(*tensors, **(kwargs or {}))


def put_beneath(mode: TorchDispatchMode) -> None:
    """Lets a mode see this thread's operators after all modes that are on, and later ones.

    Who leaves a mode takes off the uppermost, whichever that is: it must never be ours.
    """
    above = _modes_of_users()
    for _ in above:
        torch._C._pop_torch_dispatch_stack(None)
    for one in (mode, *above):
        torch._C._push_on_torch_dispatch_stack(one)


def take_out(mode: TorchDispatchMode) -> None:
    """Takes a mode off again, if it is on in this thread."""
    on = _modes_of_users()
    if not any(one is mode for one in on):
        return
    for _ in on:
        torch._C._pop_torch_dispatch_stack(None)
    for one in on:
        if one is not mode:
            torch._C._push_on_torch_dispatch_stack(one)


def _modes_of_users() -> list[Any]:
    """Returns the modes of this thread but torch's own, which it keeps apart, lowest first."""
    stack = _get_current_dispatch_mode_stack()
    return [one for one in stack if getattr(one, "_mode_key", None) is None]


def _is_traced() -> bool:
    """Tells whether one of torch's own modes is beneath: a fake one does nothing for real."""
    return len(_modes_of_users()) < modes_on()


def _numbers_made_tensors(func: Any, args: Any) -> list[Any] | None:
    """Returns an operator's arguments with tensors for numbers that it refuses, None if it is well.

    torch hands a mode a number for a tensor that stands for one, as in the constants of a traced
    graph, and then takes it back for some operators only.
    """
    schema = getattr(func, "_schema", None)
    if schema is None:
        return None
    if torch._C._should_allow_numbers_as_tensors(schema.name.partition("::")[2]):
        return None
    made, has_numbers = list(args), False
    for position, (argument, value) in enumerate(zip(schema.arguments, args, strict=False)):
        kind = _NUMBERS.get(type(value))
        if kind is not None and str(argument.type) in ("Tensor", "Optional[Tensor]"):
            made[position] = torch.scalar_tensor(value, dtype=kind, device="cpu")
            has_numbers = True
    return made if has_numbers else None


_NUMBERS = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
_NO_MEMORY = "a sparse, nested or wrapped tensor has no plain memory that accesses could be told by"


def _plain_keys() -> int:
    """Returns the bits of the dispatch keys that tensors of plain memory may have."""
    names = ["ADInplaceOrView", "Conjugate", "Negative"]
    for device in ("CPU", "CUDA", "HIP", "XPU", "HPU", "MPS", "MTIA", "PrivateUse1", "Meta"):
        names += [device, f"Quantized{device}", f"Autograd{device}", f"Autocast{device}"]
    keys = (getattr(torch._C.DispatchKey, name, None) for name in names)
    bits = (torch._C.DispatchKeySet(key).raw_repr() for key in keys if key is not None)
    return functools.reduce(operator.or_, bits)


_PLAIN_KEYS = _plain_keys()


def has_memory(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor is memory and nothing else, by the keys that torch dispatches it by.

    A sparse, nested, fake, functional or wrapped one, and one of a class that dispatches itself,
    has a key that says so.
    """
    return not torch._C._dispatch_keys(tensor).raw_repr() & ~_PLAIN_KEYS


def decomposes(func: Any, types: Any, args: Any) -> bool:
    """Tells whether an operator is to be seen by what it consists of.

    Outside of inference mode torch takes such an operator apart before any mode sees it.
    """
    known = _composite.get(func)
    if known is None:
        known = _composite[func] = _is_composite(func)
    # Who else looks on, a mode beneath or a class of tensors, sees what it would see without us.
    return known and not types and not modes_on() and all(map(has_memory, tensors_in(args)))


def taken_apart(mode: TorchDispatchMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operator by what it consists of, which a mode is to see."""
    # A function mode would call the operator, and not what it consists of.
    with torch._C.DisableTorchFunction():
        TorchDispatchMode.__enter__(mode)  # type: ignore[no-untyped-call]
        try:
            return func.decompose(*args, **(kwargs or {}))
        finally:
            TorchDispatchMode.__exit__(mode, None, None, None)  # type: ignore[no-untyped-call]


def _is_composite(func: Any) -> bool:
    def has(key: str) -> bool:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))

    if getattr(func, "_schema", None) is None:
        return False
    return has("CompositeImplicitAutograd") and not has("CPU")


# By torch's own word, what these bring or how much of it hangs on values: of a device the host has
# to wait for it. Of an index that holds for masks alone; of some others torch says nothing, as of
# the last step of `torch.tensor`, which has uploaded its values.
_WAITING = frozenset({"is_nonzero", "multinomial", "_linalg_check_errors", "lift_fresh"})
_BY_MASK = frozenset({"index"})
_BY_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
# They change what a tensor object shows, and no element.
_MOVES = frozenset({"set_", "resize_", "lift_fresh", "detach", "detach_", "alias"})
_plans: dict[Any, Plan] = {}
_composite: dict[Any, bool] = {}


def _planned(func: Any, tally: Tally) -> Plan:
    """Returns an operator's plan; one that has none is passed on and counted."""
    if getattr(func, "_schema", None) is None:
        return Plan(str(func), (), (), is_view=True, unknown="they run others out of sight")
    try:
        return _plan(func)
    except Exception as err:
        broke(tally, CHECK, err)
        return Plan(str(func), (), (), is_view=True, unknown="fmcheck could not read their schema")


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
        is_view=bool(getattr(func, "is_view", False))
        or name in _MOVES
        or torch.Tag.inplace_view in getattr(func, "tags", ()),
        fills=not name.removeprefix("new_").startswith("empty"),
        of_torch=schema.name.startswith("aten::"),
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
    several = result if isinstance(result, (list, tuple)) else (result,)
    return [one for one in several if isinstance(one, torch.Tensor) and has_memory(one)]


def _argument(call: Call, position: int, name: str) -> Any:
    return call.args[position] if position < len(call.args) else call.kwargs.get(name)
