"""The tally: what one session has counted and found, shared by all its relay buffers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmcheck.finding import Counts, Violation
from fmcheck.runtime.site import Sites

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(eq=False)
class Tally:
    """Counts and violations of a session, behind one lock.

    `fresh` holds the violations since it was last emptied, `all` those of the whole session.
    `test` names what is running now, `touched` the relay classes whose buffers were used.
    `pending` are called before violations are handed out: each reports what it has kept on a
    device. `kinds` are the kinds of devices that relay buffers are on. `compare_on_device` judges
    tails there on a CPU too, as a test of that code.
    """

    active: bool = True
    test: str = ""
    touched: set[str] = field(default_factory=set)
    buffers: int = 0
    writes: int = 0
    gathers: int = 0
    peeks: int = 0
    unchecked: int = 0
    unseen_writes: int = 0
    tails: int = 0
    compare_on_device: bool = False
    kinds: set[str] = field(default_factory=set)
    pending: list[Callable[[], None]] = field(default_factory=list)
    sites: Sites = field(default_factory=Sites)
    fresh: dict[object, Violation] = field(default_factory=dict)
    all: dict[object, Violation] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def report(self, violation: Violation) -> None:
        """Keeps a violation; the same one again only raises its count."""
        for kept in (self.fresh, self.all):
            known = kept.get(violation.key)
            kept[violation.key] = violation if known is None else known.seen_again()

    def drain(self) -> tuple[Violation, ...]:
        """Returns the violations since the last call."""
        for report in self.pending:
            report()
        with self.lock:
            found = tuple(self.fresh.values())
            self.fresh.clear()
        return found

    def counts(self) -> Counts:
        """Returns the counts so far."""
        return Counts(
            self.buffers,
            self.writes,
            self.gathers,
            self.peeks,
            self.unchecked,
            self.unseen_writes,
            self.tails,
        )
