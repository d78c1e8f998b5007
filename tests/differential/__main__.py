"""Runs many random programs: `python -m tests.differential --programs 20000 --seed 1`."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings

from tests.differential import BATCH, MODES, Tally, compare


def main() -> int:
    """Returns 1 if a program went as it must not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="the first program's seed")
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    whole, began = Tally(), time.monotonic()
    for first in range(options.seed, options.seed + options.programs, BATCH):
        last = min(first + BATCH, options.seed + options.programs)
        one = compare(range(first, last), options.modes.split(","))
        whole.programs += one.programs
        whole.steps += one.steps
        whole.fenced += one.fenced
        whole.codes += one.codes
        whole.differing += one.differing
        whole.failures += one.failures
        for failure in one.failures:
            print(failure[:400], flush=True)
        done = f"{whole.programs} programs, {time.monotonic() - began:.0f} s"
        print(done, file=sys.stderr, flush=True)
    reported = {**vars(whole), "failures": len(whole.failures)}
    print(json.dumps(reported, indent=1))
    return 1 if whole.failures else 0


if __name__ == "__main__":
    sys.exit(main())
