"""Tails: `[raw:]` of a graph input, copied before a fill and compared with that after it.

Inputs are seen as bits, signed integers of the element's width. An input is only read here, never
written: an entry that holds what it held before the fill was written all the same if its trace says
so, and where that cannot be known, nothing is said of who wrote it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from fmcheck.contract import COMPARISONS
from fmcheck.runtime.core.rows import array_over
from fmcheck.runtime.steps import capturing
from fmcheck.runtime.steps.writes import unrecorded

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

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


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's elements as signed integers of their width, over the same memory."""
    plain = tensor.detach()
    width = _SAME_WIDTH.get(plain.element_size())
    return plain if width is None or plain.dtype == width else plain.view(width)


@functools.cache
def as_bits(value: int, dtype: torch.dtype) -> int:
    """Returns the bits of a number in `dtype`."""
    return int(bits_of(torch.tensor([value], dtype=dtype, device="cpu")).item())


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


class Tail(ABC):
    """A tail from the start of a fill on.

    It `is_in_doubt` where nothing was said of an entry because nobody knows whether it was written.
    What it must hold may be known only once the fill is settled: `expectation` is set again then.
    """

    #: The elements when the fill began; which of them nobody wrote since, and which of the others
    #: nobody was seen to write.
    _before: Any
    _untouched: Any
    _doubtful: Any

    def __init__(
        self, tensor: torch.Tensor, dim: int, start: int, expectation: Expectation, unseen: Unseen
    ) -> None:
        self._tensor = tensor
        self._dim = dim
        self.expectation = expectation
        self._unseen = unseen
        self.start = start
        self.first = expectation.first
        self.length = tensor.shape[dim] - start
        self.is_in_doubt = False

    @abstractmethod
    def seal(self, trace: Trace) -> None:
        """Takes over which elements were written, now that the fill is over."""

    @abstractmethod
    def judge(self, count: int) -> Found | None:
        """Looks at the first `count` entries; None if they are right, or if it is not known yet."""

    @abstractmethod
    def judge_head(self, source: torch.Tensor) -> Found | None:
        """Compares what lies before the tail with where it was copied from."""

    @abstractmethod
    def judge_values(self, end: int) -> Found | None:
        """Holds the entries of real rows, up to `end`, against what each must be."""

    @abstractmethod
    def judge_rewritten(self, end: int) -> Found | None:
        """Looks whether the fill wrote the entries of real rows, up to `end`."""

    def _first(self, bits: Any, count: int) -> tuple[Any, Any, Any]:
        """Returns the first entries as they are now, which are untouched and which doubtful."""
        still = bits == self._before
        marks = self._untouched & still, self._doubtful & still
        region, untouched, doubtful = (
            self._along(one)[self.start :][:count] for one in (bits, *marks)
        )
        if self.expectation.rises:  # what is left over is right where it says that a row is empty
            apart = region != self._before_each(bits, count)
            untouched, doubtful = untouched & apart, doubtful & apart
        return region, untouched, doubtful

    def _before_each(self, bits: Any, count: int) -> Any:
        """Returns the entry before each of the first ones."""
        return self._along(bits)[self.start - 1 :][:count]

    def _add_wrong(self, bad: Any, region: Any, bits: Any) -> Any:
        """Marks the entries that hold what they must not, whoever wrote it."""
        if self.expectation.rises:
            bad |= region < self._before_each(bits, len(region))
        if self.expectation.expected is not None:
            bad |= region != as_bits(self.expectation.expected, self._tensor.dtype)
        if self.expectation.bound is not None:
            sign, limit = self.expectation.bound
            bad |= ~COMPARISONS[sign](region, limit)
        return bad

    def _along(self, bits: Any) -> Any:
        return bits.swapaxes(0, self._dim) if self._dim else bits


