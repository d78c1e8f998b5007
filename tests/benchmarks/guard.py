"""Benchmark: what a watched stash and gather costs beside a guard of the engine's own.

    python -m tests.benchmarks.guard

Per size, in microseconds on one thread: the bare pair; what the watch adds to it, ledger, owners,
poison and report included; and the guard alone, which asserts and invalidates: the fixture
engine's, eager and compiled, and SGLang's own where an environment with it stands (it is not made
here: `python -m tests.sglang_env`). Medians of rounds in which all take turns, so that a
ratio is of one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fixtures.engine.guard import assert_nonneg_and_invalidate, compile_check
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay.owners import Owners
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from tests.benchmarks.ratio import Ratio
from tests.corpus import cache_folder
from tests.sglang_env import environment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], object]
    Guard = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]

SIZES = (1, 32, 256, 4096)
RELEASE = "0.5.23"
ROUNDS = 41


def guards() -> dict[str, Guard]:
    """The guards that can be had here, compiled ones warm."""
    found: dict[str, Guard] = {
        "eager guard": assert_nonneg_and_invalidate,
        "compiled guard": compile_check(assert_nonneg_and_invalidate, "inductor"),
    }
    try:
        from sglang.srt.managers.overlap_utils import _assert_nonneg_and_invalidate
    except ImportError:
        return found
    return {**found, f"sglang {RELEASE}": _assert_nonneg_and_invalidate}


def pair(buffer: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> Call:
    """A stash and a gather."""

    def call() -> None:
        buffer[rows] = values
        buffer[rows]

    return call


def guarded(guard: Guard, size: int) -> Call:
    """A guard's call alone, as it is made after a gather."""
    buffer = torch.zeros(size + 1, dtype=torch.int64)
    rows, values = torch.randperm(size) + 1, torch.arange(size)
    return lambda: guard(values, buffer, rows)


def watched(size: int, tally: Tally) -> torch.Tensor:
    """A watched buffer, each row of which has an owner."""
    owners = Owners()
    owners.hand_out(range(1, size + 1), [f"request {row}" for row in range(1, size + 1)])
    plain = torch.zeros(size + 1, dtype=torch.int64)
    made = relay_tensor(plain, "Map.buf", "engine:Map", tally, (">=", 0), (0,), owners)
    made._relay.lay_poison()
    return made


def microseconds(calls: dict[str, Call], size: int) -> dict[str, float]:
    """The median time of a call of each; they take turns."""
    number = 300 if size < 1000 else 100
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(number):
                call()
            seen[name].append((time.perf_counter() - start) / number * 1e6)
    return {name: statistics.median(times) for name, times in seen.items()}


def measure(size: int, known: dict[str, Guard]) -> dict[str, float]:
    """Times at one size: `bare`, `ours` (what the watch adds to it), and each guard alone."""
    rows, values = torch.randperm(size) + 1, torch.arange(size)
    tally = Tally()
    calls = {
        "bare": pair(torch.zeros(size + 1, dtype=torch.int64), rows, values),
        "ours": pair(watched(size, tally), rows, values),
        **{name: guarded(guard, size) for name, guard in known.items()},
    }
    for call in calls.values():
        call()
    times = microseconds(calls, size)
    # A watch that saw nothing, or that accused healthy code, would measure nothing.
    assert tally.gathers > 1000, tally
    assert not tally.drain()
    return {**times, "ours": times["ours"] - times["bare"]}


def show(as_json: bool = False) -> None:
    """Prints the table, a line as soon as it is measured."""
    torch.set_num_threads(1)
    known = guards()
    if not as_json:
        print(f"torch {torch.__version__}, one thread; microseconds; ratios: ours / guard")
    for size in SIZES:
        times = measure(size, known)
        if as_json:
            print(json.dumps([size, times]), flush=True)
            continue
        reported = ", ".join(f"{name} {took:.1f}" for name, took in times.items())
        ratios = ", ".join(f"{name} {times['ours'] / times[name]:.2f}" for name in known)
        print(f"{size:5} rows: {reported}; ratios: {ratios}", flush=True)


def ratios(_: Path) -> Iterator[Ratio]:
    """Yields what the watch adds to a stash and gather, beside each guard alone."""
    for line in _run("--json", capture=True).splitlines():
        size, times = json.loads(line)
        for name in times.keys() - {"bare", "ours"}:
            what = f"stash and gather of {size} rows, what the watch adds / {name}"
            yield Ratio(what, times["ours"] / 1e6, times[name] / 1e6)


def sglang_python() -> Path | None:
    """Returns the python of the environment for SGLang if it stands already, else None."""
    python = cache_folder() / "env" / "sglang" / "bin" / "python"
    return python if python.exists() else None


def _run(*options: str, capture: bool = False) -> str:
    """Runs this module, within SGLang's environment where there is one; returns its output.

    Raises:
        RuntimeError: if it failed.
    """
    python = sglang_python()
    environment = environment_of(RELEASE) if python else None
    done = subprocess.run(
        [str(python or sys.executable), "-m", "tests.benchmarks.guard", "--here", *options],
        env=environment,
        cwd=Path(__file__).parent.parent.parent,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the guards could not be measured: exit status {done.returncode}")
    return done.stdout or ""


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--here", action="store_true", help="do not look for SGLang")
    options.add_argument("--json", action="store_true", help="a line of JSON a size")
    asked = options.parse_args()
    if asked.here:
        show(asked.json)
    else:
        _run(*(["--json"] if asked.json else []))


if __name__ == "__main__":
    main()
