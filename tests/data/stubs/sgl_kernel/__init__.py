"""Stands in for the CPU kernels of sgl-kernel, of which no registry carries a build.

What an engine run on a CPU without AMX calls is done in plain torch; any other name is a function
that raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def assign_req_to_token_pool_cpu(
    rows: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Writes cache slots into the mapping: of each row, the columns from start to end."""
    taken = 0
    spans = zip(rows.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in spans:
        part = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = part.to(req_to_token.dtype)
        taken += end - start


def copy_all_layer_kv_cache_cpu(*args: Any, **kwargs: Any) -> None:
    """Moves nothing: with one draft a step, only the warm-up calls it."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"sgl_kernel has no {name} here")

    return missing
