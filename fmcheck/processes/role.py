"""Roles: what a process of a run is to a reader, who cannot tell pids apart."""

from __future__ import annotations

import os
import re
import socket
import sys

_PYTEST = "pytest"


def host_name() -> str:
    """Returns this host's name, as it can stand in a file's name."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname()) or "host"


def role_of_pytest() -> str:
    """Returns the role of a pytest process that reports for itself: no xdist worker."""
    rank = role_here()
    return f"{_PYTEST}, {rank}" if rank.startswith("rank ") else _PYTEST


def is_pytest(role: str) -> bool:
    """Tells whether a role is one of `role_of_pytest`."""
    return role == _PYTEST or role.startswith(f"{_PYTEST}, ")


def role_here() -> str:
    """Returns what this process is, by what it or its parent called it; "" if nobody did."""
    title = _title()
    if title:
        return title
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        name = str(multiprocessing.current_process().name)
        if name != "MainProcess":
            return name
    rank = os.environ.get("RANK", "")
    return f"rank {rank}" if rank.isdigit() and "LOCAL_RANK" in os.environ else ""


def _title() -> str:
    """Returns the title that the process gave itself, "" if it goes by its command still.

    setproctitle and its like write over the command line that the system shows.
    """
    try:
        with open("/proc/self/cmdline", "rb") as file:
            line = file.read().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""
    return "" if "\0" in line or line in ("", sys.orig_argv[0]) else line.strip()
