"""Halting: a violation that is raised at the line of engine code that it was found at."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fmcheck.errors import ViolationError
from fmcheck.finding import ADVISORY

if TYPE_CHECKING:
    from fmcheck.finding import Violation


class HaltingLock:
    """A session's lock in mode halt: what was found under it is raised when it is let go.

    By then the buffer's books are in order, so that the engine may catch the error and go on.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._found: Violation | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        found = None
        if not self._depth:
            found, self._found = self._found, None
        self._lock.release()
        if found is not None and kind is None:
            raise ViolationError(_sentence(found))

    def halt(self, violation: Violation) -> None:
        """Raises a violation, at the end of the outermost block if one is open."""
        if violation.code in ADVISORY:
            return
        with self:
            self._found = self._found or violation


def _sentence(violation: Violation) -> str:
    rows = ", ".join(str(row) for row in violation.rows)
    more = violation.row_count - len(violation.rows)
    where = f" rows {rows}{f' and {more} more' if more else ''}" if rows else ""
    return (
        f"{violation.code} {violation.name} in {violation.buffer}{where}: "
        f"{violation.access.verb} at {violation.access.site}"
    )
