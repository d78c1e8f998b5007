"""The run-time half of the museum: each historic fault runs, and a check has to speak.

A case that a run can show has `bad_run.py` and `good_run.py` beside its `case.toml`. Each is run by
its function `run`, as the module `museum_case`, under a watch that follows streams, with the
contract that the case names. In `bad_run.py` a trailing `# expect: FR102` marks each line that a
finding is about, and `# against: FR401` the access on another stream that it is held against.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import fmcheck
from tests.museum import expectations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from fmcheck.finding import Access, Violation
    from tests.museum import Case

MODULE = "museum_case"
_AGAINST = re.compile(r"#\s*against:\s*([A-Z]+\d+)")


@dataclass(frozen=True)
class Run:
    """What the checks said of one form of a case.

    `problems` are what the watch itself complained of: a contract that does not fit, a dead
    detector. `stopped` is the error that ended the run, as a fault may. `printed` is the program's.
    """

    path: Path
    violations: tuple[Violation, ...]
    problems: tuple[str, ...]
    stopped: Exception | None = None
    printed: str = ""

    @cached_property
    def found(self) -> list[tuple[int, str]]:
        """The (line, code) pairs of this run, sorted; line 0 for what is about another file."""
        return sorted((self._line(one.access), one.code) for one in self.violations)

    @cached_property
    def against(self) -> set[tuple[int, str]]:
        """The (line, code) pairs of the accesses that the findings are held against."""
        return {
            (self._line(other), one.code)
            for one in self.violations
            for other in (one.last_write, one.last_read)
            if other is not None
        }

    def _line(self, access: Access) -> int:
        return access.site.line if access.site.path == str(self.path) else 0


def others(source: str) -> set[tuple[int, str]]:
    """Returns the (line, code) pairs that the `# against:` comments of a source ask for."""
    return {
        (number, marked[1])
        for number, line in enumerate(source.splitlines(), 1)
        for marked in [_AGAINST.search(line)]
        if marked
    }


@cache
def run(case: Case, form: str) -> Run:
    """Runs one form of a case, `bad` or `good`, under a watch of its own."""
    return run_file(case.folder / f"{form}_run.py", case.folder / case.file.watch)


def run_file(path: Path, contract: Path, uninitialized: bool = False) -> Run:
    """Runs a program's function `run` under a watch of its own."""
    watch = fmcheck.watch([contract], mode="warn", uninitialized=uninitialized)
    with _loaded(path) as module, warnings.catch_warnings():
        warnings.simplefilter("ignore", fmcheck.FmcheckWarning)
        with contextlib.redirect_stdout(io.StringIO()) as printed, watch:
            stopped = _stopped(module)
    problems = (*watch.dead, *watch.coverage().problems)
    return Run(path, watch.violations, problems, stopped, printed.getvalue())


def is_caught(case: Case) -> bool:
    """Tells whether a bad form is reported just where it says, and the good one is not."""
    source = (case.folder / "bad_run.py").read_text(encoding="utf-8")
    expected = expectations(source)
    bad, good = run(case, "bad"), run(case, "good")
    return (
        bool(expected)
        and bad.found == expected
        and others(source) <= bad.against
        and not good.found
        and good.stopped is None
        and not (*bad.problems, *good.problems)
    )


def _stopped(module: ModuleType) -> Exception | None:
    """Runs a case; returns the error that ended it."""
    try:
        module.run()
    except Exception as err:
        return err
    return None


@contextlib.contextmanager
def _loaded(path: Path) -> Iterator[ModuleType]:
    spec: Any = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[MODULE]
