"""Two costs measured side by side in one run: a ratio outlives the machine, a time does not."""

from __future__ import annotations

import os
import resource
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Ratio:
    """What ours cost and what the other did, in seconds."""

    name: str
    ours: float
    other: float

    def __str__(self) -> str:
        return f"{self.ours / self.other:8.2f}  {self.ours:12.6f}  {self.other:12.6f}  {self.name}"


HEADER = f"{'ratio':>8}  {'ours, s':>12}  {'other, s':>12}  what"


def cpu_seconds(command: Sequence[str], runs: int) -> float:
    """Returns the least user and system seconds that a command and its children took."""
    return min(_once(command) for _ in range(runs))


def environment() -> dict[str, str]:
    """Returns the environment of what is measured: bytecode is kept, as in an installation."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def _once(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # A linter that found something exits with 1; a command that broke must not count as fast.
    assert done.returncode in (0, 1), f"{command}: {done.stderr}"
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
