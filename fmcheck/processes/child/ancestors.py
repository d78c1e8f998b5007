"""Ancestors: how a process that was given another environment finds the run that it belongs to.

The parent's own environment and open files tell, as far as the system shows them: on Linux, to the
same user, and not beyond a container or a process whose parent is gone.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from fmcheck.processes.child.run_context import VARIABLE, RunContext

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How far up is looked.
_FARTHEST = 16
_JOURNAL = re.compile(r".*-\d+-\d+\.jsonl")


def inherited() -> RunContext | None:
    """Returns the context of the nearest ancestor that has one."""
    for pid in _ancestors():
        text = _in_environment(pid) or _in_files(pid)
        try:
            if text:
                return RunContext.unpack(text)
        except (ValueError, TypeError):
            continue
    return None


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    for _ in range(_FARTHEST):
        if pid <= 1:
            return
        yield pid
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def _in_environment(pid: int) -> str:
    """Returns the context that a process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    start = f"{VARIABLE}=".encode()
    return next((one[len(start) :].decode() for one in variables if one.startswith(start)), "")


def _in_files(pid: int) -> str:
    """Returns the context that lies beside the journal which a process has open."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return ""
    for number in numbers:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{number}")
            if not _JOURNAL.fullmatch(path):
                continue
            with open(path) as file:
                board = json.loads(file.readline())["board"]
            with open(os.path.join(os.path.dirname(path), f"{board}.context")) as file:
                return file.read()
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return ""
