"""Part: what the watch costs a decode step, captured and eager, beside a guard like SGLang's.

A step gathers the tokens that the last one left, runs layers of a small decoder over them and
stashes the next ones. Medians of rounds in which all take turns, timed by the device's own events.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import torch

from fixtures.engine.guard import assert_nonneg_and_invalidate, compile_check
from tests.gpu.facts import Fact, at_most, exactly, not_shown
from tests.gpu.relay import plain, synchronize, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], object]

BATCH, WIDTH, LAYERS, VOCAB, ROWS = 64, 2048, 16, 32_000, 1024
ROUNDS, STEPS = 31, 5
UNDER_GRAPH, EAGER = 1.02, 1.10


class Decoder:
    """Layers of norm, two products and an activation, and a head: as a decode step is launched."""

    def __init__(self, device: str, width: int, layers: int, vocab: int) -> None:
        kind = torch.bfloat16
        draw = torch.Generator(device=device).manual_seed(0)

        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device=device, dtype=kind, generator=draw) * 0.02

        self.embedding = weight(vocab, width)
        self.layers = [(weight(width, 4 * width), weight(4 * width, width)) for _ in range(layers)]
        self.head = weight(width, vocab)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding[tokens]
        for up, down in self.layers:
            inner = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype)
            x = x + torch.nn.functional.silu(inner @ up) @ down
        return (x @ self.head).argmax(-1)


def run(
    device: str,
    sizes: tuple[int, int, int] = (WIDTH, LAYERS, VOCAB),
    rounds: int = ROUNDS,
    backend: str = "inductor",
) -> Iterator[Fact]:
    """Times eager steps, then captured ones."""
    if not device.startswith("cuda"):
        yield not_shown("times of a step", f"{device} has no events that time what it runs")
        return
    model = Decoder(device, *sizes)
    guard = compile_check(assert_nonneg_and_invalidate, backend)
    calls = steps(device, model, guard)
    tally = calls.pop("tally")
    for name, wrap, goal in (
        ("eager", _as_it_is, EAGER),
        ("under a graph", _captured, UNDER_GRAPH),
    ):
        timed = {key: wrap(call) for key, call in calls.items()}
        took = medians(timed, device, rounds)
        for key, milliseconds in took.items():
            yield Fact(f"step {name}, {key}", milliseconds * 1000, "us")
        yield at_most(f"step {name}, watched / bare", took["watched"] / took["bare"], goal)
        ratio = took["watched"] / took["compiled guard"]
        yield Fact(f"step {name}, watched / compiled guard", ratio)
    yield exactly("findings", len(tally.drain()), 0)


def steps(device: str, model: Any, guard: Any) -> dict[str, Any]:
    """A step over a bare relay, a watched one, and one with a guard beside; and the tally."""
    rows = torch.arange(1, BATCH + 1, device=device)
    buffers = {name: plain(device, ROWS) for name in ("bare", "compiled guard")}
    buffers["watched"] = watched(device, ROWS)

    def step(name: str) -> Call:
        buffer = buffers[name]
        buffer[rows] = 1

        def call() -> None:
            tokens = buffer[rows]
            if name == "compiled guard":
                guard(tokens, buffer, rows)
            buffer[rows] = model(tokens)

        return call

    made: dict[str, Any] = {name: step(name) for name in ("bare", "watched", "compiled guard")}
    for call in made.values():
        for _ in range(3):
            call()
    synchronize(device)
    return {**made, "tally": buffers["watched"]._relay.tally}


def _as_it_is(call: Call) -> Call:
    return call


def _captured(call: Call) -> Call:
    """Captures a step, warmed up on a side stream as torch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    torch.cuda.synchronize()
    return graph.replay  # type: ignore[no-any-return]


def medians(calls: dict[str, Call], device: str, rounds: int) -> dict[str, float]:
    """The median time of a call of each, in milliseconds; they take turns."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 3):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            synchronize(device)
            begin.record()
            for _ in range(STEPS):
                call()
            end.record()
            end.synchronize()
            if number >= 3:
                seen[name].append(begin.elapsed_time(end) / STEPS)
    return {name: statistics.median(times) for name, times in seen.items()}
