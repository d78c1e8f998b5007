"""Tails on an accelerator: compared there, with no host sync, and read when a session asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fmcheck.contract import COMPARISONS
from fmcheck.runtime.tails import (
    SHOWN,
    Found,
    as_bits,
    bits_of,
    poison_bits,
    shown,
    version_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.runtime.demands import Demand


class Record:
    """What was found of one input since it was last read, in device memory.

    The first find is kept: which entries, their bits, where the entries start. `hits` counts all.
    """

    def __init__(self, bits: torch.Tensor, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._hits = torch.zeros((), dtype=torch.int64, device=bits.device)
        self._start = torch.zeros_like(self._hits)
        self._untouched = torch.zeros_like(self._hits, dtype=torch.bool)
        self._bad = torch.zeros(bits.shape, dtype=torch.bool, device=bits.device)
        self._bits = torch.zeros_like(bits)

    def enter(
        self,
        bad: torch.Tensor,
        bits: torch.Tensor,
        start: int,
        untouched: torch.Tensor,
        unless: torch.Tensor | None,
    ) -> None:
        """Adds a look at `len(bad)` entries; nothing is entered where `unless` is true."""
        hit = bad.any() if unless is None else bad.any() & ~unless
        first = hit & (self._hits == 0)
        count = len(bad)
        self._bad[:count].copy_(torch.where(first, bad, self._bad[:count]))
        self._bits[:count].copy_(torch.where(first, bits, self._bits[:count]))
        self._start.copy_(torch.where(first, start, self._start))
        self._untouched.copy_(torch.where(first, untouched, self._untouched))
        self._hits.add_(hit)

    def read(self) -> Found | None:
        """Waits for the device; returns what was found, and starts anew."""
        with torch.inference_mode():
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
            bool(self._untouched.item()),
            hits,
        )
        for kept in (self._hits, self._start, self._untouched, self._bad, self._bits):
            kept.zero_()
        return found


class DeviceTail:
    """A tail in an accelerator's memory. `record(what, bits)` returns where finds are entered."""

    @torch.inference_mode()
    def __init__(
        self,
        tensor: torch.Tensor,
        dim: int,
        start: int,
        demand: Demand,
        record: Callable[[str, torch.Tensor], Record],
    ) -> None:
        self._tensor = tensor
        self._demand = demand
        self._record = record
        bits = bits_of(tensor)
        self._bits = bits.transpose(0, dim) if dim else bits
        self.start = start
        self.length = len(self._bits) - start
        self._head = None if demand.always else self._bits[:start].clone()
        self._tail = self._bits[start:]
        self._old = self._tail.clone()
        self._poison = _turns(poison_bits(demand.expected, tensor.dtype), self._tail)
        self._version: int | None = None

    @torch.inference_mode()
    def lay(self) -> None:
        """Puts poison in place of the values."""
        self._tail.copy_(self._poison)
        self._version = version_of(self._tensor)

    @torch.inference_mode()
    def judge(self, count: int) -> Found | None:
        """Enters what is wrong with the first `count` entries."""
        region, poison = self._tail[:count], self._poison[:count]
        untouched = region == poison
        bad = untouched
        if self._demand.expected is not None:
            bad = region != as_bits(self._demand.expected, self._tensor.dtype)
        if self._demand.bound is not None:
            sign, limit = self._demand.bound
            bad = bad | ~COMPARISONS[sign](region, limit)
        seen = torch.where(untouched, self._old[:count], region)
        all_untouched = (untouched | ~bad).all()
        kept = self._record("tail", self._bits)
        kept.enter(bad, seen, self.start, all_untouched, self._left_alone())
        return None

    @torch.inference_mode()
    def judge_head(self, source: torch.Tensor) -> Found | None:
        """Enters where the head is not what it was copied from."""
        head = self._bits[: self.start]
        values = source.detach()
        if values.dtype.is_floating_point or values.dtype is torch.bool:
            values = bits_of(values)
        if values.shape == head.shape and len(head):
            bad = head != values
            no = torch.zeros((), dtype=torch.bool, device=head.device)
            self._record("head", self._bits).enter(bad, head, 0, no, None)
        return None

    @torch.inference_mode()
    def restore(self) -> None:
        """Gives what still holds poison its old values."""
        self._tail.copy_(torch.where(self._tail == self._poison, self._old, self._tail))

    def _left_alone(self) -> torch.Tensor | None:
        """Returns whether the fill did not write the input, None where it surely did."""
        if self._head is None:
            return None
        if self._version is not None and self._version != version_of(self._tensor):
            return None
        return (self._head == self._bits[: self.start]).all()


def _turns(poison: tuple[int, int], like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that shows the two patterns by turns along its first dimension."""
    if poison[0] == poison[1]:
        return torch.full((), poison[0], dtype=like.dtype, device=like.device).expand(like.shape)
    turns = torch.arange(len(like), dtype=like.dtype, device=like.device) % 2
    laid = turns * (poison[1] - poison[0]) + poison[0]
    return laid.reshape((-1,) + (1,) * (like.dim() - 1)).expand(like.shape)
