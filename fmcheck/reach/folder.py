"""The folder of a run: made for it alone, or that of the xdist controller."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fmcheck.errors import UsageError
from fmcheck.reach import packet


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
        return tempfile.mkdtemp(
            prefix="fmcheck-run-", dir=os.path.abspath(asked) if asked else None
        )
    except OSError as err:
        raise UsageError("--fmcheck-journal", f"{err.filename}: {err.strerror}") from None
