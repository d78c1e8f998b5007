"""Part: what a watched gather and a watched stash launch, and how often the host waits for them.

One launch more than bare, no wait of the host; where streams are followed one launch more again.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from tests.gpu.facts import Fact, at_most, exactly, not_shown
from tests.gpu.relay import followed_streams, launches, plain, synchronize, syncs, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = (8, 256)
WIDTHS = (0, 700)
_ROWS = 1024


def run(device: str) -> Iterator[Fact]:
    """Counts launches and waits with and without streams."""
    for streams in (False, True):
        with followed_streams() if streams else nullcontext() as watch:
            for width in WIDTHS:
                for size in SIZES:
                    yield from _of(device, width, size, streams, watch)


def _of(device: str, width: int, size: int, streams: bool, watch: Any) -> Iterator[Fact]:
    bare, ours = plain(device, _ROWS, width), watched(device, _ROWS, width, watch)
    rows = torch.arange(1, size + 1, device=device)
    values = torch.ones_like(bare[rows])
    reported = f"{size} rows of {width or 1}{', streams followed' if streams else ''}"
    block = getattr(ours._relay, "_block", size)
    for verb, call in (("gather", _gather), ("stash", _stash)):
        for buffer in (bare, ours):  # what is done once is done now
            _stash(buffer, rows, values)()
            _gather(buffer, rows, values)()
            _stash(buffer, rows, values)()
        # More rows than a program takes at once: one launch judges, another one retires.
        goal = 1 + streams + (verb == "gather" and size > block)
        yield from _counted(f"{verb}, {reported}", call, (bare, ours, rows, values), device, goal)
    ours._relay.tally.drain()


def _counted(
    what: str, call: Callable[..., Any], given: tuple[Any, ...], device: str, goal: int
) -> Iterator[Fact]:
    bare, ours, rows, values = given
    counts = []
    for buffer in (bare, ours):
        _stash(buffer, rows, values)()
        synchronize(device)
        counts.append(launches(call(buffer, rows, values), device))
    if counts[0] is None or counts[1] is None:
        yield not_shown(f"launches of a {what}", f"{device} has no profiler of kernels")
        return
    yield at_most(f"launches that the watch adds to a {what}", counts[1] - counts[0], goal)
    waited = syncs(call(ours, rows, values), device)
    yield exactly(f"host syncs of a {what}", "not counted" if waited is None else waited, 0)


def _gather(buffer: Any, rows: Any, values: Any) -> Callable[[], object]:
    return lambda: buffer[rows]


def _stash(buffer: Any, rows: Any, values: Any) -> Callable[[], object]:
    def call() -> None:
        buffer[rows] = values

    return call
