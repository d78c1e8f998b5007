"""Starting Python and pytest: with the start-up file, with the plugin, and without either.

`python -m tests.benchmarks.startup`
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.ratio import HEADER, Ratio
from tests.reach.project import make

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RUNS = 60


def ratios(scratch: Path) -> Iterator[Ratio]:
    """Yields medians of whole-process CPU seconds, of runs that took turns."""
    with_file, without = (make(_folder(scratch, name), name == "with") for name in ("with", "out"))
    nothing = ("-c", "pass")
    yield _ratio(
        "python -c pass: start-up file installed, no run on / no start-up file",
        (with_file.python, *nothing),
        (without.python, *nothing),
        RUNS,
    )
    test = scratch / "test_nothing.py"
    test.write_text("def test_nothing():\n    pass\n")
    quiet = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(test))
    yield _ratio(
        "pytest of one empty test, no engine imported: -p fmcheck / without",
        (with_file.python, *quiet, "-p", "fmcheck"),
        (with_file.python, *quiet),
        RUNS // 4,
    )


def _folder(scratch: Path, name: str) -> Path:
    folder = scratch / name
    folder.mkdir()
    return folder


def _ratio(name: str, ours: Sequence[str], other: Sequence[str], runs: int) -> Ratio:
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for command, seconds in zip((ours, other), taken, strict=True):
            seconds.append(_cpu_seconds(command))
    return Ratio(name, statistics.median(taken[0]), statistics.median(taken[1]))


def _cpu_seconds(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Prints the table."""
    print(HEADER)
    with tempfile.TemporaryDirectory() as scratch:
        for ratio in ratios(Path(scratch)):
            print(ratio, flush=True)


if __name__ == "__main__":
    sys.exit(main())
