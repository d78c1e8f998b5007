"""Part: a gather and a stash in one captured graph, and its replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tests.gpu.facts import Fact, at_most, exactly, not_shown
from tests.gpu.relay import launches, plain, synchronize, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLAYS = 100


def run(device: str) -> Iterator[Fact]:
    """A step that takes what the last one left and leaves one more, replayed; then a fault."""
    if not hasattr(torch.get_device_module(device), "CUDAGraph"):
        yield not_shown("gather and stash in one graph", f"{device} has no graphs")
        return
    rows = torch.arange(1, 9, device=device)
    bare, ours = plain(device, 64), watched(device, 64)
    made = {}
    for name, buffer in (("bare", bare), ("watched", ours)):
        buffer[rows] = 0
        made[name] = _captured(buffer, rows, steps=True)
    tally = ours._relay.tally
    yield exactly("findings of the capture", len(tally.drain()), 0)
    for _ in range(REPLAYS):
        for graph, _ in made.values():
            graph.replay()
    synchronize(device)
    values = [made[name][1].tolist() for name in ("bare", "watched")]
    yield exactly("values after the replays equal the bare ones", str(values[1]), str(values[0]))
    yield exactly(f"findings of {REPLAYS} healthy replays", len(tally.drain()), 0)
    bare_count, count = (launches(made[name][0].replay, device) for name in ("bare", "watched"))
    if bare_count is None or count is None:
        yield not_shown("launches of a replay", f"{device} has no profiler of kernels")
    else:
        yield at_most("launches that the watch adds to a replay", count - bare_count, 2)
    tally.drain()

    graph, _ = _captured(ours, rows, steps=False)
    tally.drain()
    graph.replay()
    yield exactly("findings of a gather of what the last replay left", _codes(tally), "")
    graph.replay()
    yield exactly("findings of a second gather", _codes(tally), "FR102")


def _captured(buffer: Any, rows: torch.Tensor, steps: bool) -> tuple[Any, torch.Tensor]:
    graph, out = torch.cuda.CUDAGraph(), torch.zeros_like(rows)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out.copy_(buffer[rows])
        if steps:
            buffer[rows] = out + 1
    return graph, out


def _codes(tally: Any) -> str:
    return " ".join(sorted({one.code for one in tally.drain()}))
