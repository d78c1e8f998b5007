"""Paths: where in a call of an engine's function its rows and their owners stand.

A path is `return` or a parameter, then attributes, with `[]` for each item of a sequence:
`return`, `req.kv.req_pool_idx`, `reqs[].rid`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

RETURN = "return"


def root_of(path: str) -> str:
    """Returns the name that a path starts from."""
    return path.partition(".")[0].removesuffix("[]")


def follow(path: str, names: Mapping[str, Any]) -> list[Any]:
    """Returns what a path leads to, from parameters and `return` by name; None leads nowhere.

    Raises:
        AttributeError: if something on the way lacks the attribute.
    """
    found = [names[root_of(path)]]
    for number, part in enumerate(path.split(".")):
        if number:
            name = part.removesuffix("[]")
            found = [getattr(value, name) for value in found if value is not None]
        if part.endswith("[]"):
            found = [item for value in found if value is not None for item in value]
    return [value for value in found if value is not None]


def as_rows(found: list[Any]) -> npt.NDArray[np.int64]:
    """Returns the numbers in what a path led to: integers, sequences of them, arrays, tensors."""
    parts = [np.asarray(_on_host(value), np.int64).reshape(-1) for value in found]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if hasattr(value, "detach") else value
