"""By rows: which calls of torch pick whole rows by one index, so that a guard can enter them.

The index stays where it is. What is not told here goes by way of the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcheck.runtime import picks

if TYPE_CHECKING:
    from fmcheck.runtime.buffer import RelayBuffer
    from fmcheck.runtime.guard import GuardedBuffer
    from fmcheck.runtime.picks import Arguments, Options

#: Stands on a device for a row that a kernel skips: no buffer has it, and ours pass over it.
SKIPPED = 1 << 62
# What torch takes for row numbers; of bytes and truth values it makes a mask.
_ROW_NUMBERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


def guard_for(buffer: RelayBuffer, index: Any, whole: bool) -> GuardedBuffer | None:
    """Returns the guard that can enter an access by `index`, None if none can.

    `whole` tells whether the tensor that is indexed shows the whole buffer.
    """
    guard = buffer.guard
    if guard is None or not whole or not isinstance(index, torch.Tensor):
        return None
    return guard if index.dtype in _ROW_NUMBERS else None


def rows_written(buffer: RelayBuffer, expression: Any, whole: bool) -> torch.Tensor | None:
    """Returns the rows that a write of whole rows reaches, None if the host has to find out."""
    if guard_for(buffer, expression, whole) is not None:
        return expression  # type: ignore[no-any-return]
    if not whole or not (expression is ... or isinstance(expression, (slice, int))):
        return None
    every = torch.arange(len(buffer.base), device=buffer.base.device)
    return every[expression].reshape(-1)


def without_skipped(index: Any) -> Any:
    """Returns an index of the host without the rows that a kernel on a device skipped."""
    if type(index) is np.ndarray and index.dtype == np.int64 and index.ndim == 1:
        kept = index != SKIPPED
        return index if kept.all() else index[kept]
    return index


def single_index(name: str, args: Arguments, kwargs: Options) -> Any:
    """Returns the index of a call named `name` that reads whole rows, None of any other call."""
    if name == "index_select" and picks.argument(args, kwargs, 1, "dim") == 0:
        return picks.argument(args, kwargs, 2, "index")
    return None


def written_index(name: str, args: Arguments, kwargs: Options) -> Any:
    """Returns the index of a call named `name` that writes whole rows, None of any other call."""
    if name in ("index_copy_", "index_fill_", "index_add_", "index_reduce_"):
        at_rows = picks.argument(args, kwargs, 1, "dim") == 0
        return picks.argument(args, kwargs, 2, "index") if at_rows else None
    if name == "index_put_":
        indices = picks.argument(args, kwargs, 1, "indices")
        return indices[0] if len(indices) == 1 else None
    return None
