"""Devices: a relay buffer, its rows and its values on one kind of device, and its own module asked.

`torch.cuda` is right for a relay on CUDA and wrong for any other; only code of the relay class
itself is looked at, where the device is known for certain.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmcheck.finding import CHECKS, Access, Violation
from fmcheck.runtime import hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType, ModuleType

    from fmcheck.contract import Contract
    from fmcheck.runtime.hold import Undo
    from fmcheck.runtime.tally import Tally

    Translation = Callable[[Any, Any, Any], Any]

_CODE = "FR301"
_OWNED = ("Event", "Stream")
_ASKED = ("current_stream", "stream", "synchronize")


@dataclass(eq=False)
class DeviceHold:
    """Watches which device module a relay class asks for."""

    contract: Contract
    tally: Tally
    problems: list[str] = field(default_factory=list)

    def takes(self) -> Iterator[tuple[str, Callable[[ModuleType], Iterator[Undo]]]]:
        """Yields the modules to wait for, and what takes hold of them."""
        yield "torch", self.take

    def take(self, torch: ModuleType) -> Iterator[Undo]:
        """Wraps the ways to a device module, yielding how to let go."""
        for name in self.contract.device.device_modules:
            if callable(getattr(torch, name, None)):
                yield _replace(torch, name, self._watched_getter(getattr(torch, name)))
        for name in _OWNED:
            class_ = getattr(torch.cuda, name)
            made = self._watched(class_.__new__, f"torch.cuda.{name}")
            yield hold._patch(class_, "__new__", staticmethod(made))
        for name in _ASKED:
            asked = getattr(torch.cuda, name)
            yield _replace(torch.cuda, name, self._watched(asked, f"torch.cuda.{name}"))

    def _watched_getter(self, getter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(getter)
        def device_module(*args: Any, **kwargs: Any) -> Any:
            module = getter(*args, **kwargs)
            name = module.__name__
            self._compare(sys._getframe(1), name.rpartition(".")[2], name)
            return module

        return device_module

    def _watched(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._compare(sys._getframe(1), "cuda", name)
            return function(*args, **kwargs)

        return call

    def _compare(self, frame: FrameType | None, kind: str, asked: str) -> None:
        """Reports a relay class that asked for another device's module than its buffers'."""
        if not self.tally.active or self.tally.kinds <= {kind} or frame is None:
            return
        if frame.f_code.co_varnames[:1] != ("self",):
            return
        from fmcheck.runtime.relay_tensor import RelayTensor

        members = getattr(frame.f_locals.get("self"), "__dict__", {}).values()
        buffers = [one._relay for one in members if type(one) is RelayTensor]
        own = [buffer for buffer in buffers if buffer.tally is self.tally]
        if own and kind not in {kind_of(buffer.device) for buffer in own}:
            report(
                self.tally,
                own[0].name,
                "device module",
                (asked,),
                own[0].device,
                f"the module of the device that the buffer is on, torch.{kind_of(own[0].device)}",
            )


def one_device(name: str, translation: Translation) -> Translation:
    """Returns a translation of a call that picks rows, which compares devices before it."""

    def compared(func: Any, args: Any, kwargs: Any) -> Any:
        compare(name, args, kwargs)
        return translation(func, args, kwargs)

    return compared


def compare(name: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    """Reports a call whose tensors are on several kinds of devices.

    A tensor without dimensions is a number, which torch takes from wherever it is.
    """
    from fmcheck.runtime.relay_tensor import RelayTensor

    buffer: Any = None
    kinds: list[str] = []
    for tensor in _tensors((*args, *kwargs.values())):
        if type(tensor) is RelayTensor:
            buffer = buffer or tensor._relay
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
                rows=(),
                row_count=0,
                values=values,
                access=Access(verb, tally.sites[tally.sites.here()]),
                last_write=None,
                last_read=None,
                test=tally.test,
                device=device,
                pid=os.getpid(),
                expected=expected,
            )
        )


def kind_of(device: str) -> str:
    """Returns `cuda` for `cuda:0`."""
    return device.partition(":")[0]


@functools.cache
def stray_class() -> type[Any]:
    """Returns the class of a relay buffer that is on the device without memory."""
    import torch

    class Stray(torch.Tensor):
        """Has no values to watch; what it is used together with tells that it is astray."""

        tally: Tally
        label: str

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            from fmcheck.runtime import picks

            name = picks.name_of(func)
            if picks.is_pick(name):
                compare(name, args, kwargs or {})
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    return Stray


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


def _replace(module: ModuleType, name: str, value: Any) -> Undo:
    original = getattr(module, name)
    setattr(module, name, value)
    return lambda: setattr(module, name, original)
