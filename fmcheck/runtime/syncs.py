"""Syncs and launches: what the operations of a step make the host wait for, and how many there are.

A dispatch mode sees each operation of the thread that is in a step. What torch answers on a CPU
without an operation (`tolist`, `cpu`, `to`) is seen by methods in place of the tensor's own.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C import _len_torch_dispatch_stack as modes_on
from torch.utils._python_dispatch import TorchDispatchMode

from fmcheck.runtime import call_text
from fmcheck.runtime.budgets import CHECK
from fmcheck.runtime.containment import broke
from fmcheck.runtime.hold import patch
from fmcheck.runtime.homes import MARK, goes_to_host, makes_from_values, names_a_device
from fmcheck.runtime.torch_modes import called, is_traced, others_listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.runtime.hold import Undo
    from fmcheck.runtime.homes import Homes
    from fmcheck.runtime.site import Sites
    from fmcheck.runtime.tally import Tally

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_NUMBERS = (bool, int, float, complex)
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
#: Operations whose result the host has to wait for, by the word of a report.
_WAITS = {
    "_local_scalar_dense": "item",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "_unique": "unique",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "unique_dim_consecutive": "unique",
    "equal": "equal",
    "is_nonzero": "bool",
}
_BY_MASK = frozenset({"index", "index_put", "index_put_"})
_MASKS = (torch.bool, torch.uint8)
_COPIES = frozenset({"_to_copy", "copy_"})
# Neither compute nor copy on a device: they allocate, name or read what is there.
_NO_LAUNCH = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("lift_fresh", "_local_scalar_dense", "record_stream", "set_", "resize_", "item"),
        *("_unsafe_view", "detach_", "is_same_size", "equal", "_reshape_alias"),
    }
)


class Listener(Protocol):
    """Who is told of what a step does; `tally` is its session's."""

    tally: Tally

    def sync(self, verb: str) -> None:
        """The host waits for the device."""

    def launch(self, what: object) -> None:
        """The device is given work."""


class StepMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the operations of one thread while it is in a step.

    `counting` is how many budgets of launches are open: without one, launches are not told of.
    """

    def __init__(self, listener: Listener, homes: Homes, sites: Sites) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listener = listener
        self._homes = homes
        self._sites = sites
        self.counting = 0

    # Else torch refuses to run `torch.cond` and its like.
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leaves compiled functions compiled."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Makes the call and says what it did."""
        result = called(func, args, kwargs or {})
        if not (modes_on() and is_traced()):
            try:
                self._tell(func, args, kwargs, result)
            except Exception as err:
                broke(self._listener.tally, CHECK, err)
        return result

    def _tell(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        kind = _kinds.get(func)
        if kind is None:
            kind = _kinds[func] = _kind_of(func)
        if kind is _PLAIN or kind is _VIEW:
            first = args[0] if args else None
            if type(first) is list and first:
                first = first[0]
            if getattr(first, MARK, False):
                self._homes.derive(result, args)
            if kind is _PLAIN and self.counting:
                self._listener.launch(func)
        elif kind not in _OF_TENSORS or not any(type(one) in _NUMBERS for one in args[:2]):
            kind(self, func, args, kwargs or {}, result)

    def waits(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """The host has to know values to go on."""
        self._told(_WAITS[_base(func)], args[0])
        if _base(func) not in _NO_LAUNCH:
            self._launched(func)

    def indexes(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An index, by a mask perhaps: how much it picks is known to the device alone.

        A mask to which one value is assigned picks nothing.
        """
        masks = [one for one in args[1] if one is not None and one.dtype in _MASKS]
        fills = _base(func) != "index" and args[2].numel() == 1
        if masks and not fills:
            self._told("mask", args[0] if self._homes.is_host(args[0]) else masks[0])
        self._homes.derive(result, args[:1])
        self._launched(func)

    def repeats(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A repetition by a tensor: as long as its sum, unless the caller says how long."""
        if kwargs.get("output_size") is None:
            self._told("repeat_interleave", args[0])
        self._launched(func)

    def copies(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A copy: between device and host the host waits for it, unless it says otherwise."""
        self._launched(func)
        text = self._text()
        if _base(func) == "copy_":
            is_async = bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))
            self._copied(text, args[0], args[1], is_async)
        else:
            self._converted(text, args[0], kwargs, result)

    def _copied(
        self, text: ast.expr | None, target: torch.Tensor, source: torch.Tensor, is_async: bool
    ) -> None:
        homes = self._homes
        from_host = homes.is_host(source) or homes.is_named_host(_first_argument(text))
        to_host = homes.is_surely_host(target, call_text.subject(text))
        if is_async:
            if not from_host:
                homes.mark(target)
        elif to_host and not from_host:
            self._told("to host")
        elif from_host and target.device.type != "cpu":
            self._told("upload")

    def _converted(
        self, text: ast.expr | None, source: torch.Tensor, kwargs: Any, result: torch.Tensor
    ) -> None:
        homes = self._homes
        from_host = homes.is_host(source) or homes.is_named_host(call_text.subject(text))
        moves = kwargs.get("device") is not None
        to_host = homes.is_host(result) if homes.tensors_tell else moves and goes_to_host(text)
        if to_host or (from_host and not moves):
            homes.mark(result)
        if moves and from_host != to_host and not kwargs.get("non_blocking"):
            self._told("to host" if to_host else "upload")

    def makes(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A new tensor that was made of nothing, or of numbers of the host's."""
        if _base(func) not in _NO_LAUNCH:
            self._launched(func)
        if isinstance(result, torch.Tensor) and not names_a_device(self._text()):
            self._homes.mark(result)

    def lifts(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Numbers of the host's that became a tensor: `torch.tensor` and its like."""
        text = self._text()
        on_device = result.device.type != "cpu" or not self._homes.tensors_tell
        if not (on_device and names_a_device(text)):
            self._homes.mark(result)
        elif makes_from_values(text) and result.dim() and result.numel():
            self._told("upload")

    def reads(self, tensor: torch.Tensor, args: Any, kwargs: Any, result: Any) -> Any:
        """A list of a tensor's values; elsewhere than on a CPU it makes operations."""
        if tensor.device.type == "cpu":
            self._told("tolist", tensor)
        return result

    def sends(self, tensor: torch.Tensor, args: Any, kwargs: Any, result: Any) -> Any:
        """A copy that a CPU need not make, for the tensor is there already.

        What goes to the device is handed on as another tensor: the one that stayed is the host's.
        """
        if result is not tensor or tensor.device.type != "cpu":
            return result
        text = self._text()
        homes = self._homes
        is_host = homes.is_host(tensor) or homes.is_named_host(call_text.subject(text))
        if goes_to_host(text):
            if not (is_host or kwargs.get("non_blocking")):
                self._told("to host")
            homes.mark(result)
        elif is_host and _has_device(args, kwargs) and not homes.tensors_tell:
            if not kwargs.get("non_blocking"):
                self._told("upload")
            return homes.elsewhere(result)
        return result

    @property
    def tally(self) -> Tally:
        """The session's."""
        return self._listener.tally

    def _launched(self, func: Any) -> None:
        if self.counting:
            self._listener.launch(func)

    def _text(self) -> ast.expr | None:
        frame = self._sites.frame()
        return None if frame is None else call_text.call_at(frame)

    def _told(self, verb: str, tensor: torch.Tensor | None = None) -> None:
        """Says that the host waits, unless fmcheck asked, or the tensor is the host's."""
        if self._sites.is_own():
            return
        if tensor is None or not self._homes.is_host(tensor, self._sites.frame()):
            self._listener.sync(verb)


def _has_device(args: Any, kwargs: Any) -> bool:
    """Tells whether a call of `to` names a device."""
    first = kwargs.get("device", args[0] if args else None)
    return isinstance(first, (str, torch.device))


def _first_argument(text: ast.expr | None) -> ast.expr | None:
    return text.args[0] if isinstance(text, ast.Call) and text.args else None


# Handed a number for a tensor, as for the constants of a traced graph, they are nobody's.
_OF_TENSORS = (StepMode.waits, StepMode.copies)
_VIEW, _PLAIN = object(), object()
_kinds: dict[Any, Any] = {}


def _kind_of(func: Any) -> Any:
    """Returns what an operation is to a step: a view, a plain launch, or a method of the mode."""
    name = _base(func)
    if name in _WAITS:
        return StepMode.waits
    if name in _BY_MASK:
        return StepMode.indexes
    if name in _COPIES:
        return StepMode.copies
    if str(func) == "aten.repeat_interleave.Tensor":
        return StepMode.repeats
    if name == "lift_fresh":
        return StepMode.lifts
    schema = getattr(func, "_schema", None)
    if schema is None:  # of a higher order: it runs others out of sight
        return _PLAIN
    takes_tensors = any("Tensor" in str(one.type) for one in schema.arguments)
    if not takes_tensors:
        return StepMode.makes
    is_view = any(one.alias_info is not None for one in schema.returns) and not schema.is_mutable
    return _VIEW if is_view or name in _NO_LAUNCH else _PLAIN


@functools.cache
def _base(func: Any) -> str:
    """Returns `index` of `aten.index.Tensor`."""
    parts = str(func).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def watch_methods(mode_of_thread: Callable[[], StepMode | None]) -> Undo:
    """Puts methods in place of those that make no operation on a CPU; returns what puts them back.

    `mode_of_thread` gives the mode of the calling thread, None outside of any step.
    """

    def watched(name: str, told: Callable[[StepMode, Any, Any, Any, Any], Any]) -> Any:
        original = getattr(torch.Tensor, name)

        @functools.wraps(original)
        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            mode = mode_of_thread()
            result = original(tensor, *args, **kwargs)
            if mode is None or type(tensor) not in _PLAIN_TYPES or others_listen():
                return result
            if result is tensor and sys._getframe(1).f_code.co_filename.startswith(_TORCH):
                return result  # torch knows some tensors by the objects that they are
            try:
                return told(mode, tensor, args, kwargs, result)
            except Exception as err:
                broke(mode.tally, CHECK, err)
            return result

        return method

    told = {"tolist": StepMode.reads, "cpu": StepMode.sends, "to": StepMode.sends}
    undo = [patch(torch.Tensor, name, watched(name, tell)) for name, tell in told.items()]

    def put_back() -> None:
        for one in undo:
            one()

    return put_back
