"""Pools: the owners of each pool of an engine. A session whose engine never comes needs no more."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcheck.runtime.relay.owners import Owners


class Pools:
    """The owners of each pool of an engine, by the pool itself; those without one share theirs."""

    def __init__(self) -> None:
        self._shared: Owners | None = None
        self._by_id: dict[int, Owners] = {}

    def begin_test(self) -> None:
        """A pool that is nobody's in particular may be that of an engine which is gone."""
        if self._shared is not None:
            self._shared.begin_test()

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
