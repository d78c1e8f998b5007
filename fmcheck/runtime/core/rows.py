"""Rows: which rows of a relay buffer an index expression touches, seen through any view of it.

A `Column` has a value of each row.

Index expressions are NumPy's. Each way that torch has of picking elements is turned into one, so
that rows, values and poison are all found by the same expression.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

EVERYTHING = Ellipsis
_NO_ROWS = object()


class _Shown:
    """A tensor's memory by NumPy's array interface, kept alive by the array over it."""

    __slots__ = ("__array_interface__", "tensor")

    tensor: Any
    __array_interface__: dict[str, Any]


def array_over(tensor: Any, kind: str = "") -> npt.NDArray[Any]:
    """Returns an array over the memory of a tensor of the host's, of its own kind or of another.

    `kind` is NumPy's, as `i8`. `Tensor.numpy` would forbid any later `resize_`, and would count as
    NumPy's hold on the memory.

    Raises:
        RuntimeError: if there is no memory to see, as of a fake tensor.
    """
    kind = kind or _kind_of(tensor.dtype)
    address = _address_of()(tensor)
    if not address:
        if tensor.numel():
            raise RuntimeError("a tensor without memory")
        return np.empty(tuple(tensor.shape), kind)
    shown = _Shown()
    shown.tensor = tensor
    shown.__array_interface__ = layout = {
        "version": 3,
        "data": (address, False),
        "shape": tuple(tensor.shape),
        "typestr": kind,
    }
    if not tensor.is_contiguous():
        size = tensor.element_size()
        layout["strides"] = tuple(int(step) * size for step in tensor.stride())
    return np.asarray(shown)


@functools.cache
def _address_of() -> Any:
    """Returns the method that is torch's own: a tensor's hands its memory on to whoever asks."""
    return sys.modules["torch"]._C.TensorBase.data_ptr


@functools.cache
def _kind_of(dtype: Any) -> str:
    """Returns NumPy's kind of a torch dtype.

    Raises:
        TypeError: if NumPy has none.
    """
    return np.dtype(str(dtype).removeprefix("torch.")).str


class Column:
    """Values by row, in an array.

    A list of rows that comes again as the same array, one that nobody can change, is put as a
    whole: one value is kept for all its rows, and entered when others are asked for. So a buffer of
    which the same rows are written and gathered in turn costs no pass over them. `within` is the
    column that this one is a part of.
    """

    __slots__ = ("_array", "_is_late", "_rows", "_value", "_within")

    def __init__(self, array: npt.NDArray[Any], within: Column | None = None) -> None:
        self._array = array
        self._within = within
        # The list that was put last; that of a part is the whole column's to know.
        self._rows: Any = _NO_ROWS if within is None else object()
        self._value: Any = None
        self._is_late = False

    def __len__(self) -> int:
        return len(self._array)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The values of all rows, to read or to change."""
        if self._rows is not _NO_ROWS:
            self._enter()
        return self._array

    def _enter(self) -> None:
        if self._within is not None:
            self._within._enter()
            return
        if self._is_late:
            self._array[self._rows] = self._value
            self._is_late = False
        self._rows = _NO_ROWS

    def put(self, rows: Any, value: Any) -> None:
        """Gives rows a value, or each of them its own."""
        if rows is self._rows:
            self._is_late, self._value = True, value
            return
        if self._rows is not _NO_ROWS:
            self._enter()
        self._array[rows] = value
        if type(rows) is np.ndarray and not rows.flags.writeable and self._within is None:
            self._rows, self._value = rows, value

    def common(self, rows: Any) -> Any:
        """Returns what was put for just these rows, None if that is not known."""
        return self._value if rows is self._rows else None


def row_map(
    shape: Sequence[int], strides: Sequence[int], offset: int, row_stride: int, count: int = 0
) -> npt.NDArray[np.int64]:
    """Returns the row of each element of a view.

    Where rows lie within an outer dimension there are `count` of them to each of its steps.

    Strides and offset are in elements, counted from the buffer's first. A dimension along which
    the row never changes has stride 0 in the map, so the map of a whole buffer costs one number a
    row.
    """
    row_stride = max(row_stride, 1)
    inner = [
        (size - 1) * stride
        for size, stride in zip(shape, strides, strict=True)
        if stride % row_stride and size
    ]
    crosses = offset % row_stride + sum(inner) >= row_stride
    places = np.asarray(offset, np.int64)
    around = row_stride * count
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if around and not stride % around:
            continue  # each step leads to the same row
        if crosses or not stride % row_stride:
            steps = np.arange(size, dtype=np.int64) * stride
            places = places + steps.reshape((-1,) + (1,) * (len(shape) - dim - 1))
    found = places // row_stride
    return np.broadcast_to(found % count if count else found, tuple(shape))


