"""Runs the drives of `tests/data/drive` on a release of SGLang, with and without fmcheck.

`python -m tests.drives` prints, release by release, what was watched and which planted fault is
reported by fmcheck, and which by SGLang's own guard.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping  # noqa: TC003  # read as a drive is read from a file
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tests.corpus import cache_folder
from tests.sglang_env import (
    HERE,
    RELEASES,
    REPOSITORY,
    NoEnvironment,
    environment_of,
    sglang_python,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DRIVES = HERE / "data" / "drive"
_COUNTS = re.compile(r"^fmcheck: ([\d,]+) buffers?, ([\d,]+) writes?, ([\d,]+) gathers?", re.M)


class Drive(NamedTuple):
    """What one run of tests said, by the names of the tests; `status` is how it ended.

    Of a run that was killed, whose status is negative, there is the output alone.
    """

    failures: Mapping[str, str]
    passed: frozenset[str]
    skipped: frozenset[str]
    output: str
    properties: Mapping[str, Mapping[str, str]]
    status: int
    seconds: float

    @property
    def counts(self) -> tuple[int, int, int]:
        """Buffers, writes and gathers of fmcheck's closing line."""
        found = _COUNTS.search(self.output)
        if found is None:
            return 0, 0, 0
        buffers, writes, gathers = (int(count.replace(",", "")) for count in found.groups())
        return buffers, writes, gathers


@cache
def drive(
    release: str, name: str, in_ci: bool = False, mode: str = "fail", settings: str = ""
) -> Drive:
    """Runs `test_NAME.py` of the drives under a release, with the settings file `settings`.

    What it said is kept beside the releases, and given again while nothing that it depends on has
    changed: not the checkout's code, the drives, nor the Python. `FMCHECK_DRIVES=again` runs it
    all the same.

    Raises:
        NoEnvironment: if the release or its environment cannot be had.
    """
    arguments = ["-p", "fmcheck", f"--fmcheck={mode}", str(DRIVES / f"test_{name}.py")]
    arguments += [f"--fmcheck-config={DRIVES / settings}"] if settings else []
    names = "-".join((name, "ci" if in_ci else "production", mode, *settings.split(".")[:1]))
    kept = cache_folder() / "drives" / checkout_digest() / release / f"{names}.json"
    in_ci_or_not = {"SGLANG_IS_IN_CI": str(in_ci).lower()}
    return kept_drive(
        kept, lambda: under_pytest(arguments, environment_of(release, **in_ci_or_not))
    )


@cache
def checkout_digest() -> str:
    """Returns a digest of all that a drive depends on beside the release: its paths, too."""
    digest = hashlib.sha256(f"{sys.version} {REPOSITORY}".encode())
    named = [REPOSITORY / "plugin.py", REPOSITORY / "constraints.txt"]
    for folder in ("fmcheck", "rules", "tests/data"):
        named += (REPOSITORY / folder).rglob("*")
    for path in sorted(named):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(REPOSITORY)} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def kept_drive(kept: Path, make: Callable[[], Drive]) -> Drive:
    """Returns what a drive said, as it is kept in a file, or made now and kept."""
    if kept.is_file() and os.environ.get("FMCHECK_DRIVES") != "again":
        return msgspec.json.decode(kept.read_bytes(), type=Drive)
    made = make()
    if made.status in (0, 1):  # ran to its end
        kept.parent.mkdir(parents=True, exist_ok=True)
        written = kept.with_suffix(f".{os.getpid()}")
        written.write_bytes(msgspec.json.encode(made))
        written.replace(kept)
    return made


def under_pytest(
    arguments: Sequence[str], environment: Mapping[str, str], python: Path | None = None
) -> Drive:
    """Runs tests with a python, that of SGLang's releases by default, in a folder of their own.

    Raises:
        NoEnvironment: if they could not be run.
    """
    with tempfile.TemporaryDirectory() as scratch:
        junit = Path(scratch) / "junit.xml"
        command = [
            str(python or sglang_python()),
            "-m",
            "pytest",
            *arguments,
            "-p",
            "no:cacheprovider",
        ]
        command += [f"--junitxml={junit}", "-o", "junit_family=xunit1"]
        command += ["--rootdir=/", "-c", "/dev/null"]
        started = time.monotonic()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=scratch, check=False
        )
        seconds = time.monotonic() - started
        output = done.stdout + done.stderr
        if done.returncode < 0:
            return Drive({}, frozenset(), frozenset(), output, {}, done.returncode, seconds)
        if not junit.exists():
            raise NoEnvironment(f"this did not run: {shlex.join(command)}\n{output}")
        cases = ElementTree.parse(junit).findall(".//testcase")
    failures = {
        case.get("name", ""): bad.text or ""
        for case in cases
        for bad in (*case.findall("failure"), *case.findall("error"))
    }
    skipped = frozenset(c.get("name", "") for c in cases if c.find("skipped") is not None)
    names = frozenset(case.get("name", "") for case in cases)
    properties = {
        case.get("name", ""): {
            one.get("name", ""): one.get("value", "") for one in case.findall("properties/property")
        }
        for case in cases
    }
    passed = names - skipped - set(failures)
    return Drive(failures, passed, skipped, output, properties, done.returncode, seconds)


def codes(failure: str) -> list[str]:
    """Returns the codes that a failure's report begins with."""
    return list(dict.fromkeys(re.findall(r"FMCHECK: (\w+) ", failure)))


def main() -> None:
    """Prints the table."""
    for release in RELEASES:
        healthy, planted = drive(release, "healthy"), drive(release, "planted")
        guard = drive(release, "planted", in_ci=True, mode="off")
        show(f"sglang {release}", healthy, planted, guard, "sglang's guard", "speaks")


def show(engine: str, healthy: Drive, planted: Drive, alone: Drive, who: str, does: str) -> None:
    """Prints a release's part of the table; `alone` is without us, where `who` may see a fault."""
    buffers, writes, gathers = healthy.counts
    verdict = "silent" if not healthy.failures else f"NOT SILENT: {sorted(healthy.failures)}"
    print(f"\n{engine}: {len(healthy.passed)} healthy drives, {verdict}")
    print(f"  {buffers} buffers, {writes} writes, {gathers} gathers watched")
    for name in sorted({*planted.failures, *planted.passed}):
        ours = ", ".join(codes(planted.failures.get(name, ""))) or "-"
        theirs = does if name in alone.failures else "-"
        print(f"  {name.removeprefix('test_'):<36} fmcheck: {ours:<14} {who}: {theirs}")


if __name__ == "__main__":
    try:
        main()
    except NoEnvironment as err:
        sys.exit(str(err))
