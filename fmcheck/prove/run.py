"""A run of `fmcheck prove`: the healthy engine first, then one fault at a time, side by side."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError
from fmcheck.lint.source import decode
from fmcheck.prove.known import load_known, reason_for, stale
from fmcheck.prove.mutation_plan import EVERYTHING, Selection, make_plan
from fmcheck.prove.reach import Reach
from fmcheck.prove.state import ProveState, check_state, key_of
from fmcheck.prove.trial import Result, Suite, TrialError, lint, result_of
from fmcheck.prove.working_copy import WorkingCopy, roots_for

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fmcheck.prove.known import KnownSurvivor
    from fmcheck.prove.mutation_plan import MutationPlan
    from fmcheck.prove.operators.mutant import Mutant
    from fmcheck.prove.trial import Raw

#: A hang is told from a slow machine by the healthy run's time, and by no less than this (s).
SHORTEST_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class ProveRequest:
    """What the user asked for.

    `roots` are folders to copy; `timeout` is a multiple of the healthy run's time; `state` the file
    to go on from; `known` the file of known survivors. `all_tests` runs all tests for each fault,
    and not those alone that run the lines at fault; `quick` is content with the first that notices.
    """

    paths: tuple[Path, ...]
    command: tuple[str, ...]
    config: Path | None = None
    exclude: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()
    selection: Selection = EVERYTHING
    jobs: int = 1
    timeout: float = 10.0
    state: Path | None = None
    known: Path | None = None
    all_tests: bool = False
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant. `known` is why it may survive; `unreached` that no test ran it."""

    mutant: Mutant
    result: Result
    known: str = ""
    unreached: bool = False

    @property
    def survived(self) -> bool:
        """Tells whether nothing noticed a fault that something should have."""
        return not self.result.caught and not self.known


@dataclass(frozen=True, slots=True)
class Proof:
    """A run's outcome. `seconds` and `tests` are those of the healthy run, `resumed` counts what an
    earlier run had tried, `stale` are entries of the known file that nothing bears out.
    """

    verdicts: tuple[Verdict, ...]
    tests: int
    seconds: float
    unimported: tuple[str, ...] = ()
    resumed: int = 0
    stale: tuple[KnownSurvivor, ...] = ()

    @property
    def counted(self) -> int:
        """How many faults count: all but known survivors."""
        return sum(bool(one.result.caught or not one.known) for one in self.verdicts)

    @property
    def caught(self) -> int:
        """How many of them something noticed."""
        return sum(one.result.caught for one in self.verdicts)

    @property
    def score(self) -> float:
        """The share of what was caught, in per cent; 100 of nothing."""
        return 100 * self.caught / self.counted if self.counted else 100.0


@dataclass(slots=True)
class _Run:
    asked: ProveRequest
    plan: MutationPlan
    tests: Suite
    folder: Path
    say: Callable[[str], None]
    tried: Callable[[int, int, Mutant, Result], None]
    idle: list[WorkingCopy] = field(default_factory=list)
    made: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    healthy: dict[Path, Counter[str]] = field(default_factory=dict)
    reach: Reach | None = None

    @contextlib.contextmanager
    def scratch(self) -> Iterator[WorkingCopy]:
        """Lends a copy that nobody else uses; a new one is made where there is none."""
        with self.lock:
            copy = self.idle.pop() if self.idle else None
            self.made += copy is None
            number = self.made
        if copy is None:
            roots = roots_for(self.asked.roots, self.plan.files, self.plan.import_roots)
            copy = WorkingCopy(self.folder / f"copy-{number}", roots)
        try:
            yield copy
        finally:
            self.idle.append(copy)

    def baseline(self, scratch: WorkingCopy) -> Raw:
        """Runs the healthy engine's tests, which must pass and be silent."""
        raw = self.tests.run(scratch, None)
        said = raw.output.strip()[-3000:]
        colon = ":" if said else ""
        ran = " ".join(self.asked.command)
        if not raw.head:
            lacks = "No module named 'fmcheck'" in raw.output
            hint = f": its Python has no fmcheck; try `{sys.executable} -m pytest`" if lacks else ""
            raise UsageError(
                ran,
                f"ran no pytest that fmcheck's plugins could listen to (exit status {raw.status})"
                f"{hint}{colon}",
                said,
            )
        if raw.status or raw.head["status"]:
            raise UsageError(
                ran,
                "the tests fail, or produce findings, on unmodified code, so they cannot detect "
                f"mutants (exit status {raw.status}){colon}",
                said,
            )
        if not raw.head["watched"]:
            raise UsageError(ran, "the tests ran without fmcheck's watch: is it switched off?")
        original = [file for file, place in raw.modules.items() if place == "original"]
        if original:
            raise UsageError(
                ran,
                f"the tests imported {original[0]} itself and not its copy: name the folder that "
                "it is imported from with --root, and put no absolute path ahead of PYTHONPATH",
            )
        return raw

    def one(self, mutant: Mutant, timeout: float) -> Result:
        """Plants a mutant, lints it, runs the tests over it, and takes it out again."""
        with self.scratch() as scratch:
            return self.try_in(scratch, mutant, timeout)

    def tests_of(self, mutant: Mutant) -> tuple[str, ...] | None:
        """Returns the tests to run for a mutant, None for all."""
        if self.reach is None:
            return None
        return self.reach.tests_of(Path.cwd() / mutant.file, mutant.lines)

    def try_in(self, scratch: WorkingCopy, mutant: Mutant, timeout: float) -> Result:
        """The same in a copy that was lent."""
        file = Path.cwd() / mutant.file
        chosen = self.tests_of(mutant)
        decoded = decode(file.read_bytes())
        scratch.write(file, decoded.encode(mutant.text))
        try:
            found = lint(scratch, file, self.asked.config)
            new_codes = tuple((found - self.healthy[file]).elements())
            if chosen == () or (new_codes and self.asked.quick):
                return Result(lint=new_codes)
            raw = self.tests.run(scratch, timeout, chosen, has_fault=True)
        finally:
            scratch.write(file, file.read_bytes())
        try:
            return result_of(raw, found, self.healthy[file], file)
        except TrialError as err:
            raise UsageError(mutant.id, str(err)) from None


