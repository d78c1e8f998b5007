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
import weakref
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from fmcheck.runtime.core.naming import forget_classes, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType

    from fmcheck.contract import Contract
    from fmcheck.runtime.core.site import Sites


class Placement(enum.Enum):
    """Whose memory it is: `EITHER` was made on a device that was called `"cpu"`."""

    UNKNOWN = "unknown"
    EITHER = "either"
    HOST = "host"
    DEVICE = "device"


class FactoryCall(msgspec.Struct, frozen=True, eq=False):
    """A call of a factory or of a method that moves, and the device that it was given.

    `device` is what the caller gave, a default device aside: None where nothing was given.
    `by_default` tells that there is such a one, and that it was taken. It `is_literal` where the
    call itself spells the host's name: an engine's own setting comes from elsewhere. It
    `is_of_tensor` where the caller asked a tensor for its device; a tensor that is the host's
    beyond doubt stands for that itself. A move `is_async` where the host does not wait for it;
    `copies` is its argument of that name, None where none was given.
    """

    name: str
    device: Any = None
    pinned: bool = False
    by_default: bool = False
    is_literal: bool = False
    is_of_tensor: bool = False
    is_async: bool = False
    copies: bool | None = None

    @property
    def placement(self) -> Placement:
        """Whose memory the caller asked for."""
        if self.pinned:
            return Placement.HOST
        if isinstance(self.device, torch.Tensor):
            return placement_of(self.device)
        if self.device is None or self.is_literal:
            return Placement.HOST
        return Placement.EITHER if isinstance(self.device, str) else Placement.DEVICE

    @property
    def is_setting(self) -> bool:
        """Tells whether the caller gave a string that it has from elsewhere."""
        return isinstance(self.device, str) and not (self.is_literal or self.pinned)

    @property
    def names_side(self) -> bool:
        """Tells whether the call says which side it means: by the host's name, or by a tensor."""
        return self.name == "cpu" or self.is_literal or isinstance(self.device, torch.Tensor)

    @property
    def names_device(self) -> bool:
        """Tells whether the caller gave a device as such, and not one that a tensor has."""
        is_device = isinstance(self.device, torch.device)
        return is_device and not (self.is_literal or self.is_of_tensor)

    @property
    def goes_to_host(self) -> bool:
        """Tells whether the call names the host: it is `.cpu()`, or gives the string `"cpu"`."""
        if isinstance(self.device, torch.Tensor):
            return placement_of(self.device) is Placement.HOST
        is_named = isinstance(self.device, str) or self.is_literal
        return self.name == "cpu" or (is_named and names_host(self.device))


def names_host(device: Any) -> bool:
    """Tells whether a device is the host's by its name, or by `torch.device` of that."""
    return str(device) == "cpu" if isinstance(device, (str, torch.device)) else False


class _Known(weakref.ref[Any]):
    """What is known of one storage: by how it was made, and by a contract's name for it.

    It is `sure` of the host where it was pinned or brought there, `bare` where no device was given
    nor set by default, `spelled` where the call spells the host's name. `guessed` tells that it is
    taken for the device's for want of any word, as what was computed from memory that was there
    before. `asked` says when each `Placements` last looked for its names, `pulled` that the host
    has copied it, which on a CPU copies nothing; `sent` that a module was sent with it, likewise.
    It refers to the storage itself, as one is made for each result of an operator.
    """

    __slots__ = ("asked", "bare", "guessed", "made", "named", "pulled", "sent", "spelled", "sure")

    asked: dict[int, int] | None
    bare: bool
    guessed: bool
    made: Placement
    named: bool
    pulled: bool
    sent: bool
    spelled: bool
    sure: bool


def _remember(storage: Any, key: int, placement: Placement) -> _Known:
    """Returns what is known of a storage that nothing was known of."""
    # Not by a function of Python's: an error of a signal's handler would be lost in it.
    known = _known[key] = _Known(storage, functools.partial(_known.pop, key))
    known.made, known.asked = placement, None
    known.bare = known.guessed = known.named = known.pulled = False
    known.sent = known.spelled = known.sure = False
    return known


