"""Following streams: a step of the fixture engine bare, watched, and watched with its streams.

Beside them a step under two modes of torch that do nothing, one for functions and one for
operators: what any watch costs that sees both in Python.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fixtures.engine
from fixtures.engine.serve import Engine
from fixtures.engine.settings import Algorithm, Settings
from fixtures.engine.workload import random_asks, run_on
from fmcheck.contract import load_contract
from fmcheck.runtime.session.watch import Watch
from tests.benchmarks.ratio import Ratio

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTRACT = load_contract(Path(fixtures.engine.__file__).parent / "fmcheck.toml")
REPEAT = 7


class EmptyFunctionMode(TorchFunctionMode):
    """Sees each call of torch and makes it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class EmptyDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operator and runs it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def ratios(_: Path) -> Iterator[Ratio]:
    """Yields CPU seconds a step of the overlapped loop, of one thread."""
    torch.set_num_threads(1)
    for algorithm in (Algorithm.NONE, Algorithm.EAGLE):
        bare = _seconds(algorithm, None)
        name = f"a step, {algorithm.value}"
        with EmptyDispatchMode(), EmptyFunctionMode():
            empty = _seconds(algorithm, None)
        yield Ratio(f"{name}: two empty modes / bare", empty, bare)
        yield Ratio(f"{name}: watched / bare", _seconds(algorithm, "off"), bare)
        for mode in ("tracked", "delayed"):
            yield Ratio(f"{name}: streams {mode} / bare", _seconds(algorithm, mode), bare)


def _seconds(algorithm: Algorithm, mode: str | None) -> float:
    """Returns the least time of a step; `mode` None leaves the engine alone."""
    watch = None if mode is None else Watch([CONTRACT], streams=mode)
    if watch is not None:
        watch.start()
    try:
        engine = Engine.build(Settings(algorithm=algorithm, pool_rows=4, chunk=12), overlap=True)
        run_on(engine, random_asks(1, 4))
        least = min(_once(engine) for _ in range(REPEAT))
    finally:
        if watch is not None:
            watch.stop()
    # A watch that saw nothing, or that accused healthy code, would measure nothing.
    assert watch is None or (watch.tally.gathers > 50 and not watch.drain())
    return least


def _once(engine: Engine) -> float:
    steps, start = engine.steps, time.process_time()
    run_on(engine, random_asks(2, 8))
    return (time.process_time() - start) / (engine.steps - steps)
