"""Part: the engine of `fixtures/` on the device's streams and graphs: equal tokens, no finding."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fixtures.engine.workload import differing, random_asks
from fixtures.engine.workload import run as serve
from fmcheck.runtime.session.watch import Watch
from tests.gpu.facts import Fact, exactly, seconds_left
from tests.stream_modes import CONTRACT, REQUESTS, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MODES = ("off", "tracked", "delayed", "random")
WORKLOADS = 24
SECONDS = 60.0


def run(device: str, workloads: int = WORKLOADS) -> Iterator[Fact]:
    """Each stream mode over the engine's modes in turn, as many workloads as time allows."""
    _healthy(MODES[0], 0, torch.device(device))  # compiles the kernels
    for number, mode in enumerate(MODES):
        until = time.monotonic() + seconds_left(SECONDS) / (len(MODES) - number)
        found: list[str] = []
        done = wrong = 0
        for workload in range(workloads):
            if done and time.monotonic() > until:
                break
            codes, different = _healthy(mode, workload, torch.device(device))
            found += codes
            wrong += different
            done += 1
        least = min(4, workloads)
        what = f"streams {mode}: "
        yield Fact(f"{what}workloads", done, "", f"at least {least}", done >= least)
        yield exactly(f"{what}answers that differ from the plain loop's", wrong, 0)
        yield exactly(f"{what}findings", " ".join(sorted(set(found))) or "none", "none")


def _healthy(mode: str, number: int, device: torch.device) -> tuple[list[str], int]:
    settings = replace(settings_of(number), device=device)
    asks = random_asks(number, REQUESTS, prompt=10, new=10)
    right = serve(settings, asks, overlap=False)
    watch = Watch([CONTRACT], streams=mode, seed=number)
    watch.start()
    try:
        served = serve(settings, asks, overlap=True)
        codes = [one.code for one in watch.drain()]
        dead = list(watch.tally.dead)
    finally:
        watch.stop()
    assert not dead, dead
    return codes, len(differing(right, served))
