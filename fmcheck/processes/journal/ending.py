"""Endings: how a process of a run came to its end, by its own word or by that of others."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from fmcheck.processes.journal import layout
from fmcheck.processes.role import host_name

if TYPE_CHECKING:
    from fmcheck.processes.journal.layout import Head
    from fmcheck.processes.journal.read import Library, Pages

RUNNING = "running"
UNKNOWN = "unknown"
EXEC = "became another program"
EXIT = "exit"


def ending(pages: Pages, library: Library) -> str:
    """Returns `running`, `exit 3`, `exit` (with whatever status), `killed by SIGKILL`, `unknown`.

    Unknown is the end of a process that wrote no last line, and whose parent did not tell either.
    """
    head = pages.head
    if head is None:
        return UNKNOWN
    status = _reaped(head, library)
    # Killed after its last line, as xdist does with slow workers, it lost nothing.
    if status is not None and not (pages.goodbye is not None and os.WIFSIGNALED(status)):
        return described(status)
    if pages.goodbye is not None:
        return EXIT if pages.goodbye.code is None else f"{EXIT} {pages.goodbye.code}"
    if _goes_on(pages, library):
        return EXEC
    if head.host != host_name():
        return UNKNOWN
    state, code, begun = _stat(head.pid)
    # A process that began after the journal did has got the number of one that is gone.
    if not state or begun > head.clock + 10**9:
        return UNKNOWN
    if state not in "ZX":
        return RUNNING
    return described(code)


def described(status: int) -> str:
    """Returns a wait status in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"{EXIT} {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _reaped(head: Head, library: Library) -> int | None:
    """Returns the wait status of a process, if a parent of the run met it."""
    for pages in library.pages.values():
        if pages.head is None or pages.head.host != head.host:
            continue
        for reaped in pages.reaped:
            if reaped.pid == head.pid and reaped.clock >= head.clock:
                return reaped.status
    return None


def _goes_on(pages: Pages, library: Library) -> bool:
    """Tells whether the same process arrived again later, as it does after an exec."""
    head = pages.head
    assert head is not None
    later = [start for start in library.starts if start.way != "fork"]
    return any(
        start.pid == head.pid and start.host == head.host and start.clock > head.clock
        for start in later
    )


def _stat(pid: int) -> tuple[str, int, int]:
    """Returns state, wait status and start (by the layout's clock) of a process of this host.

    The state of one that is gone is "".
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", 0, 0
    ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks
    return fields[0], int(fields[49]), layout.now() - int(age * 1e9)
