"""Benchmark: the fused gather of the extras against the four it replaces; the guard beside it.

    python -m tests.benchmarks.fused_gather [--device cuda]

Launches: kernels seen by the profiler on an accelerator; on a CPU the operators that the eager
gathers dispatch, and the kernels that the compiler generated. Times: medians of rounds in which
all contestants take turns, so that the ratio is of one run on one machine.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fixtures.engine.device import wait_for_device
from fixtures.engine.gather import compile_gather, gather_single
from fixtures.engine.guard import assert_nonneg_and_invalidate, compile_check
from tests.benchmarks.ratio import Ratio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCHES = (1, 8, 32, 256)
POOL, TOPK, WIDTH = 1024, 8, 256
ROUNDS, CALLS = 30, 50

Gather = Callable[..., Any]
Buffers = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Contestant:
    """A gather, and how many kernels the compiler made for it (None: it was not compiled)."""

    name: str
    gather: Gather
    generated: int | None


def relay(device: torch.device, *, hidden: bool) -> Buffers:
    """Relay buffers: top-k odds and ids, tokens, and hidden states or None."""
    return (
        torch.rand(POOL, TOPK, dtype=torch.float64, device=device),
        torch.randint(0, 1000, (POOL, TOPK), device=device),
        torch.randint(0, 1000, (POOL,), device=device),
        torch.rand(POOL, WIDTH, dtype=torch.float64, device=device) if hidden else None,
    )


def rows_of(batch: int, device: torch.device) -> torch.Tensor:
    """Distinct pool rows, the sink left out."""
    return 1 + torch.randperm(POOL - 1, device=device)[:batch]


def compiled_single(buffers: Buffers) -> Contestant:
    """Four functions, each of one gather, compiled apart."""
    one = torch.compile(lambda buffer, rows: buffer[rows], dynamic=True)

    def gather(rows: torch.Tensor, *buffers: torch.Tensor | None) -> list[torch.Tensor | None]:
        return [None if buffer is None else one(buffer, rows) for buffer in buffers]

    made = sum(buffer is not None for buffer in buffers)
    return Contestant("four compiled", gather, made)


def fused(buffers: Buffers, device: torch.device, *, combined: bool) -> Contestant:
    """One compiled function of four gathers, and the kernels that its generated code calls.

    `combined` as the engine has it; otherwise the compiler makes a kernel per shape if it likes.
    """
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    function: Gather
    if combined:
        function = compile_gather(gather_single, "inductor")
    else:
        function = torch.compile(gather_single, dynamic=True)
    _, codes = run_and_get_code(function, rows_of(5, device), *buffers)
    calls = "\n".join(code[code.index("def call(") :] for code in codes)
    made = len(re.findall(r"cpp_fused\w*\(|\.run\(", calls))
    return Contestant("fused" if combined else "compiled whole", function, made)


def launches(gather: Gather, rows: torch.Tensor, buffers: Buffers) -> int:
    """Kernels launched by one call; on a CPU, operators that gather."""
    device = rows.device
    gather(rows, *buffers)
    wait_for_device(device)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        gather(rows, *buffers)
        wait_for_device(device)
    if device.type == "cuda":
        return sum(event.device_type.name != "CPU" for event in profile.events())
    return sum(event.name == "aten::index" for event in profile.events())


def microseconds(
    contestants: list[Contestant], rows: torch.Tensor, buffers: Buffers
) -> list[float]:
    """Median time of a call of each, host and device together; they take turns."""
    seen: list[list[float]] = [[] for _ in contestants]
    for _ in range(ROUNDS):
        for contestant, times in zip(contestants, seen, strict=True):
            wait_for_device(rows.device)
            start = time.perf_counter()
            for _ in range(CALLS):
                contestant.gather(rows, *buffers)
            wait_for_device(rows.device)
            times.append((time.perf_counter() - start) / CALLS * 1e6)
    return [statistics.median(times) for times in seen]


def same(one: Gather, other: Gather, rows: torch.Tensor, buffers: Buffers) -> bool:
    """Tells whether both gathers return the same."""
    pairs = zip(one(rows, *buffers), other(rows, *buffers), strict=True)
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


def compare_gathers(device: torch.device, *, hidden: bool) -> bool:
    """Prints launches and times; tells whether all gathers return the same."""
    buffers = relay(device, hidden=hidden)
    contestants = [
        Contestant("four single", gather_single, None),
        compiled_single(buffers),
        fused(buffers, device, combined=False),
    ]
    good = True
    try:
        contestants.append(fused(buffers, device, combined=True))
    except Exception as err:  # combined kernels are experimental: say so, and go on without
        print(f"fused: {type(err).__name__}: {str(err).splitlines()[0]}")
        good = False
    print(f"{device}, torch {torch.__version__}, {'with' if hidden else 'no'} hidden states")
    for contestant in contestants:
        good &= same(contestant.gather, gather_single, rows_of(7, device), buffers)
        count = launches(contestant.gather, rows_of(7, device), buffers)
        kernels = "none, eager" if contestant.generated is None else str(contestant.generated)
        what = "operators dispatched" if device.type == "cpu" else "kernels launched"
        print(f"  {contestant.name:14} {what}: {count}, kernels generated: {kernels}")
    for batch in BATCHES:
        times = microseconds(contestants, rows_of(batch, device), buffers)
        reported = ", ".join(
            f"{contestant.name} {took:.1f} us"
            for contestant, took in zip(contestants, times, strict=True)
        )
        print(f"  batch {batch:4}: {reported}; fused / single {times[-1] / times[0]:.2f}")
    return good


def ratios(_: Path) -> Iterator[Ratio]:
    """Yields seconds a call on a CPU: the fused gather against four single ones."""
    device = torch.device("cpu")
    torch.set_num_threads(1)
    buffers = relay(device, hidden=True)
    contestants = [Contestant("", gather_single, None), fused(buffers, device, combined=True)]
    assert same(contestants[1].gather, gather_single, rows_of(7, device), buffers)
    for batch in BATCHES:
        single, ours = microseconds(contestants, rows_of(batch, device), buffers)
        yield Ratio(f"gather of {batch} rows' extras: fused / four", ours / 1e6, single / 1e6)


def compare_guards(device: torch.device) -> None:
    """Prints launches and times of the guard, eager and compiled."""
    buffer = torch.zeros(POOL, dtype=torch.int64, device=device)
    check = assert_nonneg_and_invalidate

    def guarded(check: Gather) -> Gather:
        def call(rows: torch.Tensor) -> None:
            check(torch.ones_like(rows), buffer, rows)

        return call

    compiled = compile_check(check, "inductor")
    contestants = [
        Contestant("eager", guarded(check), None),
        Contestant("compiled", guarded(compiled), None),
    ]
    compiled(rows_of(5, device), buffer, rows_of(5, device))
    print(f"guard, {device}")
    if device.type != "cpu":
        made = launches(lambda rows: torch.ones_like(rows), rows_of(7, device), ())
        for contestant in contestants:
            count = launches(contestant.gather, rows_of(7, device), ()) - made
            print(f"  {contestant.name:14} kernels launched: {count}")
    for batch in BATCHES:
        eager, fast = microseconds(contestants, rows_of(batch, device), ())
        ratio = fast / eager
        print(f"  batch {batch:4}: eager {eager:.1f} us, compiled {fast:.1f} us; ratio {ratio:.2f}")


def main() -> int:
    """Prints the figures; 1 if the gathers differ."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu", type=torch.device)
    device = options.parse_args().device
    torch.set_num_threads(1)
    good = compare_gathers(device, hidden=True)
    good &= compare_gathers(device, hidden=False)
    compare_guards(device)
    print(f"results: {'equal' if good else 'DIFFERENT'}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
