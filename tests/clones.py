"""Commits of public repositories, read from clones that somebody put into the cache.

`$FMCHECK_CACHE/clones/OWNER+NAME` is a clone of OWNER/NAME, bare or not, or a link to one: nothing
here downloads it, and this repository holds none of its files. What was read once stays in the
cache, so that a clone is needed once only.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from typing import TYPE_CHECKING

from tests.corpus import CorpusError, cache_folder, publish, scratch_beside, unpack_python

if TYPE_CHECKING:
    from pathlib import Path


def commit_source(repository: str, commit: str) -> Path:
    """Returns the folder into which the Python files of a commit are unpacked.

    Raises:
        CorpusError: if neither they nor a clone with that commit is in the cache.
    """
    folder = cache_folder() / "commits" / f"{_flat(repository)}-{commit[:12]}"
    if folder.is_dir():
        return folder
    with scratch_beside(folder) as scratch:
        archive = _git(repository, "archive", "--format=tar", commit, "--", "*.py")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            unpack_python(files, scratch / "source")
        publish(scratch / "source", folder)
    return folder


def file_at(repository: str, commit: str, path: str) -> bytes | None:
    """Returns a file as it was at a commit; None if the commit has no such file.

    Raises:
        CorpusError: if no clone with that commit is in the cache.
    """
    if not _git(repository, "ls-tree", commit, "--", path):
        return None
    return _git(repository, "show", f"{commit}:{path}")


def _git(repository: str, *words: str) -> bytes:
    clone = cache_folder() / "clones" / _flat(repository)
    if not clone.exists():
        raise CorpusError(f"needed a clone of {repository}: put or link one at {clone}")
    done = subprocess.run(["git", "-C", str(clone), *words], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise CorpusError(f"the clone {clone} of {repository}: git {words[0]} failed: {said}")
    return done.stdout


def _flat(repository: str) -> str:
    return repository.replace("/", "+")
