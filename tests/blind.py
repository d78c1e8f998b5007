"""Blind measurements: programs that no check was written with, measured once under a watch.

Each has a folder with `case.toml`, `watch.toml` and a form or two that run, `bad_run.py` and
`good_run.py`. Its first measurement is the only one that is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from fmcheck.errors import DetectorError
from fmcheck.files.strict import convert, read_toml
from fmcheck.finding import ADVISORY
from tests.museum_runs import run_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fmcheck.finding import Site, Violation
    from tests.museum_runs import Run

ROOT = Path(__file__).resolve().parent.parent
WATCHED = ("fmcheck", "plugin.py")
LIMIT = 300  # seconds for one form
#: What the writer of a program says of it.
Said = TypeVar("Said", bound=msgspec.Struct)


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding: its code, the lines of the program that it names, its own first, and of what.

    It is `advice` where it would fail no run; the first two rounds have no such word.
    """

    code: str
    lines: tuple[int, ...]
    what: str
    advice: bool = False


class Reported(msgspec.Struct, frozen=True):
    """What a watch told of one form; `stopped` is the error that ended the program."""

    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    stopped: str = ""

    @property
    def is_advice(self) -> bool:
        """Tells whether something was reported, and nothing that would fail a run."""
        return bool(self.findings) and all(one.advice for one in self.findings)


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measurement of a program, with the commit of the checks that made it."""

    commit: str
    bad: Reported = Reported()
    good: Reported = Reported()


class Programs(Generic[Said]):
    """A folder of programs, each with a file that says what it is, and the record of them.

    A subclass says what its measurements mean.
    """

    folder: Path
    record: Path
    said: type[Said]
    forms: tuple[str, ...] = ("good",)

    def shown(self, name: str, measured: Measured) -> str:
        """Returns what a program's line says of its measurement."""
        raise NotImplementedError

    def total(self, measured: dict[str, Measured]) -> str:
        """Returns what the measurements are together."""
        raise NotImplementedError

    def python(self, name: str) -> Path:
        """Returns the python that runs a program."""
        return Path(sys.executable)

    def case(self, name: str) -> Said:
        """Reads what a program's writer says of it.

        Raises:
            UsageError: if its file is not as it should be.
        """
        path = self.folder / name / "case.toml"
        return convert(read_toml(path), self.said, str(path))

    def names(self) -> list[str]:
        """Returns the names of all programs."""
        return sorted(one.parent.name for one in self.folder.glob("*/case.toml"))

    def records(self) -> dict[str, Measured]:
        """Reads the first measurements, by program."""
        if not self.record.exists():
            return {}
        return msgspec.json.decode(self.record.read_bytes(), type=dict[str, Measured])

    def here(self, name: str, form: str) -> Reported:
        """Runs one form in this process."""
        folder = self.folder / name
        try:
            run = run_file(folder / f"{form}_run.py", folder / "watch.toml", uninitialized=True)
        except DetectorError as err:  # a detector that fails says so of a program without a fault
            return Reported(stopped=repr(err))
        return kept(run)

    def command(self, more: dict[str, Callable[[str], None]] | None = None) -> None:
        """Runs the command: `measure`, `now`, `table`, and `more`, each for the names given."""
        parser = argparse.ArgumentParser(prog=f"python -m {self._module}")
        parser.add_argument("command", choices=("measure", "now", "table", "one", *(more or ())))
        parser.add_argument("names", nargs="*")
        given = parser.parse_args()
        if given.command == "one":
            print(f"\n{msgspec.json.encode(self.here(*given.names)).decode()}")
        elif more and given.command in more:
            for name in given.names:
                more[given.command](name)
        elif given.command == "measure":
            self._measure(given.names or self.names())
        elif given.command == "now":
            print(self.total(dict(self._run(given.names or self.names(), ""))))
        else:
            known = self.records()
            for name in given.names or known:
                self._tell(name, known[name])
            print(self.total({name: known[name] for name in given.names or known}))

    def _measure(self, wanted: Iterable[str]) -> None:
        known, commit = self.records(), self._commit_of_checks()
        known.update(self._run([name for name in wanted if name not in known], commit))
        text = json.dumps(msgspec.to_builtins(known), indent=1, sort_keys=True)
        self.record.write_text(text + "\n", encoding="utf-8")
        print(self.total(known))

    def _run(self, wanted: Iterable[str], commit: str) -> Iterator[tuple[str, Measured]]:
        """Runs programs, each form in a process of its own, and says of each what came of it."""
        for name in wanted:
            one = Measured(commit, **{form: self.apart(name, form) for form in self.forms})
            self._tell(name, one)
            yield name, one

    def apart(self, name: str, form: str) -> Reported:
        """Runs one form in a process of its own.

        Raises:
            RuntimeError: if that says nothing.
        """
        done = subprocess.run(
            [str(self.python(name)), "-m", self._module, "one", name, form],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        if done.returncode:
            raise RuntimeError(f"{name}, {form}: status {done.returncode}\n{done.stderr}")
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Reported)

    def _tell(self, name: str, one: Measured) -> None:
        print(f"{name:34}{self.shown(name, one)}", flush=True)

    @property
    def _module(self) -> str:
        return f"tests.{self.record.stem}"

    def _commit_of_checks(self) -> str:
        """Returns the commit of the checks and of the programs.

        Raises:
            SystemExit: if they have changes that are not committed.
        """
        changed = _git("status", "--porcelain", "--", *WATCHED, str(self.folder))
        if changed:
            raise SystemExit(f"not committed, so nothing is measured:\n{changed}")
        return _git("rev-parse", "--short=10", "HEAD").strip()


def kept(run: Run) -> Reported:
    """Returns what is kept of a run."""
    findings = tuple(
        Finding(
            one.code,
            tuple(site.line for site in _sites(one) if site.path == str(run.path)),
            ", ".join([one.name, one.buffer, *_elsewhere(run.path, one)]),
            bool(one.confidence) or one.code in ADVISORY,
        )
        for one in run.violations
    )
    return Reported(findings, run.problems, repr(run.stopped) if run.stopped else "")


def alarms(reported: Sequence[Reported]) -> str:
    """Returns how many of these, in which nothing is wrong, were reported."""
    are_reported = [bool(one.findings or one.stopped) for one in reported]
    return (
        f"{sum(are_reported)} of {len(reported)} reported, "
        f"{sum(one.is_advice for one in reported)} of them as advice alone"
    )


def found(form: str, reported: Reported) -> list[str]:
    """Returns a line for each finding and problem of a form."""
    lines = [
        f"{form}: {one.code}{' (advice)' * one.advice} lines {list(one.lines)}: {one.what}"
        for one in reported.findings
    ]
    return lines + [
        f"{form}: problem: {one}" for one in (*reported.problems, reported.stopped) if one
    ]


def _sites(violation: Violation) -> list[Site]:
    return [violation.access.site, *(access.site for _, access in violation.related)]


def _elsewhere(path: Path, violation: Violation) -> list[str]:
    """Returns where accesses outside of the program are: in a library."""
    sites = [one for one in _sites(violation) if one.path != str(path)]
    return [f"{Path(one.path).name}:{one.line}" for one in sites]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
