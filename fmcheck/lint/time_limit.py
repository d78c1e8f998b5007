"""A limit of processor time: what rules may take for one file, whatever stands in it."""

from __future__ import annotations

import signal
from contextlib import contextmanager

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from collections.abc import Iterator


class OutOfTimeError(BaseException):
    """The limit is reached. No `except Exception` on the way keeps it."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises `OutOfTimeError` in what takes longer; no limit where the system has no such timer.

    Time of the processor, not of the clock: a busy machine changes nothing.
    """
    try:
        before = signal.signal(signal.SIGVTALRM, _stop)
    except (AttributeError, ValueError):  # Windows; not the main thread
        yield
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _stop(signum: int, frame: object) -> None:
    raise OutOfTimeError
