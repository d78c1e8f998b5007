"""The corpus: the Python source of released packages, fetched once and kept outside the tree.

`$FMCHECK_CACHE` names the cache's folder, `~/.cache/fmcheck` stands in for it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class CorpusError(Exception):
    """A package or commit that is needed and cannot be had."""


def wheel_source(package: str, version: str, whole: bool = False) -> Path:
    """Returns the folder into which a wheel's Python files are unpacked: `folder/PACKAGE/...`.

    A `whole` wheel has all its files, so that it can be imported.

    Raises:
        CorpusError: if the wheel is neither in the cache nor to be downloaded.
    """
    folder = cache_folder() / ("packages" if whole else "wheels") / f"{package}-{version}"
    if folder.is_dir():
        return folder
    with scratch_beside(folder) as scratch:
        wheel = _download("wheel", package, version, scratch / "wheel", folder)
        _unpack(wheel, scratch / "source", whole)
        publish(scratch / "source", folder)
    return folder


def sdist_source(package: str, version: str) -> Path:
    """Returns the folder into which a source distribution's Python files are unpacked.

    pip runs the package's own `setup.py` to learn its name, in this environment.

    Raises:
        CorpusError: if it is neither in the cache nor to be downloaded.
    """
    folder = cache_folder() / "sdists" / f"{package}-{version}"
    if folder.is_dir():
        return folder
    with scratch_beside(folder) as scratch:
        archive = _download("sdist", package, version, scratch / "sdist", folder)
        with tarfile.open(archive) as files:
            unpack_python(files, scratch / "source")
        publish(scratch / "source", folder)
    return folder


def unpack_python(files: tarfile.TarFile, into: Path) -> None:
    """Unpacks the Python files of an archive, links left out."""
    into.mkdir()
    wanted = [one for one in files if one.isfile() and one.name.endswith(".py")]
    files.extractall(into, wanted, filter="data")


@contextlib.contextmanager
def scratch_beside(folder: Path) -> Iterator[Path]:
    """Yields a scratch folder on the disk of the folder that is to be published from it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        yield Path(scratch)


def cache_folder() -> Path:
    """Returns where tests keep what they fetched."""
    named = os.environ.get("FMCHECK_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "fmcheck"


#: What pip is told so that it brings no other kind. A source distribution is not isolated, or pip
#: would install what its build needs, torch for CUDA included.
_ONLY = {
    "wheel": ("--only-binary=:all:",),
    "sdist": ("--no-binary=:all:", "--no-build-isolation"),
}


def _download(kind: str, package: str, version: str, into: Path, wanted: Path) -> Path:
    wish = f"{package}=={version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", *_ONLY[kind], "--dest", str(into), wish]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    files = sorted(into.iterdir()) if into.is_dir() else []
    if done.returncode or len(files) != 1:
        said = (done.stderr or done.stdout).strip() or f"pip gave no {kind} and no reason"
        raise CorpusError(
            f"needed the {kind} of {wish} and cannot have it: it is not unpacked in {wanted}, and "
            f"`pip download` failed (exit status {done.returncode}):\n{said}\n"
            "Give pip access to a package index, or set FMCHECK_CACHE to a folder that holds "
            f"{wanted.parent.name}/{wanted.name}."
        )
    return files[0]


def _unpack(wheel: Path, into: Path, whole: bool) -> None:
    into.mkdir()
    endings = ("",) if whole else (".py", "METADATA")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into, [name for name in archive.namelist() if name.endswith(endings)])


def publish(unpacked: Path, folder: Path) -> None:
    """Renames the whole folder into place: no other run ever sees half of it."""
    try:
        unpacked.rename(folder)
    except OSError:
        # Another run was quicker.
        if not folder.is_dir():
            raise
