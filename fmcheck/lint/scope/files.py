"""From the paths that a user names to the Python files to lint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.errors import UsageError, nearest
from fmcheck.files.atomic import leaves_tree
from fmcheck.files.reading import MOST_SETTINGS, read_regular
from fmcheck.lint.scope.patterns import Patterns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

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


class Excludes(Struct, frozen=True):
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


def python_files(
    paths: Iterable[Path], excludes: Excludes = DEFAULT, outside: list[Path] | None = None
) -> Iterator[Path]:
    """Yields each Python file once: files as named, folders walked in order, links not followed.

    A link to a file is read if it stays in the tree; others go into `outside`. A folder that cannot
    be listed is yielded as it is: it is not a file that can be read, so it is reported as one.

    Raises:
        UsageError: if a path does not exist, or may not be looked at.
    """
    seen: set[Path] = set()
    for path in paths:
        _check(path)
        if path.suffix == ".ipynb":
            raise UsageError(
                str(path), "is a notebook, and no Python source; export it as a script"
            )
        is_folder = os.path.isdir(path)
        if excludes.named_too and excludes.cover(os.path.abspath(path), is_folder):
            continue
        for file in _walk(path, excludes, outside) if is_folder else [path]:
            if file not in seen:
                seen.add(file)
                yield file


def _walk(top: Path, excludes: Excludes, outside: list[Path] | None) -> Iterator[Path]:
    base = os.path.abspath(top)
    fixed = list(excludes.patterns)
    if not excludes.named_too:
        # A folder that the user named is walked, whatever excludes it from above.
        fixed = [one.sparing(base) for one in fixed]
    above = _gitignores_above(base) if excludes.gitignore else []
    left: list[tuple[Path, str, Sequence[Patterns]]] = [(top, base, above)]
    while left:
        folder, place, active = left.pop()
        try:
            folders, names, links = _listed(place)
        except OSError:
            yield folder
            continue
        if excludes.gitignore and ".gitignore" in names:
            active = [_gitignore(os.path.join(place, ".gitignore"), place), *active]
        for name in sorted(folders, reverse=True):
            path = os.path.join(place, name)
            if name not in excludes.names and not _left_out(path, True, fixed, active):
                left.append((folder / name, path, active))
        for name in sorted(names):
            path = f"{place}{os.sep}{name}"
            if not name.endswith(SUFFIXES) or _left_out(path, False, fixed, active):
                continue
            if name in links and leaves_tree(path, [base]):
                if outside is not None:
                    outside.append(folder / name)
                continue
            yield folder / name


def _listed(folder: str) -> tuple[list[str], list[str], set[str]]:
    """Returns the names of the folders, those of all else, and which of these are links.

    Raises:
        OSError: if the folder cannot be listed.
    """
    folders: list[str] = []
    names: list[str] = []
    links: set[str] = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
                continue
            if entry.is_symlink():
                if entry.name.endswith(SUFFIXES) and os.path.isdir(entry.path):
                    continue  # what lies in that folder is walked where it lies
                links.add(entry.name)
            names.append(entry.name)
    return folders, names, links


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
    """Returns the patterns of a file that may not be there.

    Raises:
        UsageError: if there is something else in its place, or it is too large.
    """
    try:
        content = read_regular(path, MOST_SETTINGS)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return Patterns((), folder)  # more is linted then, not less
    except OSError as err:
        raise UsageError(path, f"cannot be read: {err.strerror or err}") from err
    text = content.decode("utf-8-sig", "surrogateescape")
    return Patterns(text.split("\n"), folder)


def _check(path: Path) -> None:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise UsageError(str(path), f"no such file or folder{_sibling(path)}") from None
    except OSError as err:
        raise UsageError(str(path), f"cannot be read: {err.strerror or err}") from err


def _sibling(path: Path) -> str:
    try:
        return nearest(path.name, os.listdir(path.parent))
    except OSError:
        return ""
