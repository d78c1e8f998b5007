"""Opaque functions: kernels that gather or write relay rows out of Python's sight.

Which rows a kernel skips is decided where its arguments are: on a device, no one waits for it.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcheck.errors import nearest
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.rows import array_over
from fmcheck.runtime.relay.indexing import SKIPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fmcheck.contract import Opaque
    from fmcheck.contract.row_conditions import Condition
    from fmcheck.runtime.core.tally import Tally

#: The check that an error of our own is counted for.
CHECK = "relay buffers"
_WATCHED = "__fmcheck_opaque__"


def missing_parameters(function: Callable[..., Any], opaque: Opaque) -> list[str]:
    """Returns a sentence for each parameter of the contract that the function lacks."""
    known = inspect.signature(function).parameters
    named = [opaque.rows, *opaque.reads, *opaque.writes]
    named += [name for one in _conditions(opaque) for name in one.names]
    return [
        f"has no parameter `{name}`{nearest(name, known)}"
        for name in dict.fromkeys(named)
        if name not in known
    ]


def opaque_call(function: Callable[..., Any], opaque: Opaque, tally: Tally) -> Callable[..., Any]:
    """Returns `function`, which tells the relay buffers what it gathers and writes."""
    from fmcheck.runtime.relay import relay_tensor

    signature = inspect.signature(function)
    conditions = _conditions(opaque)
    # Of several declarations of one kernel, the innermost hands it plain tensors.
    handed: Callable[[Any], Any] = relay_tensor.plain
    if hasattr(function, _WATCHED):
        handed = _as_it_is

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        accessed = None
        with contained(tally, CHECK):
            accessed = _given(signature, opaque, conditions, args, kwargs)
            if accessed is not None:
                rows, reads, writes = accessed
                relay_tensor.before_call(reads, rows, writes)
        result = function(*handed(args), **handed(kwargs))
        if accessed is not None:
            rows, reads, writes = accessed
            with contained(tally, CHECK):
                relay_tensor.after_call(reads, writes, rows)
        return result

    setattr(call, _WATCHED, True)
    return call


def _as_it_is(value: Any) -> Any:
    return value


def _conditions(opaque: Opaque) -> list[Condition]:
    if not opaque.rows_where:
        return []
    from fmcheck.contract.row_conditions import condition

    return [condition(text) for text in opaque.rows_where]


def _given(
    signature: inspect.Signature,
    opaque: Opaque,
    conditions: Sequence[Condition],
    args: Any,
    kwargs: Any,
) -> tuple[Any, list[Any], list[Any]] | None:
    """Returns the rows of a call, what it reads and what it writes; None if the call is wrong."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None  # it will say so itself
    bound.apply_defaults()
    names = bound.arguments
    reads, writes = ([names[name] for name in keys] for keys in (opaque.reads, opaque.writes))
    rows = names[opaque.rows]
    if conditions and any(tensor is not None for tensor in (*reads, *writes)):
        rows = _touched(rows, conditions, names)
    return rows, reads, writes


def _touched(rows: Any, conditions: Sequence[Condition], names: Mapping[str, Any]) -> Any:
    """Returns the rows that a kernel does not skip; on a device `SKIPPED` stands for the others."""
    from fmcheck.runtime.core.site import unfollowed
    from fmcheck.runtime.relay import relay_tensor

    def value_of(name: str) -> Any:
        return _as_array(relay_tensor.plain(names[name]))

    with unfollowed():
        rows = _as_array(relay_tensor.plain(rows)).reshape(-1)
        holds = [one.holds(value_of, len(rows)) for one in conditions]
        if isinstance(rows, np.ndarray):
            kept = np.logical_and.reduce([np.broadcast_to(one, rows.shape) for one in holds])
            return torch.from_numpy(rows[kept].astype(np.int64, copy=False))
        rows = rows.long()
        for one in holds:
            rows = torch.where(torch.as_tensor(one, device=rows.device), rows, SKIPPED)
        return rows


def _as_array(value: Any) -> Any:
    """Returns a tensor of the host as NumPy's, and what is on a device as it is."""
    if isinstance(value, torch.Tensor):
        return array_over(value) if value.is_cpu else value
    return np.asarray(value) if isinstance(value, (list, tuple)) else value
