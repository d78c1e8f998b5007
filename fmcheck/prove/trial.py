"""One trial: the linter and the user's tests over a scratch copy, with a fault in it or without."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fmcheck.errors import UsageError
from fmcheck.lint.run.outcome import lint_paths
from fmcheck.lint.scope.request import Request
from fmcheck.prove import probe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmcheck.prove.working_copy import WorkingCopy

_PLUGINS = "-p fmcheck -p fmcheck.prove.probe -p no:cacheprovider"
# The linter's registries are made once in a process, and its work holds Python's lock anyway.
_LINTING = threading.Lock()
_POLL = 0.02
NOTHING_MORE: Mapping[str, str] = {}


class Catch(msgspec.Struct, frozen=True):
    """A test that failed: `codes` of run-time checks, and what the test itself said, or ""."""

    test: str
    codes: tuple[str, ...] = ()
    own: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial showed. `lint` holds the codes of findings that the healthy file has not.

    `outside` are checks that spoke outside of any test, `problems` what the watch could not reach.
    `stopped` says how the tests ended early: `timed out`, or by which signal. `imported` tells
    whether any test imported the file at fault, `tests` how many were run.
    """

    lint: tuple[str, ...] = ()
    failures: tuple[Catch, ...] = ()
    outside: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    stopped: str = ""
    imported: bool = True
    tests: int = 0
    seconds: float = 0.0

    @property
    def checks(self) -> tuple[str, ...]:
        """The run-time checks that spoke."""
        spoken = [code for one in self.failures for code in one.codes]
        return tuple(dict.fromkeys((*spoken, *self.outside)))

    @property
    def own(self) -> tuple[Catch, ...]:
        """The tests that failed by themselves."""
        return tuple(one for one in self.failures if one.own)

    @property
    def caught(self) -> bool:
        """Tells whether anything noticed the fault."""
        return bool(self.lint or self.failures or self.outside or self.problems or self.stopped)


class TrialError(Exception):
    """The tests did not run as they have to: what was run, and what it said."""


@dataclass(frozen=True, slots=True)
class Raw:
    """What a run of the tests left: its exit status, None if it was stopped, and its own words."""

    status: int | None
    results: Sequence[Mapping[str, Any]]
    output: str
    seconds: float

    @property
    def head(self) -> Mapping[str, Any]:
        """What the process that was started told, {} if it did not get to it."""
        return next((one for one in self.results if not one["is_worker"]), {})

    @property
    def modules(self) -> dict[str, str]:
        """The wanted files that any process imported, each as `copy` or `original`."""
        found: dict[str, str] = {}
        for one in self.results:
            for file, place in one["modules"].items():
                if found.get(file) != "original":
                    found[file] = place
        return found


