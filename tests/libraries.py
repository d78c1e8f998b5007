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

from tests.blind import ROOT, Measured, Programs, Reported, alarms, found, kept
from tests.museum_runs import run_file
from tests.sglang_env import HERE, environment_python

if TYPE_CHECKING:
    from pathlib import Path

    from tests.museum_runs import Run

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


class Drives(Programs[Drive]):
    """Programs that use a library, which has to do the same without a watch."""

    folder = ROOT / "fixtures" / "libraries"
    record = HERE / "data" / "libraries.json"
    said = Drive

    def here(self, name: str, form: str) -> Reported:
        """Runs a drive bare, in a process of its own, and then watched."""
        path = self.folder / name / "drive.py"
        bare = subprocess.run(
            [sys.executable, "-c", _BARE, str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        run = run_file(path, self.folder / name / "watch.toml", uninitialized=True)
        one = kept(run)
        return msgspec.structs.replace(one, problems=(*one.problems, *_otherwise(bare.stdout, run)))

    def python(self, name: str) -> Path:
        """Returns the python of a drive's environment, made if there is none.

        Raises:
            NoEnvironment: if it cannot be made.
        """
        environment = self.case(name).environment
        return environment_python(
            environment, HERE / "data" / "requirements" / f"{environment}.txt"
        )

    def shown(self, name: str, measured: Measured) -> str:
        """Returns what was reported of a drive."""
        reported = measured.good
        head = f"{self.case(name).package:28}{'reported' if reported.findings else 'silent'}"
        return "\n    ".join([head, *found("good", reported)])

    def total(self, measured: dict[str, Measured]) -> str:
        """Returns how many were reported, and how many fared otherwise."""
        reported = [one.good for one in measured.values()]
        others = sum(bool(one.problems or one.stopped) for one in reported)
        return f"{alarms(reported)}; {others} fare otherwise or have problems"


def _otherwise(bare: str, run: Run) -> list[str]:
    if run.stopped or run.printed == bare:
        return []
    return [f"prints {run.printed!r} watched, {bare!r} bare"]


PROGRAMS = Drives()

if __name__ == "__main__":
    PROGRAMS.command()
