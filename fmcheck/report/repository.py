"""Where a run's files are in their repository: what code hosts want to be told."""

from __future__ import annotations

import os
from pathlib import Path


def repository(root: str) -> str:
    """Returns the nearest folder at or above `root` that git knows, or `root`."""
    folders = (Path(root), *Path(root).parents)
    return str(next((one for one in folders if (one / ".git").exists()), root))


def path_in(root: str, path: str) -> str:
    """Returns a path as it is shown: from `root`, with slashes; one outside stays absolute."""
    path = os.path.normpath(path)
    if path.startswith(os.path.join(root, "")):
        path = os.path.relpath(path, root)
    return path.replace(os.sep, "/")
