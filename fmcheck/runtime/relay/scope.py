"""Scopes: functions of the contract inside which gathers, or writes, are others than elsewhere.

What a function writes into the rows that it hands out is their new owner's, though who that is is
known at its end alone; what it writes into those that it takes back is found by the next one. One
that serves a batch accesses the rows of its requests alone.
"""

from __future__ import annotations

import enum
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from fmcheck.runtime.core import kinds
from fmcheck.runtime.core.containment import contained

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from fmcheck.runtime.core.tally import Tally

View = TypeVar("View")

#: The check that an error of our own is counted for.
CHECK = "relay buffers"


class Scope(enum.Enum):
    """When the gathers inside a function consume."""

    PEEK = "never"
    AT_RETURN = "when the function returns"
    TAKE = "at once, and those by a slice as well"


class DeferredJudge(Protocol):
    """A buffer."""

    def judge_late(self, rows: npt.NDArray[Any], moment: int) -> None:
        """Judges the owners of rows that a hand-out wrote, now that it has ended."""

    def keep_resets(self, rows: npt.NDArray[Any], moment: int) -> None:
        """Keeps what a take-back wrote to rows that nobody has now, for their next owners."""


class Written(NamedTuple):
    """A write to a buffer inside a function that changes owners, and whether it `picks` rows."""

    buffer: DeferredJudge
    rows: npt.NDArray[Any]
    moment: int
    picks: bool


class _Open(threading.local):
    """The scopes that this thread is in, innermost last.

    `handing` has the writes of each call that is changing owners, `serving` the batches that are.
    """

    def __init__(self) -> None:
        self.stack: list[_Scoped] = []
        self.handing: list[list[Written]] = []
        self.serving: list[Serving] = []


_open = _Open()


def current() -> Scope | None:
    """Returns the innermost scope that this thread is in."""
    stack = _open.stack
    return stack[-1].scope if stack else None


def note_view(view: View, of: Any, tally: Tally, gather: Callable[[View, int], None]) -> View:
    """Returns a slice of another, kept in a scope that takes rows: handing it out gathers it.

    `gather` is handed the slice and the line that made it. What the function reads or writes of it
    itself is entered then, and `forget_view` called.
    """
    if current() is Scope.TAKE:
        forget_view(of)
        _open.stack[-1].views[id(view)] = weakref.ref(view), gather, tally.sites.here()
    return view


def forget_view(view: Any) -> bool:
    """Tells whether a slice was kept, which it is no more."""
    return current() is Scope.TAKE and _open.stack[-1].views.pop(id(view), None) is not None


def put_off(consume: Callable[[], None]) -> None:
    """Leaves `consume` to the end of the innermost scope."""
    _open.stack[-1].put_off.append(consume)


class Handing(kinds.AroundCall):
    """A call of a function that changes who has which row, and the writes in its body."""

    def __init__(self) -> None:
        self._written: list[Written] = []

    def enter(self) -> None:
        """What is written from now on is the call's."""
        _open.handing.append(self._written)

    def leave(self) -> None:
        """What is written from now on is not."""
        _open.handing.pop()

    def keep_resets(self) -> None:
        """Keeps what was written to rows that nobody has now: their next owners find it."""
        for one in self._written:
            one.buffer.keep_resets(one.rows, one.moment)

    def over(self) -> None:
        """Judges the owners of what was written, now that they are known."""
        if _open.handing:
            _open.handing[-1] += self._written
            return
        for one in self._written:
            if one.picks:
                one.buffer.judge_late(one.rows, one.moment)


def is_changing_owners() -> bool:
    """Tells whether this thread is in a function that changes who has which row."""
    return bool(_open.handing)


def note_write(written: Written) -> None:
    """Keeps a write of the innermost call that changes owners."""
    _open.handing[-1].append(written)


def written_to(buffer: DeferredJudge) -> list[Written]:
    """Returns what the calls that are changing owners have written to a buffer."""
    return [one for writes in _open.handing for one in writes if one.buffer is buffer]


class Serving(kinds.AroundCall):
    """A call of a function that serves a batch: it accesses the rows of its requests alone.

    `function` names it in reports, `relays` are those whose rows it may access, all if none.
    `look` returns the names of the requests, None if they cannot be read: then any row may be.
    """

    def __init__(
        self, function: str, relays: tuple[str, ...], look: Callable[[], list[str] | None]
    ) -> None:
        self.function, self._relays, self._look = function, relays, look
        #: The requests, and "" for rows of which nobody knows whose they are.
        self.names = {""}
        self._is_known = True
        self._read()

    def enter(self) -> None:
        """What is accessed from now on is for the batch."""
        _open.serving.append(self)

    def leave(self) -> None:
        """What is accessed from now on is not."""
        _open.serving.pop()

    def _read(self) -> None:
        names = self._look()
        self._is_known = self._is_known and names is not None
        self.names.update(names or ())

    @property
    def described(self) -> str:
        """Whose batch it is, in a sentence."""
        from fmcheck.runtime.core.violations import SHOWN  # loads NumPy

        names = sorted(self.names - {""})
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        whose = f"of {', '.join(names[:SHOWN])}{more}" if names else "of no request"
        return f"the batch that `{self.function}` serves is one {whose}"

    def covers(self, relay: str) -> bool:
        """Tells whether the rows of a relay are meant."""
        return self._is_known and (not self._relays or relay in self._relays)

    def strangers(self, names: set[str]) -> set[str]:
        """Returns which of some names are of no request in the batch; it may have grown since."""
        self._read()
        return names - self.names if self._is_known else set()


def serving(relay: str) -> Serving | None:
    """Returns the innermost batch that this thread serves, if rows of a relay are meant by it."""
    found = _open.serving[-1] if _open.serving else None
    return found if found is not None and found.covers(relay) else None


def scoped(function: Callable[..., Any], scope: Scope, tally: Tally) -> Callable[..., Any]:
    """Returns `function`, run in a scope."""

    def call_of(args: Any, _: Any) -> _Scoped | None:
        call = _Scoped(scope, tally, getattr(function, "__name__", ""), args[0] if args else None)
        return None if _open.stack and _open.stack[-1].goes_on_to(call) else call

    return kinds.around(function, call_of)


class _Scoped(kinds.AroundCall):
    """The scope of one call, while its body runs, and what it has put off."""

    def __init__(self, scope: Scope, tally: Tally, name: str, of: Any) -> None:
        self.scope = scope
        self.put_off: list[Callable[[], None]] = []
        self.views: dict[int, tuple[weakref.ref[Any], Callable[[Any, int], None], int]] = {}
        self._tally, self._name, self._of = tally, name, of

    def goes_on_to(self, inner: _Scoped) -> bool:
        """Tells whether another call is of the method that this one, an override, stands for."""
        return self._of is not None and self._of is inner._of and self._name == inner._name

    def enter(self) -> None:
        _open.stack.append(self)

    def leave(self) -> None:
        _open.stack.pop()

    def returned(self, result: Any) -> None:
        """Gathers the slices that somebody still holds: the frame that made them is gone."""
        for ref, gather, site in self.views.values():
            view = ref()
            if view is not None:
                gather(view, site)

    def over(self) -> None:
        for consume in self.put_off:
            with contained(self._tally, CHECK):
                consume()
