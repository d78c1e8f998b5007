"""The tally: what one session has counted and found, shared by all its relay buffers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmcheck.finding import Counts, Violation
from fmcheck.runtime.halting import HaltingLock
from fmcheck.runtime.moment import Moments
from fmcheck.runtime.site import Sites
from fmcheck.runtime.suppressions import NONE, Suppressions

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.runtime.guard import Guards
    from fmcheck.runtime.streams import Streams


@dataclass(eq=False)
class Tally:
    """Counts and violations of a session, behind one lock.

    `fresh` holds the violations since it was last emptied, `all` those of the whole session.
    `test` names what is running now, `touched` the relay classes whose buffers were used, and
    `unwrapped` the opaque functions of the contracts that were never found. `notes` are sentences
    on what went on out of sight, each with a count. `pending` are called before violations or
    counts are handed out: each takes in what is kept on a device. `dead` are sentences on detectors
    that did not see the fault they were shown, by device in `proved`. `kinds` are the
    kinds of devices that relay buffers are on. `compare_on_device` judges tails there on a CPU too,
    as a test of that code.
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
    sites: Sites = field(default_factory=Sites)
    moments: Moments = field(default_factory=Moments)
    notes: dict[str, int] = field(default_factory=dict)
    unwrapped: list[str] = field(default_factory=list)
    pending: list[Callable[[], None]] = field(default_factory=list)
    proved: set[str] = field(default_factory=set)
    dead: list[str] = field(default_factory=list)
    suppressions: Suppressions = NONE
    fresh: dict[object, Violation] = field(default_factory=dict)
    all: dict[object, Violation] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)
    guards: Guards | None = None
    streams: Streams | None = None

    def report(self, violation: Violation) -> None:
        """Keeps a violation; the same one again only raises its count.

        Raises:
            ViolationError: in mode halt, as soon as the lock is free.
        """
        if self.suppressions.take(violation):
            return
        for kept in (self.fresh, self.all):
            known = kept.get(violation.key)
            kept[violation.key] = violation if known is None else known.seen_again()
        if self.halts:
            self.lock.halt(violation)

    @property
    def halts(self) -> bool:
        """Tells whether a violation is to be raised where it is found."""
        return isinstance(self.lock, HaltingLock)

    def note(self, sentence: str) -> None:
        """Keeps a sentence on coverage; the same one again only raises its count."""
        self.notes[sentence] = self.notes.get(sentence, 0) + 1

    def collect(self) -> None:
        """Takes over what was found and is still kept on a device."""
        for report in self.pending:
            report()

    def seen_again(self, key: object) -> bool:
        """Raises the count of a violation that needs no second telling; False if it needs one."""
        if key not in self.fresh or key not in self.all:
            return False
        for kept in (self.fresh, self.all):
            kept[key] = kept[key].seen_again()
        if self.halts:
            self.lock.halt(self.fresh[key])
        return True

    def drain(self) -> tuple[Violation, ...]:
        """Returns the violations since the last call."""
        self.collect()
        with self.lock:
            found = tuple(self.fresh.values())
            self.fresh.clear()
        return found

    def counts(self) -> Counts:
        """Returns the counts so far."""
        self.collect()
        return Counts(
            self.buffers,
            self.writes,
            self.gathers,
            self.peeks,
            self.unchecked,
            self.unseen_writes,
            self.tails,
        )
