"""Tails: `[raw:]` of a graph input, copied before a fill and compared with that after it.

Inputs are seen as bits, signed integers of the element's width. An input is only read here, never
written: an entry that holds what it held before the fill was written all the same if its trace says
so, and where that cannot be known, nothing is said of who wrote it.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch

from fmcheck.contract import COMPARISONS
from fmcheck.runtime.steps import capturing
from fmcheck.runtime.steps.writes import region_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import numpy.typing as npt

    from fmcheck.runtime.graphs.expectations import Expectation
    from fmcheck.runtime.steps.writes import Trace

SHOWN = 8
BY_FILL, BY_NOBODY, UNKNOWN = range(3)

_FLOATS = {torch.float64: "f8", torch.float32: "f4", torch.float16: "f2"}
_SAME_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Found:
    """Entries of an input that hold what they must not.

    `entries` are places along the padded dimension and `values` what stands there, the first few
    of `count`; `hits` is how often it happened. `by` tells who wrote them: the fill, nobody, or
    somebody who may have.
    """

    entries: tuple[int, ...]
    values: tuple[str, ...]
    count: int
    by: int
    hits: int = 1


#: Inputs that were once written past torch's dispatcher, and may be at any time: True, or whether
#: that is so as a tensor on the input's own device.
Unseen: TypeAlias = "MutableMapping[torch.Tensor, Any]"


class Tail(Protocol):
    """A tail from the start of a fill on.

    It `is_in_doubt` where nothing was said of an entry because nobody knows whether it was written.
    What it must hold may be known only once the fill is settled: `expectation` is set again then.
    """

    expectation: Expectation
    start: int
    length: int
    is_in_doubt: bool

    def seal(self, trace: Trace) -> None:
        """Takes over which elements were written, now that the fill is over."""

    def judge(self, count: int) -> Found | None:
        """Looks at the first `count` entries; None if they are right, or if it is not known yet."""

    def judge_head(self, source: torch.Tensor) -> Found | None:
        """Compares what lies before the tail with where it was copied from."""

    def judge_values(self, end: int) -> Found | None:
        """Holds the first entries, those of real rows, against what each must be."""

    def judge_rewritten(self, end: int) -> Found | None:
        """Looks whether the fill wrote the first entries, those of real rows."""


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's elements as signed integers of their width, over the same memory."""
    plain = tensor.detach()
    width = _SAME_WIDTH.get(plain.element_size())
    return plain if width is None or plain.dtype == width else plain.view(width)


@functools.cache
def as_bits(value: int, dtype: torch.dtype) -> int:
    """Returns the bits of a number in `dtype`."""
    return int(bits_of(torch.tensor([value], dtype=dtype)).item())


def can_be_followed(tensor: torch.Tensor) -> bool:
    """Tells whether a tail can be copied now: not into a graph, not where there is no memory."""
    if tensor.layout is not torch.strided or tensor.element_size() not in _SAME_WIDTH:
        return False
    if tensor.device.type == "cpu":
        return _lies_as_it_is(tensor)
    return not (tensor.device.type == "meta" or capturing.on(tensor.device))