_known: dict[int, _Known] = {}
# Members of an enum are looked up by a call in Python.
_UNKNOWN, _EITHER = Placement.UNKNOWN, Placement.EITHER
_DEVICE, _HOST = Placement.DEVICE, Placement.HOST
#: Tensors that went to the other side by a copy that a CPU does not make, by their id; the last
#: is by what whoever moved one knows that.
elsewhere: dict[int, tuple[weakref.ref[Any], Placement, Any]] = {}
_numbers = itertools.count(1)


class _Test:
    """What is known of the test that is on: how factories were given what is not the host.

    As a device, or by a string from elsewhere, as an engine's setting is.
    """

    names_device = False
    has_setting = False

    @property
    def tells_apart(self) -> bool:
        """Tells whether the program has a way of its own to name the device."""
        return self.has_setting or self.names_device


_test = _Test()


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


def surely_names_host(call: FactoryCall | None) -> bool:
    """Tells whether a move spells the host's name where that means the host, beyond doubt."""
    return call is not None and call.is_literal and _test.tells_apart


def is_sure(tensor: torch.Tensor) -> bool:
    """Tells whether memory is the host's beyond doubt, whatever default device there may be.

    Who gives a device, or a setting for it, to what is the device's means the host where none is
    given, and by the name of the host.
    """
    known = _about(tensor)
    if known is None:
        return False
    return known.sure or known.named or ((known.bare or known.spelled) and _test.tells_apart)


def surely_host_s(tensor: torch.Tensor) -> bool:
    """Tells whether memory is the host's beyond doubt, and not as the setting of others says it."""
    is_host = placement_of(tensor) is Placement.HOST and is_sure(tensor)
    return is_host and not rests_on_setting(tensor)


def rests_on_setting(tensor: torch.Tensor) -> bool:
    """Tells whether memory is the host's only as it has no device, where others have a setting.

    A test may well make its inputs like that, and mean the device.
    """
    if _test.names_device:
        return False
    known = _about(tensor)
    return known is not None and not (known.sure or known.named or known.spelled)


def is_guess(tensor: torch.Tensor) -> bool:
    """Tells whether memory is taken for the device's though nothing says so."""
    known = _about(tensor)
    return known is not None and known.guessed and not is_moved(tensor)


def is_known(tensor: torch.Tensor) -> bool:
    """Tells whether anything was said of a tensor's memory."""
    known = _about(tensor)
    return known is not None and known.made is not _UNKNOWN


def was_pulled(tensor: torch.Tensor) -> bool:
    """Tells whether the host copied this memory to itself, which on a CPU copies nothing."""
    known = _about(tensor)
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
        known.made, known.guessed = Placement.DEVICE, False
        known.bare = known.spelled = False


def send(tensor: torch.Tensor) -> None:
    """Notes that a module's memory was sent to the device, where a CPU makes no copy.

    The module has it there from now on, unless it is the host's for more than that it was given no
    device. Whoever else has it goes on with the host's.
    """
    known = _about(tensor)
    if known is None or known.made is not _HOST or known.sure or known.named or known.spelled:
        return
    known.made, known.bare, known.sent = _EITHER, False, True


def was_sent(tensor: torch.Tensor) -> bool:
    """Tells whether both sides may go on with this memory, as a module was sent with it."""
    known = _about(tensor)
    return known is not None and known.sent


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


def move_view(tensor: torch.Tensor, placement: Placement, origin: Any = None) -> None:
    """Gives one tensor object another placement than its memory has."""
    key = id(tensor)
    known = weakref.ref(tensor, functools.partial(elsewhere.pop, key))
    elsewhere[key] = (known, placement, origin)


def move_views(args: Any, result: Any) -> None:
    """Gives what shows a tensor that has another placement than its memory the same one."""
    if is_moved(args[0] if args else None):
        for one in tensors_in([result]):
            move_view(one, placement_of(args[0]), origin_of(args[0]))


