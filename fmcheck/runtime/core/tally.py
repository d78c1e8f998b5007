"""The tally: what one session has counted and found, shared by all its relay buffers."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fmcheck.errors import ViolationError
from fmcheck.finding import ADVISORY, Access, Counts, Violation
from fmcheck.runtime.core.moment import Moments
from fmcheck.runtime.core.site import Sites

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.finding import Site

#: What a session notes of a device whose context an error has ended.
UNREAD = (
    "a device cannot be read any more ({}): of what its checks found and was not read yet, only "
    "that of gathers and writes is known"
)


class Keeper(Protocol):
    """Who is notified at once of what a tally learns, for it may be asked no more."""

    @property
    def phase_moved(self) -> bool:
        """Tells whether what is running now is not what was at the last violation."""

    def violation(self, violation: Violation) -> None:
        """A violation was found."""

    def again(self, key: object) -> None:
        """A violation was found once more."""

    def suppressed(self, number: int) -> None:
        """So many violations were suppressed."""

    def milestone(self) -> None:
        """Something rare happened that a coverage tells of."""


class Suppressing(Protocol):
    """What knows of violations that are not to be kept; `taken` counts them."""

    taken: int

    def take(self, violation: Violation) -> bool:
        """Tells whether a violation is suppressed, and counts it if so."""


class _Count:
    """A count of a tally: one of its numbers, wherever they are kept."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, tally: Tally, _: type[Tally]) -> int:
        return tally.numbers[self._place]

    def __set__(self, tally: Tally, number: int) -> None:
        tally.numbers[self._place] = number


