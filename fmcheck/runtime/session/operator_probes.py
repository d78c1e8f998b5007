"""Scratch code in which FR501, FR502, FR603 and FR701 are shown their faults."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from fmcheck.contract import Axis, Budget, Contract, Engine, Fill, Launches
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.graphs.fill_patches import FillPatch
from fmcheck.runtime.steps import budgets, step_syncs
from fmcheck.runtime.steps.uninitialized import Uninitialized

_FILL = Fill(
    class_="scratch:Runner",
    methods=("run",),
    settled_by=("replay",),
    inputs="self",
    outputs=("self.out",),
    axis={"rows": Axis(raw="raw", padded="raw", capacity="raw")},
)
_STEP = Budget(functions=("scratch:Loop.step",), syncs=0, launches=2)


def step_codes(device: str, waits: bool, launches: int) -> set[str]:
    """Returns what is said of a step that launches so often, and waits for the device or not."""

    class Loop:
        def step(self, values: torch.Tensor) -> None:
            for _ in range(launches):
                values.add_(1)
            if waits:
                values[0].item()

    tally = Tally(kinds={device})
    contract = Contract(engine=Engine(name="probe"), launches=Launches(budget=(_STEP,)))
    scratch: Any = ModuleType("scratch")
    scratch.Loop = Loop
    undo = [step_syncs.watch_methods(budgets.mode_of_thread)]
    for budget_patch in budgets.budget_patches(budgets.BudgetCounter(tally, contract)):
        undo += budget_patch.install(scratch)
    try:
        Loop().step(torch.zeros(2, device=torch.device(device)))
    finally:
        for put_back in reversed(undo):
            put_back()
    return {violation.code for violation in tally.drain()}


def output_codes(device: str, copies: bool) -> set[str]:
    """Returns what is said of an output that is read after the next replay, or of a copy of it."""

    class Runner:
        def __init__(self) -> None:
            self.out = torch.zeros(2, device=torch.device(device))

        def run(self, raw: int) -> torch.Tensor:
            self.replay()
            return self.out[:raw]

        def replay(self) -> None:
            self.out.add_(1)

    tally = Tally()
    scratch: Any = ModuleType("scratch")
    scratch.Runner = Runner
    undo = list(FillPatch(Contract(engine=Engine(name="probe")), _FILL, tally).install(scratch))
    try:
        runner = Runner()
        kept = runner.run(1)
        kept = kept.clone() if copies else kept
        runner.run(1)
        kept.add(1)
    finally:
        for put_back in reversed(undo):
            put_back()
    return {violation.code for violation in tally.drain()}


def sum_codes(written: int) -> set[str]:
    """Returns what is said of a sum of three elements, of which so many were written."""
    tally = Tally()
    undo = list(Uninitialized(tally).follow())
    try:
        scratch = torch.empty(3, device="cpu")
        scratch[:written] = 1.0
        (scratch * 2).sum().item()
    finally:
        for put_back in reversed(undo):
            put_back()
    return {violation.code for violation in tally.drain()}
