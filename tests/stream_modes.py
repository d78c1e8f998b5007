"""What each way of following streams makes of the fixture engine, healthy and with its races.

`python -m tests.stream_modes races [RUNS]` prints how often each race changes the answers, by mode;
`python -m tests.stream_modes healthy [WORKLOADS]` runs the healthy engine in all modes, and fails
if anything is found or any token differs.
"""

from __future__ import annotations

import functools
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from msgspec import structs

import fixtures.engine
from fixtures.engine.faults import FAULTS, Changes, Proof, fault
from fixtures.engine.settings import Algorithm, Settings
from fixtures.engine.workload import Run, differing, planned_otherwise, random_asks, run
from fmcheck.contract import load_contract
from fmcheck.runtime.session.watch import Watch

CONTRACT = load_contract(Path(fixtures.engine.__file__).parent / "fmcheck.toml")
#: The same, with what a replay writes; following that costs more than most tests here need.
WITH_OUTPUTS = structs.replace(
    CONTRACT,
    graph_inputs=structs.replace(
        CONTRACT.graph_inputs,
        fill=tuple(
            structs.replace(one, outputs=("self.graphs[self.bs].outputs",))
            for one in CONTRACT.graph_inputs.fill
        ),
    ),
)
# A write that comes too soon for a late read is shown by late streams, and not by late writes.
RACES = [
    one.name
    for one in FAULTS.values()
    if one.check == "FR401" and one.changes is not Changes.NO and one.proof is not Proof.LATE
]
SEEDS = 20
REQUESTS = 4


def answers_differ(name: str, mode: str, seed: int, workload: int = 0) -> bool:
    """Tells whether the engine, with a fault, answers otherwise than the healthy plain loop.

    So it does, too, where it planned steps for lengths that were not so, and got away with it.
    """
    settings = FAULTS[name].settings if name else Settings()
    asks = random_asks(workload, REQUESTS)
    right = right_answers(settings, workload)
    watch = Watch([CONTRACT], streams=mode, seed=seed)
    watch.start()
    try:
        with fault(name) if name else nullcontext():
            served = run(settings, asks, overlap=True)
    except (IndexError, RuntimeError, ValueError):
        return True  # what it read was no row, no position
    finally:
        watch.stop()
    return bool(differing(right, served) or planned_otherwise(right, served))


@functools.cache
def right_answers(settings: Settings, workload: int) -> Run:
    """Returns what the plain loop answers."""
    return run(settings, random_asks(workload, REQUESTS), overlap=False)


def settings_of(workload: int) -> Settings:
    """Returns one of the engine's modes, in turn."""
    algorithms = list(Algorithm)
    made = Settings(algorithm=algorithms[workload % 4], pool_rows=4, pages=24, chunk=8, steps=2)
    if workload % 3 == 0 and made.algorithm.speculative:
        made = replace(made, host_pull="direct")
    if workload % 3 == 1:
        made = replace(made, capture_sizes=(2, 4))
    return replace(made, graphs=False) if workload % 3 == 2 else made


def healthy(mode: str, seed: int, workload: int) -> tuple[int, int]:
    """Returns how many findings a healthy workload gives, and how many answers differ."""
    settings = settings_of(workload)
    asks = random_asks(workload, REQUESTS, prompt=10, new=10)
    right = run(settings, asks, overlap=False)
    watch = Watch([CONTRACT], streams=mode, seed=seed)
    watch.start()
    try:
        served = run(settings, asks, overlap=True)
        found = len(watch.drain())
    finally:
        watch.stop()
    return found, len(differing(right, served))


def races(runs: int) -> int:
    """Prints a table; exits with 1 if a race ever goes unseen in mode delayed."""
    print(f"{'race':32}" + "".join(f"{mode:>10}" for mode in ("off", "delayed", "random")))
    missed = 0
    for name in RACES:
        counts = {
            mode: sum(answers_differ(name, mode, seed, seed) for seed in range(runs))
            for mode in ("off", "delayed", "random")
        }
        missed += runs - counts["delayed"]
        print(f"{name:32}" + "".join(f"{count:>10}" for count in counts.values()), flush=True)
    print(f"of {runs} workloads: tokens, or lengths planned with, differ from the healthy engine's")
    return bool(missed)


def all_healthy(workloads: int) -> int:
    """Prints a line a mode; exits with 1 if anything was found or differed.

    Mode random takes its seeds in turn.
    """
    bad = 0
    for mode in ("tracked", "delayed", "random"):
        start = time.perf_counter()
        reported = [healthy(mode, number % SEEDS, number) for number in range(workloads)]
        found, wrong = (sum(column) for column in zip(*reported, strict=True))
        bad += found + wrong
        print(
            f"{mode:8} {len(reported)} workloads: {found} findings, {wrong} answers differ, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
    return bool(bad)


def main() -> int:
    """Runs the part that is asked for."""
    torch.set_num_threads(1)
    part, *rest = sys.argv[1:] or ["races"]
    number = int(rest[0]) if rest else (100 if part == "races" else 500)
    return races(number) if part == "races" else all_healthy(number)


if __name__ == "__main__":
    sys.exit(main())
