"""The watch against bare torch: one stash and gather, and starting pytest."""

from __future__ import annotations

import sys
import timeit
from typing import TYPE_CHECKING

import torch

from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from tests.benchmarks.ratio import Ratio, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = (1, 32, 256, 4096)
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def ratios(scratch: Path) -> Iterator[Ratio]:
    """Yields seconds a pair on one thread, then whole-process CPU seconds."""
    torch.set_num_threads(1)
    for size in SIZES:
        yield _pair(size)
    test = scratch / "test_nothing.py"
    test.write_text("def test_nothing():\n    pass\n")
    yield Ratio(
        "pytest of one empty test: -p fmcheck / -p no:fmcheck",
        cpu_seconds([*PYTEST, "-p", "fmcheck", str(test)], runs=5),
        cpu_seconds([*PYTEST, "-p", "no:fmcheck", str(test)], runs=5),
    )


def _pair(size: int) -> Ratio:
    rows = torch.randperm(size) + 1
    values = torch.arange(size)
    bare = torch.zeros(size + 1, dtype=torch.int64)
    tally = Tally()
    watched = relay_tensor(bare.clone(), "Map.buf", "engine:Map", tally, (">=", 0))
    watched._relay.lay_poison()
    ratio = Ratio(
        f"stash and gather of {size} rows on CPU: watched / bare",
        _seconds(watched, rows, values),
        _seconds(bare, rows, values),
    )
    # A watch that saw nothing, or that accused healthy code, would measure nothing.
    assert tally.gathers > 1000, tally
    assert not tally.drain()
    return ratio


def _seconds(buf: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> float:
    def pair() -> None:
        buf[rows] = values
        buf[rows]

    return min(timeit.repeat(pair, number=1000, repeat=7)) / 1000
