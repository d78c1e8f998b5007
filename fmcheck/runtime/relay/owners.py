"""Owners: who holds which row of a pool, now and before, whatever relay buffers hang on it.

Rows, owners and generations are plain values; no engine and no tensor is in sight.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import numpy as np

from fmcheck.runtime.core import verdicts
from fmcheck.runtime.core.verdicts import Allocation
from fmcheck.runtime.core.violations import Misgiven

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

_REMEMBERED = 4


class Owners:
    """The rows of one pool. A row that was never handed out has generation 0 and no owner.

    `followers` receive each change; one that joins later starts from the current state.
    `drained` rows are handed out only once nothing that was launched can still touch them; None
    where nobody said. `sinks` are rows that nobody is to be given, as far as a contract has them
    among the `declared_sinks`; any other one is a guess, which ends when somebody is given it.
    """

    drained: bool | None = None

    def __init__(self) -> None:
        self._generation: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._out: npt.NDArray[np.bool_] = np.zeros(0, bool)
        # A row is remembered by its last few owners: (generation, owner).
        self._names: defaultdict[int, deque[tuple[int, str]]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )
        # Of each row, when it was handed out and when it was taken back last, and in which step.
        self._moments: dict[tuple[int, Allocation], int] = {}
        self._left_in: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        # Rows as an earlier test has left them: its engine may be gone.
        self._left_behind: set[int] = set()
        #: Negative numbers, which stand for no row, that were given back, each with the moment.
        self._placeholders: dict[int, int] = {}
        self.sinks: set[int] = set()
        self.declared_sinks: set[int] = set()
        self.followers: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin_test(self) -> None:
        """Holds nothing against whoever comes upon what an earlier test has left behind."""
        self._left_behind = set(np.flatnonzero(self._generation).tolist())
        self._placeholders.clear()

    def hand_out(
        self,
        rows: Sequence[int],
        names: Sequence[str],
        renews: bool = False,
        moment: int = 0,
    ) -> list[Misgiven]:
        """Gives rows to owners, "" where an owner has no name; returns what is wrong with it.

        A row that is out already and goes to its own owner, or to one without a name, begins no
        generation: it is the next chunk of the same prompt, and what its last chunk left in the
        row may be overwritten unread. Where a hand-out `renews`, each row begins one.
        """
        self._reach(rows)
        guessed = self.sinks.intersection(rows) - self.declared_sinks
        self.sinks -= guessed
        self._notify("lose_sinks", [*guessed])
        fresh: dict[int, None] = {}
        again: dict[int, None] = {}
        faults = []
        for row, name in zip(rows, names, strict=True):
            known = self.owner(row)
            is_another = bool(name and known and name != known)
            is_held = bool(self._out[row]) and not renews
            judged = is_held and row not in self._left_behind
            allocation = Allocation.HELD if judged else Allocation.NEVER
            check = verdicts.of_hand_out(allocation, row in self.sinks, is_another)
            if check != verdicts.GOOD:
                since = self._moments.get((row, Allocation.HELD))
                faults.append(Misgiven(check, row, name, known, since, allocation))
            if (is_held and not is_another) or row in fresh:
                again[row] = None
                if name and name != known:
                    self._name(row, name)
            else:
                fresh[row] = None
                self._generation[row] += 1
                self._name(row, name)
                self._out[row] = True
                self._left_behind.discard(row)
                self._moments[row, Allocation.HELD] = moment
        self._notify("hand_out", [*fresh])
        self._notify("spare", [row for row in again if row not in fresh])
        return faults

    def assign(self, table: Mapping[int, str], moment: int, step: int) -> list[Misgiven]:
        """Gives each row to whoever a table says has it, and takes back all others.

        A row that another has now has left its owner, which is no fault.
        """
        leaving = [row for row in self.out() if table.get(row) != self.owner(row)]
        self.take_back(leaving, None, moment, step)
        joining = {row: name for row, name in table.items() if self.owner(row) != name}
        return self.hand_out([*joining], [*joining.values()], moment=moment)

    def allocations(self, rows: Iterable[int]) -> dict[int, tuple[Allocation, int]]:
        """Returns who has each of some rows, and in which generation."""
        rows = list(rows)
        self._reach(rows)
        return {row: (self._allocation(row), self.generation(row)) for row in rows}

    def take_back(
        self,
        rows: Iterable[int],
        before: Mapping[int, tuple[Allocation, int]] | None = None,
        moment: int = 0,
        step: int = 0,
    ) -> list[Misgiven]:
        """Ends the ownership of rows; returns those that somebody had given back already.

        A step in flight may still gather and write them: its request has ended, and whatever it
        leaves is gone when the row is handed out. `before` tells how things stood when the engine
        began to take them back: what it has done by another declared function since is no fault.
        """
        rows = list(rows)
        self._reach(rows)
        held: dict[int, None] = {}
        faults = []
        for row in rows:
            allocation = self._allocation(row) if before is None else before[row][0]
            check = verdicts.of_take_back(Allocation.FREED if row in held else allocation)
            if check != verdicts.GOOD:
                name = self.name(row, self.generation(row))
                since = moment if row in held else self._moments.get((row, Allocation.FREED))
                faults.append(Misgiven(check, row, "", name, since, Allocation.FREED))
            elif self._out[row] and (before is None or before[row][1] == self.generation(row)):
                held[row] = None
                self._left_in[row] = step
                self._moments[row, Allocation.FREED] = moment
                self._left_behind.discard(row)
        self._out[[*held]] = False
        self._notify("spare", [*held])
        return faults

    def take_back_placeholders(self, numbers: Iterable[int], moment: int) -> None:
        """Notes numbers of no row that were given back beside rows, or as if they were some."""
        self._placeholders.update(dict.fromkeys(numbers, moment))

    def placeholders(self, numbers: Iterable[int]) -> list[Misgiven]:
        """Returns what is wrong with numbers of no row that are handed out beside rows.

        Nothing, unless somebody gave them back: the pool has them among its free rows.
        """
        known = self._placeholders
        found = [one for one in numbers if one in known]
        return [Misgiven(verdicts.SINK, one, "", "", known[one], Allocation.FREED) for one in found]

    def use(self, rows: Sequence[int], names: Sequence[str], step: int | None) -> list[Misgiven]:
        """Returns what is wrong with rows that are used for requests, "" for one without a name.

        Without the number of the `step`, one in flight may use any row for its last owner.
        """
        self._reach(rows)
        faults = []
        for row, name in zip(rows, names, strict=True):
            known = self.name(row, self.generation(row))
            allocation = Allocation.NEVER if row in self._left_behind else self._allocation(row)
            for_another = bool(name and known and name != known)
            in_flight = step is None or step - int(self._left_in[row]) < verdicts.IN_FLIGHT
            check = verdicts.of_use(allocation, for_another, in_flight)
            if check != verdicts.GOOD:
                since = self._moments.get((row, allocation))
                faults.append(Misgiven(check, row, name, known, since, allocation))
        return faults

    def _allocation(self, row: int) -> Allocation:
        if self._out[row]:
            return Allocation.HELD
        return Allocation.FREED if self._generation[row] else Allocation.NEVER

    def unowned(self, rows: npt.NDArray[np.int64], step: int | None) -> npt.NDArray[np.bool_]:
        """Tells which rows nobody has: a step in flight, if any, began when somebody had them.

        Without the number of the `step`, any that was handed out once may still be in flight.
        """
        self._reach(rows)
        if step is None:
            in_flight = np.ones(rows.shape, np.int8)
        else:
            in_flight = (step - self._left_in[rows] < verdicts.IN_FLIGHT).astype(np.int8)
        return np.asarray(verdicts.unowned()[self.allocation(rows), in_flight])

    def allocation(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
        """Returns who has each of some rows."""
        self._reach(rows)
        freed = np.where(self._generation[rows] > 0, Allocation.FREED, Allocation.NEVER)
        return np.where(self._out[rows], Allocation.HELD, freed).astype(np.int8)

    def left_in(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the step in which each of some rows was taken back last."""
        self._reach(rows)
        return self._left_in[rows]

    def owner(self, row: int) -> str:
        """Returns the name of who holds a row, "" where nobody does or it has none."""
        if row >= len(self._out) or not self._out[row]:
            return ""
        return self.name(row, self.generation(row))

    def names(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """Returns who has each of some rows, or had it last; "" where that is not known.

        So it is of one that an earlier test has left behind.
        """
        known = self._names.get
        left = self._left_behind
        found = [() if row in left else known(row, ()) for row in rows.tolist()]
        return [past[-1][1] if past else "" for past in found]

    def name(self, row: int, generation: int) -> str:
        """Returns the name of a row's owner in a generation, "" if it is not known any more."""
        return next((name for past, name in self._names[row] if past == generation), "")

    def add_sinks(self, rows: Iterable[int]) -> None:
        """Nobody is to be given these rows."""
        self.sinks.update(rows)

    def generations(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns how often each of some rows was handed out."""
        self._reach(rows)
        return self._generation[rows]

    def generation(self, row: int) -> int:
        """Returns how often a row was handed out."""
        return int(self._generation[row]) if row < len(self._generation) else 0

    def out(self) -> list[int]:
        """Returns all rows that somebody holds."""
        return np.flatnonzero(self._out).tolist()

    def holds_all(self, rows: npt.NDArray[np.int64]) -> bool:
        """Tells whether all of some rows are known to be out: what a healthy write costs."""
        try:
            return b"\0" not in self._out[rows].tobytes()
        except IndexError:
            return False

    def held(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tells which rows are out."""
        self._reach(rows)
        return np.asarray(self._out[rows])

    def _name(self, row: int, name: str) -> None:
        past = self._names[row]
        generation = self.generation(row)
        if past and past[-1][0] == generation:
            past.pop()
        past.append((generation, name))

    def _notify(self, verb: str, rows: list[int]) -> None:
        if not rows:
            return
        for follower in list(self.followers):
            getattr(follower, verb)(np.array(rows, np.int64))

    def _reach(self, rows: Iterable[int] | npt.NDArray[np.int64]) -> None:
        """Grows the map to hold the rows."""
        if isinstance(rows, np.ndarray):
            most = int(rows.max(initial=-1))
        else:
            most = max((int(row) for row in rows), default=-1)
        missing = most + 1 - len(self._out)
        if missing > 0:
            self._out = np.concatenate([self._out, np.zeros(missing, bool)])
            self._generation = np.concatenate([self._generation, np.zeros(missing, np.int64)])
            self._left_in = np.concatenate([self._left_in, np.zeros(missing, np.int64)])
