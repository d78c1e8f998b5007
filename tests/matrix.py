"""The versions that fmcheck is tried on: Pythons, torches and pytests, each in its own environment.

`python -m tests.matrix` makes an environment for each combination in `.cache/matrix`, runs the
tests of `make quick` there, and removes it again. What they said is kept in `data/matrix.json`,
with the day and the commit, and `docs/matrix.md` is written from it: `--only` tries some again, and
the others stay as they are. Of a combination that never could be had the table says what was
missing.

Each test file is run by a process of its own with a time limit, so that one that crashes or hangs
costs no other. A CPU build of torch is taken where there is one. Else the usual build is, without
the gigabytes of CUDA that it asks for: empty libraries stand in for them, in which no call finds a
device.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.empty_cuda import NoCompilerError, make_libraries

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".cache" / "matrix"
RECORD = ROOT / "tests" / "data" / "matrix.json"
PAGE = ROOT / "docs" / "matrix.md"
NEWEST = "newest"
#: Test files that run at the same time, and seconds after which one of them hangs.
JOBS = 2
LIMIT = 600
#: What the last line of pytest counts of tests, in the order of the page.
OUTCOMES = ("passed", "failed", "error", "xfailed", "xpassed", "skipped")
_SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s", re.M)
_COLLECTED = re.compile(r"^(?:ERROR )?(tests/\S+\.py)(?:: \d+$| - |$)", re.M)


@dataclass(frozen=True)
class Combination:
    """A Python, a torch and a pytest; `newest` for what the package index gives."""

    python: str
    torch: str
    pytest: str

    @property
    def name(self) -> str:
        """Its folder's."""
        return f"py{self.python}-torch{self.torch}-pytest{self.pytest}"


#: Each Python with what is newest; then older torches and the oldest pytest.
COMBINATIONS = (
    *(Combination(python, NEWEST, NEWEST) for python in ("3.10", "3.11", "3.12", "3.13", "3.14")),
    *(Combination("3.11", torch, NEWEST) for torch in ("2.11", "2.12", "2.13", "2.14")),
    Combination("3.11", "2.13", "7.4"),
    Combination("3.10", NEWEST, "7.4"),
)


@dataclass(frozen=True)
class Row:
    """What was tried of a combination: the versions that it came to, and what the tests said."""

    python: str
    torch: str
    pytest: str
    said: str
    #: The day and the commit; "" if it could not be had.
    tried: str = ""
    passed: bool = False


class Unavailable(Exception):  # noqa: N818
    """What a combination needs and cannot be had here."""


