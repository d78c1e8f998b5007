"""Unfollowed: what fmcheck itself does on streams, which is no fence or access of the engine's."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Here(threading.local):
    depth = 0


_here = _Here()


def is_here() -> bool:
    """Tells whether this thread is in such a block."""
    return _here.depth > 0


@contextmanager
def unfollowed() -> Iterator[None]:
    """Keeps what a block does on streams from being followed."""
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
