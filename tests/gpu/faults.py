"""Part: faults planted into the engine of `fixtures/`: each that a GPU can show is reported.

A fault may bring the device down, so that each has a process: `python -m tests.gpu.faults NAME`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fixtures.engine.faults import FAULTS, Proof, fault
from fixtures.engine.faults.proof import on, prove
from fixtures.engine.workload import random_asks
from fixtures.engine.workload import run as serve
from fmcheck.runtime.session.probes import PROBES
from fmcheck.runtime.session.watch import Watch
from tests.gpu.facts import Fact, exactly, not_shown, seconds_left
from tests.stream_modes import CONTRACT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parent.parent.parent
SECONDS = 100.0
EACH = 60.0
SEEDS = 5
_MARK = "reported: "
#: What a stale row leads to on a device, where what was consumed is overwritten with poison: an
#: invalid length, or a placeholder in a graph's input.
OF_POISON = {"FR105", "FR202"}
#: Wrong on every device but the one that it names.
RIGHT_ON_CUDA = {"event_of_cuda"}


def shown_on(device: str) -> list[str]:
    """The faults for which a check that works on the device is there, one a check first."""
    kind = torch.device(device).type
    here = {probe.code for probe in PROBES if kind in probe.devices}
    right = RIGHT_ON_CUDA if kind == "cuda" else set()
    able = [one.name for one in FAULTS.values() if one.check in here and one.name not in right]
    first = list({FAULTS[name].check: name for name in reversed(able)}.values())
    return [*reversed(first), *(name for name in able if name not in first)]


def run(
    device: str, names: Sequence[str] | None = None, seconds: float | None = None
) -> Iterator[Fact]:
    """Plants each fault; what time does not reach is said to be missed."""
    until = time.monotonic() + (seconds_left(SECONDS) if seconds is None else seconds)
    names = shown_on(device) if names is None else names
    with ThreadPoolExecutor(max(1, min(12, (os.cpu_count() or 1) - 2))) as several:
        said = several.map(lambda name: _said(name, device, until), names)
        for name, word in zip(names, said, strict=True):
            check = FAULTS[name].check
            if word is None:
                yield not_shown(f"{name}, {check}", "no time was left")
                continue
            codes = word.removeprefix(_MARK).split()
            known = word.startswith(_MARK)
            expected = {check, *FAULTS[name].also}
            if FAULTS[name].family == "A" and torch.device(device).type != "cpu":
                expected |= OF_POISON
            if known and check in codes and set(codes) <= expected:
                yield exactly(name, check, check)
            else:
                yield Fact(name, word, "", f"reported as {check}", False)


def _said(name: str, device: str, until: float) -> str | None:
    left = until - time.monotonic()
    if left < 1:
        return None
    command = [sys.executable, "-m", "tests.gpu.faults", name, device]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=min(left, EACH),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "still running when its time was up"
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if lines:
        return lines[-1]
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return f"the engine stopped, exit status {done.returncode}: {last[:200]}"


def report(name: str, device: str) -> None:
    """Plants a fault into a watched engine on the device, and prints what was reported."""
    planted = on(FAULTS[name], torch.device(device))
    if planted.family == "C":  # what a replay of a device's graph touches is out of sight
        planted = replace(planted, settings=replace(planted.settings, graphs=False))
    watch = Watch([CONTRACT], streams="tracked")
    watch.start()
    try:
        codes: set[str] = set()
        if planted.proof is Proof.STOPS:
            prove(planted)
        else:
            for seed in range(SEEDS):
                try:
                    with fault(name):
                        serve(planted.settings, random_asks(seed, 12), overlap=True)
                except (RuntimeError, IndexError, ValueError) as err:
                    print(f"the engine stopped: {err}", file=sys.stderr)
                    break
                codes |= {one.code for one in watch.drain()}
                if planted.check in codes:
                    break
        codes |= {one.code for one in watch.drain()}
        print(_MARK + " ".join(sorted(codes)), flush=True)
    finally:
        watch.stop()


if __name__ == "__main__":
    report(sys.argv[1], sys.argv[2])
