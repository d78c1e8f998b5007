"""Probes: FR201 and FR301 plant their faults in scratch tensors, and must see just these."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import torch

from fmcheck.contract import Axis, Contract, Engine, Fill, GraphInputs
from fmcheck.runtime.fills import FillHold
from fmcheck.runtime.relay_tensor import relay_tensor
from fmcheck.runtime.tally import Tally

_RAW, _PADDED = 2, 4
_FILL = Fill(
    class_="scratch:Runner",
    methods=("fill",),
    inputs="self",
    axis={"rows": Axis(raw="raw", padded="padded", capacity="self.most")},
)


def stale_tail_codes(device: str | torch.device) -> tuple[set[str], set[str]]:
    """Returns what is reported on `device` for a forgotten reset, and for one that is made."""
    return _fill_codes(device, reset=False), _fill_codes(device, reset=True)


def wrong_device_codes(device: str | torch.device) -> tuple[set[str], set[str]]:
    """Returns what is reported on `device` for rows from another device, and for its own."""
    elsewhere = torch.zeros(1, dtype=torch.int64, device="meta")
    own = torch.tensor([1], device=device)
    return _gather_codes(device, elsewhere), _gather_codes(device, own)


def _fill_codes(device: str | torch.device, reset: bool) -> set[str]:
    class Runner:
        most = _PADDED

        def __init__(self) -> None:
            self.rows = torch.full((_PADDED,), 3, device=device)

        def fill(self, raw: int, padded: int) -> None:
            if reset:
                self.rows[raw:padded] = 0
            self.rows[:raw] = 1

    tally = Tally()
    declared = GraphInputs(row_indices=("rows",), fill=(_FILL,))
    held = FillHold(Contract(engine=Engine(name="probe"), graph_inputs=declared), _FILL, tally)
    scratch: Any = ModuleType("scratch")
    scratch.Runner = Runner
    undo = list(held.take(scratch))
    Runner().fill(_RAW, _PADDED)
    for put_back in undo:
        put_back()
    return {violation.code for violation in tally.drain()}


def _gather_codes(device: str | torch.device, rows: torch.Tensor) -> set[str]:
    tally = Tally()
    buffer = relay_tensor(torch.ones(2, device=device), "scratch", "scratch", tally)
    buffer._relay.adopt_values()
    with contextlib.suppress(RuntimeError, NotImplementedError):  # torch's own word on it
        buffer[rows]
    return {violation.code for violation in tally.drain()}
