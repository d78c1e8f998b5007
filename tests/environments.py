"""Fresh virtual environments, as a new user has them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)


@dataclass(frozen=True)
class Environment:
    """A virtual environment in `folder`."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Environment:
        """Makes an environment with nothing but pip in it."""
        venv.create(folder, with_pip=True)
        return cls(folder)

    def command(self, name: str) -> str:
        """Returns the path of a command of this environment."""
        return str(self.folder / "bin" / name)

    def run(self, name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs a command of this environment in `cwd`, free of this process's Python settings."""
        keep = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        return subprocess.run(
            [self.command(name), *arguments], cwd=cwd, env=keep, capture_output=True, text=True
        )

    def install(self, *what: str, cwd: Path) -> None:
        """Installs with pip; AssertionError with its output if that fails."""
        done = self.run(
            "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", *what, cwd=cwd
        )
        assert done.returncode == 0, f"pip install {' '.join(what)} failed:\n{done.stderr}"

    def link(self, name: str) -> None:
        """Gives it a distribution of this process's, with all that it needs, by links.

        Of a gigabyte, as torch is, pip takes 20 s to copy and to compile it.
        """
        purelib = sysconfig.get_path("purelib", vars={"base": str(self.folder)})
        for needed in _with_what_it_needs(name, set()):
            for part in {file.parts[0] for file in needed.files or ()} - {"..", "__pycache__"}:
                there, here = Path(str(needed.locate_file(part))), Path(purelib) / part
                if there.exists() and not here.exists():
                    here.symlink_to(there)

    def finds(self, module: str, cwd: Path) -> bool:
        """Tells whether `import module` would find something, from `cwd`."""
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        return self.run("python", "-c", code, cwd=cwd).returncode == 0


def _with_what_it_needs(name: str, seen: set[str]) -> Iterator[Distribution]:
    """Yields an installed distribution and those that it asks for here, each once."""
    if canonicalize_name(name) in seen:
        return
    seen.add(canonicalize_name(name))
    with contextlib.suppress(PackageNotFoundError):  # asked for, and not by this torch's import
        found = distribution(name)
        yield found
        for needed in map(Requirement, found.requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                yield from _with_what_it_needs(needed.name, seen)


def copy_checkout(root: Path, into: Path) -> Path:
    """Copies the checkout's sources, so that a build leaves nothing behind in it."""
    shutil.copytree(root, into, ignore=LEFT_OUT)
    return into


def build_wheel(project: Path, into: Path) -> Path:
    """Builds a project's wheel; AssertionError with pip's output if that fails."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "wheel",
            "-q",
            "--no-deps",
            "--wheel-dir",
            str(into),
            str(project),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"building {project.name} failed:\n{done.stderr}"
    (wheel,) = into.glob("*.whl")
    return wheel
