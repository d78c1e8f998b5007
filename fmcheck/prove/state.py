"""What a run has tried so far, in a file that is whole at any time."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fmcheck import __version__
from fmcheck.errors import UsageError
from fmcheck.files.reading import MOST_RECORD, read_regular
from fmcheck.prove.trial import Result  # noqa: TC001  (msgspec reads the annotation)
from fmcheck.report_files import check_writable, write_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class _Stored(msgspec.Struct):
    key: str
    results: dict[str, Result]


def check_state(path: Path) -> None:
    """Says before a run that its state could not be kept in a file.

    Raises:
        UsageError: if the file cannot be written, or holds something else.
    """
    check_writable(path, path, "--resume")
    if path.exists():
        _stored(path)


def _stored(path: Path) -> _Stored:
    try:
        return msgspec.json.decode(read_regular(path, MOST_RECORD), type=_Stored)
    except (OSError, msgspec.DecodeError) as err:
        raise UsageError(str(path), f"is no state of an earlier run: {err}") from err


class ProveState:
    """The results of a run by mutant. Without a path they are kept in memory."""

    def __init__(self, path: Path | None, key: str) -> None:
        self._path = path
        self._key = key
        self._lock = threading.Lock()
        self.results: dict[str, Result] = {}
        if path is not None and path.exists():
            self.results = self._read(path)

    def put(self, mutant: str, result: Result) -> None:
        """Adds a result, and writes all of them."""
        with self._lock:
            self.results[mutant] = result
            if self._path is not None:
                write_file(self._path, msgspec.json.encode(_Stored(self._key, self.results)))

    def _read(self, path: Path) -> dict[str, Result]:
        stored = _stored(path)
        if stored.key != self._key:
            raise UsageError(
                str(path),
                "is the state of another run: the source, the tests, the command or fmcheck "
                "have changed since; remove it to start over",
            )
        return stored.results


def key_of(folder: Path, command: Sequence[str], more: Iterable[str]) -> str:
    """Returns what a run's results hang on: all Python and TOML files of a copy, the command."""
    digest = hashlib.sha256(repr((__version__, tuple(command), tuple(more))).encode())
    for at, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".toml", ".ini", ".cfg")):
                path = Path(at, name)
                digest.update(str(path.relative_to(folder)).encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
