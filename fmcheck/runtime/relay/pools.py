"""Pools: the owners of each pool of an engine. A session whose engine never comes needs no more."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fmcheck.runtime.relay.owners import Owners


def pools_of(relays: Iterable[str], covered: Iterable[Sequence[str]]) -> Mapping[str, Pools]:
    """Returns the pools of each relay class: one for those whose rows come from one function.

    `covered` are the relays of each function that hands rows out or takes them back, all if none.
    """
    apart = [{one} for one in relays]
    for some in covered:
        joined = [group for group in apart if not some or not group.isdisjoint(some)]
        apart = [group for group in apart if group not in joined]
        apart.append({one for group in joined for one in group})
    found: dict[str, Pools] = {}
    for group in apart:
        found |= dict.fromkeys(group, Pools())
    return found


class Pools:
    """The owners of each pool of an engine, by the pool itself; those without one share theirs.

    Relays whose rows the same functions hand out have one of these together.
    """

    def __init__(self) -> None:
        self._givers: dict[int, list[weakref.ref[object]]] = {}
        self._shared: Owners | None = None
        self._by_id: dict[int, Owners] = {}

    def begin_test(self) -> None:
        """A pool that is nobody's in particular may be that of an engine which is gone."""
        self._givers.clear()
        if self._shared is not None:
            self._shared.begin_test()

    def give(self, rows: Iterable[int], pool: object) -> set[int]:
        """Notes who hands rows out; returns those that another pool of its kind has out."""
        shared = set[int]()
        for row in rows:
            others = self._others(row, pool)
            with contextlib.suppress(TypeError):  # what cannot be told to be gone is left alone
                self._givers[row] = [*others, weakref.ref(pool)]
            shared.update([row] if others else ())
        return shared

    def take(self, rows: Iterable[int], pool: object) -> set[int]:
        """Notes who takes rows back; returns those that another pool of its kind has out."""
        self._givers.update({row: others for row in rows if (others := self._others(row, pool))})
        return {row for row in rows if row in self._givers}

    def shared(self, rows: Iterable[int]) -> set[int]:
        """Returns which rows several pools of a kind have out: whose is meant, nobody knows."""
        return {
            row for row in rows if sum(one() is not None for one in self._givers.get(row, ())) > 1
        }

    def _others(self, row: int, pool: object) -> list[weakref.ref[object]]:
        """Returns who else has a row out, nobody where another kind does; all are forgotten."""
        alive = [one for one in self._givers.pop(row, ()) if type(one()) is type(pool)]
        return [one for one in alive if one() is not pool]

    def of(self, pool: object) -> Owners:
        """Returns the owners of a pool's rows, for as long as the pool lives."""
        from fmcheck.runtime.relay.owners import Owners

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
