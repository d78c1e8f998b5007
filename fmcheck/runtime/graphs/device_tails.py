"""Tails on an accelerator: compared there, with no host sync, and read when a session asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmcheck.contract import COMPARISONS
from fmcheck.runtime.graphs.tails import (
    BY_FILL,
    BY_NOBODY,
    SHOWN,
    UNKNOWN,
    Found,
    as_bits,
    bits_of,
    shown,
)
from fmcheck.runtime.steps.writes import unheard

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.runtime.graphs.expectations import Expectation
    from fmcheck.runtime.graphs.tails import Unseen
    from fmcheck.runtime.steps.writes import Trace


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
        with unheard():
            return self._read()

    def _read(self) -> Found | None:
        hits = int(self._hits.item())
        if not hits:
            return None
        wrong = self._bad.cpu().reshape(len(self._bad), -1)
        entries = wrong.any(dim=1).nonzero().flatten()
        first = entries[:SHOWN]
        flat = self._bits.cpu().reshape(len(wrong), -1)
        picked = flat[first, wrong[first].int().argmax(dim=1)].contiguous().view(self._dtype)
        start = int(self._start.item())
        found = Found(
            tuple(int(entry) + start for entry in first),
            tuple(shown(value) for value in picked.tolist()),
            len(entries),
            int(self._by.item()),
            hits,
        )
        for kept in (self._hits, self._start, self._by, self._bad, self._bits):
            kept.zero_()
        return found


class DeviceTail:
    """A tail in an accelerator's memory.

    `record(part, expectation, bits)` returns where finds are entered.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        dim: int,
        start: int,
        expectation: Expectation,
        unseen: Unseen,
        record: Callable[[str, Expectation, torch.Tensor], TailRecord],
    ) -> None:
        self._tensor = tensor
        self._dim = dim
        self.expectation = expectation
        self._unseen = unseen
        self._record = record
        self.start = start
        self.length = tensor.shape[dim] - start
        self.is_in_doubt = False
        with unheard():
            self._before = bits_of(tensor).clone()
            self._untouched = torch.zeros_like(self._before, dtype=torch.bool)
            self._doubtful = self._untouched
        self._unless: torch.Tensor | None = None

    def seal(self, trace: Trace) -> None:
        """Takes over which elements were written, now that the fill is over."""
        with unheard():
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
        with unheard():
            bits = bits_of(self._tensor)
            still = bits == self._before
            region = self._tail(bits)[:count]
            untouched = self._tail(self._untouched & still)[:count]
            doubtful = self._tail(self._doubtful & still)[:count]
            bad = self._wrong(region) | untouched
            by = torch.where((untouched | ~bad).all(), BY_NOBODY, BY_FILL)
            by = torch.where((doubtful & bad).any(), UNKNOWN, by)
            kept = self._record("tail", self.expectation, self._along(bits))
            kept.enter(bad, region, self.start, by, self._unless)
        return None

    def judge_head(self, source: torch.Tensor) -> Found | None:
        """Enters where the head is not what it was copied from."""
        with unheard():
            bits = self._along(bits_of(self._tensor))
            head, values = bits[: self.start], source.detach()
            if values.dtype.is_floating_point or values.dtype is torch.bool:
                values = bits_of(values)
            if values.shape == head.shape and len(head):
                by = torch.full((), BY_FILL, device=head.device)
                self._record("head", self.expectation, bits).enter(
                    head != values, head, 0, by, None
                )
        return None

    def judge_values(self, end: int) -> Found | None:
        """Enters where the entries of real rows are not what each must be."""
        assert self.expectation.head is not None
        sign, limit = self.expectation.head
        with unheard():
            values = self._along(self._tensor.detach())[:end]
            bad = ~COMPARISONS[sign](values, limit)
            self._enter_head("values", bad, end)
        return None

    def judge_rewritten(self, end: int) -> Found | None:
        """Enters where the fill did not write the entries of real rows."""
        with unheard():
            left = self._untouched & (bits_of(self._tensor) == self._before)
            self._enter_head("rewritten", self._along(left)[:end], end)
        return None

    def _enter_head(self, part: str, bad: torch.Tensor, end: int) -> None:
        bits = self._along(bits_of(self._tensor))
        by = torch.full((), BY_FILL, device=bits.device)
        self._record(part, self.expectation, bits).enter(bad, bits[:end], 0, by, None)

    def _wrong(self, region: torch.Tensor) -> torch.Tensor:
        """Tells which entries hold what they must not, whoever wrote it."""
        bad = torch.zeros(region.shape, dtype=torch.bool, device=region.device)
        if self.expectation.expected is not None:
            bad |= region != as_bits(self.expectation.expected, self._tensor.dtype)
        if self.expectation.bound is not None:
            sign, limit = self.expectation.bound
            bad |= ~COMPARISONS[sign](region, limit)
        return bad

    def _along(self, bits: torch.Tensor) -> torch.Tensor:
        return bits.transpose(0, self._dim) if self._dim else bits

    def _tail(self, bits: torch.Tensor) -> torch.Tensor:
        return self._along(bits)[self.start :]
