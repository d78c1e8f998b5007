"""An environment with one unmodified release of SGLang, in which its FutureMap runs on CPU.

Run by itself (`python -m tests.sglang_env 0.5.23`) it makes the environment and prints its python.
Environments are kept in `$FMCHECK_CACHE` (default: ~/.cache/fmcheck), outside of the tree.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.corpus import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parent / "constraints.txt"
STUBS = HERE / "data" / "stubs"
# What fmcheck and its tests need; the linter's libcst too, for the registry of rules imports it.
OWN = ("pytest>=7.4", "numpy>=1.24", "wrapt>=1.16", "msgspec>=0.19", "pluggy>=1.5", "libcst>=1.8")
_MARKER = ".ready-fmcheck"


class NoEnvironment(Exception):  # noqa: N818
    """An environment could not be made: what was run, what it said, what to do."""


def sglang_python(version: str) -> Path:
    """Returns the python of an environment with this release, made if there is none.

    Raises:
        NoEnvironment: if it cannot be made. Nothing half-made is ever returned.
    """
    folder = cache_folder() / "env" / f"relay-{version}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(folder.suffix + ".lock")):
        marker = folder / _MARKER
        stamp = _stamp(version)
        if marker.is_file() and marker.read_text() == stamp:
            return python
        if folder.exists() and not (folder / ".ready-relay").exists():
            shutil.rmtree(folder)  # left behind by a run that was stopped
        _make(version, folder, python)
        marker.write_text(stamp)
    return python


def sglang_overlay(version: str) -> Path:
    """Returns a folder with this release alone, to be put before another one's environment.

    Raises:
        NoEnvironment: if it cannot be made.
    """
    folder = cache_folder() / "overlay" / f"sglang-{version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(folder.suffix + ".lock")):
        marker = folder / _MARKER
        if not marker.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q")
            options = ("--no-deps", "--no-compile", "--ignore-requires-python")
            _run(version, *pip, *options, "--target", str(folder), f"sglang=={version}")
            marker.touch()
    return folder


def _make(version: str, folder: Path, python: Path) -> None:
    if not python.exists():
        _run(version, sys.executable, "-m", "venv", str(folder))
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q")
    pinned = ("-c", str(CONSTRAINTS))
    _run(version, *pip, *pinned, "torch")
    _run(version, *pip, "--no-deps", f"sglang=={version}", "-r", str(_requirements(version)))
    _run(version, *pip, *pinned, *OWN)
    _run(version, str(python), "-c", "import torch, sglang, wrapt, libcst, pytest")


def _run(version: str, *command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(STUBS)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise NoEnvironment(
            f"could not make the environment for sglang {version} in {cache_folder()}\n"
            f"  command: {' '.join(command)}\n"
            f"  exit status: {done.returncode}\n"
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}\n"
            "  It needs a package index and about 2 GB; FMCHECK_CACHE says where it is kept."
        )


def _requirements(version: str) -> Path:
    path = HERE / "data" / "requirements" / f"relay-{version}.txt"
    if not path.is_file():
        raise NoEnvironment(f"no requirements for sglang {version}: expected {path}")
    return path


def _stamp(version: str) -> str:
    text = "\n".join((_requirements(version).read_text(), CONSTRAINTS.read_text(), *OWN))
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other process makes the same environment."""
    import fcntl

    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        try:
            print(sglang_python(wanted))
        except NoEnvironment as err:
            sys.exit(str(err))