def origin_of(tensor: Any) -> Any:
    """Returns by what a tensor is known that a move gave to its caller, None for any other."""
    return elsewhere[id(tensor)][2] if is_moved(tensor) else None


def is_moved(tensor: Any) -> bool:
    """Tells whether a tensor object has another placement than its memory."""
    moved = elsewhere.get(id(tensor)) if elsewhere else None
    return moved is not None and moved[0]() is tensor


def forget_names() -> None:
    """Forgets what names said: the next test has its own."""
    forget_classes()
    _test.names_device = _test.has_setting = False
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
    # Most are computed from what is the device's by its making: the rest of them tells no more.
    first = given[0] if given else None
    if type(first) is torch.Tensor and first is not result and first.is_cpu and not elsewhere:
        about = _about(first)
        if (
            about is not None
            and about.made is _DEVICE
            and not (about.named or about.pulled or about.guessed)
        ):
            if known is None:
                known = _remember(storage, key, _DEVICE)
            known.made, known.guessed = _DEVICE, False
            return known
    operands = given if type(given) is list else tensors_in(given)
    if not operands or result is operands[0]:
        return known
    made, of_device, is_guessed = None, False, False
    for one in operands:
        if placement_of(one) is _DEVICE:
            of_device = True
            about = _about(one)
            if about is None or not about.pulled:
                made = _DEVICE
                is_guessed = about is not None and about.guessed and not is_moved(one)
                if not is_guessed:
                    break
    if made is None:
        if not of_device:
            found = [*map(placement, operands)]
            made = from_operands(found)
            is_guessed = made is _DEVICE and _DEVICE not in found
        else:
            # They have been copied to the host, which a CPU does not do: of which of the two this
            # is, a name may say.
            made = Placement.HOST if _has_own(operands, placement) else _UNKNOWN
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
    if given and given.count(_HOST) == len(given):
        return _HOST
    if _DEVICE in given or _EITHER not in given:
        return _DEVICE
    return _EITHER


