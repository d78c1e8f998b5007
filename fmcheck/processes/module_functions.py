"""Functions of a module that ours stand in for, such as `os.kill`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def stand_in(module: Any, name: str, made: Callable[..., Any]) -> Callable[[], None]:
    """Puts `made` in the place of a function; returns what ends that, unless others came since.

    It reads as the function does, and is pickled as it: by name, as for a spawned process whose
    target it is.
    """
    original = getattr(module, name)
    functools.update_wrapper(made, original)
    made.__module__ = module.__name__  # the original's may be `posix`, which has the original still

    def undo() -> None:
        if getattr(module, name) is made:
            setattr(module, name, original)

    setattr(module, name, made)
    return undo
