"""Wait hooks: the wait status of each child that this process waits for, as it passes by.

Afterwards nobody could be asked any more: the system forgets a process that was waited for.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

from fmcheck.processes.module_functions import stand_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    OnExit = Callable[[int, int, tuple[str, ...]], None]


def watch_reaping(on_exit: OnExit) -> Callable[[], None]:
    """Calls `on_exit(pid, wait status, command)` for each child that is waited for.

    The command is there for a Python that subprocess started, and empty otherwise; such a child may
    be reported twice. Returns what ends this.
    """
    waitpid, popen = os.waitpid, subprocess.Popen
    handle = popen._handle_exitstatus  # type: ignore[attr-defined]

    def waiting(pid: int, options: int, /) -> tuple[int, int]:
        __tracebackhide__ = True  # pytest names the caller as the place of an interrupt
        done, status = waitpid(pid, options)
        if done:
            on_exit(done, status, ())
        return done, status

    # subprocess keeps the function itself since its import, so that its own method is asked.
    def handling(child: Any, status: int, *args: Any, **kwargs: Any) -> None:
        on_exit(child.pid, status, _python(child.args))
        handle(child, status, *args, **kwargs)

    def undo() -> None:
        undo_waiting()
        if vars(popen).get("_handle_exitstatus") is handling:
            popen._handle_exitstatus = handle  # type: ignore[attr-defined]

    undo_waiting = stand_in(os, "waitpid", waiting)
    popen._handle_exitstatus = handling  # type: ignore[attr-defined]
    return undo


def watch_forkserver(popen_forkserver: ModuleType, on_exit: OnExit) -> Callable[[], None]:
    """Does the same for the children of a fork server, which waits for them and hands it on."""
    popen: Any = popen_forkserver.Popen
    poll = popen.poll

    def polling(child: Any, *args: Any, **kwargs: Any) -> int | None:
        __tracebackhide__ = True
        before = child.returncode
        code: int | None = poll(child, *args, **kwargs)
        if before is None and code is not None:
            on_exit(child.pid, code << 8 if code >= 0 else -code, ())
        return code

    def undo() -> None:
        if vars(popen).get("poll") is polling:
            popen.poll = poll

    popen.poll = polling
    return undo


def _python(arguments: Any) -> tuple[str, ...]:
    """Returns the command if it is one of Python's, as far as that shows."""
    if isinstance(arguments, (str, bytes, os.PathLike)):
        arguments = (arguments,)
    try:
        command = tuple(os.fsdecode(one) for one in arguments)
    except TypeError:
        return ()
    return command if command and os.path.basename(command[0]).startswith("python") else ()
