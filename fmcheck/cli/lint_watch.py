"""`fmcheck lint --watch`: lints again whenever one of the files changes."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

#: Seconds between two looks at the files.
PAUSE = 0.5
_CLEAR = "\x1b[2J\x1b[3J\x1b[H"


def watch(
    paths: Sequence[Path], lint: Callable[[], int], wait: Callable[[float], None] = time.sleep
) -> int:
    """Lints, and again after each change, until an interrupt; returns the last exit status."""
    from fmcheck.errors import UsageError

    status = 0
    known: dict[Path, tuple[int, int]] | None = None
    try:
        while True:
            now = _states(paths)
            if now != known:
                if sys.stdout.isatty():
                    print(_CLEAR, end="")
                known = now
                try:
                    status = lint()
                except UsageError as err:  # a contract or settings in the making
                    status = 2
                    print(f"fmcheck: {err}", file=sys.stderr)
                print("fmcheck: watching for changes; Ctrl-C ends it", file=sys.stderr, flush=True)
            wait(PAUSE)
    except KeyboardInterrupt:
        return status


def _states(paths: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    return dict(_each(paths))


def _each(paths: Sequence[Path]) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yields the Python files of the paths, and the TOML files beside and above them."""
    from fmcheck.errors import UsageError
    from fmcheck.lint.scope.files import python_files

    try:
        files = list(python_files(paths))
    except UsageError:  # a named file is being rewritten
        files = []
    folders = {folder for path in paths for folder in (path.absolute(), *path.absolute().parents)}
    settings = [
        one for folder in sorted(folders) if folder.is_dir() for one in folder.glob("*.toml")
    ]
    for file in (*files, *settings):
        try:
            at = os.stat(file)
        except OSError:
            continue
        yield file, (at.st_mtime_ns, at.st_size)
