"""Opaque functions: kernels that gather or write relay rows out of Python's sight."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from fmcheck.errors import nearest
from fmcheck.runtime.core.containment import contained

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.contract import Opaque
    from fmcheck.runtime.core.tally import Tally

#: The check that an error of our own is counted for.
CHECK = "relay buffers"


def missing_parameters(function: Callable[..., Any], opaque: Opaque) -> list[str]:
    """Returns a sentence for each parameter of the contract that the function lacks."""
    known = inspect.signature(function).parameters
    return [
        f"names the parameter `{name}`, which it lacks{nearest(name, known)}"
        for name in (opaque.rows, *opaque.reads, *opaque.writes)
        if name not in known
    ]


def opaque_call(function: Callable[..., Any], opaque: Opaque, tally: Tally) -> Callable[..., Any]:
    """Returns `function`, which tells the relay buffers what it gathers and writes."""
    from fmcheck.runtime.relay import relay_tensor

    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        told = None
        with contained(tally, CHECK):
            told = _given(signature, opaque, args, kwargs)
            if told is not None:
                rows, reads, writes = told
                relay_tensor.before_call(reads, rows, writes)
        result = function(*relay_tensor.plain(args), **relay_tensor.plain(kwargs))
        if told is not None:
            rows, reads, writes = told
            with contained(tally, CHECK):
                relay_tensor.after_call(reads, writes, rows)
        return result

    return call


def _given(
    signature: inspect.Signature, opaque: Opaque, args: Any, kwargs: Any
) -> tuple[Any, list[Any], list[Any]] | None:
    """Returns the rows of a call, what it reads and what it writes; None if the call is wrong."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None  # it will say so itself
    bound.apply_defaults()
    names = bound.arguments
    reads, writes = ([names[name] for name in told] for told in (opaque.reads, opaque.writes))
    return names[opaque.rows], reads, writes
