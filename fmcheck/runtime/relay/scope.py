"""Scopes: functions of the contract inside which gathers are others than elsewhere."""

from __future__ import annotations

import enum
import functools
import threading
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.core.containment import contained

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.runtime.core.tally import Tally

#: The check that an error of our own is counted for.
CHECK = "relay buffers"


class Scope(enum.Enum):
    """When the gathers inside a function consume."""

    PEEK = "never"
    AT_RETURN = "when the function returns"
    TAKE = "at once, and those by a slice as well"


class _Open(threading.local):
    """The scopes that this thread is in, innermost last, each with what it has put off."""

    def __init__(self) -> None:
        self.stack: list[tuple[Scope, list[Callable[[], None]]]] = []


_open = _Open()


def current() -> Scope | None:
    """Returns the innermost scope that this thread is in."""
    stack = _open.stack
    return stack[-1][0] if stack else None


def put_off(consume: Callable[[], None]) -> None:
    """Leaves `consume` to the end of the innermost scope."""
    _open.stack[-1][1].append(consume)


def scoped(function: Callable[..., Any], scope: Scope, tally: Tally) -> Callable[..., Any]:
    """Returns `function`, run in a scope."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        _open.stack.append((scope, []))
        try:
            return function(*args, **kwargs)
        finally:
            _, waiting = _open.stack.pop()
            for consume in waiting:
                with contained(tally, CHECK):
                    consume()

    return run
