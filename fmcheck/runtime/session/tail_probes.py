"""Scratch runners and buffers in which FR201, FR301 and FR601 are shown their faults."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import torch

from fmcheck.contract import Axis, Contract, Engine, Fill, GraphInputs
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.graphs.fill_patches import FillPatch
from fmcheck.runtime.relay.relay_tensor import relay_tensor

_RAW, _PADDED = 2, 4
_FILL = Fill(
    class_="scratch:Runner",
    methods=("fill",),
    inputs="self",
    axis={"rows": Axis(raw="raw", padded="padded", capacity="self.most")},
)


def fill_codes(
    device: str | torch.device, reset: bool = True, rebind: bool = False, head: int | None = 1
) -> set[str]:
    """Returns what is said of a fill in scratch tensors that resets its tail, or forgets it.

    With `rebind`, it makes a new tensor for what a graph would have captured. `head` is what it
    writes to the real rows, None for nothing.
    """

    class Runner:
        most = _PADDED

        def __init__(self) -> None:
            self.rows = torch.full((_PADDED,), 3, device=device)

        def fill(self, raw: int, padded: int) -> None:
            if rebind:
                self.rows = self.rows.clone()
            if reset:
                self.rows[raw:padded] = 0
            if head is not None:
                self.rows[:raw] = head

    tally = Tally()
    declared = GraphInputs(
        row_indices=("rows",), head={"rows": ">= 0"}, rewritten=("rows",), fill=(_FILL,)
    )
    fill_patch = FillPatch(
        Contract(engine=Engine(name="probe"), graph_inputs=declared), _FILL, tally
    )
    scratch: Any = ModuleType("scratch")
    scratch.Runner = Runner
    undo = list(fill_patch.install(scratch))
    Runner().fill(_RAW, _PADDED)
    for put_back in undo:
        put_back()
    return {violation.code for violation in tally.drain()}


def gather_codes(device: str | torch.device, rows: torch.Tensor) -> set[str]:
    """Returns what is said of a gather by `rows` from a scratch buffer."""
    tally = Tally()
    buffer = relay_tensor(torch.ones(2, device=device), "scratch", "scratch", tally)
    buffer._relay.adopt_values()
    with contextlib.suppress(RuntimeError, NotImplementedError):  # torch's own word on it
        buffer[rows]
    return {violation.code for violation in tally.drain()}
