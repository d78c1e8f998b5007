"""Opaque functions: kernels that gather or write relay rows out of Python's sight."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from fmcheck.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.contract import Opaque


def missing_parameters(function: Callable[..., Any], opaque: Opaque) -> list[str]:
    """Returns a sentence for each parameter of the contract that the function lacks."""
    known = inspect.signature(function).parameters
    return [
        f"names the parameter `{name}`, which it lacks{nearest(name, known)}"
        for name in (opaque.rows, *opaque.reads, *opaque.writes)
        if name not in known
    ]


def opaque_call(function: Callable[..., Any], opaque: Opaque) -> Callable[..., Any]:
    """Returns `function`, which tells the relay buffers what it gathers and writes."""
    from fmcheck.runtime import relay_tensor

    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        rows = bound.arguments[opaque.rows]
        reads = [bound.arguments[name] for name in opaque.reads]
        writes = [bound.arguments[name] for name in opaque.writes]
        relay_tensor.before_call(reads, rows, writes)
        result = function(*relay_tensor.plain(args), **relay_tensor.plain(kwargs))
        relay_tensor.after_call(reads, writes, rows)
        return result

    return call
