"""The linter against ruff on a whole released engine: `python -m tests.benchmarks.lint`.

Both run as whole processes and take turns; the ratio is that of the medians. A goal that is not
reached says so, and the command then ends with 1.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests import corpus
from tests.benchmarks.ratio import Ratio, cpu_seconds, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RUNS = 5
RUFF = (sys.executable, "-m", "ruff", "check", "--isolated", "--exit-zero", "-q")
FMCHECK = (sys.executable, "-m", "fmcheck", "lint")
TWO_RULES = ("--select", "F401,F821")
#: A module with nothing to say, and a large one with findings.
SMALL, LARGE = "sglang/version.py", "sglang/srt/managers/scheduler.py"


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds, and the resident memory of the largest one in MB."""

    wall: float
    cpu: float
    memory: float


@dataclass(frozen=True)
class Goal:
    """A figure of ours, what it is measured against (1: itself), and the most it may be."""

    name: str
    ours: float
    other: float
    limit: float

    @property
    def reached(self) -> bool:
        """Tells whether the ratio is at most the limit."""
        return self.ours / self.other <= self.limit

    def __str__(self) -> str:
        ratio = self.ours / self.other
        mark = "reached" if self.reached else "MISSED"
        return (
            f"{ratio:8.2f}  {self.limit:7.2f}  {mark:8}{self.ours:9.3f}  {self.other:9.3f}  "
            f"{self.name}"
        )


HEADER = f"{'ratio':>8}  {'at most':>7}  {'':8}{'ours':>9}  {'other':>9}  what"


def cost(command: Sequence[str], folder: Path, before: Callable[[], None] | None = None) -> Cost:
    """Runs a command in a folder and returns what it took."""
    if before is not None:
        before()
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_environ()
    )
    assert process.stderr is not None
    err = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    process.stderr.close()
    # A linter that found something exits with 1; a command that broke must not count as fast.
    assert process.returncode in (0, 1), f"{command}: {err.decode()}"
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)


def _environ() -> dict[str, str]:
    return {**environment(), "PYTHONPATH": str(Path(__file__).parent.parent.parent)}


def in_turn(
    commands: Sequence[tuple[Sequence[str], Callable[[], None] | None]], folder: Path
) -> list[Cost]:
    """Returns the medians of commands that take turns."""
    seen: list[list[Cost]] = [[] for _ in commands]
    for _ in range(RUNS):
        for (command, before), costs in zip(commands, seen, strict=True):
            costs.append(cost(command, folder, before))
    return [
        Cost(
            statistics.median(one.wall for one in costs),
            statistics.median(one.cpu for one in costs),
            max(one.memory for one in costs),
        )
        for costs in seen
    ]


def goals(scratch: Path) -> Iterator[Goal]:
    """Measures and yields what the linter is to reach."""
    tree = scratch / "sglang"
    shutil.copytree(corpus.wheel_source("sglang", "0.5.23"), tree)
    time.sleep(0.1)  # else the first run would find its files too young to be trusted
    yield from _cold(tree)
    yield from _warm(tree, scratch)
    yield from _single(tree)


def _cold(tree: Path) -> Iterator[Goal]:
    lint = (*FMCHECK, "--no-cache", "-j2", "--format", "json")
    ours, every, ruff = in_turn(
        [
            ((*lint, "."), None),
            ((*lint, "--select", "ALL", "."), None),
            ((*RUFF, "--no-cache", "--output-format", "json", "."), None),
        ],
        tree,
    )
    yield Goal("cold, wall: fmcheck -j2 / ruff --no-cache", ours.wall, ruff.wall, 3.0)
    yield Goal("cold, wall: fmcheck -j2 --select ALL / the same", every.wall, ruff.wall, 4.5)
    yield Goal("cold, memory of the largest process, MB", ours.memory, 1, 100)
    yield Goal("the same with --select ALL", every.memory, 1, 100)


def _warm(tree: Path, scratch: Path) -> Iterator[Goal]:
    ours = (*FMCHECK, "--cache-dir", str(scratch / "cache"), "--format", "json", ".")
    ruff = (*RUFF, *TWO_RULES, "--cache-dir", str(scratch / "ruff"), "--output-format", "json", ".")
    for command in (ours, ruff):
        cost(command, tree)
    warm, other = in_turn([(ours, None), (ruff, None)], tree)
    yield Goal("warm, wall: fmcheck / ruff F401,F821", warm.wall, other.wall, 1.2)
    yield Goal("warm, CPU: fmcheck / ruff F401,F821", warm.cpu, other.cpu, 1.2)
    (fresh,) = in_turn([(ours, lambda: _touch(tree))], tree)
    yield Goal("new times, same content, wall s", fresh.wall, 1, 0.25)


def _touch(tree: Path) -> None:
    """Gives every file and folder new times, as a fresh checkout does."""
    for at, _, names in os.walk(tree):
        for name in names:
            os.utime(os.path.join(at, name))
        os.utime(at)
    time.sleep(0.1)


def _single(tree: Path) -> Iterator[Goal]:
    lint = (*FMCHECK, "--no-cache")
    small, large, bare = in_turn(
        [
            ((*lint, SMALL), None),
            ((*lint, LARGE), None),
            ((sys.executable, "-c", "pass"), None),
        ],
        tree,
    )
    yield Goal("one file with nothing to say, no cache, wall s", small.wall, 1, 0.10)
    yield Goal("the same, CPU: fmcheck / python -c pass", small.cpu, bare.cpu, 6.0)
    yield Goal("one large file with findings, no cache, wall s", large.wall, 1, 0.6)


def ratios(scratch: Path) -> Iterator[Ratio]:
    """Yields what `python -m tests.benchmarks` shows of the linter, whole-process CPU seconds."""
    tree = str(corpus.wheel_source("sglang", "0.5.23"))
    one_file = scratch / "one.py"
    one_file.write_text("x = 1\n")
    fmcheck = (*FMCHECK, "--no-cache")
    yield Ratio(
        "sglang 0.5.23, cold: fmcheck lint / ruff F401,F821",
        cpu_seconds([*fmcheck, "--format", "json", tree], runs=3),
        cpu_seconds([*RUFF, "--no-cache", *TWO_RULES, "--output-format", "json", tree], runs=3),
    )
    yield Ratio(
        "one file of no concern: fmcheck lint / python -c pass",
        cpu_seconds([*fmcheck, str(one_file)], runs=10),
        cpu_seconds([sys.executable, "-c", "pass"], runs=10),
    )
    yield Ratio(
        "python -c 'import fmcheck' / python -c pass",
        cpu_seconds([sys.executable, "-c", "import fmcheck"], runs=20),
        cpu_seconds([sys.executable, "-c", "pass"], runs=20),
    )


def main() -> int:
    """Prints the table; 1 if a goal is missed."""
    print(HEADER)
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for goal in goals(Path(scratch)):
            print(goal, flush=True)
            missed += not goal.reached
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
