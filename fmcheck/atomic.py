"""Writes a file whole: a reader, or a crash, sees the old content or the new."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Writes beside `path` and renames. A link stays one, and a file keeps its mode.

    What is no regular file, as `/dev/stdout`, is written to instead.

    Raises:
        OSError: if that cannot be done; the file is then as it was.
    """
    target = path.resolve()
    mode = _mode(target)
    if mode is not None and not stat.S_ISREG(mode):
        target.write_bytes(content)
        return
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, _usual_mode() if mode is None else stat.S_IMODE(mode))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _usual_mode() -> int:
    """Returns the mode of a file that `open` would make; mkstemp's is for its owner alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