class HaltingLock:
    """A session's lock in mode halt: what was found under it is raised when it is let go.

    It is raised at the line of engine code that it was found at. By then the buffer's books are in
    order, so that the engine may catch the error and go on.
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
            raise ViolationError(_halted_by(found))

    def halt(self, violation: Violation) -> None:
        """Raises a violation, at the end of the outermost block if one is open."""
        if violation.code in ADVISORY:
            return
        with self:
            self._found = self._found or violation


def _halted_by(violation: Violation) -> str:
    rows = ", ".join(str(row) for row in violation.rows)
    more = violation.row_count - len(violation.rows)
    where = f" rows {rows}{f' and {more} more' if more else ''}" if rows else ""
    return (
        f"{violation.code} {violation.name} in {violation.buffer}{where}: "
        f"{violation.access.verb} at {violation.access.site}"
    )


@dataclass(slots=True)
class BrokenCheck:
    """A check whose own code failed: the first error, as text with its traceback, and a count."""

    error: str
    traceback: str
    count: int = 1


class _Names(set[str]):
    """Names; a new one is a milestone."""

    on_new: Callable[[], None] = staticmethod(lambda: None)

    def add(self, name: str) -> None:
        if name not in self:
            super().add(name)
            self.on_new()


@dataclass(eq=False)
class Tally:
    """Counts and violations of a session, behind one lock.

    `fresh` holds the violations since it was last emptied, `all` those of the whole session.
    `test` names what is running now, `touched` the relay classes whose buffers were used,
    `checked` the engines of whose contracts something else was put to the test, and `unwrapped`
    the opaque functions of the contracts that were never found. `notes` are sentences on what went
    on out of sight, each with a count. `untracked` counts what stopped being followed,
    by what it was and why; `broken` holds the errors of our own code, by check. `pending` are
    called before violations or counts are handed out: each takes in what is kept on a device.
    `placed` are called before each test and at the end: each looks whether what was instrumented is
    still in its place. `dead` are sentences on detectors that did not see the fault they were
    shown. `kinds` are the kinds of devices that relay buffers are on. `numbers` are the counts, in
    the order of `Counts`; each is an attribute as well.
    """

    active: bool = True
    test: str = ""
    touched: _Names = field(default_factory=_Names)
    checked: _Names = field(default_factory=_Names)
    numbers: array[int] | memoryview = field(
        default_factory=lambda: array("Q", [0] * len(Counts.__struct_fields__))
    )
    kinds: set[str] = field(default_factory=set)
    sites: Sites = field(default_factory=Sites)
    moments: Moments = field(default_factory=Moments)
    notes: dict[str, int] = field(default_factory=dict)
    untracked: dict[tuple[str, str], int] = field(default_factory=dict)
    broken: dict[str, BrokenCheck] = field(default_factory=dict)
    unwrapped: list[str] = field(default_factory=list)
    pending: list[Callable[[], None]] = field(default_factory=list)
    placed: list[Callable[[], None]] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    suppressions: Suppressing | None = None
    fresh: dict[object, Violation] = field(default_factory=dict)
    all: dict[object, Violation] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)
    keeper: Keeper | None = None

    buffers, writes, gathers, peeks, unchecked, unseen_writes, tails, allocations = map(
        _Count, range(len(Counts.__struct_fields__))
    )

    def keep(self, keeper: Keeper, numbers: memoryview) -> None:
        """Tells a keeper of everything from now on, and counts in its numbers."""
        self.keeper = keeper
        for place, number in enumerate(self.numbers):
            numbers[place] = number
        self.numbers = numbers
        self.touched.on_new = self.checked.on_new = keeper.milestone

    def restart(self) -> None:
        """Leaves what was found and counted to the process that this one was forked from.

        The lock may have been held there by a thread that is not here. Nobody keeps anything yet.
        """
        self.keeper = None
        self.touched.on_new = self.checked.on_new = _Names.on_new
        self.lock = type(self.lock)() if self.halts else threading.RLock()
        self.numbers = array("Q", [0] * len(self.numbers))
        if self.suppressions is not None:
            self.suppressions.taken = 0
        self.untracked.clear()
        self.fresh.clear()
        self.all.clear()

    def report(self, violation: Violation) -> None:
        """Keeps a violation; the same one again only raises its count.

        Raises:
            ViolationError: in mode halt, as soon as the lock is free.
        """
        if self.suppresses(violation):
            return
        for kept in (self.fresh, self.all):
            known = kept.get(violation.key)
            kept[violation.key] = violation if known is None else known.seen_again()
        if self.keeper is not None:
            self.keeper.violation(violation)
        if self.halts:
            self.lock.halt(violation)

    def suppresses(self, violation: Violation) -> bool:
        """Tells whether a violation is not to be kept, and counts it if so."""
        if self.suppressions is None or not self.suppressions.take(violation):
            return False
        if self.keeper is not None:
            self.keeper.suppressed(self.suppressions.taken)
            self.keeper.milestone()
        return True

    @property
    def halts(self) -> bool:
        """Tells whether a violation is to be raised where it is found."""
        return isinstance(self.lock, HaltingLock)

    def note(self, sentence: str) -> None:
        """Keeps a sentence on coverage; the same one again only raises its count."""
        self.notes[sentence] = self.notes.get(sentence, 0) + 1
        if self.keeper is not None and self.notes[sentence] == 1:
            self.keeper.milestone()

    def untrack(self, what: str, reason: str, count: int = 1) -> None:
        """Counts something that is not followed from now on.

        `what` is a plural noun (`tensors`, `views`, `accesses`), `reason` completes "not followed
        because of": both are shown in the closing section, with the count.
        """
        key = (what, reason)
        before = self.untracked.get(key, 0)
        self.untracked[key] = before + count
        # Kept each time that the count doubles: a process that is killed loses less than half.
        if self.keeper is not None and before.bit_length() < self.untracked[key].bit_length():
            self.keeper.milestone()

    def collect(self) -> None:
        """Takes over what was found and is still kept on a device, as far as it can be read."""
        for report in self.pending:
            try:
                report()
            except RuntimeError as err:
                # By its name: this room does not know torch.
                if type(err).__name__ != "AcceleratorError":
                    raise
                self.note(UNREAD.format(str(err).partition("\n")[0]))

    def site_of(self, moment: int) -> Site:
        """Returns the line of engine code that a moment is of."""
        return self.sites[self.moments.site(moment)]

    def access(self, verb: str, moment: int, stream: str | None = None) -> Access:
        """Returns an access as it is reported, on a stream: the one that was current by default."""
        moments = self.moments
        where = moments.stream(moment) if stream is None else stream
        return Access(verb, self.site_of(moment), moments.step_of(moment), where)

    def seen_again(self, key: object) -> bool:
        """Raises the count of a violation that needs no second telling; False if it needs one."""
        if self.keeper is not None and self.keeper.phase_moved:
            self.fresh.pop(key, None)  # reported again in each phase, with its own story
        if key not in self.fresh or key not in self.all:
            return False
        if self.keeper is not None:
            self.keeper.again(key)
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
        return Counts(*self.numbers)