def checked(asked: ProveRequest, plan: MutationPlan) -> tuple[KnownSurvivor, ...]:
    """Returns the known survivors, once all that a run needs beside its plan was looked at.

    Raises:
        UsageError: if the folders to copy, the known survivors or the state do not fit.
    """
    roots_for(asked.roots, plan.files, plan.import_roots)
    if asked.state is not None:
        check_state(asked.state)
    return load_known(asked.known)


def prove(
    asked: ProveRequest,
    say: Callable[[str], None],
    tried: Callable[[int, int, Mutant, Result], None],
) -> Proof:
    """Tries every mutant of the plan and returns what came of them.

    `say` is given sentences on how the run goes, `tried` each mutant when it has been tried.

    Raises:
        UsageError: if the plan, the copies or the healthy run do not fit.
    """
    plan = make_plan(asked.paths, asked.config, asked.exclude, asked.selection)
    known = checked(asked, plan)
    options = "-x" if asked.quick else ""
    tests = Suite(asked.command, plan.import_roots, plan.files, options)
    with tempfile.TemporaryDirectory(prefix="fmcheck-prove-") as folder:
        run = _Run(asked, plan, tests, Path(folder), say, tried)
        try:
            with run.scratch() as scratch:
                raw, state = _healthy(run, scratch)
            return _prove(run, known, raw, state)
        finally:
            tests.stop()


def _healthy(run: _Run, scratch: WorkingCopy) -> tuple[Raw, ProveState]:
    """Runs tests and linter without a fault, and looks up what an earlier run has tried."""
    asked, plan = run.asked, run.plan
    more = (*map(str, plan.import_roots), str(asked.quick))
    state = ProveState(asked.state, key_of(scratch.folder, asked.command, more))
    raw = run.baseline(scratch)
    run.say(
        f"{_many(len(plan.mutants), 'mutant')} in "
        f"{_many(len({one.file for one in plan.mutants}), 'file')}; "
        f"baseline: {_many(raw.head['tests'], 'test passes', 'tests pass')} with no findings, in "
        f"{raw.seconds:.1f} s"
    )
    for file in plan.files:
        run.healthy[file] = lint(scratch, file, asked.config)
    if not asked.all_tests:
        run.reach = Reach.traced(run.tests, scratch)
        if run.reach is None:
            run.say(
                "the tests do not pass when their lines are traced: all of them run for each mutant"
            )
    return raw, state


def _prove(run: _Run, known: Sequence[KnownSurvivor], raw: Raw, state: ProveState) -> Proof:
    asked, plan = run.asked, run.plan
    unimported = [str(one) for one in plan.files if str(one) not in raw.modules]
    left = [one for one in plan.mutants if one.id not in state.results]
    resumed = len(plan.mutants) - len(left)
    if resumed:
        run.say(f"{resumed} of them were tried in an earlier run ({asked.state})")
    timeout = max(SHORTEST_TIMEOUT, asked.timeout * raw.seconds)
    for done, (mutant, result) in enumerate(_results(run, left, timeout), 1):
        state.put(mutant.id, result)
        run.tried(resumed + done, len(plan.mutants), mutant, result)
    results = {one.id: state.results[one.id] for one in plan.mutants}
    verdicts = tuple(_verdicts(run, results, known))
    survivors = [one.mutant for one in verdicts if not one.result.caught]
    return Proof(
        verdicts,
        raw.head["tests"],
        round(raw.seconds, 2),
        tuple(unimported),
        resumed,
        stale(known, survivors) if asked.selection.is_whole else (),
    )


def _results(
    run: _Run, mutants: Sequence[Mutant], timeout: float
) -> Iterator[tuple[Mutant, Result]]:
    """Yields each mutant with its result as soon as it is there."""
    with ThreadPoolExecutor(max(1, run.asked.jobs)) as workers:
        futures = {workers.submit(run.one, one, timeout): one for one in mutants}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            run.tests.stop()
            raise


def _verdicts(
    run: _Run, results: Mapping[str, Result], known: Sequence[KnownSurvivor]
) -> Iterator[Verdict]:
    for one in run.plan.mutants:
        result = results[one.id]
        reason = "" if result.caught else reason_for(one, known)
        yield Verdict(one, result, reason, run.tests_of(one) == ())


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or f'{one}s'}"
