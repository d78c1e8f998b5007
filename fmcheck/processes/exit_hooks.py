"""Exit hooks: what a process still shows when code in it is about to end it by a signal.

SGLang's engine kills its whole process tree when its scheduler fails, the pytest process included:
no hook of pytest's runs after that. A signal that comes from elsewhere cannot be foreseen; the next
run reports what was found then, see `fmcheck.processes.killed_runs`.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from fmcheck.processes.module_functions import stand_in

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds. A lock that another thread holds must not keep a process alive that is to die.
_PATIENCE = 5.0
_HARMLESS = frozenset(
    number
    for name in ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP", "SIGTTIN")
    if (number := getattr(signal, name, None)) is not None
)


def before_own_exit(show: Callable[[], None]) -> Callable[[], None]:
    """Calls `show` before this process kills or leaves itself; returns what ends that.

    The signal is sent as it would have been, whatever comes of `show`.
    """
    ways: tuple[tuple[Any, str, Callable[..., bool]], ...] = (
        (os, "kill", lambda pid, number: _is_own(pid) and _ends(number)),
        (os, "killpg", lambda group, number: group in (0, os.getpgrp()) and _ends(number)),
        (os, "abort", lambda: True),
        (os, "_exit", lambda status: hasattr(status, "__index__")),
        (signal, "raise_signal", _ends),
    )
    here = os.getpid()
    undo = [
        _patch(
            module,
            name,
            lambda *a, is_end=is_end, **k: os.getpid() == here and is_end(*a, **k),
            show,
        )
        for module, name, is_end in ways
        if hasattr(module, name)
    ]

    def undo_all() -> None:
        for one in undo:
            one()

    return undo_all


def _patch(
    module: Any, name: str, is_end: Callable[..., bool], show: Callable[[], None]
) -> Callable[[], None]:
    original = getattr(module, name)

    def ending(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # pytest names the caller as the place of an interrupt
        try:
            if is_end(*args, **kwargs):
                # In a thread of its own: this one may hold a lock that `show` needs.
                thread = threading.Thread(target=show, daemon=True)
                thread.start()
                thread.join(_PATIENCE)
        except Exception:
            pass  # the arguments are wrong, and the original says so; or no thread can be started
        return original(*args, **kwargs)

    return stand_in(module, name, ending)


def _is_own(pid: int) -> bool:
    return pid in (os.getpid(), 0, -1, -os.getpgrp())


def _ends(number: int) -> bool:
    """Tells whether a signal ends this process: one with a handler of its own does not yet."""
    if number == getattr(signal, "SIGKILL", None):
        return True
    return bool(number) and number not in _HARMLESS and signal.getsignal(number) == signal.SIG_DFL
