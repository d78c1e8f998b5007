"""Spoils the relay in SGLang's scheduler process, as a plugin of SGLang's own.

`SPOIL` names the fault, `SPOIL_WHEN` a file: once it is there, the next decoding step is spoilt,
and the file is removed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MODULE = "sglang.srt.managers.overlap_utils"
Original = Callable[..., Any]


def register() -> None:
    """Registers the hook of the fault that is asked for; SGLang calls it in each process."""
    name = os.environ.get("SPOIL")
    if name is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target, hook = FAULTS[name]
    HookRegistry.register(f"{MODULE}.{target}", hook, HookType.AROUND)


def due() -> bool:
    """Tells, once, that it is time."""
    try:
        Path(os.environ["SPOIL_WHEN"]).unlink()
    except FileNotFoundError:
        return False
    return True


def dropped(original: Original, *args: Any, **kwargs: Any) -> Any:
    """The call is left out."""
    return None if due() else original(*args, **kwargs)


def dropped_row(original: Original, relay: Any, rows: torch.Tensor, payload: Any) -> Any:
    """The first row of the batch is left out."""
    if len(rows) and due():
        return original(relay, rows[1:], _rest(payload))
    return original(relay, rows, payload)


def wrong_row(original: Original, relay: Any, rows: torch.Tensor, payload: Any) -> Any:
    """The first row's values go to the sink."""
    if len(rows) and due():
        rows = rows.clone()
        rows[0] = 0
    return original(relay, rows, payload)


SEEN: dict[int, None] = {}


def row_of_another(original: Original, relay: Any, rows: torch.Tensor, payload: Any) -> Any:
    """The first row's values go to the row of a request that is not in the batch any more."""
    here = rows.tolist()
    others = [row for row in SEEN if row not in here]
    SEEN.update(dict.fromkeys(here))
    if here and others and due():
        rows = rows.clone()
        rows[0] = others[0]
    return original(relay, rows, payload)


def gathered_again(original: Original, batch: Any, relay: Any) -> Any:
    """The inputs are gathered twice; the second time is thrown away."""
    decodes = batch.prefill_input_ids_cpu is None and batch.input_ids is None
    original(batch, relay)
    if decodes and due():
        taken, batch.input_ids = batch.input_ids, None
        original(batch, relay)
        batch.input_ids = taken


def _rest(payload: Any) -> Any:
    if isinstance(payload, torch.Tensor):
        return payload[1:]
    parts = {field.name: getattr(payload, field.name) for field in dataclasses.fields(payload)}
    tensors = {name: part for name, part in parts.items() if isinstance(part, torch.Tensor)}
    return dataclasses.replace(payload, **{name: part[1:] for name, part in tensors.items()})


FAULTS = {
    "dropped_stash": ("FutureMap.stash", dropped),
    "dropped_row": ("FutureMap.stash", dropped_row),
    "wrong_row": ("FutureMap.stash", wrong_row),
    "row_of_another": ("FutureMap.stash", row_of_another),
    "gathered_again": ("resolve_forward_inputs", gathered_again),
    "dropped_publish": ("FutureMap.publish", dropped),
}
