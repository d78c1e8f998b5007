"""From the paths that a user names to the Python files to lint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError, nearest
from fmcheck.lint.patterns import Patterns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: What a walk leaves out unless the settings say otherwise.
EXCLUDED = (
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
)
SUFFIXES = (".py", ".pyi")


@dataclass(frozen=True, slots=True)
class Excludes:
    """What is not linted: what `patterns` match, and folders of these `names`, wherever they are.

    `gitignore` respects such files; `named_too` leaves out what a user names as well.
    """

    patterns: tuple[Patterns, ...] = ()
    names: frozenset[str] = frozenset(EXCLUDED)
    gitignore: bool = True
    named_too: bool = False

    def cover(self, path: str, is_folder: bool = False) -> bool:
        """Tells whether what is at the absolute `path`, or a folder above it, is excluded."""
        return any(one.match(path, is_folder) for one in self.patterns)


DEFAULT = Excludes()


def python_files(paths: Iterable[Path], excludes: Excludes = DEFAULT) -> Iterator[Path]:
    """Yields each Python file once: files as named, folders walked in order, links not followed.

    Raises:
        UsageError: if a path does not exist.
    """
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UsageError(str(path), f"no such file or folder{_sibling(path)}")
        if excludes.named_too and excludes.cover(os.path.abspath(path), path.is_dir()):
            continue
        for file in _walk(path, excludes) if path.is_dir() else [path]:
            if file not in seen:
                seen.add(file)
                yield file


def _walk(top: Path, excludes: Excludes) -> Iterator[Path]:
    base = os.path.abspath(top)
    fixed = list(excludes.patterns)
    if not excludes.named_too:
        # A folder that the user named is walked, whatever excludes it from above.
        fixed = [one.sparing(base) for one in fixed]
    ignored: dict[str, Sequence[Patterns]] = {}
    if excludes.gitignore:
        ignored[base] = _gitignores_above(base)
    shown = os.fspath(top)
    for at, folders, names in os.walk(top):
        place = base + at[len(shown) :] if at != shown else base
        active: Sequence[Patterns] = ignored.get(place, ())
        if excludes.gitignore and ".gitignore" in names:
            active = [_gitignore(os.path.join(at, ".gitignore"), place), *active]
        kept = []
        for name in sorted(folders):
            path = os.path.join(place, name)
            if name not in excludes.names and not _left_out(path, True, fixed, active):
                kept.append(name)
                ignored[path] = active
        folders[:] = kept
        folder = Path(at)
        for name in sorted(names):
            if name.endswith(SUFFIXES) and not _left_out(
                f"{place}{os.sep}{name}", False, fixed, active
            ):
                yield folder / name


def _left_out(
    path: str, is_folder: bool, fixed: Sequence[Patterns], ignored: Sequence[Patterns]
) -> bool:
    """Tells whether one entry is left out; of several `.gitignore` files the nearest counts."""
    for one in fixed:
        if one.verdict(path, is_folder):
            return True
    for one in ignored:
        verdict = one.verdict(path, is_folder)
        if verdict is not None:
            return verdict
    return False


def _gitignores_above(base: str) -> list[Patterns]:
    """Returns what git ignores in `base` by files above it, nearest first; none outside of git."""
    found: list[Patterns] = []
    folder = base
    while True:
        if folder != base:
            found.append(_gitignore(os.path.join(folder, ".gitignore"), folder))
        if os.path.lexists(os.path.join(folder, ".git")):
            found.append(_gitignore(os.path.join(folder, ".git", "info", "exclude"), folder))
            return [one.sparing(base) for one in found if one]
        above = os.path.dirname(folder)
        if above == folder:
            return []
        folder = above


def _gitignore(path: str, folder: str) -> Patterns:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return Patterns(file.read().splitlines(), folder)
    except OSError:
        return Patterns((), folder)


def _sibling(path: Path) -> str:
    try:
        return nearest(path.name, os.listdir(path.parent))
    except OSError:
        return ""
