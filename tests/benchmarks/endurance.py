"""Endurance: what a long run costs a watched buffer, in time and in memory, stretch by stretch.

`python -m tests.benchmarks.endurance` prints a line for each 100,000 stashes and gathers of a
million, in place and rebound each step. As a part of the table, a fifth of that.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime.session.watch import Watch
from tests.benchmarks.ratio import Ratio
from tests.toy import CONTRACT, FutureMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STRETCHES = 10
PAIRS = 100_000
ROWS = torch.arange(1, 9)


def in_place(relay: FutureMap, step: int) -> None:
    """A stash and a gather, as a step makes them."""
    relay.buf[ROWS] = ROWS + step
    relay.buf[ROWS]


def rebound(relay: FutureMap, step: int) -> None:
    """A bind and a gather."""
    relay.late = torch.arange(step, step + 64)
    relay.late[ROWS]


def ratios(_: Path) -> Iterator[Ratio]:
    """Yields seconds and mebibytes of the last stretch over those of the second one."""
    for name, act in (("stash and gather", in_place), ("bind and gather", rebound)):
        reported = [*stretches(act, PAIRS // 5)]
        (early, before), (late, now) = reported[1], reported[-1]
        yield Ratio(f"a {name}: the last of {STRETCHES} stretches / the second", late, early)
        yield Ratio(f"memory of the process then, {name}", now, before)


def stretches(act: Callable[[FutureMap, int], None], pairs: int) -> Iterator[tuple[float, float]]:
    """Yields the CPU seconds of each stretch, and the mebibytes of this process behind it."""
    torch.set_num_threads(1)
    watch = Watch([parse_contract(CONTRACT, "toy.toml")])
    watch.start()
    try:
        relay = FutureMap(torch.zeros(64, dtype=torch.int64))
        for stretch in range(STRETCHES):
            began = time.process_time()
            for step in range(pairs):
                act(relay, stretch * pairs + step)
            yield time.process_time() - began, resident()
        assert not watch.drain()
        assert watch.tally.gathers == STRETCHES * pairs, watch.tally
    finally:
        watch.stop()


def resident() -> float:
    """Returns the mebibytes that this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    for act in (in_place, rebound):
        for number, (seconds, mebibytes) in enumerate(stretches(act, PAIRS), 1):
            done = f"{number * PAIRS:>9,} {act.__name__.replace('_', ' ')}"
            print(f"{done}: {seconds:6.2f} s of CPU, {mebibytes:7.1f} MiB", flush=True)
