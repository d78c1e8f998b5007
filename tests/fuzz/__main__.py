"""`python -m tests.fuzz`: rules and contract loader under random cases; 1 if any crashed."""

from __future__ import annotations

import argparse
import atexit
import sys
import time
from pathlib import Path

from tests.fuzz.campaign import TARGETS, Campaign, again, by_atheris, by_hypothesis


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N")
    parser.add_argument("--engine", choices=("hypothesis", "atheris"), default="hypothesis")
    parser.add_argument("--target", choices=TARGETS, action="append", default=[])
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--crashes", type=Path, default=Path("fuzz-crashes"), metavar="DIR")
    parser.add_argument("--again", type=Path, metavar="FILE", help="try a saved crash")
    asked = parser.parse_args()
    if asked.again is not None:
        target = "contracts" if asked.again.suffix == ".toml" else "rules"
        reported = again(target, asked.again.read_bytes())
        print(reported or "nothing comes of it")
        return 1 if reported else 0
    campaign = Campaign(tuple(asked.target) or TARGETS)
    start = time.process_time()
    atexit.register(lambda: _closing(campaign, start))
    if asked.engine == "atheris":
        return _atheris(campaign, asked)
    by_hypothesis(campaign, asked.seconds, asked.seed, asked.crashes)
    return 1 if campaign.crashes else 0


def _atheris(campaign: Campaign, asked: argparse.Namespace) -> int:
    try:
        import atheris
    except ImportError:
        print("needs atheris, which has wheels for Linux: pip install atheris", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["fmcheck.lint", "fmcheck.rules", "fmcheck.contract"]):
        import fmcheck.lint.run.outcome  # noqa: F401
        from fmcheck.registry import rules

        rules()
    by_atheris(campaign, asked.seconds, asked.seed, asked.crashes)
    return 1 if campaign.crashes else 0


def _closing(campaign: Campaign, start: float) -> None:
    cases = ", ".join(f"{count:,} of {name}" for name, count in sorted(campaign.cases.items()))
    seconds = time.process_time() - start
    print(f"{cases or 'no'} cases in {seconds:.0f} s of CPU: {len(campaign.crashes)} crashes")


if __name__ == "__main__":
    sys.exit(main())