class Placements:
    """Tells the placements of the tensors of one session.

    The contracts have globs of names that live on the host, and of some that live on the device
    whatever they sound like; `kinds` are the kinds of devices that relay buffers are on. Where
    there is an accelerator among them, and no CPU, each tensor says itself where it is.
    """

    def __init__(self, contracts: Iterable[Contract] = (), kinds: Iterable[str] = ()) -> None:
        contracts = tuple(contracts)
        globs = [glob for one in contracts for glob in one.launches.host_values]
        self._host = _any_of(glob for glob in globs if "." not in glob)
        self._of_host = [
            tuple(re.compile(fnmatch.translate(part)) for part in glob.split("."))
            for glob in globs
            if "." in glob
        ]
        #: What a name is like that may say so, by itself or by what it is of.
        self._like = _any_of(glob.partition(".")[0] for glob in globs)
        self._device = _any_of(
            glob
            for one in contracts
            for glob in (
                *one.launches.mirrored,
                *one.graph_inputs.row_indices,
                *one.graph_inputs.index_like,
                *one.graph_inputs.offsets,
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
        is_host = call.names_side or not self.device_is_string
        return Placement.HOST if is_host else Placement.EITHER

    def of(
        self, tensor: torch.Tensor, sites: Sites | None = None, is_waited_for: bool = False
    ) -> Placement:
        """Returns the placement of a tensor; the line that uses it may have it under a declared
        name.

        Names are looked for once a test, and once a step where they matter: where the host is about
        to wait for the tensor, and in code that has such a name, and may have just given it.
        """
        if not tensor.is_cpu:
            return _DEVICE
        if self._kinds and self.tensors_tell:
            return _HOST
        placement = placement_of(tensor)
        if placement is _DEVICE or placement is _HOST:
            return placement
        if placement is _EITHER and self.device_is_string and not was_sent(tensor):
            placement = _DEVICE
        if self._like is None or sites is None:
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

    def goes_to_device(self, call: FactoryCall, sites: Sites) -> bool:
        """Tells whether what a move is given as its device may be one, and not the host."""
        device = call.device
        if isinstance(device, torch.Tensor):
            return self.of(device, sites) is not Placement.HOST
        return call.is_setting or (isinstance(device, torch.device) and not call.is_literal)

    def is_surely_host(self, tensor: torch.Tensor, sites: Sites) -> bool:
        """Tells whether memory is the host's, whatever default device there may be.

        It was pinned or brought there, or the code that uses it has it under a declared name. Only
        code that has such a name is looked into: on older Pythons that keeps its locals alive.
        """
        if is_sure(tensor) and not rests_on_setting(tensor):
            return True
        if self.of(tensor, sites) is _HOST:
            # Here, as at the begin of a test its engine may not be imported yet.
            _test.has_setting = _test.has_setting or self.device_is_string
            frame, known = sites.frame(), _of(tensor)
            if known is not None and self._may_name(frame):
                known.named = self._is_named(tensor, frame)
        return is_sure(tensor)

    def _is_named(self, tensor: torch.Tensor, frame: FrameType | None) -> bool:
        """Tells whether a local or an attribute, from a frame outwards, holds it by such a name."""
        return self._like is not None and any(
            self._means_host(name) for name in names_of(tensor, frame, self._like)
        )

    def _means_host(self, name: str) -> bool:
        """Tells whether a name, or that of an object and of its attribute, is the host's."""
        holder, dot, name = name.rpartition(".")
        if dot:
            return any(of.match(holder) and like.match(name) for of, like in self._of_host)
        is_host = self._host is not None and self._host.match(name)
        return bool(is_host) and (self._device is None or not self._device.match(name))

    def _may_name(self, frame: FrameType | None) -> bool:
        """Tells whether a frame's code has a name that the contracts have."""
        if frame is None or self._like is None:
            return False
        code = frame.f_code
        known = self._gives_names.get(id(code))
        if known is None:
            names = (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars)
            known = self._gives_names[id(code)] = code, any(map(self._like.match, names))
        return known[1]

    def begin_step(self) -> None:
        """Says that another step begins, in which names may be others."""
        self._step = next(_numbers)

    def begin_test(self) -> None:
        """Asks for names again."""
        self._test = self._step = next(_numbers)


def note_made(asked: FactoryCall, args: Any, kwargs: Any, result: torch.Tensor) -> None:
    """Notes the placement of what a factory made, not of what it passed on."""
    if kwargs.get("out") is not None:
        return
    for one in args:
        if isinstance(one, torch.Tensor):
            return
    _test.names_device = _test.names_device or asked.names_device
    _test.has_setting = _test.has_setting or asked.is_setting
    known = _of(result)
    if known is not None:
        if known.made is _UNKNOWN and result.is_cpu:
            known.made, known.sure = asked.placement, asked.pinned
        known.bare = asked.device is None and not asked.by_default
        known.spelled = asked.is_literal


def note_moved(asked: FactoryCall, args: Any, result: torch.Tensor) -> None:
    """Notes that memory without a device was sent to one, where on a CPU it stays what it is."""
    _test.names_device = _test.names_device or asked.names_device
    _test.has_setting = _test.has_setting or asked.is_setting
    is_sent = asked.is_setting or asked.placement is Placement.DEVICE
    known = _known.get(_key(result)) if is_sent else None
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


def _about(tensor: torch.Tensor) -> _Known | None:
    """Returns what is known of a tensor's storage so far."""
    try:
        return _known.get(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return None


def _of(tensor: torch.Tensor) -> _Known | None:
    """Returns what is known of a tensor's storage, for as long as that lives; None without one."""
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
    key: int = storage._cdata
    return _known.get(key) or _remember(storage, key, Placement.UNKNOWN)


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Returns the tensors among arguments, those in lists too."""
    found: list[torch.Tensor] = []  # a generator takes twice as long
    for one in values:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, (list, tuple)):
            found += [tensor for tensor in one if isinstance(tensor, torch.Tensor)]
    return found
