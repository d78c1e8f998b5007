"""`python -m tests.benchmarks`: every ratio in one table."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.benchmarks import lint, startup, watch
from tests.benchmarks.ratio import HEADER


def main() -> None:
    """Prints the table, a line as soon as it is measured."""
    print(HEADER)
    with tempfile.TemporaryDirectory() as scratch:
        for suite in (lint, startup, watch):
            for ratio in suite.ratios(Path(scratch)):
                print(ratio, flush=True)


if __name__ == "__main__":
    main()
