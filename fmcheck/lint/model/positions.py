"""Positions: which indices of a buffer its subscripts reach, as far as constants say so.

rows[:, :3, 3]      # three positions: all, 0 to 2, and 3
rows[..., 3]        # the last one alone
rows[1][:n]         # two: 1, and up to what nobody knows
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fmcheck.lint.model.expressions import dotted, is_name, literal_elements, number
from fmcheck.lint.source.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.names import Region


class Position(Struct, frozen=True):
    """What is reached at one position: `[start:stop:step]`, or one index, or a list of some.

    A bound is a number, or the name of one that nobody knows; an open end is None. Of a list and of
    an unknown step `step` is None.
    """

    start: int | str | None = 0
    stop: int | str | None = None
    step: int | None = 1
    is_index: bool = False

    def is_apart(self, other: Position) -> bool:
        """Tells whether no index is reached by both."""
        if _comes_before(self, other) or _comes_before(other, self):
            return True
        mine, theirs = self.start, other.start
        if self.is_index or other.is_index or not self.step or self.step != other.step:
            return False
        if not isinstance(mine, int) or not isinstance(theirs, int) or min(mine, theirs) < 0:
            return False
        return mine % self.step != theirs % self.step

    def is_one_of(self, other: Position) -> bool:
        """Tells whether this is one index, and the other a stretch of more or of unknown length."""
        if not self.is_index or other.is_index or (other.start, other.stop) == (0, 1):
            return False
        # What bounds a slice is one number; any other name may be that of a tensor of many.
        if isinstance(self.start, int):
            return self.stop == (self.start + 1 or None)
        return bool(self.start) and self.start in (other.start, other.stop)


class _Reached(Struct):
    """The positions of one buffer, from its first on and, of `[..., 3]`, back from its last.

    `is_all` tells that at the positions which are not listed everything is reached.
    """

    front: list[Position] = []
    back: list[Position] = []
    is_all: bool = True
    #: The positions of `front` that later subscripts cut further.
    left: list[int] = []


def may_cover(one: Region, other: Region) -> bool:
    """Tells whether one region of a buffer may hold all of another: not if constants deny it."""
    return not any(
        mine.is_apart(theirs) or mine.is_one_of(theirs)
        for own, its in zip(one.cuts, other.cuts, strict=False)
        for mine, theirs in _pairs(_reached(own), _reached(its))
    )


def _pairs(one: _Reached, other: _Reached) -> Iterator[tuple[Position, Position]]:
    yield from zip(reversed(one.back), reversed(other.back), strict=False)
    if one.is_all and other.is_all:
        yield from zip_longest(one.front, other.front, fillvalue=Position())
    else:
        yield from zip(one.front, other.front, strict=False)


def _reached(cuts: Sequence[CSTNode | None]) -> _Reached:
    found = _Reached()
    for cut in cuts:
        if cut is None:
            _take(found, [Position("", is_index=True)])
            continue
        elements = [one.slice for one in cut.slice] if isinstance(cut, cst.Subscript) else []
        inner = [one.value if isinstance(one, cst.Index) else one for one in elements]
        inner = [one for one in inner if not is_name(one, "None")]
        dots = [place for place, one in enumerate(inner) if isinstance(one, cst.Ellipsis)]
        is_starred = any(isinstance(one, cst.Index) and one.star for one in elements)
        if not elements or is_starred or len(dots) > 1:
            found.is_all = False
            break  # a view in another shape: what is cut then, nobody knows
        _take(found, [_position(one) for one in inner[: dots[0] if dots else None]])
        if dots:
            found.back = [_position(one) for one in inner[dots[0] + 1 :]]
            found.is_all = False
            break
    return found


def _take(found: _Reached, cuts: Sequence[Position]) -> None:
    """Cuts what is left, position by position, and then those that nothing has cut yet."""
    kept = list(found.left)
    for place, cut in enumerate(cuts):
        if place < len(found.left):
            at = found.left[place]
            found.front[at] = _within(found.front[at], cut)
        else:
            at = len(found.front)
            found.front.append(cut)
            kept.append(at)
        if cut.is_index:
            kept.remove(at)
    found.left = kept


def _within(outer: Position, cut: Position) -> Position:
    """Returns what a cut of a stretch reaches; all of the stretch where that is not known."""
    first, start, stop = outer.start, cut.start, cut.stop
    if outer == Position():
        return cut
    somewhere = replace(outer, is_index=cut.is_index)
    if not isinstance(first, int) or first < 0 or outer.step != 1 or not isinstance(start, int):
        return somewhere
    if start < 0 or not (stop is None or (isinstance(stop, int) and stop >= 0)):
        return somewhere
    end = outer.stop if stop is None else first + stop
    return Position(first + start, end, cut.step, cut.is_index)


def _position(node: CSTNode) -> Position:
    if isinstance(node, cst.Slice):
        step = 1 if node.step is None else number(node.step)
        if step is None or step < 1:
            return Position(step=None)
        start = 0 if node.lower is None else _bound(node.lower)
        return Position(start, None if node.upper is None else _bound(node.upper), step)
    listed = [number(one) for one in literal_elements(node) or ()]
    known = [one for one in listed if one is not None]
    if known and len(known) == len(listed) and (min(known) >= 0 or max(known) < 0):
        return Position(min(known), max(known) + 1 or None, None)
    at = _bound(node)
    if isinstance(at, int):
        return Position(at, at + 1 or None, 1, is_index=True)
    return Position(at, "", 1, is_index=True)


def _bound(node: CSTNode) -> int | str:
    """Returns a bound as a number, as the name of one, or "" for any other expression."""
    value = number(node)
    if value is not None:
        return value
    return dotted(node) or ""


def _comes_before(one: Position, other: Position) -> bool:
    """Tells whether one ends where the other starts, or before: both from the same end."""
    stop, start = one.stop, other.start
    if not isinstance(stop, int) or not isinstance(start, int):
        # An index may be a tensor of many.
        return bool(stop) and stop == start and not (one.is_index or other.is_index)
    return (stop < 0) == (start < 0) and stop <= start
