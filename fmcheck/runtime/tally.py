"""The tally: what one session has counted and found, shared by all its relay buffers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmcheck.finding import Counts, Violation
from fmcheck.runtime.moment import Moments
from fmcheck.runtime.site import Sites

if TYPE_CHECKING:
    from fmcheck.runtime.guard import Guards


@dataclass(eq=False)
class Tally:
    """Counts and violations of a session, behind one lock.

    `fresh` holds the violations since it was last emptied, `all` those of the whole session.
    `test` names what is running now, `touched` the relay classes whose buffers were used, and
    `unwrapped` the opaque functions of the contracts that were never found. `notes` are sentences
    on what went on out of sight, each with a count.
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
    sites: Sites = field(default_factory=Sites)
    moments: Moments = field(default_factory=Moments)
    notes: dict[str, int] = field(default_factory=dict)
    unwrapped: list[str] = field(default_factory=list)
    fresh: dict[object, Violation] = field(default_factory=dict)
    all: dict[object, Violation] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    guards: Guards | None = None

    def report(self, violation: Violation) -> None:
        """Keeps a violation; the same one again only raises its count."""
        for kept in (self.fresh, self.all):
            known = kept.get(violation.key)
            kept[violation.key] = violation if known is None else known.seen_again()

    def seen_again(self, key: object) -> bool:
        """Raises the count of a violation that needs no second telling; False if it needs one."""
        if key not in self.fresh or key not in self.all:
            return False
        for kept in (self.fresh, self.all):
            kept[key] = kept[key].seen_again()
        return True

    def note(self, sentence: str) -> None:
        """Keeps a sentence on coverage; the same one again only raises its count."""
        self.notes[sentence] = self.notes.get(sentence, 0) + 1

    def drain(self) -> tuple[Violation, ...]:
        """Returns the violations since the last call."""
        with self.lock:
            self.sync()
            found = tuple(self.fresh.values())
            self.fresh.clear()
        return found

    def sync(self) -> None:
        """Takes in what lies on devices: findings and counts. Waits for them."""
        if self.guards is not None:
            with self.lock:
                self.guards.drain()

    def counts(self) -> Counts:
        """Returns the counts so far."""
        self.sync()
        return Counts(
            self.buffers,
            self.writes,
            self.gathers,
            self.peeks,
            self.unchecked,
            self.unseen_writes,
        )
