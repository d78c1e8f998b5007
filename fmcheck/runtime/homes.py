"""Homes: whether a tensor is the host's or the device's, as far as there is any telling.

On an accelerator the tensor says it. On a CPU device all tensors look alike, and a tensor is taken
for the host's where it was made without a device, was copied to `"cpu"`, is the target of an
asynchronous copy, or has a name that says so. Any other is taken for the device's.
"""

from __future__ import annotations

import ast
import fnmatch
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.host_words import SURE_WORDS, is_named_host, words
from fmcheck.runtime import call_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from fmcheck.contract import Contract

#: On the tensor itself: it lives as long as the tensor does, and no look-up costs less.
MARK = "_fmcheck_on_host"
_MAKES_FROM_VALUES = frozenset({"tensor", "as_tensor", "from_numpy", "asarray", "frombuffer"})


class Homes:
    """Tells the homes of the tensors of one session.

    The contract has globs of names that live on the host, and of some that live on the device
    whatever they sound like; `kinds` are the kinds of devices that relay buffers are on. Where
    there is an accelerator among them, and no CPU, each tensor says itself where it is.
    """

    def __init__(self, contract: Contract, kinds: set[str]) -> None:
        launches, inputs = contract.launches, contract.graph_inputs
        self._host_values = launches.host_values
        self._on_device = (*launches.mirrored, *inputs.row_indices, *inputs.index_like)
        self._kinds = kinds

    @property
    def tensors_tell(self) -> bool:
        """Tells whether a tensor in host memory is the host's, whatever it is called."""
        return bool(self._kinds) and "cpu" not in self._kinds

    def is_host(self, tensor: torch.Tensor, frame: FrameType | None = None) -> bool:
        """Tells whether a tensor is the host's; `frame` reads it, and may call it by its name."""
        if tensor.device.type != "cpu":
            return False
        if self.tensors_tell or getattr(tensor, MARK, False):
            return True
        return frame is not None and self.is_named_host(call_text.subject(call_text.call_at(frame)))

    def is_named_host(self, expression: ast.expr | None) -> bool:
        """Tells whether one of the names along an expression is a host value's."""
        return any(
            is_named_host(name, self._host_values)
            for name in call_text.names(expression)
            if not any(fnmatch.fnmatchcase(name, glob) for glob in self._on_device)
        )

    def is_surely_host(self, tensor: torch.Tensor, expression: ast.expr | None) -> bool:
        """Tells whether a tensor is the host's beyond doubt: a name may mislead."""
        if tensor.device.type != "cpu":
            return False
        if self.tensors_tell or getattr(tensor, MARK, False):
            return True
        found = call_text.names(expression)[:1]
        return any(not SURE_WORDS.isdisjoint(words(name)) for name in found)

    def mark(self, tensor: torch.Tensor) -> None:
        """Notes that a tensor is the host's."""
        if tensor.device.type == "cpu":
            setattr(tensor, MARK, True)

    def elsewhere(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns another tensor over the same memory, which is not the host's."""
        made = tensor.view_as(tensor)
        setattr(made, MARK, False)
        return made

    def derive(self, result: Any, args: Sequence[Any]) -> None:
        """Marks what an operation made of host tensors alone."""
        given = False
        for one in args:
            for tensor in one if isinstance(one, (list, tuple)) else (one,):
                if isinstance(tensor, torch.Tensor):
                    if not getattr(tensor, MARK, False):
                        return
                    given = True
        if given:
            for one in result if isinstance(result, (list, tuple)) else (result,):
                if isinstance(one, torch.Tensor):
                    self.mark(one)


def goes_to_host(expression: ast.expr | None) -> bool:
    """Tells whether a call says `"cpu"`, or is `.cpu()`."""
    if not isinstance(expression, ast.Call):
        return False
    if isinstance(expression.func, ast.Attribute) and expression.func.attr == "cpu":
        return True
    device = call_text.argument(expression, "device")
    places = [*expression.args[:1], *([device] if device is not None else [])]
    return any(_is_cpu(place) for place in places)


def names_a_device(expression: ast.expr | None) -> bool:
    """Tells whether a call names a device that is not literally the CPU, or may do so."""
    if not isinstance(expression, ast.Call):
        return True  # no telling
    device = call_text.argument(expression, "device")
    if device is not None:
        return not _is_cpu(device)
    return call_text.passes_keywords_on(expression)


def makes_from_values(expression: ast.expr | None) -> bool:
    """Tells whether a call is `torch.tensor` or one like it."""
    found = call_text.names(expression) if isinstance(expression, ast.Call) else ()
    return bool(found) and found[0] in _MAKES_FROM_VALUES


def _is_cpu(place: ast.expr) -> bool:
    if isinstance(place, ast.Call) and place.args:  # torch.device("cpu")
        place = place.args[0]
    return isinstance(place, ast.Constant) and place.value == "cpu"
