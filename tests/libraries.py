"""`python -m tests.libraries`: released code of other libraries, under a watch.

`fixtures/libraries/README.md` has the rule by which they were chosen and driven, blind. `measure`
runs each that has no record yet and writes the record, `now` says what the checks report today,
`table` what they did at first.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from fmcheck.strict import convert, read_toml
from tests.blind import ROOT, Measured, Programs, Told, found, kept
from tests.museum_runs import run_file
from tests.sglang_env import HERE, environment_python

if TYPE_CHECKING:
    from pathlib import Path

    from tests.museum_runs import Run

DRIVES = ROOT / "fixtures" / "libraries"
_BARE = "import runpy, sys; runpy.run_path(sys.argv[1])['run']()"


class Drive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a writer says of a drive: the package, the environment it is in, and what is driven.

    `fault` says what is wrong with the library, as found after the measurement.
    """

    package: str
    environment: str
    source: str
    title: str
    note: str = ""
    fault: str = ""


class Drives(Programs):
    """Programs that use a library, which has to do the same without a watch."""

    def here(self, name: str, form: str) -> Told:
        """Runs a drive bare, in a process of its own, and then watched."""
        path = self.folder / name / "drive.py"
        bare = subprocess.run(
            [sys.executable, "-c", _BARE, str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        run = run_file(path, self.folder / name / "watch.toml")
        one = kept(run)
        return msgspec.structs.replace(one, problems=(*one.problems, *_otherwise(bare.stdout, run)))


def drive(name: str) -> Drive:
    """Reads what is said of a drive.

    Raises:
        UsageError: if its file is not as it should be.
    """
    path = DRIVES / name / "case.toml"
    return convert(read_toml(path), Drive, str(path))


def python(name: str) -> Path:
    """Returns the python of a drive's environment, made if there is none.

    Raises:
        NoEnvironment: if it cannot be made.
    """
    environment = drive(name).environment
    return environment_python(environment, HERE / "data" / "requirements" / f"{environment}.txt")


def _otherwise(bare: str, run: Run) -> list[str]:
    if run.stopped or run.printed == bare:
        return []
    return [f"prints {run.printed!r} watched, {bare!r} bare"]


def _shown(name: str, one: Measured) -> str:
    head = f"{drive(name).package:28}{'reported' if one.good.findings else 'silent'}"
    return "\n    ".join([head, *found("good", one.good)])


def _total(measured: dict[str, Measured]) -> str:
    told = [one.good for one in measured.values()]
    return (
        f"{sum(bool(one.findings) for one in told)} of {len(told)} reported, "
        f"{sum(one.is_advice for one in told)} of them as advice alone; "
        f"{sum(bool(one.problems or one.stopped) for one in told)} fare otherwise or have problems"
    )


PROGRAMS = Drives(
    DRIVES, HERE / "data" / "libraries.json", ("good",), "tests.libraries", _shown, _total, python
)

if __name__ == "__main__":
    PROGRAMS.command()
