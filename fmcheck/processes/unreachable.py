"""Unreachable: the children that a run cannot reach, as far as is known before they start."""

from __future__ import annotations

import os
import site
from importlib import metadata

_STARTUP = "fmcheck-reach.pth"
_GROUP = "sglang.srt.plugins"
_OTHERWISE = "a scheduler that is started with another environment is not watched"


def unreachable() -> list[str]:
    """Returns a sentence for each kind of child that is not reached."""
    found = []
    if not _has_startup_file():
        found.append(
            "not installed in this environment, so that of child processes only those of "
            "multiprocessing and os.fork are watched: pip install fmcheck"
        )
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and "fmcheck" not in (name.strip() for name in allowed.split(",")):
        found.append(f"SGLANG_PLUGINS={allowed} leaves fmcheck out: {_OTHERWISE}")
    elif _is_installed("sglang") and not metadata.entry_points(group=_GROUP, name="fmcheck"):
        found.append(
            f"no entry point of fmcheck's is installed in the group {_GROUP}: {_OTHERWISE}"
        )
    return found


def _has_startup_file() -> bool:
    # Only there does Python read such files: a folder on `sys.path` alone is none of them.
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return any(os.path.isfile(os.path.join(folder, _STARTUP)) for folder in folders)


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
