"""The start of a child process: what it does then, and when it imports an engine.

At the start it leaves a line in the run's folder and waits, importing nothing but a little of the
standard library. The first module that a contract names starts the watch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from fmcheck.first_import import FirstImport
from fmcheck.processes.child import run_context as run_context
from fmcheck.processes.role import host_name

if TYPE_CHECKING:
    from fmcheck.processes.child.run_context import RunContext

_waiting: Waiting | None = None


class Waiting:
    """A process that starts the watch when a module of the contracts is asked for."""

    def __init__(self, context: RunContext, way: str) -> None:
        self.context = context
        self.way = way
        self._engine = FirstImport(context.modules, self._begin)
        self.wait, self.end = self._engine.wait, self._engine.end

    def _begin(self) -> None:
        """Starts the watch. A failure is left in the folder, for the run to fail by."""
        try:
            from fmcheck.processes.child.child_watch import begin

            begin(self.context, self.way)
        except Exception as err:
            note_start(self.context, self.way, failed=f"{type(err).__name__}: {err}")


def wait_for_engine(way: str, context: RunContext | None = None) -> None:
    """Waits for the engine, if this process belongs to a run; `way` says how it was reached.

    Never raises: this runs at the start of processes that are not ours.
    """
    global _waiting
    context = context or run_context.here()
    # The last is so in the pytest process, which imports engines too, and in its forks.
    if context is None or _waiting is not None or "fmcheck.processes.process_watch" in sys.modules:
        return
    if not os.path.isdir(context.folder):
        return  # the run is over, and this process was left behind
    # A process that is reached by another way hands it on by its environment.
    os.environ.setdefault(run_context.VARIABLE, context.pack())
    _waiting = Waiting(context, way)
    note_start(context, way)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    if "multiprocessing.spawn" in sys.modules:
        from fmcheck.processes.child.spawn_hook import hook_spawn

        hook_spawn(context)
    _waiting.wait()


def give_way() -> None:
    """Stops waiting, in a process that is about to have a session of its own."""
    if _waiting is not None:
        _waiting.end()


def _forked() -> None:
    if _waiting is not None:
        note_start(_waiting.context, "fork")


def note_start(context: RunContext, way: str, failed: str = "") -> None:
    """Writes into the run's folder that this process was reached, or why it is not watched."""
    start = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "host": host_name(),
        "command": sys.orig_argv,
        "way": way,
        "board": context.board,
        "clock": time.monotonic_ns(),
        "wall": time.time(),
        "failed": failed,
    }
    path = os.path.join(context.folder, f"starts-{host_name()}.jsonl")
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # A path that is not UTF-8 is no JSON.
            os.write(file, json.dumps(start, ensure_ascii=False).encode(errors="replace") + b"\n")
        finally:
            os.close(file)
    except OSError:
        if failed:  # no line for the run to fail by, and the output is the program's
            from fmcheck.processes.journal.writer import count_unwatched

            count_unwatched(context.folder, context.board)
