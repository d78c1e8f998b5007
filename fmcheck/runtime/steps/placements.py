"""Placements: whether a tensor's memory is the host's or the device's, as far as that can be known.

On an accelerator the tensor says it. On a CPU all tensors look alike, and what is known is how the
memory came to be (which device the factory was given, what an operator computed it from, which way
a copy went) and what the contract's globs say of the attributes and locals that hold it. It is kept
by storage, so that views, wrappers and modes share it. The caller's source is never read.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
import itertools
import re
import sys
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch._C import (
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.naming import forget_classes, names_of
from fmcheck.runtime.core.patches import beneath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType

    from fmcheck.contract import Contract
    from fmcheck.runtime.core.site import Sites
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
_OWN = str(Path(__file__).parent.parent)
# The code of our methods in place of torch's, which pass on what the engine calls.
_passing: set[CodeType] = set()
_LISTENED = FACTORIES | FROM_VALUES | _MOVES


class Placement(enum.Enum):
    """Whose memory it is: `EITHER` was made on a device that was called `"cpu"`."""

    UNKNOWN = "unknown"
    EITHER = "either"
    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class FactoryCall:
    """A call of a factory or of a method that moves, and the device that it was given.

    `device` is what the caller gave, a default device aside: None where nothing was given.
    `by_default` tells that there is such a one, and that it was taken.
    """

    name: str
    device: Any = None
    pinned: bool = False
    by_default: bool = False

    @property
    def placement(self) -> Placement:
        """Whose memory the caller asked for."""
        if self.pinned:
            return Placement.HOST
        if isinstance(self.device, torch.Tensor):
            return placement_of(self.device)
        if self.device is None:
            return Placement.HOST
        # A literal and an engine's own setting are the same string.
        return Placement.EITHER if isinstance(self.device, str) else Placement.DEVICE

    @property
    def goes_to_host(self) -> bool:
        """Tells whether the call names the host: it is `.cpu()`, or gives the string `"cpu"`."""
        if isinstance(self.device, torch.Tensor):
            return placement_of(self.device) is Placement.HOST
        return self.name == "cpu" or (self.device == "cpu" and isinstance(self.device, str))


class _Known(weakref.ref[Any]):
    """What is known of one storage: by how it was made, and by a contract's name for it.

    It is `sure` of the host where it was pinned or brought there, `bare` where no device was given
    nor set by default. `guessed` tells that it is taken for the device's for want of any word, as
    what was computed from memory that was there before. `asked` says when each `Placements` last
    looked for its names, `pulled` that the host has copied it, which on a CPU copies nothing.
    It refers to the storage itself, as one is made for each result of an operator.
    """

    __slots__ = ("asked", "bare", "guessed", "made", "named", "pulled", "sure")

    asked: dict[int, int] | None
    bare: bool
    guessed: bool
    made: Placement
    named: bool
    pulled: bool
    sure: bool


def _remember(storage: Any, key: int, placement: Placement) -> _Known:
    """Returns what is known of a storage that nothing was known of."""
    # Not by a function of Python's: an error of a signal's handler would be lost in it.
    known = _known[key] = _Known(storage, functools.partial(_known.pop, key))
    known.made, known.asked = placement, None
    known.bare = known.guessed = known.named = known.pulled = known.sure = False
    return known


_known: dict[int, _Known] = {}
# Members of an enum are looked up by a call in Python.
_UNKNOWN, _DEVICE, _HOST = Placement.UNKNOWN, Placement.DEVICE, Placement.HOST
#: Tensors that went to the other side by a copy that a CPU does not make, by their id.
elsewhere: dict[int, tuple[weakref.ref[Any], Placement]] = {}
#: Called with a tensor that a factory handed on as it is, and the device that it was given.
handed_on: list[Callable[[torch.Tensor, Any], object]] = []
_numbers = itertools.count(1)


class _Here(threading.local):
    asked: FactoryCall | None = None
    factories: FactoryMode | None = None


class _Test:
    """What is known of the test that is on: whether a factory was given a device as such."""

    names_device = False


_here = _Here()
_test = _Test()


def asked() -> FactoryCall | None:
    """Returns the innermost call of a factory or a move that this thread is in."""
    return _here.asked


def placement_of(tensor: torch.Tensor) -> Placement:
    """Returns the placement of a tensor, by how its memory came to be."""
    if not tensor.is_cpu:
        return _DEVICE
    if elsewhere:
        moved = elsewhere.get(id(tensor))
        if moved is not None and moved[0]() is tensor:
            return moved[1]
    try:
        known = _known.get(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # as of a sparse one
        return _UNKNOWN
    if known is None:
        return _UNKNOWN
    return _HOST if known.named else known.made


def is_sure(tensor: torch.Tensor) -> bool:
    """Tells whether memory is the host's beyond doubt, whatever default device there may be.

    Who gives a device to what is the device's means the host where none is given.
    """
    known = _known.get(_key(tensor))
    if known is None:
        return False
    return known.sure or known.named or (known.bare and _test.names_device)


def is_guess(tensor: torch.Tensor) -> bool:
    """Tells whether memory is taken for the device's though nothing says so."""
    known = _known.get(_key(tensor))
    return known is not None and known.guessed and not is_moved(tensor)


