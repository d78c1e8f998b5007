"""`fmcheck prove`: its options, its output, its exit status."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcheck.cli import at_least_one
from fmcheck.errors import UsageError
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.prove.mutant import Mutant
    from fmcheck.prove.run import Asked
    from fmcheck.prove.trial import Result

PROVED, BELOW = 0, 1
#: In a pipe, progress takes about so many lines.
MOST_LINES = 20

EPILOG = """\
example:
  fmcheck prove my_engine -- pytest tests/test_relay.py

  Nothing of your tree is touched: the current folder is copied, and the folders that PATH is
  imported from, and the tests run in the copy. Each fault is about something that the contract
  names: a relay buffer, a graph input, a stream's fence, a device.

exit status:
  0    the score is at least --min-score
  1    it is below
  2    could not try: bad input, or tests that fail, or that fmcheck has something to say of,
       without any fault
  130  interrupted; with --resume, what was tried until then is kept
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `prove`."""
    prove = commands.add_parser(
        "prove",
        help="plant faults into a copy of an engine, and see who notices",
        usage="fmcheck prove [OPTION]... PATH... -- COMMAND...",
        allow_abbrev=False,
        description="Plants faults into a copy of an engine, one at a time, lints it and runs its "
        "tests under fmcheck, and says which faults were noticed, by what, and which were not.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prove.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="a file or folder of the engine"
    )
    which = prove.add_argument_group("which faults")
    which.add_argument(
        "--only", action="append", default=[], metavar="OPERATOR", help="of this kind (repeatable)"
    )
    which.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="not in these files: a pattern as in .gitignore, from this folder",
    )
    which.add_argument("--limit", type=at_least_one, metavar="N", help="no more than N")
    which.add_argument("--seed", type=int, metavar="N", help="drawn at random, not the first")
    which.add_argument("--known", type=Path, metavar="FILE", help="known survivors (TOML)")
    which.add_argument("--list", action="store_true", help="tell the plan, and try nothing")
    how = prove.add_argument_group("how")
    how.add_argument(
        *("-j", "--jobs"),
        type=at_least_one,
        metavar="N",
        help="trials side by side (default: all cores)",
    )
    how.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="FACTOR",
        help="a trial that takes FACTOR times as long as the healthy tests, and 30 s, hangs, and "
        "the fault is caught (default: 10)",
    )
    how.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep what was tried in FILE, and go on from it"
    )
    how.add_argument(
        "--root",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="copy DIR "
        "(repeatable; default: the current folder, and those that PATH is imported from)",
    )
    how.add_argument(
        "--all-tests",
        action="store_true",
        help="run all tests for each fault, not those alone that run its line: for engines whose "
        "code runs in child processes",
    )
    how.add_argument(
        "--quick",
        action="store_true",
        help="once something has noticed a fault, try nothing else on it",
    )
    how.add_argument("--config", type=Path, metavar="FILE", help="settings for names and linter")
    out = prove.add_argument_group("what it says")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the outcome to FILE too")
    out.add_argument("--verbose", action="store_true", help="tell of what was caught as well")
    out.add_argument(
        "--min-score",
        type=float,
        default=100.0,
        metavar="PERCENT",
        help="fail below this share of faults caught, known survivors aside (default: 100)",
    )
    prove.set_defaults(run=run, options=_options(prove))


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    if find_spec("pytest") is None:  # what listens to a trial is a plugin of it
        raise UsageError("prove", "trials need pytest: pip install 'fmcheck[pytest]'")
    from fmcheck.prove import told
    from fmcheck.prove.plan import make_plan

    asked = _asked(arguments)
    if arguments.list:
        plan = make_plan(asked.paths, asked.config, asked.exclude, asked.selection)
        print(told.listing(plan.mutants))
        return PROVED
    if not asked.command:
        raise UsageError("prove", "expected `-- COMMAND`, how to run the tests, after the paths")
    from fmcheck.prove.run import prove

    # As an interrupt does: what runs is ended, and the copies are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = _Progress()
    proof = prove(asked, progress.tell, progress.tried)
    progress.clear()
    print(told.text(proof, verbose=arguments.verbose))
    if arguments.json is not None:
        _write(arguments.json, told.as_json(proof, asked.command))
    return PROVED if proof.score >= arguments.min_score else BELOW


class _Progress:
    """Progress on standard error: one line that is written over on a terminal, else plain lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._shows = sys.stderr.isatty()
        self._survived = 0
        self._clock = clock
        self._started = clock()

    def tell(self, sentence: str) -> None:
        print(f"fmcheck prove: {printable(sentence)}", flush=True)

    def tried(self, done: int, total: int, mutant: Mutant, result: Result) -> None:
        self._survived += not result.caught
        if self._shows:
            verdict = "caught" if result.caught else "survived"
            line = printable(f"[{done}/{total}{self._left(done, total)}] {verdict} {mutant.id}")
            print(f"\r\x1b[K{line[:100]}", end="", file=sys.stderr, flush=True)
        elif done % max(total // MOST_LINES, 1) == 0:
            left = self._left(done, total)
            told = f"{done:,} of {total:,} tried, {self._survived:,} survived{left}"
            print(f"fmcheck prove: {told}", file=sys.stderr, flush=True)

    def _left(self, done: int, total: int) -> str:
        """Returns an estimate of the time left, by what the trials so far took."""
        seconds = (self._clock() - self._started) / done * (total - done)
        if done == total or seconds < 1:
            return ""
        minutes = round(seconds / 60)
        return f", about {minutes} min left" if minutes > 1 else f", about {seconds:.0f} s left"

    def clear(self) -> None:
        if self._shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _asked(arguments: argparse.Namespace) -> Asked:
    from fmcheck.prove.plan import Selection
    from fmcheck.prove.run import Asked

    return Asked(
        paths=tuple(arguments.paths),
        command=tuple(arguments.after or ()),
        config=arguments.config,
        exclude=tuple(arguments.exclude),
        roots=tuple(arguments.root),
        selection=Selection(tuple(arguments.only), arguments.limit, arguments.seed),
        jobs=arguments.jobs or os.cpu_count() or 1,
        timeout=arguments.timeout,
        state=arguments.resume,
        known=arguments.known,
        all_tests=arguments.all_tests,
        quick=arguments.quick,
    )


def _write(path: Path, text: str) -> None:
    from fmcheck.atomic import replace_file

    try:
        replace_file(path, f"{text}\n".encode())
    except OSError as err:
        raise UsageError(str(path), f"cannot be written: {err.strerror or err}") from err


def _options(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    return tuple(name for action in parser._actions for name in action.option_strings)
