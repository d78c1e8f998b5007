"""Recent events: the last happenings of a session, kept for the trace."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcheck.finding import Event
    from fmcheck.runtime.order.fences import Fences, Happening

#: Happenings that are kept; older ones are counted.
KEPT = 20_000


class RecentEvents:
    """Listens to fences."""

    def __init__(self, fences: Fences, kept: int = KEPT) -> None:
        self.fences = fences
        self.count = 0
        self._kept: deque[Happening] = deque(maxlen=kept)
        fences.listeners.append(self._heard)

    @property
    def dropped(self) -> int:
        """How many happenings were not kept."""
        return self.count - len(self._kept)

    def events(self) -> tuple[Event, ...]:
        """Returns what was kept, oldest first."""
        return tuple(self.fences.event(one) for one in list(self._kept))

    def _heard(self, happened: Happening) -> None:
        if happened.what == "lend":  # a word to the allocator, which runs nowhere
            return
        self.count += 1
        self._kept.append(happened)
