"""From the paths that a user names to the Python files to lint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SKIPPED_FOLDERS = frozenset(
    {
        ".eggs",
        ".git",
        ".hg",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "__pypackages__",
        "build",
        "dist",
        "node_modules",
        "site-packages",
        "venv",
    }
)


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields each Python file once: files as named, folders walked in order, links not followed.

    Raises:
        UsageError: if a path does not exist.
    """
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UsageError(str(path), f"no such file or folder{_sibling(path)}")
        for file in _walk(path) if path.is_dir() else [path]:
            if file not in seen:
                seen.add(file)
                yield file


def _walk(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        for name in sorted(names):
            if name.endswith((".py", ".pyi")):
                yield Path(at, name)


def _sibling(path: Path) -> str:
    try:
        return nearest(path.name, os.listdir(path.parent))
    except OSError:
        return ""
