"""Factories: which device the program gave to what it makes or moves, through any wrapper.

One mode of torch's functions for all who listen in a thread notes it in `placements`, and lets
`moves` copy what a device would.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections import deque
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
)
from torch.autograd import graph
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from fmcheck.runtime.core.containment import broke
from fmcheck.runtime.core.patches import beneath, rebind
from fmcheck.runtime.steps import moves
from fmcheck.runtime.steps.literals import spells_host
from fmcheck.runtime.steps.placements import (
    FactoryCall,
    names_host,
    note_made,
    note_moved,
    surely_host_s,
)
from fmcheck.runtime.steps.torch_modes import left_alone, lifted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally

#: Functions that make a tensor of nothing, or of numbers alone.
FACTORIES = frozenset(
    {
        *("empty", "zeros", "ones", "full", "rand", "randn", "arange", "range", "empty_strided"),
        *("randint", "randperm", "linspace", "logspace", "scalar_tensor", "eye", "empty_permuted"),
        *("tril_indices", "triu_indices"),
    }
)
#: Functions that make a tensor of values that the host has.
FROM_VALUES = frozenset({"tensor", "as_tensor", "asarray", "frombuffer", "from_numpy"})
_MOVES = frozenset({"to", "cpu"})
_CHECK = "distinguishing host memory from device memory"
# Where torch hands on a factory's call with the default device, and how many modes may be between.
_PUTS_DEVICES = _device.DeviceContext.__torch_function__.__code__
_DEEPEST = 16
_OWN = str(Path(__file__).parent.parent / "_")[:-1]  # ends in a separator
# The code of our methods in place of torch's, which pass on what the engine calls.
_passing: set[CodeType] = set()
_LISTENED = FACTORIES | FROM_VALUES | _MOVES
_DEVICE_OF = torch.Tensor.device
#: How many devices of tensors are known by the objects that they are, the last ones of a thread.
_KNOWN_DEVICES = 16


class _Here(threading.local):
    def __init__(self) -> None:
        self.asked: FactoryCall | None = None
        self.factories: FactoryMode | None = None
        self.devices: deque[tuple[torch.device, weakref.ref[torch.Tensor]]] = deque(
            maxlen=_KNOWN_DEVICES
        )


_here = _Here()


def asked() -> FactoryCall | None:
    """Returns the innermost call of a factory or a move that this thread is in."""
    return _here.asked


class FactoryMode(TorchFunctionMode):
    """Hears which device factories and moves are given, through any wrapper.

    It lies beneath the modes of the program, which come and go above it; a default device, which
    torch keeps at the very bottom, is beneath it.
    """

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally
        self.moves: moves.Moves | None = None
        self._listeners = 0

    @property
    def is_on(self) -> bool:
        """Tells whether anybody listens."""
        return self._listeners > 0

    def is_next(self) -> bool:
        """Whether torch passes it what this thread calls now: within its own calls it does not."""
        return any(_get_function_stack_at(at) is self for at in range(_len_torch_function_stack()))

    def begin(self) -> None:
        """Puts it on, in this thread."""
        with lifted() as modes:
            # `with torch.device(...)` takes off the uppermost: ours must be beneath that one.
            modes.insert(len(modes) - (bool(modes) and _is_for_good(modes[-1])), self)

    def end(self) -> None:
        """One listener less; without any it is taken off, if this is its thread."""
        self._listeners -= 1
        if self._listeners:
            return
        with lifted() as modes:
            if self in modes:
                modes.remove(self)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if type(func) is FunctionType:
            func = beneath(func, torch.Tensor)
        name = getattr(func, "__name__", "")
        if name not in _LISTENED:
            result = func(*args, **kwargs) if kwargs else func(*args)
            if name == "__get__" and getattr(func, "__self__", None) is _DEVICE_OF:
                _here.devices.append((result, weakref.ref(args[0])))
            return result
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or not self._listeners:
            return func(*args, **kwargs)
        # What fmcheck makes beside the engine's memory says nothing of the engine's.
        if is_own(sys._getframe(1).f_code):
            return func(*args, **kwargs)
        outer, call, caller = _here.asked, None, None
        try:
            call = _here.asked = call_of(name, args, kwargs, sys._getframe(1))
        except Exception as err:
            broke(self.tally, _CHECK, err)
        if call is not None and name == "to" and self.moves is not None:
            try:
                caller = caller_of(sys._getframe(1))
                if call.is_async and self.moves.copies(args[0], call, caller):
                    kwargs["copy"] = True
            except Exception as err:
                broke(self.tally, moves.CHECK, err)
        try:
            result = func(*args, **kwargs)
        finally:
            _here.asked = outer
        if call is not None and isinstance(result, torch.Tensor):
            try:
                if name in _MOVES:
                    note_moved(call, args, result)
                elif type(result) is torch.Tensor:
                    note_made(call, args, kwargs, result)
            except Exception as err:
                broke(self.tally, _CHECK, err)
            if args and result is args[0] and self.moves is not None:
                try:
                    return self.moves.hand_on(result, call, caller)
                except Exception as err:
                    broke(self.tally, moves.CHECK, err)
        return result


def listen(tally: Tally, made: moves.Moves | None = None) -> FactoryMode:
    """Notes the factories of this thread from now on, by one mode for all who listen.

    `made` is notified of moves from then on.
    """
    mode = _here.factories
    if mode is None or not mode.is_on:
        mode = _here.factories = FactoryMode(tally)
        mode.begin()
    mode._listeners += 1
    mode.moves = made or mode.moves
    return mode


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Has listeners that come now hear by a mode of their own: the one that is on may be lifted."""
    outer, _here.factories = _here.factories, None
    try:
        yield
    finally:
        _here.factories = outer


