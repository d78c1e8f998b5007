"""Twins: second copies of memory that nobody has filled, which hold other values there.

Each twin belongs to one storage of a CPU. Where the two hold the same, it has been written, or what
was computed did not depend on it. Memory that changes out of torch's sight, as by NumPy or a
kernel of the engine's own, is not followed any longer.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import torch

#: Bytes of the largest memory that has a twin: each use of it costs a comparison of all of it.
MOST_BYTES = 1 << 26
# Lines that values came by, from the allocation on.
_MOST_LINES = 4
# Results of one operator on equal values differ by no more: torch sums in another order where
# memory is aligned otherwise.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
_BITS = (torch.bits8, torch.bits16, torch.bits1x8, torch.bits2x4, torch.bits4x2)


@dataclass(frozen=True, slots=True)
class Origin:
    """An allocation that nobody filled, by its moment, and where its values went from there.

    `made` says what it was. `via` holds the first operators that took values on to other memory,
    each with its moment.
    """

    made: str
    moment: int
    via: tuple[tuple[str, int], ...] = ()

    def through(self, operator: str, moment: int) -> Origin:
        """Returns the origin of what an operator computed."""
        if len(self.via) == _MOST_LINES or any(moment == one for _, one in self.via):
            return self
        return Origin(self.made, self.moment, (*self.via, (operator, moment)))


class Twin(weakref.ref[Any]):
    """The twin of a storage: its memory, the storage's own bytes as last seen, and its origin."""

    __slots__ = ("memory", "origin", "seen")

    memory: torch.UntypedStorage
    origin: Origin
    seen: torch.Tensor


class Twins:
    """The twins of a session, by the storage that each belongs to."""

    def __init__(self) -> None:
        self._known: dict[int, Twin] = {}
        self._generator = torch.Generator().manual_seed(0)

    def __bool__(self) -> bool:
        return bool(self._known)

    def of(self, tensor: torch.Tensor) -> Twin | None:
        """Returns the twin of a tensor's memory, None if it has none, or none any more."""
        twin = self.held(tensor) if self._known and tensor.is_cpu else None
        if twin is None:
            return None
        storage = tensor.untyped_storage()
        is_same_size = storage.nbytes() == twin.seen.numel()
        if is_same_size and torch.equal(as_bytes(storage), twin.seen):
            return twin
        self.forget(tensor)
        return None

    def held(self, tensor: torch.Tensor) -> Twin | None:
        """Returns the twin of a tensor's memory, whatever became of that since."""
        storage = tensor.untyped_storage()
        twin = self._known.get(storage._cdata)
        return twin if twin is not None and twin() is storage else None

    def begin(self, tensor: torch.Tensor, origin: Origin) -> None:
        """Fills memory that was just allocated, and gives it a twin that differs everywhere."""
        storage = tensor.untyped_storage()
        _fill(whole(storage, tensor.dtype), self._generator)
        memory = as_bytes(storage).clone().untyped_storage()
        _change(whole(memory, tensor.dtype))
        self.keep(tensor, memory, origin)

    def keep(self, tensor: torch.Tensor, memory: torch.UntypedStorage, origin: Origin) -> None:
        """Makes `memory` the twin of a tensor's, which holds what it holds now."""
        storage = tensor.untyped_storage()
        key = int(storage._cdata)
        twin = self._known[key] = Twin(storage, functools.partial(self._known.pop, key))
        twin.memory, twin.origin, twin.seen = memory, origin, as_bytes(storage).clone()

    def forget(self, tensor: torch.Tensor) -> None:
        """Drops the twin of a tensor's memory."""
        self._known.pop(tensor.untyped_storage()._cdata, None)


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Returns the bytes of a storage, shape `[nbytes]`."""
    return whole(storage, torch.uint8)


def whole(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    """Returns all of a storage as elements of a type, in one row."""
    made = torch.empty(0, dtype=dtype, device="cpu")
    return made.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))


def seen_in(memory: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
    """Returns what a tensor would be if its memory was `memory`."""
    made = torch.empty(0, dtype=tensor.dtype, device="cpu")
    made.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
    made = made.conj() if tensor.is_conj() else made
    return made._neg_view() if tensor.is_neg() else made


def are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tells whether two tensors of one type hold the same values, as far as computing goes."""
    if one.shape != other.shape:
        return False
    if _is_wide_float(one.dtype):
        near = torch.isclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
        return bool(near.all())
    if one.dtype.is_floating_point or one.dtype in _BITS:  # torch compares no eight bits of these
        one, other = one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    return torch.equal(one, other)


def laid_out_as(tensor: torch.Tensor, values: torch.Tensor) -> torch.UntypedStorage:
    """Returns memory laid out as a tensor's is, which holds `values` where the tensor lies."""
    memory = as_bytes(tensor.untyped_storage()).clone().untyped_storage()
    seen_in(memory, tensor).copy_(values)
    return memory


def _fill(values: torch.Tensor, generator: torch.Generator) -> None:
    """Fills memory that nobody has written yet with small random numbers: 0 and 1 for whole ones.

    So whatever writes it out of torch's sight changes it, also where the memory is that of a tensor
    which held the same values and was freed. And an index is near where there is something.
    """
    if _is_wide_float(values.dtype):
        values.copy_(torch.rand(values.shape, generator=generator, device="cpu"))
        return
    parts = values.view(torch.uint8).view(-1, values.dtype.itemsize)
    parts.zero_()
    low = 56 if values.dtype.is_floating_point else 0  # numbers near 1, of eight bits or fewer
    parts[:, 0] = torch.randint(low, low + 2, (len(parts),), generator=generator, device="cpu")


def _change(values: torch.Tensor) -> None:
    """Puts another value into each element: NaN, or a near number for a whole one."""
    if _is_wide_float(values.dtype):
        values.fill_(float("nan"))
        return
    lowest = values.view(torch.uint8).view(-1, values.dtype.itemsize)[:, 0]
    if values.dtype.is_floating_point:
        lowest.fill_(127)  # NaN in those types that have one
    else:
        lowest.bitwise_xor_(1)


def _is_wide_float(dtype: torch.dtype) -> bool:
    return dtype.itemsize > 1 and (dtype.is_floating_point or dtype.is_complex)