def _lies_as_it_is(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor's memory holds its values, and not what they are the opposite of."""
    return not (tensor.is_conj() or tensor.is_neg())


class HostTail:
    """A tail in this process's memory, through NumPy."""

    def __init__(
        self, tensor: torch.Tensor, dim: int, start: int, expectation: Expectation, unseen: Unseen
    ) -> None:
        self._tensor = tensor
        self._dim = dim
        self.expectation = expectation
        self._unseen = unseen
        # Good as long as the trace says that the tensor is in place.
        self._array = array_of(tensor)
        self._before = self._array.copy()
        self._is_judged = True
        # Which elements nobody wrote, and which of the others nobody was seen to write.
        self._untouched = np.zeros(self._before.shape, bool)
        self._doubtful = self._untouched
        self.start = start
        self.length = self._before.shape[dim] - start
        self.is_in_doubt = False

    def seal(self, trace: Trace) -> None:
        """Takes over which elements were written, now that the fill is over."""
        written, perhaps = trace.marks_on_host()
        changed = self._array != self._before
        if (changed & ~written & ~perhaps).any():
            self._unseen[self._tensor] = True
        self._is_judged = self.expectation.always or trace.was_touched or bool(changed.any())
        left = ~(changed | written)
        self._doubtful = left & (perhaps | (self._tensor in self._unseen))
        self._untouched = left & ~self._doubtful

    def judge(self, count: int) -> Found | None:
        """Looks at the first `count` entries."""
        bits = self._array
        still = bits == self._before
        region = self._tail(bits)[:count]
        untouched = self._tail(self._untouched & still)[:count]
        doubtful = self._tail(self._doubtful & still)[:count]
        wrong = self._wrong(region)
        bad = wrong | untouched
        self.is_in_doubt = self._is_judged and bool((doubtful & ~wrong).any())
        if not self._is_judged or not bad.any():
            return None
        by = BY_NOBODY if untouched[bad].all() else BY_FILL
        by = UNKNOWN if doubtful[bad].any() else by
        return _found(bad, region, self.start, self._tensor.dtype, by)

    def judge_head(self, source: torch.Tensor) -> Found | None:
        """Compares what lies before the tail with where it was copied from."""
        if not _lies_as_it_is(source):
            return None
        head, values = self._along(self._array)[: self.start], array_of(source)
        if values.shape != head.shape:
            return None
        bad = head != values
        return _found(bad, head, 0, self._tensor.dtype, BY_FILL) if bad.any() else None

    def judge_values(self, end: int) -> Found | None:
        """Holds the first entries, those of real rows, against what each must be."""
        assert self.expectation.head is not None
        sign, limit = self.expectation.head
        head = self._along(self._array)[:end]
        values = head.view(self._kind) if self._kind else head
        bad = ~np.asarray(COMPARISONS[sign](values, limit))
        return _found(bad, head, 0, self._tensor.dtype, BY_FILL) if bad.any() else None

    def judge_rewritten(self, end: int) -> Found | None:
        """Looks whether the fill wrote the first entries, those of real rows."""
        still = self._array == self._before
        doubtful, left = (
            self._along(marks & still)[:end] for marks in (self._doubtful, self._untouched)
        )
        self.is_in_doubt = self.is_in_doubt or bool(doubtful.any())
        head = self._along(self._array)[:end]
        return _found(left, head, 0, self._tensor.dtype, BY_NOBODY) if left.any() else None

    @property
    def _kind(self) -> str:
        """The dtype of floats as NumPy has it, "" for whole numbers and what it has no name for."""
        return _FLOATS.get(self._tensor.dtype, "")

    def _wrong(self, region: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tells which entries hold what they must not, whoever wrote it."""
        bad = np.zeros(region.shape, bool)
        if self.expectation.expected is not None:
            bad |= region != as_bits(self.expectation.expected, self._tensor.dtype)
        if self.expectation.bound is not None:
            sign, limit = self.expectation.bound
            bad |= ~np.asarray(COMPARISONS[sign](region, limit))
        return bad

    def _along(self, bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return bits.swapaxes(0, self._dim) if self._dim else bits

    def _tail(self, bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return self._along(bits)[self.start :]


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Returns the elements as bits, over the same memory, only to be read.

    Not by `numpy()`, after which torch would not let the engine resize the tensor.
    """
    return _array_at(*region_of(tensor)[:5])


@functools.lru_cache(256)  # inputs lie where they lay in the last fill
def _array_at(
    start: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int, end: int
) -> npt.NDArray[Any]:
    kind = np.dtype(f"i{item}")
    if 0 in shape:
        return np.empty(shape, kind)
    memory: Any = (ctypes.c_char * (end - start)).from_address(start)
    return np.ndarray(shape, kind, memory, strides=strides)


def _found(
    bad: npt.NDArray[np.bool_],
    bits: npt.NDArray[Any],
    start: int,
    dtype: torch.dtype,
    by: int,
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
        by,
    )


def shown(value: Any) -> str:
    """Returns a value as a report shows it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
