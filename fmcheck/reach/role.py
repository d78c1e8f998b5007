"""Roles: what a process of a run is to a reader, who cannot tell pids apart."""

from __future__ import annotations

import os
import re
import socket
import sys


def host_name() -> str:
    """Returns this host's name, as it can stand in a file's name."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname()) or "host"


def role_here() -> str:
    """Returns what this process is, by what it or its parent called it; "" if nobody did."""
    title = title_here(command_line())
    if title:
        return title
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        name = str(multiprocessing.current_process().name)
        if name != "MainProcess":
            return name
    rank = os.environ.get("RANK", "")
    return f"rank {rank}" if rank.isdigit() and "LOCAL_RANK" in os.environ else ""


def command_line() -> str:
    """Returns the command line as the system shows it, which setproctitle writes to."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""


def title_here(line: str) -> str:
    """Returns the title that the process gave itself, "" if that is still its command."""
    return "" if "\0" in line or line in ("", sys.orig_argv[0]) else line.strip()
