"""Scaling: what one more file, row, stream, event, record or journal costs when there are many.

A ratio of 1 is a cost that is as many times as high as there are things; below it many are cheaper.
"""

from __future__ import annotations

import sys
import time
import timeit
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from fmcheck.record.merging import merge
from fmcheck.record.record_file import encode, read_run
from fmcheck.runtime.core.clocks import Clocks, Shadow
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from tests.benchmarks.ratio import Ratio, cpu_seconds
from tests.made_up import made_up_run
from tests.sources import STRAY_EVENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fmcheck.record.record import Run

FILES = (50, 800)
ROWS = (64, 4096)
STREAMS = (4, 64)
EVENTS = (1_000, 16_000)
RECORDS = (8, 128)


def ratios(scratch: Path) -> Iterator[Ratio]:
    """Yields CPU seconds per thing, with many of them and with few."""
    torch.set_num_threads(1)
    few, many = (_lint(scratch / str(count), count) / count for count in FILES)
    yield Ratio(f"lint, a file with a finding: of {FILES[1]} / of {FILES[0]}", many, few)
    few, many = (_seconds(_pair(count)) / count for count in ROWS)
    yield Ratio(f"watched stash and gather, a row: of {ROWS[1]} / of {ROWS[0]}", many, few)
    few, many = (_seconds(_fences(count, 64)) for count in STREAMS)
    yield Ratio(f"a write, fence and read: {STREAMS[1]} streams / {STREAMS[0]}", many, few)
    few, many = (_seconds(_fences(4, count), 3) / count for count in EVENTS)
    yield Ratio(f"a write, fence and read: of {EVENTS[1]} / of {EVENTS[0]}", many, few)
    few, many = (_seconds(_merging(scratch, count), 3) / count for count in RECORDS)
    yield Ratio(f"report merge, a record: of {RECORDS[1]} / of {RECORDS[0]}", many, few)


def _seconds(call: Callable[[], object], repeat: int = 7) -> float:
    call()
    return min(timeit.repeat(call, number=1, repeat=repeat, timer=time.process_time))


def _lint(folder: Path, files: int) -> float:
    folder.mkdir()
    for number in range(files):
        (folder / f"module_{number}.py").write_text(f"N = {number}\n{STRAY_EVENT}")
    command = (sys.executable, "-m", "fmcheck", "lint", "--no-cache", "-j1", "-q", str(folder))
    return cpu_seconds(command, runs=2)


def _pair(rows: int) -> Callable[[], None]:
    index, values = torch.randperm(rows) + 1, torch.arange(rows)
    tally = Tally()
    buffer = relay_tensor(
        torch.zeros(rows + 1, dtype=torch.int64), "Map.buf", "engine:Map", tally, (">=", 0), (0,)
    )
    buffer._relay.lay_poison()

    def call() -> None:
        for _ in range(50):
            buffer[index] = values
            buffer[index]

    call()
    # A watch that accused healthy code would measure something else.
    assert tally.gathers
    assert not tally.drain()
    return call


def _fences(streams: int, steps: int) -> Callable[[], None]:
    """A row of 32 goes from stream to stream, behind a fence each time."""
    clocks = Clocks()
    lanes = [clocks.add() for _ in range(streams)]
    shadow = Shadow(32, clocks)
    rows = slice(0, 32)

    def call() -> None:
        for step in range(steps):
            writer, reader = lanes[step % streams], lanes[(step + 1) % streams]
            assert not shadow.write(rows, writer, step)
            clocks.acquire(reader, clocks.release(writer))
            assert not shadow.read(rows, reader, step)

    return call


def _merging(folder: Path, count: int) -> Callable[[], Run]:
    files = []
    for number in range(count):
        run = made_up_run(folder)
        own = tuple(replace(one, test=f"test_{number}") for one in run.violations)
        files.append(folder / f"run-{count}-{number}.json")
        files[-1].write_bytes(encode(replace(run, violations=own)))
    return lambda: merge([read_run(file) for file in files])