@dataclass(slots=True)
class Suite:
    """The user's tests: a command, run in the copy of the current folder under fmcheck."""

    command: tuple[str, ...]
    import_roots: Sequence[Path]
    wanted: Sequence[Path]
    options: str = ""
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    stopped: bool = False

    def run(
        self,
        scratch: WorkingCopy,
        timeout: float | None,
        chosen: Sequence[str] | None = None,
        more: Mapping[str, str] = NOTHING_MORE,
        has_fault: bool = False,
    ) -> Raw:
        """Runs the tests over a copy, all or those `chosen`, with `more` variables.

        Past `timeout` seconds they are killed, with all that they have started.
        """
        with tempfile.TemporaryDirectory(dir=scratch.folder, prefix="results-") as folder:
            wanted = [(str(scratch.at(one)), str(one)) for one in self.wanted]
            Path(folder, probe.WANTED).write_text(json.dumps(wanted), encoding="utf-8")
            if chosen is not None:
                Path(folder, probe.CHOSEN).write_text(json.dumps(list(chosen)), encoding="utf-8")
            environment = scratch.environment(self.import_roots, os.environ)
            given = environment.get("PYTEST_ADDOPTS", "")
            # A fault may be that nothing is checked any more: that alone is no test that noticed.
            lenient = "--fmcheck-allow-unchecked" if has_fault else ""
            options = " ".join(filter(None, (given, _PLUGINS, self.options, lenient)))
            environment |= {probe.VARIABLE: folder, "PYTEST_ADDOPTS": options, **more}
            start = time.monotonic()
            with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
                status = self._wait(scratch, environment, said, timeout)
                said.seek(0)
                output = said.read()
            results = [json.loads(one.read_text()) for one in Path(folder).glob(probe.RESULTS)]
            return Raw(status, results, output, time.monotonic() - start)

    def stop(self) -> None:
        """Kills what runs, and lets nothing start."""
        self.stopped = True
        for one in list(self.running):
            _kill_group(one)

    def _wait(
        self, scratch: WorkingCopy, environment: Mapping[str, str], said: Any, timeout: float | None
    ) -> int | None:
        command = [_executable(self.command[0]), *map(scratch.argument, self.command[1:])]
        try:
            process = subprocess.Popen(
                command,
                cwd=scratch.at(Path.cwd()),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        except OSError as err:
            raise UsageError(command[0], f"cannot be run: {err.strerror or err}") from err
        self.running.add(process)
        try:
            if self.stopped:
                _kill_group(process)
            done = _ends_within(process, timeout)
        finally:  # an interrupt leaves nothing running either
            _kill_group(process)
            status = process.wait()
            self.running.discard(process)
        return status if done else None


def lint(scratch: WorkingCopy, file: Path, config: Path | None) -> Counter[str]:
    """Returns the codes that the linter gives the copy of a file, notes left out."""
    with _LINTING:
        outcome = lint_paths(
            Request((scratch.at(file),), config=config, progress=False, jobs=1, cache=None)
        )
    return Counter(one.code for one in outcome.findings if one.severity.value != "note")


def result_of(raw: Raw, found: Counter[str], before: Counter[str], file: Path) -> Result:
    """Returns what a run of the tests and the linter's findings come to.

    Raises:
        TrialError: if the tests ran another file than the one at fault.
    """
    if raw.modules.get(str(file)) == "original":
        raise TrialError(f"the tests imported {file} itself and not its copy")
    head = raw.head
    failures = [
        Catch(one["test"], tuple(one["codes"]), one["own"]) for one in head.get("failures", ())
    ]
    if not head and raw.status:
        failures.append(Catch("", (), _ended(raw.status, raw.output)))
    elif head.get("status") and not (failures or head["outside"] or head.get("problems")):
        failures.append(Catch("", (), f"pytest ended with status {head['status']}"))
    return Result(
        lint=tuple((found - before).elements()),
        failures=_once(failures),
        outside=tuple(head.get("outside", ())),
        problems=tuple(head.get("problems", ())),
        stopped="timed out" if raw.status is None else "",
        imported=str(file) in raw.modules or not head,
        tests=head.get("tests", 0),
        seconds=round(raw.seconds, 2),
    )


def _once(failures: Sequence[Catch]) -> tuple[Catch, ...]:
    """Returns one entry a test: its phases are told apart by nobody."""
    found: dict[str, Catch] = {}
    for one in failures:
        known = found.get(one.test)
        if known is not None:
            codes = tuple(dict.fromkeys((*known.codes, *one.codes)))
            one = Catch(one.test, codes, known.own or one.own)
        found[one.test] = one
    return tuple(found.values())


def _ended(status: int, output: str) -> str:
    lines = output.strip().splitlines()
    last = f": {lines[-1][:150]}" if lines else ""
    if status < 0:
        return f"the tests ended by signal {-status}"
    return f"the tests ended with status {status}{last}"


def _executable(name: str) -> str:
    """Returns what to start, told from the user's own folder: an environment is not copied."""
    if os.sep in name:
        return os.path.abspath(name)
    return shutil.which(name) or name


def _ends_within(process: subprocess.Popen[str], timeout: float | None) -> bool:
    """Tells whether a process ends in time, and leaves it unreaped: its group keeps its number."""
    end = None if timeout is None else time.monotonic() + timeout
    options = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while os.waitid(os.P_PID, process.pid, options) is None:
        if end is not None and time.monotonic() > end:
            return False
        time.sleep(_POLL)
    return True


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kills what a process started and left running, and the process itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
