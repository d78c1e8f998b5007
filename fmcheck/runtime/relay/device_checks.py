"""Device checks: a relay buffer, its rows and its values on one kind of device, and its own module
asked.

`torch.cuda` is right for a relay on CUDA and wrong for any other; a relay object and what its own
methods make is looked at, where the device is known for certain. On a machine without CUDA it is
wrong in all files that the contract calls device-agnostic. Functions of torch are left as they are:
Dynamo knows them by identity, and breaks the graph at anything in their place.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fmcheck.finding import CHECKS, Access, Violation
from fmcheck.runtime.core import patches
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.naming import plainly, qualified_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

    from fmcheck.contract import Contract
    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.relay.buffer import RelayBuffer

    Translation = Callable[[Any, Any, Any], Any]

_CODE = "FR301"
_OWNED = ("Event", "Stream")


@dataclass(eq=False)
class DevicePatch:
    """Watches which device module a relay class, or a device-agnostic file, asks for."""

    contract: Contract
    tally: Tally
    problems: list[str] = field(default_factory=list)
    _agnostic: dict[str, bool] = field(default_factory=dict)

    def installers(self) -> Iterator[tuple[str, Callable[[ModuleType], Iterator[Undo]]]]:
        """Yields the modules to wait for, and what instruments them."""
        yield "torch", self.install

    def install(self, torch: ModuleType) -> Iterator[Undo]:
        """Wraps the ways to a device module, yielding how to let go."""
        for name in _OWNED:
            class_ = getattr(torch.cuda, name)
            if not isinstance(class_, type):
                continue  # an engine's stand-in, as where there is no such device
            own = class_.__new__
            make = _bare if own is object.__new__ else own  # type: ignore[comparison-overlap]
            made = self._watched(make, f"torch.cuda.{name}")
            yield patches.patch(class_, "__new__", staticmethod(made))

    def _watched(self, make: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(make)
        def new(*args: Any, **kwargs: Any) -> Any:
            with contained(self.tally, _CODE):
                self._compare(sys._getframe(1), "cuda", name)
            return make(*args, **kwargs)

        return new

    def _compare(self, frame: FrameType | None, kind: str, asked: str) -> None:
        """Reports who asked for another device's module than the one that is there."""
        if not self.tally.active or frame is None:
            return
        if not (self.tally.kinds <= {kind}) and frame.f_code.co_varnames[:1] == ("self",):
            compare_module(frame.f_locals.get("self"), kind, asked, self.tally)
        if not _has_cuda() and self._is_agnostic(frame.f_code.co_filename):
            function = qualified_name(frame.f_code)
            expected = "the module of the device that the engine runs on: there is no CUDA here"
            report(self.tally, function, "device module", (asked,), "cpu", expected)

    def _is_agnostic(self, path: str) -> bool:
        """Tells whether the contract means a file to run on every device."""
        known = self._agnostic.get(path)
        if known is None:
            device = self.contract.device
            known = _lies_in(path, device.agnostic) and not _lies_in(path, device.cuda_only)
            self._agnostic[path] = known
        return known


def _bare(class_: type, *args: Any, **kwargs: Any) -> Any:
    """Makes an object as `object.__new__`, which refuses arguments once a class has its own."""
    if (args or kwargs) and class_.__init__ is object.__init__:  # type: ignore[misc]
        raise TypeError(f"{class_.__name__}() takes no arguments")
    return object.__new__(class_)


@functools.cache
def _has_cuda() -> bool:
    """Tells whether this machine has a device of CUDA's."""
    return bool(sys.modules["torch"].cuda.is_available())


def _lies_in(path: str, globs: Iterable[str]) -> bool:
    """Tells whether a file's path ends as one of the globs says."""
    name = path.replace(os.sep, "/")
    return any(fnmatch.fnmatchcase(name, f"*/{glob}") for glob in globs)


def buffer_of(value: Any) -> RelayBuffer | None:
    """Returns the buffer that a relay tensor is an alias of, None for anything else."""
    return value._relay if "is_relay_alias" in type(value).__dict__ else None


def compare_module(relay: Any, kind: str, asked: str, tally: Tally) -> None:
    """Reports a relay object that asked for another device's module than its buffers'."""
    members = (plainly(relay, "__dict__") or {}).values()
    buffers = [buffer for one in members if (buffer := buffer_of(one)) is not None]
    own = [buffer for buffer in buffers if buffer.tally is tally]
    if own and kind not in {kind_of(buffer.device) for buffer in own}:
        device = own[0].device
        expected = f"the module of the device that the buffer is on, torch.{kind_of(device)}"
        report(tally, own[0].name, "device module", (asked,), device, expected)