def hear_backward(before: Callable[[], bool], after: Callable[[bool], None]) -> Undo:
    """Notes what hooks of a backward pass call: `backward` runs them below all function modes.

    `before` is called when one begins, and `after`, with what it returned, when it is over; if it
    fails, only where that is true: torch has not made the streams wait for each other then.
    """
    run = graph._engine_run_backward

    @functools.wraps(run)
    def running(*args: Any, **kwargs: Any) -> Any:
        begun = before()
        mode = _here.factories
        try:
            if mode is None or not mode.is_on or mode.is_next():
                result = run(*args, **kwargs)
            else:
                with mode:
                    result = run(*args, **kwargs)
        except BaseException:
            if begun:
                after(begun)
            raise
        after(begun)
        return result

    rebind(run, running)
    return lambda: rebind(running, run)


def passes_on(method: Any) -> None:
    """Has calls within a method of ours noted as calls of whoever called the method.

    Between two graphs of a compiled function Dynamo would compile it, and what it calls.
    """
    _passing.add(method.__code__)
    left_alone(method)


def is_own(code: CodeType) -> bool:
    """Tells whether code calls for itself, and passes on no call of the engine's."""
    return code.co_filename.startswith(_OWN) and code not in _passing


def caller_of(frame: FrameType | None) -> FrameType | None:
    """Returns the frame that called a function of torch's, which modes and methods passed on."""
    while frame and (frame.f_code in _passing or frame.f_code.co_name == "__torch_function__"):
        frame = frame.f_back
    return frame


def call_of(name: str, args: Any, kwargs: dict[str, Any], frame: FrameType) -> FactoryCall:
    """Reads the arguments of a factory or of a move, called from a frame, modes aside.

    `args` of a move begin with the tensor.
    """
    if name == "to":
        return _asked_to(args[1:], kwargs, frame)
    device = kwargs.get("device")
    by_default = isinstance(device, torch.device) and _is_default(device)
    if by_default:
        device = None
    # Who asks whether to pin has the host in mind, also where it is not pinned, as on a CPU.
    literal = _is_literal(device, frame)
    device, is_of_tensor = _followed(device)
    return FactoryCall(name, device, "pin_memory" in kwargs, by_default, literal, is_of_tensor)


def lift_factories() -> Callable[[], None]:
    """Takes our function modes off this thread's stack; returns what puts them back.

    Under a function mode Dynamo calls the methods of tensors that it finds, ours, in place of its
    own knowledge of them; what compiled code makes is not followed in any case.
    """
    with lifted() as modes:
        ours = [mode for mode in modes if isinstance(mode, FactoryMode)]
        for mode in ours:
            modes.remove(mode)

    def put_back() -> None:
        for mode in ours:
            if mode.is_on:
                mode.begin()

    return put_back


def _asked_to(args: Any, kwargs: dict[str, Any], frame: FrameType) -> FactoryCall:
    """Reads what `to` was given: a device, or another tensor, or a type alone, and what follows."""
    first = args[0] if args else kwargs.get("device", kwargs.get("other"))
    device = kwargs.get("device") if isinstance(first, torch.dtype) else first
    at = 1 if isinstance(first, (torch.dtype, torch.Tensor)) else 2
    is_async = args[at] if len(args) > at else kwargs.get("non_blocking", False)
    copies = args[at + 1] if len(args) > at + 1 else kwargs.get("copy")
    is_literal = _is_literal(device, frame)
    device, is_of_tensor = _followed(device)
    return FactoryCall(
        "to",
        device,
        is_literal=is_literal,
        is_of_tensor=is_of_tensor,
        is_async=bool(is_async),
        copies=copies,
    )


def _followed(device: Any) -> tuple[Any, bool]:
    """Returns a tensor in place of the device that was asked of it, if it is surely the host's.

    Also tells whether the device is one that was just asked of a tensor: on a CPU it says nothing.
    """
    if isinstance(device, torch.device):
        for known, of in reversed(_here.devices):
            if known is device:
                tensor = of()
                is_host = tensor is not None and surely_host_s(tensor)
                return (tensor if is_host else device), True
    return device, False


def _is_literal(device: Any, frame: FrameType) -> bool:
    """Tells whether it is the code that calls, through modes, which spells the host's name."""
    return names_host(device) and spells_host(caller_of(frame))


def _is_default(device: torch.device) -> bool:
    """Tells whether it was torch that put a device into a call, for the default one."""
    if device is _device.CURRENT_DEVICE:
        return True
    frame: FrameType | None = sys._getframe(3)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if frame.f_code is _PUTS_DEVICES and frame.f_locals["self"].device is device:
            return True
        frame = frame.f_back
    return False


def _is_for_good(mode: Any) -> bool:
    """Tells whether a mode is that of `torch.set_default_device`, which torch keeps lowest."""
    is_default = isinstance(mode, _device.DeviceContext)
    return is_default and mode.device is _device.CURRENT_DEVICE