class HostTail(Tail):
    """A tail in this process's memory, through NumPy."""

    def __init__(self, tensor: torch.Tensor, *place: Any) -> None:
        super().__init__(tensor, *place)
        # Good as long as the trace says that the tensor is in place.
        self._array = array_of(tensor)
        self._before = self._array.copy()
        self._is_judged = True
        self._untouched = self._doubtful = np.zeros(self._before.shape, bool)

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
        region, untouched, doubtful = self._first(self._array, count)
        wrong = self._add_wrong(np.zeros(region.shape, bool), region, self._array)
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
        """Holds the entries of real rows, up to `end`, against what each must be."""
        assert self.expectation.head is not None
        sign, limit = self.expectation.head
        head = self._along(self._array)[self.first : end]
        values = head.view(self._kind) if self._kind else head
        bad = ~np.asarray(COMPARISONS[sign](values, limit))
        if not bad.any():
            return None
        return _found(bad, head, self.first, self._tensor.dtype, BY_FILL)

    def judge_rewritten(self, end: int) -> Found | None:
        """Looks whether the fill wrote the entries of real rows, up to `end`."""
        still = self._array == self._before
        doubtful, left = (
            self._along(marks & still)[self.first : end]
            for marks in (self._doubtful, self._untouched)
        )
        self.is_in_doubt = self.is_in_doubt or bool(doubtful.any())
        head = self._along(self._array)[self.first : end]
        if not left.any():
            return None
        return _found(left, head, self.first, self._tensor.dtype, BY_NOBODY)

    @property
    def _kind(self) -> str:
        """The dtype of floats as NumPy has it, "" for whole numbers and what it has no name for."""
        return _FLOATS.get(self._tensor.dtype, "")


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Returns the elements as bits, over the same memory, only to be read."""
    return array_over(tensor, f"i{tensor.element_size()}")


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


class TailRecord:
    """What was found of one input since it was last read, in device memory.

    The first find is kept: which entries, their bits, where the entries start. `hits` counts all.
    """

    def __init__(self, bits: torch.Tensor, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._hits = torch.zeros((), dtype=torch.int64, device=bits.device)
        self._start = torch.zeros_like(self._hits)
        self._by = torch.zeros_like(self._hits)
        self._bad = torch.zeros(bits.shape, dtype=torch.bool, device=bits.device)
        self._bits = torch.zeros_like(bits)

    def enter(
        self,
        bad: torch.Tensor,
        bits: torch.Tensor,
        start: int,
        by: torch.Tensor,
        unless: torch.Tensor | None,
    ) -> None:
        """Adds a look at `len(bad)` entries; nothing is entered where `unless` is true."""
        hit = bad.any() if unless is None else bad.any() & ~unless
        first = hit & (self._hits == 0)
        count = len(bad)
        self._bad[:count].copy_(torch.where(first, bad, self._bad[:count]))
        self._bits[:count].copy_(torch.where(first, bits, self._bits[:count]))
        self._start.copy_(torch.where(first, start, self._start))
        self._by.copy_(torch.where(first, by, self._by))
        self._hits.add_(hit)

    def read(self) -> Found | None:
        """Waits for the device; returns what was found, and starts again."""
        with unrecorded():
            return self._read()

    def _read(self) -> Found | None:
        hits = int(self._hits.item())
        if not hits:
            return None
        start, by = int(self._start.item()), int(self._by.item())
        found = _found(self._bad.cpu().numpy(), self._bits.cpu().numpy(), start, self._dtype, by)
        for kept in (self._hits, self._start, self._by, self._bad, self._bits):
            kept.zero_()
        return replace(found, hits=hits)


class DeviceTail(Tail):
    """A tail in an accelerator's memory, compared there, with no host sync.

    `record(part, expectation, bits)` returns where finds are entered: they are read when a session
    asks.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        *place: Any,
        record: Callable[[str, Expectation, torch.Tensor], TailRecord],
    ) -> None:
        super().__init__(tensor, *place)
        self._record = record
        with unrecorded():
            self._before = bits_of(tensor).clone()
            self._untouched = torch.zeros_like(self._before, dtype=torch.bool)
            self._doubtful = self._untouched
        self._unless: torch.Tensor | None = None

    def seal(self, trace: Trace) -> None:
        """Takes over which elements were written, now that the fill is over."""
        with unrecorded():
            written, perhaps = trace.marks()
            changed = bits_of(self._tensor) != self._before
            unseen = (changed & ~written & ~perhaps).any()
            if self._tensor in self._unseen:
                unseen = unseen | self._unseen[self._tensor]
            self._unseen[self._tensor] = unseen
            if not (self.expectation.always or trace.was_touched):
                self._unless = ~changed.any()
            left = ~(changed | written)
            self._doubtful = left & (perhaps | unseen)
            self._untouched = left & ~self._doubtful
        self.is_in_doubt = bool(trace.why)

    def judge(self, count: int) -> Found | None:
        """Enters what is wrong with the first `count` entries."""
        with unrecorded():
            bits = bits_of(self._tensor)
            region, untouched, doubtful = self._first(bits, count)
            bad = torch.zeros_like(region, dtype=torch.bool)
            bad = self._add_wrong(bad, region, bits) | untouched
            by = torch.where((untouched | ~bad).all(), BY_NOBODY, BY_FILL)
            by = torch.where((doubtful & bad).any(), UNKNOWN, by)
            kept = self._record("tail", self.expectation, self._along(bits))
            kept.enter(bad, region, self.start, by, self._unless)
        return None

    def judge_head(self, source: torch.Tensor) -> Found | None:
        """Enters where the head is not what it was copied from."""
        with unrecorded():
            bits = self._along(bits_of(self._tensor))
            head, values = bits[: self.start], source.detach()
            if values.dtype.is_floating_point or values.dtype is torch.bool:
                values = bits_of(values)
            if values.shape == head.shape and len(head):
                by = torch.full((), BY_FILL, device=head.device)
                kept = self._record("head", self.expectation, bits)
                kept.enter(head != values, head, 0, by, None)
        return None

    def judge_values(self, end: int) -> Found | None:
        """Enters where the entries of real rows are not what each must be."""
        assert self.expectation.head is not None
        sign, limit = self.expectation.head
        with unrecorded():
            values = self._along(self._tensor.detach())[self.first : end]
            bad = ~COMPARISONS[sign](values, limit)
            self._enter_head("values", bad, end)
        return None

    def judge_rewritten(self, end: int) -> Found | None:
        """Enters where the fill did not write the entries of real rows."""
        with unrecorded():
            left = self._untouched & (bits_of(self._tensor) == self._before)
            self._enter_head("rewritten", self._along(left)[self.first : end], end)
        return None

    def _enter_head(self, part: str, bad: torch.Tensor, end: int) -> None:
        bits = self._along(bits_of(self._tensor))
        by = torch.full((), BY_FILL, device=bits.device)
        self._record(part, self.expectation, bits).enter(
            bad, bits[self.first : end], self.first, by, None
        )
