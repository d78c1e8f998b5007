"""The linter against ruff on a whole released engine, and what starting it costs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests import corpus
from tests.benchmarks.ratio import Ratio, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUFF = (sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--exit-zero", "-q")
FMCHECK = (sys.executable, "-m", "fmcheck", "lint")


def ratios(scratch: Path) -> Iterator[Ratio]:
    """Yields whole-process CPU seconds, side by side."""
    tree = str(corpus.wheel_source("sglang", "0.5.23"))
    one_file = scratch / "one.py"
    one_file.write_text("x = 1\n")
    yield Ratio(
        "sglang 0.5.23, cold: fmcheck lint / ruff F401,F821",
        cpu_seconds([*FMCHECK, "--format", "json", tree], runs=3),
        cpu_seconds([*RUFF, "--select", "F401,F821", "--output-format", "json", tree], runs=3),
    )
    yield Ratio(
        "one file of no concern: fmcheck lint / python -c pass",
        cpu_seconds([*FMCHECK, str(one_file)], runs=10),
        cpu_seconds([sys.executable, "-c", "pass"], runs=10),
    )
    yield Ratio(
        "python -c 'import fmcheck' / python -c pass",
        cpu_seconds([sys.executable, "-c", "import fmcheck"], runs=20),
        cpu_seconds([sys.executable, "-c", "pass"], runs=20),
    )
