"""The unmodified releases of SGLang whose FutureMap runs on CPU, and one environment for all.

The environment holds torch and what the releases need, none of them itself: a release is its whole
wheel, unpacked, ahead on `PYTHONPATH`. `python -m tests.sglang_env` makes the environment and
prints its python. All is kept in `$FMCHECK_CACHE` (default: ~/.cache/fmcheck), outside of the tree.
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

from tests.corpus import CorpusError, cache_folder, wheel_source

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
REPOSITORY = HERE.parent
CONSTRAINTS = REPOSITORY / "constraints.txt"
REQUIREMENTS = HERE / "data" / "requirements" / "sglang.txt"
STUBS = HERE / "data" / "stubs"
#: Releases whose FutureMap is driven. The first two relay through a ring, the others by pool rows.
RELEASES = ("0.5.11", "0.5.12", "0.5.13", "0.5.14", "0.5.16", "0.5.19", "0.5.23")
# What fmcheck and its tests need; the linter's libcst too, for the registry of rules imports it.
OWN = ("pytest>=7.4", "numpy>=1.24", "wrapt>=1.16", "msgspec>=0.19", "pluggy>=1.5", "libcst>=1.8")
OWN += ("hypothesis>=6.100",)
_MARKER = ".ready-fmcheck"


class NoEnvironment(Exception):  # noqa: N818
    """An environment could not be made: what was run, what it said, what to do."""


def sglang_python() -> Path:
    """Returns the python of the environment, made if there is none.

    Raises:
        NoEnvironment: if it cannot be made. Nothing half-made is ever returned.
    """
    return environment_python("sglang", REQUIREMENTS)


def environment_python(engine: str, requirements: Path) -> Path:
    """Returns the python of an environment with what an engine needs, made if there is none.

    Raises:
        NoEnvironment: if it cannot be made. Nothing half-made is ever returned.
    """
    folder = cache_folder() / "env" / engine
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock")):
        marker = folder / _MARKER
        stamp = _stamp(requirements)
        if not marker.is_file() or marker.read_text() != stamp:
            shutil.rmtree(folder, ignore_errors=True)  # an older one, or what a stopped run left
            _make(folder, python, requirements)
            marker.write_text(stamp)
    return python


def release_folder(version: str) -> Path:
    """Returns the folder that holds the package `sglang` of a release.

    Raises:
        NoEnvironment: if its wheel cannot be had.
    """
    try:
        return wheel_source("sglang", version, whole=True)
    except CorpusError as err:
        raise NoEnvironment(str(err)) from err


def environment_of(version: str, *folders: Path, **more: str) -> dict[str, str]:
    """Returns the variables under which the environment's python sees a release and fmcheck.

    `folders` hold further modules, and plugins for SGLang.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    path = os.pathsep.join(map(str, (release_folder(version), REPOSITORY, STUBS, *folders)))
    return {**kept, "PYTHONPATH": path, "TRITON_INTERPRET": "1", **more}


def _make(folder: Path, python: Path, requirements: Path) -> None:
    _run(sys.executable, "-m", "venv", str(folder))
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q")
    pinned = ("-c", str(CONSTRAINTS))
    _run(*pip, *pinned, "torch")
    _run(*pip, "--no-deps", "-r", str(requirements))
    _run(*pip, *pinned, *OWN)
    _run(str(python), "-c", "import torch, wrapt, libcst, pytest")


def _run(*command: str) -> None:
    # Without SGLang's stubs on the path: pip would take them for installed packages.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=kept, check=False)
    if done.returncode:
        raise NoEnvironment(
            f"could not make the environment for an engine in {cache_folder()}\n"
            f"  command: {' '.join(command)}\n"
            f"  exit status: {done.returncode}\n"
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}\n"
            "  It needs a package index and about 3 GB; FMCHECK_CACHE says where it is kept."
        )


def _stamp(requirements: Path) -> str:
    text = "\n".join((requirements.read_text(), CONSTRAINTS.read_text(), *OWN))
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other process makes the same environment."""
    import fcntl

    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        print(sglang_python())
        for release in RELEASES:
            print(release_folder(release))
    except NoEnvironment as err:
        sys.exit(str(err))