def interpreter(python: str) -> str:
    """Returns the path of a Python.

    Raises:
        Unavailable: if there is none on the search path, and none that pyenv made.
    """
    found = shutil.which(f"python{python}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [*([found] if found else []), *map(str, pyenv.glob(f"{python}.*/bin/python"))]
    for each in candidates:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([each, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == python:
            return each
    raise Unavailable(f"no Python {python} here")


def tried(asked: Combination, *, cpu_builds: bool = False) -> Row:
    """Makes the environment of a combination, and runs the tests in it."""
    try:
        python = _environment(asked, cpu_builds=cpu_builds)
    except Unavailable as err:
        return Row(asked.python, asked.torch, asked.pytest, f"not tried: {err}")
    torch, now = _version(python, "torch"), _now()
    found, log = quick_tests(python, _with(KEPT / asked.name / "empty"), with_torch=bool(torch))
    (KEPT / f"{asked.name}.txt").write_text(log, encoding="utf-8")
    said = found.said + ("" if torch else " (what needs no torch)")
    versions = (_version(python, ""), torch or "none", _version(python, "pytest"))
    return Row(*versions, said, now, passed=found.all_passed)


@dataclass
class Results:
    """What test files said, added up."""

    counts: Counter[str] = field(default_factory=Counter)
    #: What is to be looked into, each with its file.
    troubles: list[str] = field(default_factory=list)

    @property
    def all_passed(self) -> bool:
        """Whether there was at least one test, and nothing to look into."""
        return bool(self.counts["passed"]) and not self.troubles

    @property
    def said(self) -> str:
        """The counts, and the files to look into."""
        counts = ", ".join(f"{self.counts[one]:,} {one}" for one in OUTCOMES if self.counts[one])
        return ": ".join(filter(None, (counts, "; ".join(self.troubles))))

    def add(self, file: str, done: Ended) -> None:
        """Adds the run of a file."""
        name = file.removeprefix("tests/").removesuffix(".py")
        found = _SUMMARY.findall(done.output)
        counts = _counts(found[-1] if found else "")
        self.counts.update(counts)
        bad = [f"{counts[one]} {one}" for one in ("failed", "error") if one in counts]
        if bad:
            self.troubles.append(f"{' and '.join(bad)} in `{name}`")
        elif done.status != 0:
            self.troubles.append(f"`{name}` {done.how}")


def _counts(summary: str) -> dict[str, int]:
    """Returns what the last line of pytest counts: `3 passed, 1 warning`."""
    pairs = [part.split() for part in summary.split(", ") if part]
    found = {what.replace("errors", "error"): int(number) for number, what in pairs}
    return {what: found[what] for what in OUTCOMES if what in found}


def quick_tests(
    python: str, environment: dict[str, str], *, with_torch: bool
) -> tuple[Results, str]:
    """Runs the tests of `make quick`, each file in its own process; returns all that was printed.

    Without torch only files are collected that need none.
    """
    chosen = "(pure or torch) and not sweep" if with_torch else "pure and not sweep"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-m", chosen]
    asked = () if with_torch else _pure_files()
    log = (collected := _ended([*command, "--collect-only", "-q", *asked], environment)).output
    results, files = Results(), list(dict.fromkeys(_COLLECTED.findall(log)))
    if collected.status not in (0, 2) or not files:  # a file that cannot be imported makes it 2
        results.troubles.append(f"collecting the tests {collected.how}")

    def run(file: str) -> Ended:
        return _ended([*command, file], environment)

    with ThreadPoolExecutor(JOBS) as pool:
        for file, done in zip(files, pool.map(run, files), strict=True):
            results.add(file, done)
            log += f"--- {file}\n{done.output}"
    return results, log


@dataclass(frozen=True)
class Ended:
    """A process that has ended, or was ended as its time was over."""

    status: int | None
    output: str

    @property
    def how(self) -> str:
        """How it ended, after its name."""
        if self.status is None:
            return f"did not end within {LIMIT} s"
        if self.status < 0:
            return f"crashed ({signal.Signals(-self.status).name})"
        return f"ended with {self.status}"


def _ended(command: Sequence[str], environment: dict[str, str]) -> Ended:
    """Runs a command, and ends what it started with it where its time is over."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(LIMIT)
        if status is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return Ended(status, output.read().decode(errors="replace"))


def _now() -> str:
    """Returns the day and the commit of this checkout; `+` for one with changes."""
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    mine = [f":!{one.relative_to(ROOT)}" for one in (RECORD, PAGE)]
    commit, changes = (
        subprocess.run(["git", *each], cwd=ROOT, capture_output=True, text=True, check=False).stdout
        for each in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--", ".", *mine))
    )
    return f"{day}, `{commit.strip()}{'+' if changes else ''}`" if commit else day


def _environment(asked: Combination, *, cpu_builds: bool) -> str:
    """Returns the python of a combination's environment, made if there is none that is whole."""
    folder = KEPT / asked.name
    python, ready = str(folder / "bin" / "python"), folder / ".ready"
    if ready.is_file():
        return python
    base = interpreter(asked.python)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([base, "-m", "venv", str(folder)], check=True)
    found = _install_torch(python, asked.torch, cpu_builds=cpu_builds)
    if not found and asked.torch != NEWEST:
        build = "CPU build of torch" if cpu_builds else "torch"
        raise Unavailable(f"no {build} {asked.torch} for Python {asked.python}")
    pytest = "pytest" if asked.pytest == NEWEST else f"pytest=={asked.pytest}.*"
    wanted = [
        ".[pytest,completion,server]",
        "setuptools>=77",
        pytest,
        "hypothesis>=6.100",
        "jsonschema>=4.20",
        "pytest-xdist>=3.6",
    ]
    done = _pip(python, *wanted, "pyyaml>=6", "schemastore>=0.2")
    if done.returncode:
        raise Unavailable(f"pip: {done.stderr.strip().splitlines()[-1]}")
    if _version(python, "torch"):
        _install_what_torch_needs(python, folder / "empty")
    ready.touch()
    return python


def _install_torch(python: str, torch: str, *, cpu_builds: bool) -> bool:
    """Installs torch, and nothing that it asks for; tells whether there is one.

    A CPU build of a version is taken where there is one: it is asked for by name, `+cpu`. With
    `cpu_builds` no other is, as others are half a gigabyte each.
    """
    named = _newest_cpu() if torch == NEWEST else f"torch=={torch}.0+cpu"
    anyhow = "torch" if torch == NEWEST else f"torch=={torch}.*"
    wishes = (named,) if cpu_builds else (anyhow,) if torch == NEWEST else (named, anyhow)
    return any(not _pip(python, "--no-deps", wish).returncode for wish in wishes)


def _newest_cpu() -> str:
    pinned = re.search(r"^torch==[\d.]+", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned
    return f"{pinned[0]}+cpu"


def _install_what_torch_needs(python: str, empty: Path) -> None:
    """Installs what torch needs on a CPU: Python packages, and empty libraries for CUDA's.

    Raises:
        Unavailable: if torch cannot be imported all the same.
    """
    code = "import importlib.metadata as m; print(*m.requires('torch') or (), sep='\\n')"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    light = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "setuptools")
    _pip(python, *light)
    if triton := triton_of(done.stdout.splitlines()):
        _pip(python, "--no-deps", triton)
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    try:
        make_libraries(Path(site) / "torch" / "lib", empty)
    except NoCompilerError as err:
        raise Unavailable(str(err)) from None
    done = subprocess.run(
        [python, "-c", "import torch"],
        env=_with(empty),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"import torch: {done.stderr.strip().splitlines()[-1]}")


def triton_of(needed: Sequence[str]) -> str:
    """Returns the Triton that torch asks for, such as `triton~=3.9.0`, "" for none."""
    asked = (line.partition(";")[0].strip() for line in needed)
    return next((line for line in asked if re.match(r"(pytorch-)?triton\b(?!-)", line)), "")


def _with(empty: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(empty)}


def _pip(python: str, *wanted: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *wanted]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _version(python: str, package: str) -> str:
    """Returns the version of an installed package, of Python itself for none."""
    code = (
        f"import importlib.metadata as m\ntry: print(m.version({package!r}))\n"
        "except m.PackageNotFoundError: pass"
        if package
        else "import platform; print(platform.python_version())"
    )
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def _pure_files() -> list[str]:
    from tests.markers import FILES

    return [f"tests/test_{name}.py" for name in FILES["pure"] if "/" not in name]


def recorded() -> list[Row]:
    """Returns what is known of each combination."""
    known = json.loads(RECORD.read_text(encoding="utf-8"))
    unknown = {
        one.name: Row(one.python, one.torch, one.pytest, "not tried") for one in COMBINATIONS
    }
    return [Row(**known[name]) if name in known else row for name, row in unknown.items()]


def record(name: str, row: Row) -> None:
    """Keeps a row, unless it was not tried this time and has been before."""
    known = json.loads(RECORD.read_text(encoding="utf-8"))
    if row.tried or not known.get(name, {}).get("tried"):
        known[name] = vars(row)
    ordered = {one.name: known[one.name] for one in COMBINATIONS if one.name in known}
    RECORD.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(recorded()), encoding="utf-8")


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as Markdown."""
    head = "| Python | torch | pytest | quick tests | tried |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| {r.python} | {r.torch} | {r.pytest} | {r.said} | {r.tried} |\n" for r in rows
    )


def page(rows: Sequence[Row]) -> str:
    """Returns the page of docs."""
    return (
        "# Tested versions\n\n"
        "Each line is a separate environment in which `make matrix` ran the tests of `make quick`\n"
        "on a CPU, with the day and the commit (`+`: with changes). Of `+cu` builds of torch the\n"
        "CPU half was tried, with empty libraries in place of CUDA's. *Not tried* claims\n"
        "nothing.\n\n"
        f"{table(rows)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the combinations and writes the page; ends with 1 if tests failed in one."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a part of a name, as py3.12")
    parser.add_argument("--cpu-builds", action="store_true", help="no other builds of torch")
    parser.add_argument("--keep", action="store_true", help="do not remove the environments")
    asked = parser.parse_args(arguments)
    KEPT.mkdir(parents=True, exist_ok=True)
    all_passed = True
    for one in COMBINATIONS:
        if asked.only and not any(part in one.name for part in asked.only):
            continue
        row = tried(one, cpu_builds=asked.cpu_builds)
        record(one.name, row)
        print(f"{one.name}: {row.said}", flush=True)
        all_passed &= row.passed or not row.tried
        if not asked.keep:
            shutil.rmtree(KEPT / one.name, ignore_errors=True)
    return int(not all_passed)


if __name__ == "__main__":
    sys.exit(main())