def compare_kept_modules(relay: Any, names: Iterable[str], tally: Tally) -> None:
    """Looks at the device modules that a relay object keeps, by the contract's names for them."""
    for name in names:
        kept = (plainly(relay, "__dict__") or {}).get(name)
        if isinstance(kept, ModuleType):
            compare_module(relay, kept.__name__.rpartition(".")[2], kept.__name__, tally)


def one_device(name: str, translation: Translation, alias: type) -> Translation:
    """Returns a translation of a call that picks rows, which compares devices before it.

    `alias` is the class of relay tensors. Most calls are of tensors on a CPU alone, or on CUDA
    alone, and pass on after one look at each.
    """
    torch = sys.modules["torch"]

    def on_one(args: Any) -> bool:
        on_cpu = on_cuda = True
        for one in args:
            kind = type(one)
            if kind is alias:
                one = one._plain
            elif kind is not torch.Tensor:
                return False
            on_cpu, on_cuda = on_cpu and one.is_cpu, on_cuda and one.is_cuda
        return on_cpu or on_cuda

    def compared(func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or not on_one(args):
            compare(name, args, kwargs)
        return translation(func, args, kwargs)

    return compared


def compare(name: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    """Reports a call whose tensors are on several kinds of devices.

    A tensor without dimensions is a number, which torch takes from wherever it is.
    """
    buffer: Any = None
    kinds: list[str] = []
    for tensor in _tensors((*args, *kwargs.values())):
        if (own := buffer_of(tensor)) is not None:
            buffer = buffer or own
            kinds.append(tensor._plain.device.type)
        elif type(tensor) is stray_class():
            buffer = buffer or tensor
            kinds.append("meta")
        elif tensor.dim():
            kinds.append(tensor.device.type)
    if buffer is None or kinds.count(kinds[0]) == len(kinds) or not buffer.tally.active:
        return
    label = getattr(buffer, "name", "") or buffer.label
    seen = tuple(dict.fromkeys(kinds))
    expected = "the buffer, its rows and its values on one kind of device"
    report(buffer.tally, label, name, seen, str(kinds[0]), expected)


def report(
    tally: Tally, buffer: str, verb: str, values: tuple[str, ...], device: str, expected: str
) -> None:
    """Reports something that is on another device than it should be."""
    with tally.lock:
        tally.report(
            Violation(
                code=_CODE,
                name=CHECKS[_CODE],
                buffer=buffer,
                values=values,
                access=Access(verb, tally.sites[tally.sites.here()]),
                test=tally.test,
                device=device,
                pid=os.getpid(),
                expected=expected,
            )
        )


def kind_of(device: str) -> str:
    """Returns `cuda` for `cuda:0`."""
    return device.partition(":")[0]


#: Calls that make another tensor of the same kind: of ours nobody could.
_COPIES = frozenset({"__deepcopy__", "__reduce_ex__"})


@functools.cache
def stray_class() -> type[Any]:
    """Returns the class of a relay buffer that is on the device without memory."""
    import torch

    from fmcheck.runtime.relay import indexing

    class Stray(torch.Tensor):
        """Has no values to watch; what it is used together with tells that it is astray."""

        tally: Tally
        label: str

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            _compare_strays(func, args, kwargs or {})
            with torch._C.DisableTorchFunctionSubclass():
                if indexing.name_of(func) in _COPIES:
                    args = (args[0].as_subclass(torch.Tensor), *args[1:])
                return func(*args, **(kwargs or {}))

    return Stray


def _compare_strays(func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Looks at a call that a buffer without memory is used in."""
    from fmcheck.runtime.relay import indexing

    for one in _tensors((*args, *kwargs.values())):
        if type(one) is stray_class():
            with contained(one.tally, _CODE):
                name = indexing.name_of(func)
                if indexing.is_pick(name):
                    compare(name, args, kwargs)
            return


def stray(tensor: Any, label: str, tally: Tally) -> Any:
    """Returns an alias of a relay buffer on the device without memory."""
    made = tensor.as_subclass(stray_class())
    made.label, made.tally = label, tally
    return made


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (tuple, list):
            yield from _tensors(value)
