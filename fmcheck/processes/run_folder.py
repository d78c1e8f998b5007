"""The folder of a run: made for it alone, or that of the xdist controller."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from pathlib import Path

from fmcheck.errors import UsageError
from fmcheck.processes.child import run_context
from fmcheck.processes.journal import layout

_PREFIX = "fmcheck-run-"
_ENDINGS = (layout.RING, layout.LINES, layout.CONTEXT)
#: A file in a run's folder: that the run was killed has been reported.
REPORTED = "reported"


def joined() -> str | None:
    """Returns the folder of the run that this process is a worker of, None for any other."""
    there = run_context.here()
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
        within = os.path.abspath(asked) if asked else None
        return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=within)
    except OSError as err:
        where = f"{err.filename}: " if err.filename else ""  # none of all that were tried
        raise UsageError("--fmcheck-journal", f"{where}{err.strerror}") from None


def remove(folder: Path | str) -> None:
    """Removes the journal in a folder, and the folder unless it holds anything else."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if _is_ours(entry.name) and entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)
        os.rmdir(folder)


def _is_ours(name: str) -> bool:
    return name == REPORTED or name.startswith(layout.STARTS) or name.endswith(_ENDINGS)


def is_gone(pid: int) -> bool:
    """Tells whether a process of this host runs no more; nobody may have waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def over() -> list[Path]:
    """Returns the journals of our runs whose pytest process is gone, the latest first."""
    if not os.path.isdir("/proc/self"):
        return []  # no telling which are over
    try:
        folder = Path(tempfile.gettempdir())
    except OSError:
        return []  # there is none, and the journal was asked for elsewhere
    found = []
    for path in folder.glob(f"{_PREFIX}*"):
        pid = re.match(rf"{_PREFIX}(\d+)-", path.name)
        try:
            known = path.lstat()
        except OSError:
            continue
        is_ours = pid is not None and stat.S_ISDIR(known.st_mode) and known.st_uid == os.getuid()
        if pid and is_ours and is_gone(int(pid[1])):
            found.append((known.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]
