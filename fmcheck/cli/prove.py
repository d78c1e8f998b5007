"""`fmcheck prove`: its options, its output, its exit status."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fmcheck.cli import at_least_one, given_path
from fmcheck.errors import UsageError
from fmcheck.report.printable import printable
from fmcheck.report_files import check_writable, write_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.prove.operators.mutant import Mutant
    from fmcheck.prove.run import ProveRequest
    from fmcheck.prove.trial import Result

PROVED, BELOW = 0, 1
#: In a pipe, progress takes about so many lines.
MOST_LINES = 20

EPILOG = """\
example:
  fmcheck prove my_engine -- pytest tests/test_relay.py

  Your tree is not touched: the current folder and the folders that PATH is imported from are
  copied, and the tests run in the copy. Each mutant concerns something that the contract
  names: a relay buffer, a graph input, a stream's fence, a device.

exit status:
  0    the score is at least --min-score
  1    it is below
  2    could not try: bad input, or tests that fail, or produce findings,
       on unmodified code
  130  interrupted; with --resume, what was tried until then is kept
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `prove`."""
    prove = commands.add_parser(
        "prove",
        help="inject bugs into a copy of an engine and report which are detected",
        usage="fmcheck prove [OPTION]... PATH... -- COMMAND...",
        allow_abbrev=False,
        description=(
            "Injects bugs (mutants) into a copy of an engine, one at a time, lints it, runs its "
            "tests under fmcheck, and reports which mutants were detected, by what, and which "
            "survived."
        ),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prove.add_argument(
        "paths", nargs="+", type=given_path, metavar="PATH", help="a file or folder of the engine"
    )
    which = prove.add_argument_group("which mutants")
    which.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="OPERATOR",
        help="only mutants of this kind (repeatable)",
    )
    which.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="not in these files: a pattern as in .gitignore, from this folder",
    )
    which.add_argument("--limit", type=at_least_one, metavar="N", help="at most N mutants")
    which.add_argument(
        "--seed", type=int, metavar="N", help="choose them at random instead of the first N"
    )
    which.add_argument("--known", type=given_path, metavar="FILE", help="known survivors (TOML)")
    which.add_argument("--list", action="store_true", help="dry run: list planned mutants")
    how = prove.add_argument_group("how")
    how.add_argument(
        *("-j", "--jobs"),
        type=at_least_one,
        metavar="N",
        help="trials side by side (default: all cores)",
    )
    how.add_argument(
        "--timeout",
        type=_factor,
        default=10.0,
        metavar="FACTOR",
        help=(
            "a trial that takes over FACTOR times the baseline's time plus 30 s counts as "
            "hanging, and the mutant as caught (default: 10)"
        ),
    )
    how.add_argument(
        "--resume", type=given_path, metavar="FILE", help="save progress in FILE and resume from it"
    )
    how.add_argument(
        "--root",
        action="append",
        default=[],
        type=given_path,
        metavar="DIR",
        help="copy DIR "
        "(repeatable; default: the current folder, and those that PATH is imported from)",
    )
    how.add_argument(
        "--all-tests",
        action="store_true",
        help=(
            "run all tests for each mutant, not only those that execute its line: for engines "
            "whose code runs in child processes"
        ),
    )
    how.add_argument(
        "--quick",
        action="store_true",
        help="stop testing a mutant once it is detected",
    )
    how.add_argument(
        "--config", type=given_path, metavar="FILE", help="settings file for contracts and linter"
    )
    out = prove.add_argument_group("what it says")
    out.add_argument(
        "--json", type=given_path, metavar="FILE", help="write the outcome to FILE too"
    )
    out.add_argument("--verbose", action="store_true", help="list caught mutants as well")
    out.add_argument(
        "--min-score",
        type=_percent,
        default=100.0,
        metavar="PERCENT",
        help=(
            "fail if the percentage of caught mutants is below this, known survivors aside "
            "(default: 100)"
        ),
    )
    prove.set_defaults(run=run, options=_options(prove))


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    if find_spec("pytest") is None:  # what listens to a trial is a plugin of it
        raise UsageError("prove", "trials need pytest: pip install 'fmcheck[pytest]'")
    from fmcheck.prove import render
    from fmcheck.prove.mutation_plan import make_plan
    from fmcheck.prove.run import checked, prove

    asked = _asked(arguments)
    if arguments.list:
        plan = make_plan(asked.paths, asked.config, asked.exclude, asked.selection)
        checked(asked, plan)
        print(render.listing(plan.mutants))
        return PROVED
    if not asked.command:
        raise UsageError("prove", "expected `-- COMMAND`, how to run the tests, after the paths")
    if arguments.json is not None:
        # Trials may take hours: what they found is not to be lost at the end.
        check_writable(arguments.json, arguments.json, "--json")
    # As an interrupt does: what runs is ended, and the copies are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = _Progress()
    proof = prove(asked, progress.say, progress.tried)
    progress.clear()
    print(render.text(proof, verbose=arguments.verbose))
    if arguments.json is not None:
        write_file(arguments.json, f"{render.as_json(proof, asked.command)}\n".encode())
    return PROVED if proof.score >= arguments.min_score else BELOW


class _Progress:
    """Progress on standard error: one line that is written over on a terminal, else plain lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._shows = sys.stderr.isatty()
        self._survived = 0
        self._clock = clock
        self._started = clock()

    def say(self, sentence: str) -> None:
        print(f"fmcheck prove: {printable(sentence)}", flush=True)

    def tried(self, done: int, total: int, mutant: Mutant, result: Result) -> None:
        self._survived += not result.caught
        if self._shows:
            verdict = "caught" if result.caught else "survived"
            line = printable(f"[{done}/{total}{self._left(done, total)}] {verdict} {mutant.id}")
            print(f"\r\x1b[K{line[:100]}", end="", file=sys.stderr, flush=True)
        elif done % max(total // MOST_LINES, 1) == 0:
            left = self._left(done, total)
            line = f"{done:,} of {total:,} tried, {self._survived:,} survived{left}"
            print(f"fmcheck prove: {line}", file=sys.stderr, flush=True)

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


def _asked(arguments: argparse.Namespace) -> ProveRequest:
    from fmcheck.prove.mutation_plan import Selection
    from fmcheck.prove.run import ProveRequest

    return ProveRequest(
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


def _factor(text: str) -> float:
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got `{text}`")
    return number


def _percent(text: str) -> float:
    number = _number(text)
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 100, got `{text}`")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got `{text}`") from None


def _options(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    return tuple(name for action in parser._actions for name in action.option_strings)
