"""The folder of a run: made for it alone, or that of the xdist controller."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from fmcheck.errors import UsageError
from fmcheck.reach import packet

_PREFIX = "fmcheck-run-"
#: So many journals of runs in which something died are kept among the temporary files.
_KEPT = 3


def joined() -> str | None:
    """Returns the folder of the run that this process is a worker of, None for any other."""
    there = packet.here()
    if there is None or "PYTEST_XDIST_WORKER" not in os.environ:
        return None
    # A pytest that a worker's test started has the worker's variables too.
    return there.folder if there.pid == os.getppid() else None


def made(asked: str = "") -> str:
    """Makes a folder that no other run has: in `asked`, or among the temporary files.

    Raises:
        UsageError: if it cannot be made.
    """
    try:
        if asked:
            Path(asked).mkdir(parents=True, exist_ok=True)
        else:
            for path in over()[_KEPT:]:
                shutil.rmtree(path, ignore_errors=True)
        within = os.path.abspath(asked) if asked else None
        return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=within)
    except OSError as err:
        raise UsageError("--fmcheck-journal", f"{err.filename}: {err.strerror}") from None


def over() -> list[Path]:
    """Returns the journals of our runs that are over, the latest first, of those that were kept."""
    if not os.path.isdir("/proc/self"):
        return []  # no telling which are over
    folder, found = Path(tempfile.gettempdir()), []
    for path in folder.glob(f"{_PREFIX}*"):
        pid = re.match(rf"{_PREFIX}(\d+)-", path.name)
        try:
            known = path.lstat()
        except OSError:
            continue
        if pid and known.st_uid == os.getuid() and not Path(f"/proc/{pid[1]}").exists():
            found.append((known.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]
