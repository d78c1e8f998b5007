"""Part: what the watch keeps on the device beside a buffer, a row."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from tests.gpu.facts import Fact, not_shown
from tests.gpu.relay import followed_streams, synchronize, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL, LARGE = 1 << 16, 1 << 20


def run(device: str) -> Iterator[Fact]:
    """Bytes a row: of a large buffer less a small one, so that what each has once is not in it."""
    if not device.startswith("cuda"):
        yield not_shown("memory beside the buffers", f"torch does not say what {device} allocates")
        return
    for streams in (False, True):
        with followed_streams() if streams else nullcontext() as watch:
            watched(device, 64, 0, watch)  # rings and compiled kernels are a session's
            taken = []
            for rows in (SMALL, LARGE):
                gc.collect()
                synchronize(device)
                before = torch.cuda.memory_allocated()
                kept = watched(device, rows, 0, watch)
                synchronize(device)
                taken.append(torch.cuda.memory_allocated() - before - rows * 8)
                del kept
            reported = "memory beside a buffer" + (", streams followed" if streams else "")
            yield Fact(reported, (taken[1] - taken[0]) / (LARGE - SMALL), "bytes a row")
            yield Fact(f"{reported} of {SMALL} rows", taken[0], "bytes")
