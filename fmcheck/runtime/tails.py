"""Tails: `[raw:]` of a graph input, poisoned before a fill, judged and put back after it.

Inputs are seen as bits, signed integers of the element's width. What a fill left as it was gets its
old values back, so that an engine computes what it would have computed without the watch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from fmcheck.contract import COMPARISONS
from fmcheck.runtime import capturing

if TYPE_CHECKING:
    import numpy.typing as npt

    from fmcheck.runtime.demands import Demand

SHOWN = 8

_SAME_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Numbers like any other, between 0 and 0.2, whose last digits no arithmetic is likely to make.
_FLOAT_BITS = {
    torch.float64: 0x3FB0_C0DE_DEAD_F00D,
    torch.float32: 0x3DC0_DEAD,
    torch.float16: 0x2EAD,
    torch.bfloat16: 0x3DCE,
}
# Rows, positions and cache slots 1 and 2 are in every engine's range. By turns, so that no fill
# with one number is taken for them.
_INDEX_BITS = (1, 2)


@dataclass(frozen=True, slots=True)
class Found:
    """Entries of an input that hold what they must not.

    `entries` are places along the padded dimension and `values` what stands there, the first few
    of `count`; `hits` is how often it happened.
    """

    entries: tuple[int, ...]
    values: tuple[str, ...]
    count: int
    untouched: bool
    hits: int = 1


class Tail(Protocol):
    """A tail between `lay` and `restore`."""

    start: int
    length: int

    def lay(self) -> None:
        """Puts poison in place of the values."""

    def judge(self, count: int) -> Found | None:
        """Looks at the first `count` entries; None if they are right, or if it is not known yet."""

    def judge_head(self, source: torch.Tensor) -> Found | None:
        """Compares what lies before the tail with where it was copied from."""

    def restore(self) -> None:
        """Gives what still holds poison its old values."""


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's elements as signed integers of their width, over the same memory."""
    plain = tensor.detach()
    width = _SAME_WIDTH.get(plain.element_size())
    return plain if width is None or plain.dtype == width else plain.view(width)


@functools.cache
def as_bits(value: int, dtype: torch.dtype) -> int:
    """Returns the bits of a number in `dtype`."""
    return int(bits_of(torch.tensor([value], dtype=dtype)).item())


@functools.cache
def poison_bits(expected: int | None, dtype: torch.dtype) -> tuple[int, int]:
    """Returns the poison of a tail: two bit patterns that take turns along the padded dimension."""
    if dtype in _FLOAT_BITS:
        return (_FLOAT_BITS[dtype],) * 2
    if expected is None and dtype is not torch.bool:
        return _INDEX_BITS
    right = as_bits(expected or 0, dtype)
    return ((right ^ 1) if dtype is torch.bool else right + 1,) * 2


def version_of(tensor: torch.Tensor) -> int | None:
    """Returns the count of writes that torch keeps, None for a tensor of inference mode."""
    return None if tensor.is_inference() else tensor._version


def can_be_laid(tensor: torch.Tensor) -> bool:
    """Tells whether poison can be laid now: not into a graph, not where there is no memory."""
    if tensor.device.type == "cpu":
        return tensor.layout is torch.strided
    if capturing.on(tensor.device):
        return False
    return tensor.device.type != "meta" and tensor.layout is torch.strided


class HostTail:
    """A tail in this process's memory, through NumPy."""

    def __init__(self, tensor: torch.Tensor, dim: int, start: int, demand: Demand) -> None:
        self._tensor = tensor
        self._demand = demand
        bits: npt.NDArray[Any] = bits_of(tensor).numpy()
        self._bits = bits.swapaxes(0, dim) if dim else bits
        self.start = start
        self.length = len(self._bits) - start
        self._head = None if demand.always else self._bits[:start].copy()
        self._tail = self._bits[start:]
        self._old = self._tail.copy()
        first, second = poison_bits(demand.expected, tensor.dtype)
        # One number costs a fraction of an array.
        self._poison: Any = (
            first if first == second else _turns(self._tail.dtype, self.length, self._tail.ndim)
        )
        self._version = version_of(tensor)

    def lay(self) -> None:
        """Puts poison in place of the values."""
        self._tail[...] = self._poison

    def judge(self, count: int) -> Found | None:
        """Looks at the first `count` entries."""
        region = self._tail[:count]
        bad = untouched = (self._tail == self._poison)[:count]
        if self._demand.expected is not None:
            bad = region != as_bits(self._demand.expected, self._tensor.dtype)
        if self._demand.bound is not None:
            sign, limit = self._demand.bound
            bad = bad | ~np.asarray(COMPARISONS[sign](region, limit))
        if not bad.any() or not self._was_filled():
            return None
        shown = np.where(untouched, self._old[:count], region)
        return _found(bad, shown, self.start, self._tensor.dtype, bool(untouched[bad].all()))

    def judge_head(self, source: torch.Tensor) -> Found | None:
        """Compares what lies before the tail with where it was copied from."""
        head = self._bits[: self.start]
        brought = source.detach()
        if brought.dtype.is_floating_point or brought.dtype is torch.bool:
            brought = bits_of(brought)
        values = brought.numpy()
        if values.shape != head.shape:
            return None
        bad = head != values
        return _found(bad, head, 0, self._tensor.dtype, False) if bad.any() else None

    def restore(self) -> None:
        """Gives what still holds poison its old values."""
        left = self._tail == self._poison
        if left.any():
            np.copyto(self._tail, self._old, where=left)

    def _was_filled(self) -> bool:
        if self._head is None or self._version != version_of(self._tensor):
            return True
        return not np.array_equal(self._head, self._bits[: self.start])


@functools.lru_cache
def _turns(dtype: np.dtype[Any], length: int, ndim: int) -> npt.NDArray[Any]:
    """Returns the two index poisons by turns along the first of `ndim` dimensions."""
    turns = np.resize(np.asarray(_INDEX_BITS, dtype), length)
    return turns.reshape((-1,) + (1,) * (ndim - 1))


def _found(
    bad: npt.NDArray[np.bool_],
    bits: npt.NDArray[Any],
    start: int,
    dtype: torch.dtype,
    untouched: bool,
) -> Found:
    wrong = bad.reshape(len(bad), -1)
    entries = np.flatnonzero(wrong.any(axis=1))
    first = entries[:SHOWN]
    picked = bits.reshape(len(bits), -1)[first, wrong[first].argmax(axis=1)]
    values = torch.from_numpy(np.ascontiguousarray(picked)).view(dtype)
    return Found(
        tuple(int(entry) + start for entry in first),
        tuple(shown(value) for value in values.tolist()),
        len(entries),
        untouched,
    )


def shown(value: Any) -> str:
    """Returns a value as a report shows it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
