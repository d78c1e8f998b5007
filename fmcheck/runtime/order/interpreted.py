"""Kernels in Triton's interpreter: what they changed they wrote, what else they got they may read.

Behind a kernel the interpreter copies all of its memory onto itself. That would be a write of each
tensor that the kernel was given, those included that it only reads.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.patches import patch
from fmcheck.runtime.core.site import is_here, unfollowed
from fmcheck.runtime.order.blocks import holds, span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.order.ops import Ops

#: Bytes of a tensor that are compared; a larger one is taken for written.
LARGEST = 1 << 20
_CHECK = "following kernels in Triton's interpreter (FR401 to FR404)"
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def follow(ops: Ops, interpreter: ModuleType) -> Iterator[Undo]:
    """Tells of interpreted kernels from now on, yielding how to let go."""
    executor = interpreter.GridExecutor
    yield patch(executor, "__call__", _observed(ops, executor.__call__))


def _observed(ops: Ops, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if is_here() or not ops.is_watched():
            return run(kernel, *args, **kwargs)
        given: list[tuple[torch.Tensor, bytes | None]] = []
        with contained(ops.tally, _CHECK):
            given = [(one, _bytes(one)) for one in _tensors((*args, *kwargs.values()))]
        with unfollowed():
            result = run(kernel, *args, **kwargs)
        with contained(ops.tally, _CHECK):
            written = [one for one, before in given if before is None or _bytes(one) != before]
            name = getattr(getattr(kernel, "fn", None), "__name__", "kernel")
            ops.ran(name, [one for one, _ in given], written)
        return result

    return call


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors on a CPU among a kernel's arguments, each once."""
    found: dict[int, torch.Tensor] = {}
    for value in values:
        for one in value if isinstance(value, tuple) else (value,):
            if type(one) in _PLAIN and one.is_cpu:
                found[id(one)] = one
    yield from found.values()


def _bytes(tensor: torch.Tensor) -> bytes | None:
    """Returns what a tensor reaches over; None if that is too large."""
    low, high = span(tensor)
    if high - low > LARGEST or not holds(tensor.untyped_storage(), low, high - low):
        return None
    return ctypes.string_at(low, high - low)
