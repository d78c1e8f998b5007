"""Sieves: things of one function in the order of the source, asked for the next that fits.

A rule asks of each of many bodies what stands between it and something else. To look at all that
does, for each of them, takes the square of the function's length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")


class Sieve(Generic[T]):
    """Some things with their orders, ascending, and a test that each is put to at most once.

    None is tested before somebody asks for what lies where it does: a test may read other files.
    """

    def __init__(
        self, things: Sequence[T], orders: Sequence[int], passes: Callable[[T], object]
    ) -> None:
        self._things = things
        self._orders = orders
        self._passes = passes
        self._known: dict[int, bool] = {}
        #: Beyond a run of things that do not pass, by its first place and by its last one.
        self._after: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def first(self, after: int, end: int | None = None) -> T | None:
        """Returns the first thing that passes of those with `after` < order < `end`."""
        place = bisect_right(self._orders, after)
        stop = len(self._orders) if end is None else bisect_left(self._orders, end)
        return self._found(place, stop, 1, self._after)

    def last(self, after: int, end: int) -> T | None:
        """Returns the last thing that passes of those with `after` < order < `end`."""
        place = bisect_left(self._orders, end) - 1
        return self._found(place, bisect_right(self._orders, after) - 1, -1, self._before)

    def between(self, after: int, end: int | None = None) -> Iterator[T]:
        """Yields all that pass of those with `after` < order < `end`."""
        place = bisect_right(self._orders, after)
        stop = len(self._orders) if end is None else bisect_left(self._orders, end)
        while (one := self._place(place, stop, 1, self._after)) is not None:
            yield self._things[one]
            place = one + 1

    def _found(self, place: int, stop: int, step: int, beyond: dict[int, int]) -> T | None:
        found = self._place(place, stop, step, beyond)
        return None if found is None else self._things[found]

    def _place(self, place: int, stop: int, step: int, beyond: dict[int, int]) -> int | None:
        met: list[int] = []
        while (stop - place) * step > 0:
            if place in beyond:
                met.append(place)
                place = beyond[place]
            elif self._is_in(place):
                break
            else:
                met.append(place)
                place += step
        for one in met:
            beyond[one] = place
        return place if (stop - place) * step > 0 else None

    def _is_in(self, place: int) -> bool:
        if place not in self._known:
            self._known[place] = bool(self._passes(self._things[place]))
        return self._known[place]


def any_between(orders: Sequence[int], after: int, end: int) -> bool:
    """Tells whether one of some ascending orders is `after` < order < `end`."""
    place = bisect_right(orders, after)
    return place < len(orders) and orders[place] < end
