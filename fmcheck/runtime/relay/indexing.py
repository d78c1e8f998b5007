"""Indexing: which elements a function of torch touches, as an index expression of NumPy.

Each function here takes the call's function, the plain tensor that is picked from, and the call's
arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from fmcheck.runtime.core import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Call: TypeAlias = Callable[..., Any]
    Arguments: TypeAlias = Sequence[Any]
    Options: TypeAlias = Mapping[str, Any]
    Pick: TypeAlias = Callable[[Call, torch.Tensor, Arguments, Options], Any]


def _by_dim(func: Call, tensor: torch.Tensor, args: Arguments, kwargs: Options) -> Any:
    dim, index = argument(args, kwargs, 1, "dim"), argument(args, kwargs, 2, "index")
    return rows.along(dim, host(index), tensor.dim())


def _by_element(func: Call, tensor: torch.Tensor, args: Arguments, kwargs: Options) -> Any:
    dim, index = argument(args, kwargs, 1, "dim"), argument(args, kwargs, 2, "index")
    return rows.elementwise(dim, host(index))


def _by_element_along(func: Call, tensor: torch.Tensor, args: Arguments, kwargs: Options) -> Any:
    index, dim = host(argument(args, kwargs, 1, "indices")), argument(args, kwargs, 2, "dim")
    if dim is None:
        return rows.flat(index.reshape(-1), tensor.shape)
    return rows.along_dim(dim, index, tensor.shape)


def _by_place(func: Call, tensor: torch.Tensor, args: Arguments, kwargs: Options) -> Any:
    return rows.flat(host(argument(args, kwargs, 1, "index")), tensor.shape)


def _by_mask(func: Call, tensor: torch.Tensor, args: Arguments, kwargs: Options) -> Any:
    return rows.masked(host(argument(args, kwargs, 1, "mask")), tensor.shape)


def _by_indices(func: Call, tensor: torch.Tensor, args: Arguments, kwargs: Options) -> Any:
    indices = argument(args, kwargs, 1, "indices")
    return tuple(slice(None) if index is None else host(index) for index in indices)


def _by_subscript(func: Call, tensor: torch.Tensor, args: Arguments, kwargs: Options) -> Any:
    return host(args[1])


def _by_row(func: Call, tensor: torch.Tensor, args: Arguments, kwargs: Options) -> Any:
    position = 0 if func is torch.nn.functional.embedding else 1
    names = ("input", "indices")
    return (host(argument(args, kwargs, position, *names)),)


#: Functions that read what they pick.
READS: dict[str, Pick] = {
    "index_select": _by_dim,
    "gather": _by_element,
    "take": _by_place,
    "take_along_dim": _by_element_along,
    "masked_select": _by_mask,
    "embedding": _by_row,
    "index": _by_indices,
    "_unsafe_index": _by_indices,
}
#: Functions that write what they pick, in place.
WRITES: dict[str, Pick] = {
    "__setitem__": _by_subscript,
    "index_put_": _by_indices,
    "_index_put_impl_": _by_indices,
    "index_copy_": _by_dim,
    "index_fill_": _by_dim,
    "index_add_": _by_dim,
    "index_reduce_": _by_dim,
    "scatter_": _by_element,
    "scatter_add_": _by_element,
    "scatter_reduce_": _by_element,
    "masked_fill_": _by_mask,
    "masked_scatter_": _by_mask,
    "put_": _by_place,
}


def is_pick(name: str) -> bool:
    """Tells whether a function picks elements by an index, to read or to write them."""
    return name == "__getitem__" or name in READS or name in WRITES


def picked_from(name: str, func: Call, args: Arguments, kwargs: Options) -> Any:
    """Returns the tensor that a function named `name` picks from."""
    if name != "embedding":
        return args[0] if args else kwargs.get("input", kwargs.get("self"))
    position = 1 if func is torch.nn.functional.embedding else 0
    return argument(args, kwargs, position, "weight")


def name_of(func: Call) -> str:
    """Returns the function's name, without the overload of an operator of `torch.ops`."""
    return getattr(func, "__name__", "").partition(".")[0]


def argument(args: Arguments, kwargs: Options, position: int, *names: str) -> Any:
    """Returns an argument by its position or by one of its names, None if it was not given."""
    if position < len(args):
        return args[position]
    return next((kwargs[name] for name in names if name in kwargs), None)


def host(index: Any) -> Any:
    """Returns an index expression of torch as one of NumPy."""
    if type(index) is torch.Tensor and index.dtype is torch.int64 and index.is_cpu:
        return rows.array_over(index)  # what nearly every index is
    if isinstance(index, torch.Tensor):
        index = getattr(index, "_plain", index)
        if index.dtype == torch.uint8:  # torch takes bytes for a mask
            index = index.bool()
        is_plain = index.is_cpu and type(index) is torch.Tensor
        return rows.array_over(index) if is_plain else index.detach().cpu().numpy()
    if isinstance(index, tuple):
        return tuple(host(item) for item in index)
    if isinstance(index, (list, range)):
        return np.asarray([host(item) for item in index], dtype=None if len(index) else np.int64)
    return index


#: Stands on a device for a row that a kernel skips: no buffer has it, and ours pass over it.
SKIPPED = 1 << 62
# What torch takes for row numbers; of bytes and truth values it makes a mask.
_ROW_NUMBERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


def are_rows(index: Any) -> bool:
    """Tells whether an index is a tensor of row numbers."""
    return isinstance(index, torch.Tensor) and index.dtype in _ROW_NUMBERS


def leading_lists(index: Any) -> int:
    """Returns how many lists of numbers an index of NumPy's begins with, 0 if others follow.

    `[rows]` and `[rows, :, 2]` have one, `[rows, columns]` two.
    """
    items = index if isinstance(index, tuple) else (index,)
    count = next((at for at, item in enumerate(items) if not _is_list(item)), len(items))
    rest = items[count:]
    return count if all(isinstance(one, (int, slice, type(...))) for one in rest) else 0


def _is_list(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.ndim == 1 and item.dtype.kind in "iu"


def is_capturing() -> bool:
    """Tells whether what CUDA launches now goes into a graph."""
    return torch.cuda.is_current_stream_capturing()


def without_skipped(index: Any) -> Any:
    """Returns an index of the host without the rows that a kernel on a device skipped."""
    if type(index) is np.ndarray and index.dtype == np.int64 and index.ndim == 1:
        kept = index != SKIPPED
        return index if kept.all() else index[kept]
    return index


def single_index(name: str, args: Arguments, kwargs: Options) -> Any:
    """Returns the index of a call named `name` that reads whole rows, None of any other call."""
    if name == "index_select" and argument(args, kwargs, 1, "dim") == 0:
        return argument(args, kwargs, 2, "index")
    return None


def written_values(name: str, args: Arguments, kwargs: Options) -> Any:
    """Returns the values of a call named `name` that writes whole rows, None of any other call."""
    if name == "index_copy_" and argument(args, kwargs, 1, "dim") == 0:
        return argument(args, kwargs, 3, "source", "tensor")
    return argument(args, kwargs, 2, "values") if name == "index_put_" else None


def written_index(name: str, args: Arguments, kwargs: Options) -> Any:
    """Returns the index of a call named `name` that writes whole rows, None of any other call."""
    if name in ("index_copy_", "index_fill_", "index_add_", "index_reduce_"):
        at_rows = argument(args, kwargs, 1, "dim") == 0
        return argument(args, kwargs, 2, "index") if at_rows else None
    if name == "index_put_":
        indices = argument(args, kwargs, 1, "indices")
        return indices[0] if len(indices) == 1 else None
    return None