def row_dims(rows: npt.NDArray[np.int64]) -> frozenset[int]:
    """Returns the dimensions of a row map along which the row changes."""
    return frozenset(dim for dim in range(rows.ndim) if rows.shape[dim] > 1 and rows.strides[dim])


def selects_rows(expression: Any, ndim: int, dims: frozenset[int]) -> bool:
    """Tells whether an advanced index in `expression` picks among rows: then it is a gather.

    `buf[rows]` and `buf[rows, :2]` pick rows; `buf[2:5, columns]` reads a slice of them. A view of
    a single row has none to pick from.
    """
    return any(
        not (isinstance(item, (int, np.integer, slice)) or dims.isdisjoint(about))
        for item, about in _by_dimension(expression, ndim)
    )


def item_at(expression: Any, dim: int, ndim: int) -> Any:
    """Returns what an index says of one of `ndim` dimensions: a full slice where that is nothing.

    Its items may be tensors.
    """
    about = _by_dimension(expression, ndim)
    return next((item for item, dims in about if dim in dims), slice(None))


def _by_dimension(expression: Any, ndim: int) -> Iterator[tuple[Any, range]]:
    """Yields the items of an index, each with those of `ndim` dimensions that it is about."""
    items = expression if isinstance(expression, tuple) else (expression,)
    widths = [_dims_of(item) for item in items]
    at = 0
    for item, width in zip(items, widths, strict=True):
        if item is Ellipsis:
            at += ndim - sum(widths)
        else:
            yield item, range(at, at + width)
            at += width


def _dims_of(item: Any) -> int:
    """Returns how many dimensions of the indexed array one item of the index uses up."""
    if item is None or item is Ellipsis or isinstance(item, (bool, np.bool_)):
        return 0
    if str(getattr(item, "dtype", "")).endswith("bool"):
        return int(item.ndim)
    if isinstance(item, list) and item and isinstance(item[0], bool):
        return 1
    return 1


def along(dim: int, index: Any, ndim: int) -> Any:
    """The elements that `index_select`, `index_copy_` and their kind touch."""
    dim %= max(ndim, 1)
    return (slice(None),) * dim + (np.atleast_1d(index),)


def elementwise(dim: int, index: npt.NDArray[Any]) -> Any:
    """The elements that `gather` and `scatter_` touch: one for each entry of `index`."""
    places = list(np.ogrid[tuple(slice(size) for size in index.shape)])
    if places:
        places[dim % index.ndim] = index
    return tuple(places) if places else (index,)


def along_dim(dim: int, index: npt.NDArray[Any], shape: Sequence[int]) -> Any:
    """The elements that `take_along_dim` touches: `index` broadcasts against the rest."""
    dim %= len(shape)
    rest = [*shape]
    rest[dim] = index.shape[dim]
    return elementwise(dim, np.broadcast_to(index, np.broadcast_shapes(index.shape, tuple(rest))))


def flat(index: npt.NDArray[Any], shape: Sequence[int]) -> Any:
    """The elements that `take` and `put_` touch: the buffer counted through as one line."""
    total = int(np.prod(shape))
    return np.unravel_index(np.where(index < 0, index + total, index), tuple(shape))


def masked(mask: npt.NDArray[np.bool_], shape: Sequence[int]) -> Any:
    """The elements that `masked_select` and `masked_fill_` touch.

    The first broadcasts what it picks from as well: an element may be picked several times.
    """
    wide = np.broadcast_shapes(mask.shape, tuple(shape))
    more = len(wide) - len(shape)
    picked = np.asarray(np.broadcast_to(mask, wide).any(axis=tuple(range(more))))
    repeated = [dim for dim, size in enumerate(shape) if size != wide[more + dim]]
    return picked.any(axis=tuple(repeated), keepdims=True)