def was_pulled(tensor: torch.Tensor) -> bool:
    """Tells whether the host copied this memory to itself, which on a CPU copies nothing."""
    known = _known.get(_key(tensor))
    return known is not None and known.pulled


def made(tensor: torch.Tensor, placement: Placement, sure: bool = False) -> None:
    """Notes whose memory a new tensor is; the first word holds."""
    if tensor.is_cpu:
        known = _of(tensor)
        if known is not None and known.made is Placement.UNKNOWN:
            known.made, known.sure = placement, sure


def declare_host(tensor: torch.Tensor) -> None:
    """Says that memory is the host's, beyond doubt."""
    known = _of(tensor)
    if known is not None:
        known.made, known.sure, known.guessed = Placement.HOST, True, False


def take_for_device(tensor: torch.Tensor) -> None:
    """Notes that memory is the device's, unless it is the host's beyond doubt.

    It is the other end of an asynchronous copy from or to the host's.
    """
    known = _of(tensor)
    if known is not None and not (known.sure or known.named):
        known.made, known.bare, known.guessed = Placement.DEVICE, False, False


def pull(tensor: torch.Tensor) -> None:
    """Notes that the host copied this memory to itself."""
    known = _of(tensor)
    if known is not None:
        known.pulled = True


def on_other_side(tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
    """Returns another tensor over the same memory, with a placement of its own.

    A copy to the other side, which a CPU does not make: the original stays where it was.
    """
    seen = tensor.view_as(tensor)
    move_view(seen, placement)
    return seen


def move_view(tensor: torch.Tensor, placement: Placement) -> None:
    """Gives one tensor object another placement than its memory has."""
    key = id(tensor)
    elsewhere[key] = (weakref.ref(tensor, functools.partial(elsewhere.pop, key)), placement)


def is_moved(tensor: Any) -> bool:
    """Tells whether a tensor object has another placement than its memory."""
    moved = elsewhere.get(id(tensor)) if elsewhere else None
    return moved is not None and moved[0]() is tensor


def forget_names() -> None:
    """Forgets what names said: the next test has its own."""
    forget_classes()
    _test.names_device = False
    for known in list(_known.values()):
        known.named = known.pulled = False
        known.asked = None


def derive(
    result: torch.Tensor, given: Any, placement: Callable[[torch.Tensor], Placement]
) -> _Known | None:
    """Notes whose memory a new tensor is by the arguments that it is of, if nobody said it.

    `given` is a tuple of arguments, or a list of tensors. `placement` is asked only where no
    operand is known to be the device's: it may look for names. Returns what is known of the memory
    by then.
    """
    try:
        storage = result.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
    key: int = storage._cdata
    known = _known.get(key)
    if (known is not None and (known.named or known.made is not _UNKNOWN)) or not result.is_cpu:
        return known
    operands = given if type(given) is list else [*tensors_in(given)]
    if not operands or result is operands[0]:
        return known
    made, of_device, is_guessed = None, False, False
    for one in operands:
        if placement_of(one) is _DEVICE:
            of_device = True
            if not was_pulled(one):
                made, is_guessed = _DEVICE, is_guess(one)
                if not is_guessed:
                    break
    if made is None:
        if not of_device:
            found = [*map(placement, operands)]
            made = from_operands(found)
            is_guessed = made is _DEVICE and _DEVICE not in found
        else:
            # They have been copied to the host, which a CPU does not do.
            made = Placement.HOST if _has_own(operands, placement) else _DEVICE
    if known is None:
        known = _remember(storage, key, made)
    known.made, known.guessed = made, is_guessed
    return known


def settle(known: _Known, operands: Iterable[torch.Tensor]) -> None:
    """Says that what was computed is the host's beyond doubt if all that it is of is."""
    if known.made is _HOST:
        known.sure = all(is_sure(one) or was_pulled(one) for one in operands)


def _has_own(operands: list[torch.Tensor], placement: Callable[[torch.Tensor], Placement]) -> bool:
    """Tells whether an operand is the host's beyond doubt, so that the operator ran there.

    torch takes no two devices, but for a single number.
    """
    return any(one.dim() and placement(one) is Placement.HOST and is_sure(one) for one in operands)


def from_operands(placements: Iterable[Placement]) -> Placement:
    """Returns the placement of what an operator computes from operands of some placements."""
    given = list(placements)  # no set: the hash of an enum's member is a call in Python
    if given and all(placement is Placement.HOST for placement in given):
        return Placement.HOST
    if Placement.DEVICE in given or Placement.EITHER not in given:
        return Placement.DEVICE
    return Placement.EITHER


class Placements:
    """Tells the placements of the tensors of one session.

    The contracts have globs of names that live on the host, and of some that live on the device
    whatever they sound like; `kinds` are the kinds of devices that relay buffers are on. Where
    there is an accelerator among them, and no CPU, each tensor says itself where it is.
    """

    def __init__(self, contracts: Iterable[Contract] = (), kinds: Iterable[str] = ()) -> None:
        contracts = tuple(contracts)
        self._host = _any_of(glob for one in contracts for glob in one.launches.host_values)
        self._device = _any_of(
            glob
            for one in contracts
            for glob in (
                *one.launches.mirrored,
                *one.graph_inputs.row_indices,
                *one.graph_inputs.index_like,
            )
        )
        self._with_strings = [
            {relay.module.partition(".")[0] for relay in one.relay}
            for one in contracts
            if one.launches.device_is_string
        ]
        self._kinds = kinds
        self._number = self._test = self._step = next(_numbers)
        #: By the id of code, which is kept: whether it has a name that the contracts have.
        self._gives_names: dict[int, tuple[CodeType, bool]] = {}

    @property
    def device_is_string(self) -> bool:
        """Tells whether the engine has its device as a string, on a CPU the host's name too.

        A contract whose engine nobody imported says nothing of another's.
        """
        return any(
            not roots or any(root in sys.modules for root in roots) for roots in self._with_strings
        )

    @property
    def tensors_tell(self) -> bool:
        """Tells whether a tensor in host memory is the host's, whatever it is called."""
        return bool(self._kinds) and "cpu" not in self._kinds

    def goes(self, call: FactoryCall | None) -> Placement:
        """Returns where a move goes; `to("cpu")` may go either way where that is the device."""
        if call is None:
            return Placement.EITHER
        if not call.goes_to_host:
            return Placement.DEVICE
        return (
            Placement.HOST if call.name == "cpu" or not self.device_is_string else Placement.EITHER
        )

    def of(
        self, tensor: torch.Tensor, sites: Sites | None = None, is_waited_for: bool = False
    ) -> Placement:
        """Returns the placement of a tensor; the line that uses it may have it under a declared
        name.

        Names are looked for once a test, and once a step where they matter: where the host is about
        to wait for the tensor, and in code that has such a name, and may have just given it.
        """
        if not tensor.is_cpu:
            return Placement.DEVICE
        if self.tensors_tell:
            return Placement.HOST
        placement = placement_of(tensor)
        if placement is Placement.EITHER and self.device_is_string:
            placement = Placement.DEVICE
        if placement in (Placement.HOST, Placement.DEVICE) or self._host is None or sites is None:
            return placement
        known = _of(tensor)
        if known is None:
            return placement
        asked = known.asked.get(self._number, 0) if known.asked else 0
        if asked >= self._step:
            return placement
        frame = sites.frame()
        if asked < self._test or is_waited_for or self._may_name(frame):
            known.asked = {**(known.asked or {}), self._number: self._step}
            known.named = self._is_named(tensor, frame)
        return Placement.HOST if known.named else placement

    def may_be_host(self, tensor: torch.Tensor, sites: Sites) -> bool:
        """Tells whether memory may be the host's: nothing says that it is the device's."""
        return self.of(tensor, sites) is not Placement.DEVICE or is_guess(tensor)

    def goes_to_device(self, device: Any, sites: Sites) -> bool:
        """Tells whether what a move is given as its device may be one, and not the host."""
        if isinstance(device, torch.Tensor):
            return self.of(device, sites) is not Placement.HOST
        return isinstance(device, torch.device) or (device == "cpu" and self.device_is_string)

    def is_surely_host(self, tensor: torch.Tensor, sites: Sites) -> bool:
        """Tells whether memory is the host's, whatever default device there may be.

        It was pinned or brought there, or the code that uses it has it under a declared name. Only
        code that has such a name is looked into: on older Pythons that keeps its locals alive.
        """
        if not is_sure(tensor) and self.of(tensor, sites) is Placement.HOST:
            frame, known = sites.frame(), _of(tensor)
            if known is not None and self._may_name(frame):
                known.named = self._is_named(tensor, frame)
        return is_sure(tensor)

    def _is_named(self, tensor: torch.Tensor, frame: FrameType | None) -> bool:
        """Tells whether a local or an attribute, from a frame outwards, holds it by such a name."""
        return self._host is not None and any(
            self._device is None or not self._device.match(name)
            for name in names_of(tensor, frame, self._host)
        )

    def _may_name(self, frame: FrameType | None) -> bool:
        """Tells whether a frame's code has a name that the contracts have."""
        if frame is None or self._host is None:
            return False
        code = frame.f_code
        known = self._gives_names.get(id(code))
        if known is None:
            names = (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars)
            known = self._gives_names[id(code)] = code, any(map(self._host.match, names))
        return known[1]

    def begin_step(self) -> None:
        """Says that another step begins, in which names may be others."""
        self._step = next(_numbers)

    def begin_test(self) -> None:
        """Asks for names again."""
        self._test = self._step = next(_numbers)


class FactoryMode(TorchFunctionMode):
    """Hears which device factories and moves are given, through any wrapper.

    It lies beneath the modes of the program, which come and go above it; a default device, which
    torch keeps at the very bottom, is beneath it.
    """

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally
        self._listeners = 0

    @property
    def is_on(self) -> bool:
        """Tells whether anybody listens."""
        return self._listeners > 0

    def begin(self) -> None:
        """Puts it on, in this thread."""
        with _lifted() as modes:
            # `with torch.device(...)` takes off the uppermost: ours must be beneath that one.
            modes.insert(len(modes) - (bool(modes) and _is_for_good(modes[-1])), self)

    def end(self) -> None:
        """One listener less; without any it is taken off, if this is its thread."""
        self._listeners -= 1
        if self._listeners:
            return
        with _lifted() as modes:
            if self in modes:
                modes.remove(self)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if type(func) is FunctionType:
            func = beneath(func, torch.Tensor)
        name = getattr(func, "__name__", "")
        if name not in _LISTENED:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or not self._listeners:
            return func(*args, **kwargs)
        # What fmcheck makes beside the engine's memory says nothing of the engine's.
        if _is_own(sys._getframe(1).f_code):
            return func(*args, **kwargs)
        outer, call = _here.asked, None
        with contained(self.tally, _CHECK):
            call = _here.asked = _asked(name, args, kwargs)
        try:
            result = func(*args, **kwargs)
        finally:
            _here.asked = outer
        if call is not None and isinstance(result, torch.Tensor):
            with contained(self.tally, _CHECK):
                if name in _MOVES:
                    _note_moved(call, args, result)
                elif type(result) is torch.Tensor:
                    _note_made(call, args, kwargs, result)
                    if args and result is args[0]:
                        for heard in handed_on:
                            heard(result, call.device)
        return result


def listen(tally: Tally) -> FactoryMode:
    """Hears the factories of this thread from now on, by one mode for all who listen."""
    mode = _here.factories
    if mode is None or not mode.is_on:
        mode = _here.factories = FactoryMode(tally)
        mode.begin()
    mode._listeners += 1
    return mode


def passes_on(method: Any) -> None:
    """Says of a method of ours that who calls it is heard, and not the method."""
    _passing.add(method.__code__)


def passed_on_to(method: Any) -> Any:
    """Returns what methods of ours go on to: torch's own, or what a program has put there."""
    while getattr(method, "__code__", None) in _passing:
        method = method.__wrapped__
    return method


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(_OWN) and code not in _passing


def lift_factories() -> Callable[[], None]:
    """Takes our function modes off this thread's stack; returns what puts them back.

    Under a function mode Dynamo calls the methods of tensors that it finds, ours, in place of its
    own knowledge of them; what compiled code makes is out of sight in any case.
    """
    with _lifted() as modes:
        ours = [mode for mode in modes if isinstance(mode, FactoryMode)]
        for mode in ours:
            modes.remove(mode)

    def put_back() -> None:
        for mode in ours:
            if mode.is_on:
                mode.begin()

    return put_back


class _lifted:  # noqa: N801  # reads as a function
    """Lifts all function modes off the stack for a block, and puts back those that are left."""

    def __enter__(self) -> list[Any]:
        self._modes = [_pop_torch_function_stack() for _ in range(_len_torch_function_stack())]
        return self._modes

    def __exit__(self, *_: object) -> None:
        for mode in reversed(self._modes):
            _push_on_torch_function_stack(mode)


def _asked(name: str, args: Any, kwargs: dict[str, Any]) -> FactoryCall:
    device = kwargs.get("device")
    if name == "to" and device is None and len(args) > 1:
        first = args[1]
        device = first if isinstance(first, (str, torch.device, int, torch.Tensor)) else None
    by_default = isinstance(device, torch.device) and _is_default(device)
    if by_default:
        device = None
    # Who asks whether to pin has the host in mind, also where it is not pinned, as on a CPU.
    return FactoryCall(name, device, "pin_memory" in kwargs, by_default)


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


def _note_made(asked: FactoryCall, args: Any, kwargs: Any, result: torch.Tensor) -> None:
    """Notes the placement of what a factory made, not of what it passed on."""
    if kwargs.get("out") is None and not any(isinstance(one, torch.Tensor) for one in args):
        _test.names_device = _test.names_device or isinstance(asked.device, torch.device)
        made(result, asked.placement, asked.pinned)
        known = _of(result)
        if known is not None:
            known.bare = asked.device is None and not asked.by_default


def _note_moved(asked: FactoryCall, args: Any, result: torch.Tensor) -> None:
    """Notes that memory without a device was sent to one, where on a CPU it stays what it is."""
    known = _known.get(_key(result)) if asked.placement is Placement.DEVICE else None
    if known is not None and _known.get(_key(args[0])) is known:
        known.bare = False


def _any_of(globs: Iterable[str]) -> re.Pattern[str] | None:
    patterns = [fnmatch.translate(glob) for glob in globs]
    return re.compile("|".join(patterns)) if patterns else None


def _key(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, opaque: without storage
        return 0


def _of(tensor: torch.Tensor) -> _Known | None:
    """Returns what is known of a tensor's storage, for as long as that lives; None without one."""
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
    key: int = storage._cdata
    return _known.get(key) or _remember(storage, key, Placement.UNKNOWN)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors among arguments, those in lists too."""
    for one in values:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from (tensor for tensor in one if isinstance(tensor, torch.Tensor))
