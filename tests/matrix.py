"""The versions that fmcheck is tried on: Pythons, torches and pytests, each in its own environment.

`python -m tests.matrix` makes an environment for each combination in `.cache/matrix`, runs the
tests of `make quick` there, and writes the table of `docs/matrix.md` from what they said. Of a
combination that cannot be had here the table says what was missing: it has not been tried.

A CPU build of torch is taken where there is one. Else the usual build is, without the gigabytes of
CUDA that it asks for: empty libraries stand in for them, in which no call finds a device.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".cache" / "matrix"
PAGE = ROOT / "docs" / "matrix.md"
NEWEST = "newest"
LIMIT = 1800
_SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s", re.M)


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


#: Each Python with what is newest; then the oldest torches and the oldest pytest.
COMBINATIONS = (
    *(Combination(python, NEWEST, NEWEST) for python in ("3.10", "3.11", "3.12", "3.13", "3.14")),
    *(Combination("3.11", torch, NEWEST) for torch in ("2.11", "2.12", "2.13")),
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
    torch = _version(python, "torch")
    command = [python, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider"]
    command += ["-m", "(pure or torch) and not sweep"] if torch else ["-m", "pure", *_pure_files()]
    environment = _with(KEPT / asked.name / "empty")
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        said = f"not ended after {LIMIT // 60} minutes"
    else:
        (KEPT / f"{asked.name}.txt").write_text(done.stdout + done.stderr)
        found = _SUMMARY.findall(done.stdout)
        said = found[-1] if found else f"pytest ended with {done.returncode}"
        said += "" if torch else " (what needs no torch)"
    return Row(_version(python, ""), torch or "none", _version(python, "pytest"), said)


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
        ".[pytest,completion]",
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

    A CPU build is taken where there is one: it is asked for by name, `+cpu`. With `cpu_builds` no
    other is, as others are half a gigabyte each.
    """
    named = f"torch=={_newest_cpu()}" if torch == NEWEST else f"torch=={torch}.0+cpu"
    anyhow = "torch" if torch == NEWEST else f"torch=={torch}.*"
    wishes = (named,) if cpu_builds else (named, anyhow)
    return any(not _pip(python, "--no-deps", wish).returncode for wish in wishes)


def _newest_cpu() -> str:
    pinned = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned
    return f"{pinned[1]}+cpu"


def _install_what_torch_needs(python: str, empty: Path) -> None:
    """Installs what torch needs on a CPU: Python packages, and empty libraries for CUDA's.

    Raises:
        Unavailable: if torch cannot be imported all the same.
    """
    code = "import importlib.metadata as m; print(*m.requires('torch') or (), sep='\\n')"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    light = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "setuptools")
    _pip(python, *light)
    triton = [line.partition(";")[0] for line in done.stdout.splitlines() if "triton=" in line]
    if triton:
        _pip(python, "--no-deps", triton[0].strip())
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    _empty_libraries(Path(site) / "torch" / "lib", empty)
    done = subprocess.run(
        [python, "-c", "import torch"],
        env=_with(empty),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"import torch: {done.stderr.strip().splitlines()[-1]}")


def _with(empty: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(empty)}


def _empty_libraries(torch: Path, into: Path) -> None:
    """Makes a library for each of CUDA's that torch's name, in which each call fails.

    100 is "no device" to CUDA: what runs on a CPU is torch's own code.
    """
    into.mkdir(exist_ok=True)
    libraries = [str(path) for path in torch.glob("*.so*")]
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", _read("readelf", "-d", *libraries)))
    needed = {name for name in needed if re.match(r"lib(cu|nv|nccl)", name)}
    wanted = set(re.findall(r" U (\w+)(?:@(\S+))?$", _read("nm", "-D", *libraries), re.M))
    cuda = {pair for pair in wanted if pair[1] in needed or re.match(r"_*(nv|nccl|cu)", pair[0])}
    for name in needed:
        version = "NVSHMEM" if "nvshmem" in name else name
        mine = {symbol for symbol, of in cuda if of == version}
        # What asks for no version takes it from any library.
        mine |= {symbol for symbol, of in cuda if not of} if "nccl" in name else set()
        source, script = into / "empty.c", into / "empty.map"
        source.write_text("".join(f"int {symbol}(void) {{ return 100; }}\n" for symbol in mine))
        script.write_text(f"{version} {{ global: *; }};\n")
        versioned = [f"-Wl,--version-script={script}"] if "nccl" not in name else []
        output = ["-o", str(into / name), f"-Wl,-soname,{name}"]
        _read("cc", "-w", "-shared", "-fPIC", *output, *versioned, str(source))


def _read(*command: str) -> str:
    """Returns what a command of the compiler's said."""
    if shutil.which(command[0]) is None:
        raise Unavailable(f"no `{command[0]}` here, for empty libraries in place of CUDA's")
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


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


def _rows(kept: Path) -> dict[str, dict[str, str]]:
    return json.loads(kept.read_text()) if kept.is_file() else {}


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as Markdown."""
    head = "| Python | torch | pytest | quick tests |\n|---|---|---|---|\n"
    return head + "".join(f"| {r.python} | {r.torch} | {r.pytest} | {r.said} |\n" for r in rows)


def page(rows: Sequence[Row]) -> str:
    """Returns the page of docs."""
    return (
        "# Tested versions\n\n"
        "The result of the last `make matrix`: each line is a separate environment, in which the\n"
        "tests of `make quick` ran on a CPU. Of `+cu` builds of torch the CPU half was tried,\n"
        "with empty libraries in place of CUDA's. *Not tried* claims nothing.\n\n"
        f"{table(rows)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the combinations and writes the page; ends with 1 if tests failed in one."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a part of a name, as py3.12")
    parser.add_argument("--cpu-builds", action="store_true", help="no other builds of torch")
    asked = parser.parse_args(arguments)
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = KEPT / "rows.json"
    known = _rows(kept)
    for one in COMBINATIONS:
        if not asked.only or any(part in one.name for part in asked.only):
            row = vars(tried(one, cpu_builds=asked.cpu_builds))
            known = {**_rows(kept), one.name: row}  # others may have been tried meanwhile
            kept.write_text(json.dumps(known, indent=1))
            print(one.name, known[one.name]["said"], flush=True)
    rows = [
        Row(**known[one.name])
        if one.name in known
        else Row(one.python, one.torch, one.pytest, "not tried in this run")
        for one in COMBINATIONS
    ]
    PAGE.write_text(page(rows), encoding="utf-8")
    return int(any(re.search(r"failed|error|ended", row.said) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
