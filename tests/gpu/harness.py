"""The harness: each part in a process of its own, with its own time limit; a report as it goes.

A part's process writes its facts to a pipe, a JSON line each, and whatever it prints goes to the
log. After each fact the report is written again, whole or not at all, so that a cut leaves all that
was seen. A part that fails, hangs or is killed is said to have, and the next one begins.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fmcheck.files.atomic import replace_file
from tests.gpu.facts import UNTIL, Fact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.gpu.parts import Part

ROOT = Path(__file__).parent.parent.parent
REACHED, MISSED, COULD_NOT_RUN = 0, 1, 2
#: Seconds that a part must have left to be begun at all.
LEAST = 5.0
_TAIL = 2000


@dataclass
class Outcome:
    """What became of a part. `state`: running, reached, missed, failed, timed out or not run."""

    name: str
    limit: float
    state: str = "running"
    seconds: float = 0.0
    reason: str = ""
    facts: list[Fact] = field(default_factory=list)


@dataclass
class Report:
    """What `gpu.json` holds."""

    device: str
    machine: dict[str, str]
    budget: float
    state: str = "running"
    seconds: float = 0.0
    parts: list[Outcome] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The exit status: whether all parts reached their goals."""
        return REACHED if all(one.state == "reached" for one in self.parts) else MISSED

    def write(self, path: Path) -> None:
        """Writes the report, whole or not at all."""
        text = json.dumps({**asdict(self), "status": self.status}, indent=2)
        replace_file(path, f"{text}\n".encode())


class Harness:
    """Runs parts one after the other within a budget of seconds."""

    def __init__(self, report: Report, output: Path, log: IO[str]) -> None:
        self.report = report
        self.output = output
        self.log = log
        self._start = time.monotonic()

    def run(self, parts: Sequence[Part]) -> int:
        """Runs all parts and returns the exit status, also of a run that is interrupted."""
        outer = signal.signal(signal.SIGTERM, _interrupt)
        try:
            for number, part in enumerate(parts):
                kept = sum(later.least for later in parts[number + 1 :])
                outcome = Outcome(part.name, round(self._limit(part, kept), 1))
                self.report.parts.append(outcome)
                self._one(part, outcome)
            self.report.state = "finished"
        except KeyboardInterrupt:
            self.report.state = "interrupted"
            for one in self.report.parts:
                if one.state == "running":
                    one.state, one.reason = "failed", "interrupted"
            begun = len(self.report.parts)
            self.report.parts += [
                Outcome(part.name, 0, "not run", reason="interrupted") for part in parts[begun:]
            ]
        finally:
            signal.signal(signal.SIGTERM, outer)
            self._keep()
        return self.report.status

    def _limit(self, part: Part, kept: float) -> float:
        """Returns a part's seconds, of which so many are kept for the parts after it."""
        left = self.report.budget - (time.monotonic() - self._start)
        return min(part.seconds, left, max(part.least, left - kept))

    def _one(self, part: Part, outcome: Outcome) -> None:
        self._say(f"\n== {part.name} (at most {outcome.limit:.0f} s)")
        if outcome.limit < LEAST:
            outcome.state, outcome.reason = "not run", "no time was left of the budget"
        else:
            begun = time.monotonic()
            with self._started(part, outcome.limit) as (child, pipe):
                self._follow(child, pipe, outcome, begun + outcome.limit)
            outcome.seconds = round(time.monotonic() - begun, 1)
        self._say(f"== {part.name}: {outcome.state}{': ' * bool(outcome.reason)}{outcome.reason}")
        self._keep()

    @contextlib.contextmanager
    def _started(self, part: Part, limit: float) -> Any:
        """Starts a part's process, in a session of its own so that all of it can be ended."""
        reads, writes = os.pipe()
        command = [sys.executable, "-m", "tests.gpu.harness", part.module, self.report.device]
        child = subprocess.Popen(
            [*command, str(writes)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            pass_fds=[writes],
            start_new_session=True,
            # One that is killed says where it was.
            env={**os.environ, UNTIL: str(time.time() + limit), "PYTHONFAULTHANDLER": "1"},
        )
        os.close(writes)
        try:
            with os.fdopen(reads, "rb", buffering=0) as pipe:
                yield child, pipe
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _follow(
        self, child: subprocess.Popen[bytes], pipe: Any, outcome: Outcome, until: float
    ) -> None:
        """Takes facts as they come, until the process ends or its time is up."""
        kept = b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                left = until - time.monotonic()
                if left <= 0:
                    outcome.state = "timed out"
                    outcome.reason = f"still running after {outcome.limit:.0f} s"
                    return
                if not selector.select(min(left, 1.0)):
                    if child.poll() is not None:
                        break  # a process that it left behind holds the pipe
                    continue
                read = os.read(pipe.fileno(), 1 << 16)
                if not read:
                    break
                *lines, kept = (kept + read).split(b"\n")
                for line in lines:
                    self._take(line, outcome)
        self._judge(child, outcome, kept)

    def _take(self, line: bytes, outcome: Outcome) -> None:
        """Takes a line that should be a fact, or a reason why there are no more."""
        try:
            read = json.loads(line)
            if "failed" in read:
                outcome.reason = str(read["failed"])
                return
            fact = Fact(**read)
        except (ValueError, TypeError):
            outcome.reason = f"not a fact: {line[:200]!r}"
            return
        outcome.facts.append(fact)
        self._say(f"  {fact}")
        self._keep()

    def _judge(self, child: subprocess.Popen[bytes], outcome: Outcome, kept: bytes) -> None:
        try:
            status = child.wait(LEAST)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
            outcome.reason = outcome.reason or "it closed its pipe and did not end"
        missed = [fact.what for fact in outcome.facts if fact.ok is False]
        if status < 0 and not outcome.reason:
            outcome.reason = f"killed by {signal.Signals(-status).name}"
        elif (status or kept) and not outcome.reason:
            outcome.reason = f"exit status {status}"
        if status or kept or outcome.reason:
            outcome.state = "failed"
        elif not outcome.facts:
            outcome.state, outcome.reason = "failed", "it ended without a fact"
        else:
            outcome.state = "missed" if missed else "reached"
            outcome.reason = "; ".join(missed)

    def _say(self, line: str) -> None:
        print(line, flush=True)
        print(line, file=self.log, flush=True)

    def _keep(self) -> None:
        self.report.seconds = round(time.monotonic() - self._start, 1)
        self.report.write(self.output)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def in_child(module: str, device: str, descriptor: int) -> int:
    """Runs a part in this process, writing its facts to a pipe."""
    with os.fdopen(descriptor, "w") as pipe:

        def put(what: dict[str, Any]) -> None:
            pipe.write(json.dumps(what) + "\n")
            pipe.flush()

        try:
            for fact in importlib.import_module(module).run(device):
                put(asdict(fact))
        except Exception as err:
            traceback.print_exc()
            put({"failed": f"{type(err).__name__}: {err}"[:_TAIL]})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(in_child(sys.argv[1], sys.argv[2], int(sys.argv[3])))
