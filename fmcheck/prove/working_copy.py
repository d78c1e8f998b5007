"""A scratch copy of the folders that an engine and its tests live in; the user's stay untouched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError
from fmcheck.lint.scope.files import EXCLUDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: More than this is no engine but somebody's home.
MOST_FILES = 100_000
#: Two versions of a file with one size must not share a time, or Python runs the older's bytecode.
_TICK = 10


class WorkingCopy:
    """Copies of `roots` under `folder`. Paths are those of the user; the copies mirror them."""

    def __init__(self, folder: Path, roots: Sequence[Path]) -> None:
        self.folder = folder
        self._copies = {root: folder / f"{number}" / root.name for number, root in enumerate(roots)}
        self._writes = 0
        for root, copy in self._copies.items():
            _copy_tree(root, copy)

    def mapped(self, path: Path) -> Path | None:
        """Returns the copy of a path, None if it lies in none of the roots."""
        for root, copy in self._copies.items():
            if path == root or root in path.parents:
                return copy / path.relative_to(root)
        return None

    def at(self, path: Path) -> Path:
        """Returns the copy of a path that is known to lie in a root."""
        copy = self.mapped(path)
        assert copy is not None, path
        return copy

    def write(self, path: Path, content: bytes) -> None:
        """Gives the copy of a file other content, at a time at which it had no other."""
        copy = self._own(path)
        copy.write_bytes(content)
        self._writes += 1
        then = path.stat().st_mtime + self._writes * _TICK
        os.utime(copy, (then, then))

    def restore(self, path: Path) -> None:
        """Makes the copy of a file what the file is."""
        shutil.copy2(path, self._own(path))

    def _own(self, path: Path) -> Path:
        """Returns the copy of a file, to be written: no link, which might lead to the user's.

        Raises:
            UsageError: if a folder above it is such a link.
        """
        copy = self.at(path)
        if copy.is_symlink():
            copy.unlink()
        if Path(os.path.realpath(self.folder)) not in Path(os.path.realpath(copy)).parents:
            raise UsageError(
                str(path),
                "is reached by a link out of the copied folders: name the file's real path",
            )
        return copy

    def argument(self, text: str) -> str:
        """Returns a word of a command, with a path of the user's in it led to the copy."""
        head, equals, tail = text.rpartition("=")
        path, colons, rest = tail.partition("::")
        if not os.path.isabs(path):
            return text
        copy = self.mapped(Path(os.path.normpath(path)))
        return text if copy is None else f"{head}{equals}{copy}{colons}{rest}"

    def environment(self, import_roots: Sequence[Path], given: Mapping[str, str]) -> dict[str, str]:
        """Returns an environment in which the copies are imported, ahead of all else."""
        first = [str(self.at(root)) for root in import_roots]
        path = [self.argument(one) for one in given.get("PYTHONPATH", "").split(os.pathsep) if one]
        return {**given, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*first, *path]))}


def roots_for(
    named: Sequence[Path], files: Sequence[Path], import_roots: Sequence[Path]
) -> tuple[Path, ...]:
    """Returns the folders to copy: those named, or the current one and import roots beside it.

    A folder within another is left out.

    Raises:
        UsageError: if a named folder is none, or does not hold the files.
    """
    given = [Path(os.path.abspath(one)) for one in named] or [Path.cwd()]
    for one in given:
        if not one.is_dir():
            raise UsageError("--root", f"`{one}` is no folder")
    if not named:
        given += [one for one in import_roots if not _within(one, given)]
    outside = [file for file in files if not _within(file, given)]
    if outside:
        raise UsageError("--root", f"{outside[0]} is in none of {', '.join(map(str, given))}")
    lost = [one for one in import_roots if not _within(one, given)]
    if lost:
        raise UsageError("--root", f"the modules are imported from {lost[0]}: name that folder too")
    kept = [one for one in dict.fromkeys(given) if not set(one.parents) & set(given)]
    return tuple(kept)


def _within(path: Path, folders: Sequence[Path]) -> bool:
    return any(path == folder or folder in path.parents for folder in folders)


def _copy_tree(root: Path, copy: Path) -> None:
    files = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _is_left_out(Path(folder, name))]
        files += len(names)
        if files > MOST_FILES:
            raise UsageError(
                str(root),
                f"holds more than {MOST_FILES:,} files: start in the project's own folder, or "
                "name what is to be copied with --root",
            )
        target = copy / Path(folder).relative_to(root)
        target.mkdir(parents=True, exist_ok=True)
        for name in [*names, *(one for one in folders if Path(folder, one).is_symlink())]:
            source = Path(folder, name)
            if source.is_symlink() or source.is_file():
                shutil.copy2(source, target / name, follow_symlinks=False)


def _is_left_out(folder: Path) -> bool:
    if folder.name in EXCLUDED and folder.name not in ("build", "dist"):
        return True
    return folder.name.startswith(".") and folder.name.endswith("_cache")
