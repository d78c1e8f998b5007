"""Reading a file whole: a regular one, no larger than its kind may be, or an error at once.

Imported before anything else of the linter: `os` and `sys` only.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

#: The most bytes that a settings file, a contract or a file of patterns may have.
MOST_SETTINGS = 1 << 20
#: The most bytes of a source file.
MOST_SOURCE = 32 << 20
#: The most bytes of a baseline, of a record of a run, and of an entry of the cache.
MOST_RECORD = 64 << 20

_KINDS = {
    0o010000: "a named pipe",
    0o020000: "a device",
    0o040000: "a folder",
    0o060000: "a device",
    0o140000: "a socket",
}
_REGULAR = 0o100000
_BLOCK = 1 << 16
# Linux's and macOS's numbers: `errno` is an import, and nobody compares them.
_INVALID, _TOO_LARGE = 22, 27


def read_regular(path: str | Path, most: int) -> bytes:
    """Returns the bytes of a regular file of at most `most` bytes.

    Raises:
        OSError: if it is anything else, is larger, or cannot be read.
    """
    return read_with_stat(path, most)[0]


def open_regular(path: str | Path) -> BinaryIO:
    """Opens a regular file of any size; OSError for anything else."""
    _check(path, os.stat(path), sys.maxsize)
    return open(path, "rb")


def read_with_stat(path: str | Path, most: int) -> tuple[bytes, os.stat_result]:
    """Returns the bytes of a regular file, and what the system said of it before they were read.

    Raises:
        OSError: if it is anything else, has more than `most` bytes, or cannot be read.
    """
    try:
        # Before it is opened: with some devices, to open one is to use it.
        _check(path, os.stat(path), most)
        # O_NONBLOCK: if a FIFO has come in between, to open it would wait for ever.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except ValueError as err:
        raise OSError(_INVALID, "its name holds a null byte", str(path)) from err
    try:
        at = os.fstat(handle)
        _check(path, at, most)
        # Asked for one byte more than there are, a file gives all that there are.
        text = os.read(handle, at.st_size + 1)
        if len(text) != at.st_size:
            text = _rest(handle, text, path, most)
    finally:
        os.close(handle)
    return text, at


def _check(path: str | Path, at: os.stat_result, most: int) -> None:
    kind = at.st_mode & 0o170000
    if kind != _REGULAR:
        what = _KINDS.get(kind, "something else")
        raise OSError(_INVALID, f"expected a regular file, got {what}", str(path))
    if at.st_size > most:
        raise OSError(_TOO_LARGE, f"larger than {most >> 20} MiB, the limit", str(path))


def _rest(handle: int, first: bytes, path: str | Path, most: int) -> bytes:
    """Returns `first` and what follows: a file that grows, or that has no size, as in /proc."""
    parts, size = [first], len(first)
    while part := os.read(handle, _BLOCK):
        parts.append(part)
        size += len(part)
        if size > most:
            raise OSError(_TOO_LARGE, f"larger than {most >> 20} MiB, the limit", str(path))
    return b"".join(parts)
