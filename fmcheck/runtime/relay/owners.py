"""Owners: who holds which row of a pool, now and before, whatever relay buffers hang on it.

Rows, owners and generations are plain values; no engine and no tensor is in sight.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

_REMEMBERED = 4


class Follower(Protocol):
    """A relay buffer, as far as owners know it."""

    def hand_out(self, rows: npt.NDArray[np.int64]) -> None:
        """The rows have new owners."""

    def spare(self, rows: npt.NDArray[np.int64]) -> None:
        """Nobody waits any more for what the rows hold."""


class Owners:
    """The rows of one pool. A row that was never handed out has generation 0 and no owner.

    `followers` are told of each change; one that joins later starts from how things stand.
    `drained` rows are handed out only once nothing that was launched can still touch them.
    """

    drained = False

    def __init__(self) -> None:
        import numpy as np  # loaded with the engine: a session that imports none needs it not

        self._generation: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._out: npt.NDArray[np.bool_] = np.zeros(0, bool)
        # A row is remembered by its last few owners: (generation, owner).
        self._names: defaultdict[int, deque[tuple[int, str]]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )
        self.followers: weakref.WeakSet[Any] = weakref.WeakSet()

    def hand_out(self, rows: Sequence[int], names: Sequence[str], renews: bool = False) -> None:
        """Gives rows to owners, "" where an owner has no name.

        A row that is out already and goes to its own owner, or to one without a name, begins no
        generation: it is the next chunk of the same prompt, and what its last chunk left in the
        row may be overwritten unread. Where a hand-out `renews`, each row begins one.
        """
        self._reach(rows)
        fresh, again = [], []
        for row, name in dict(zip(rows, names, strict=True)).items():
            known = self.owner(row)
            if not renews and self._out[row] and (not name or not known or name == known):
                again.append(row)
                if name and not known:
                    self._name(row, name)
            else:
                fresh.append(row)
                self._generation[row] += 1
                self._name(row, name)
                self._out[row] = True
        self._tell("hand_out", fresh)
        self._tell("spare", again)

    def take_back(self, rows: Iterable[int]) -> None:
        """Ends the ownership of rows; those that nobody holds stay as they are.

        A step in flight may still gather and write them: its request has ended, and whatever it
        leaves is gone when the row is handed out.
        """
        rows = list(rows)
        self._reach(rows)
        held = [row for row in dict.fromkeys(rows) if self._out[row]]
        self._out[held] = False
        self._tell("spare", held)

    def owner(self, row: int) -> str:
        """Returns the name of who holds a row, "" where nobody does or it has none."""
        if row >= len(self._out) or not self._out[row]:
            return ""
        return self.name(row, self.generation(row))

    def name(self, row: int, generation: int) -> str:
        """Returns the name of a row's owner in a generation, "" if it is not known any more."""
        return next((name for past, name in self._names[row] if past == generation), "")

    def generation(self, row: int) -> int:
        """Returns how often a row was handed out."""
        return int(self._generation[row]) if row < len(self._generation) else 0

    def held(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tells which rows are out."""
        import numpy as np

        self._reach(rows)
        return np.asarray(self._out[rows])

    def _name(self, row: int, name: str) -> None:
        past = self._names[row]
        generation = self.generation(row)
        if past and past[-1][0] == generation:
            past.pop()
        past.append((generation, name))

    def _tell(self, verb: str, rows: list[int]) -> None:
        if not rows or not self.followers:
            return
        import numpy as np

        for follower in list(self.followers):
            getattr(follower, verb)(np.array(rows, np.int64))

    def _reach(self, rows: Iterable[int] | npt.NDArray[np.int64]) -> None:
        """Grows the map to hold the rows."""
        missing = max((int(row) for row in rows), default=-1) + 1 - len(self._out)
        if missing > 0:
            import numpy as np

            self._out = np.concatenate([self._out, np.zeros(missing, bool)])
            self._generation = np.concatenate([self._generation, np.zeros(missing, np.int64)])


class Pools:
    """The owners of each pool of an engine, by the pool itself; those without one share theirs."""

    def __init__(self) -> None:
        self._shared: Owners | None = None
        self._by_id: dict[int, Owners] = {}

    def of(self, pool: object) -> Owners:
        """Returns the owners of a pool's rows, for as long as the pool lives."""
        known = None if pool is None else self._by_id.get(id(pool))
        if known is None and pool is not None:
            try:
                weakref.finalize(pool, self._by_id.pop, id(pool), None)
                known = self._by_id[id(pool)] = Owners()
            except TypeError:  # what cannot be told to be gone would leave its number to another
                pass
        if known is None:
            known = self._shared = self._shared or Owners()
        return known
