"""Extents: which bytes of its storage an access touches, exactly or as far as is known.

Whether two accesses meet is asked of few: those that no fence orders, and whose ranges overlap. So
what tells the elements is kept as it came, a shape with strides or an index, and worked out then.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from fmcheck.runtime.steps.writes import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Pieces = tuple[npt.NDArray[np.int64], int]
    Pick = Callable[[torch.Tensor], torch.Tensor]

#: More pieces than this are not compared one by one.
LIMIT = 1 << 16
# Layouts whose offsets are kept, of no more elements than that each.
_LAYOUTS = 8


class Extent(msgspec.Struct, eq=False):
    """The pieces of a tensor that an access touches."""

    def pieces(self) -> Pieces | None:
        """Returns where they begin, sorted, and the bytes of each; None where there is no telling.

        Not before it is asked for, as most accesses are never compared.
        """
        return None


class Some(Extent, eq=False):
    """Elements that nobody can tell, but one of them at least."""


class Strided(Extent, eq=False):
    """All elements of a tensor that is not dense."""

    low: int
    shape: Sequence[int]
    strides: Sequence[int]
    itemsize: int

    def pieces(self) -> Pieces | None:
        """Returns them: elements that lie side by side are one piece."""
        run = self.itemsize
        dims = [(s * run, n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1 and s]
        dims.sort()
        while dims and dims[0][0] == run:
            run *= dims.pop(0)[1]
        if math.prod(n for _, n in dims) > LIMIT:
            return None
        starts = np.array([self.low], np.int64)
        for stride, n in dims:
            starts = (starts[:, None] + np.arange(n, dtype=np.int64) * stride).reshape(-1)
        return np.sort(starts), run


class Picked(Extent, eq=False):
    """The elements of a tensor that an index picks: `pick` takes them out of their addresses."""

    low: int
    shape: Sequence[int]
    strides: Sequence[int]
    itemsize: int
    pick: Callable[[torch.Tensor], torch.Tensor]

    def pieces(self) -> Pieces | None:
        """Returns them, an element each."""
        offsets = _offsets(tuple(self.shape), tuple(self.strides), self.itemsize)
        starts: npt.NDArray[np.int64] = self.pick(torch.from_numpy(offsets)).reshape(-1).numpy()
        return np.sort(starts) + self.low, self.itemsize


@functools.lru_cache(maxsize=_LAYOUTS)
def _offsets(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> npt.NDArray[np.int64]:
    """Returns where each element of a layout lies, in bytes from the first: engines have few."""
    offsets = np.zeros((1,) * len(shape), np.int64)
    for dim, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(n, dtype=np.int64) * (stride * itemsize)
        offsets = offsets + steps.reshape([-1 if one == dim else 1 for one in range(len(shape))])
    return offsets


def meet(one: Extent, other: Extent) -> bool | None:
    """Tells whether two extents share a byte; None where there is no telling."""
    first, second = one.pieces(), other.pieces()
    if first is None or second is None:
        return None
    starts, run = first
    # Of the pieces of one that end behind where a piece of the other begins, the first.
    at = np.searchsorted(starts, second[0] - run, side="right")
    known = at < len(starts)
    return bool((starts[at[known]] < second[0][known] + second[1]).any())


def meets_range(one: Extent, low: int, high: int) -> bool | None:
    """Tells whether an extent has a byte in a range; None where there is no telling."""
    found = one.pieces()
    if found is None:
        return None
    at = int(np.searchsorted(found[0], low - found[1], side="right"))
    return at < len(found[0]) and int(found[0][at]) < high


# --- what operators pick ---


def _by_index(args: Any) -> Pick:
    indices = [None if one is None else one.clone() for one in args[1]]
    return lambda places: torch.ops.aten.index.Tensor(places, indices)


def _along(args: Any) -> Pick:
    dim, index = args[1], args[2].clone().reshape(-1)
    return lambda places: places.index_select(dim, index)


def _each_along(args: Any) -> Pick:
    dim, index = args[1], args[2].clone()
    return lambda places: places.gather(dim, index)


def _by_mask(args: Any) -> Pick:
    mask = args[1].clone()
    return lambda places: torch.masked_select(places, mask)


def _flat(args: Any) -> Pick:
    index = args[1].clone()
    return lambda places: places.take(index)


def _rows(args: Any) -> Pick:
    index = args[1].clone().reshape(-1)
    return lambda places: places.index_select(0, index)


_Table = dict[str, tuple["Callable[[Any], Pick]", int]]

#: Operators that write the elements of their first argument that an index picks, and the place of
#: that index.
WRITES: _Table = {
    **dict.fromkeys(("index_put_", "_index_put_impl_"), (_by_index, 1)),
    **dict.fromkeys(("index_copy_", "index_fill_", "index_add_", "index_reduce_"), (_along, 2)),
    **dict.fromkeys(("scatter_", "scatter_add_", "scatter_reduce_"), (_each_along, 2)),
    **dict.fromkeys(("masked_fill_", "masked_scatter_"), (_by_mask, 1)),
    "put_": (_flat, 1),
}
#: Operators that read those.
READS: _Table = {
    "index": (_by_index, 1),
    "index_select": (_along, 2),
    "gather": (_each_along, 2),
    "masked_select": (_by_mask, 1),
    "take": (_flat, 1),
    "embedding": (_rows, 1),
}
#: Further ones that read a part of what they are given, which nobody tells.
PARTLY = frozenset(
    {
        *("_unsafe_index", "_unsafe_masked_index", "searchsorted", "grid_sampler_2d"),
        *("grid_sampler_3d", "_embedding_bag", "_embedding_bag_forward_only", "embedding_renorm_"),
    }
)


def picked(table: _Table, name: str, args: Any) -> Extent | None:
    """Returns what an operator picks of its first argument, None for one that picks nothing.

    On a device the index is not looked at: that would make the host wait.
    """
    known = table.get(name)
    if known is None:
        return None
    picking, place = known
    tensor, index = args[0], args[place]
    given = index if isinstance(index, (list, tuple)) else [index]
    for one in (tensor, *given):
        if one is not None and (not one.is_cpu or one.numel() > LIMIT):
            return Some()
    return Picked(address_of(tensor), tensor.shape, tensor.stride(), tensor.itemsize, picking(args))


def is_certain(table: _Table, name: str, args: Any) -> bool:
    """Tells whether an index of an operator picks anything, by its size alone: of a mask not."""
    index = args[table[name][1]]
    given = [
        one for one in (index if isinstance(index, (list, tuple)) else [index]) if one is not None
    ]
    return all(one.numel() > 0 and one.dtype is not torch.bool for one in given)
