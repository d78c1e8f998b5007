"""Resets: which of a block's functions reset a buffer, and for which function they do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING

from fmcheck.lint.block import walk
from fmcheck.lint.buffers import Regions
from fmcheck.lint.graph_inputs import Filling, Kind, When
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import fits
from fmcheck.lint.outline import outlines_defining, outlines_of, outlines_with
from fmcheck.lint.padding import BEFORE_REPLAY, Padding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fmcheck.finding import Span
    from fmcheck.lint.buffers import Region
    from fmcheck.lint.facts import ModuleFacts
    from fmcheck.lint.graph_inputs import Write
    from fmcheck.lint.outline import Outline
#: A module that has none of a tensor's own ways to write holds host arrays, not graph inputs,
#: unless it fills a buffer that the contract names.
IN_PLACE = frozenset({"copy_", "zero_", "fill_"})


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another buffer of the same fill, and where it is reset for the padding.

    `voids` tells that the value marks padded rows as empty.
    """

    leaf: str
    span: Span
    voids: bool


class Functions:
    """The functions of a block, each read only when it matters.

    `here` are their outlines; those that neither fill nor reset may be left out.
    """

    def __init__(self, facts: ModuleFacts, here: Sequence[Outline]) -> None:
        self._facts = facts
        self._here = here
        self._read: dict[int, Filling] = {}

    def _with(self, word: str) -> Iterator[Outline]:
        """Yields the outlines of the module in statements that hold a word."""
        return outlines_with(self._facts, word)

    @cached_property
    def has_tensors(self) -> bool:
        """Tells whether the module has any of a tensor's own ways to write."""
        everywhere = chain(self._here, *(self._with(word) for word in sorted(IN_PLACE)))
        return any(one.may_write and one.calls & IN_PLACE for one in everywhere)

    def filling(self, outline: Outline) -> Filling:
        """Returns the function that an outline is about."""
        if outline.line not in self._read:
            facts = self._facts
            self._read[outline.line] = Filling(outline.block(facts), partial(_defines, facts))
        return self._read[outline.line]

    def candidates(self) -> Iterator[Filling]:
        """Yields the functions that may leave a tail stale."""
        for outline in candidates(self._here):
            filling = self.filling(outline)
            for other in self._here:
                if other.name in filling.calls and other.resets:
                    # A reset that was split off compares the sizes for the one who calls it.
                    filling.learn(self.filling(other).function)
            yield filling

    def is_list(self, fill: Write) -> bool:
        """Tells whether the buffer is a Python list: no graph reads one."""
        leaf = fill.region.leaf
        return not fill.in_place and any(leaf in one.lists for one in self._with(leaf))

    def peers(self, filling: Filling, leaf: str) -> Iterator[Filling]:
        """Yields the block's other functions that may reset `leaf` between two replays."""
        for outline in self._here:
            may_reset = leaf in outline.resets or outline.resets_any
            if may_reset and not fits(outline.name, BEFORE_REPLAY):
                peer = self.filling(outline)
                if peer is not filling:
                    yield peer

    def is_reset_elsewhere(self, leaf: str, calls: Collection[str]) -> bool:
        """Tells whether the module resets `leaf` outside this block, on behalf of others.

        A class that fills such a buffer too resets its own, unless it is called for it.
        """
        known = self._facts.resetting.get(leaf)
        if known is None:
            known = self._facts.resetting[leaf] = _resetting(self._facts, leaf)
        by_name = (lines for name, lines in known.owned.items() if name in calls)
        return any(line not in self._lines for lines in (known.free, *by_name) for line in lines)

    @cached_property
    def _lines(self) -> set[int]:
        return {one.line for one in self._here}


@dataclass(frozen=True, slots=True)
class Resetting:
    """The lines of a module's functions that reset one buffer, and do not fill it.

    `owned` are those of a class that fills such a buffer too, by the function's name; `free` the
    rest.
    """

    free: Sequence[int]
    owned: Mapping[str, Sequence[int]]


def _resetting(facts: ModuleFacts, leaf: str) -> Resetting:
    free: list[int] = []
    owned: dict[str, list[int]] = {}
    for statement in facts.module.statements_with((leaf,)):
        inside = outlines_of(statement, facts)
        fills_it = any(leaf in one.fills for one in inside)
        for one in inside:
            if leaf not in one.resets or leaf in one.fills or fits(one.name, BEFORE_REPLAY):
                continue
            (owned.setdefault(one.name, []) if fills_it else free).append(one.line)
    return Resetting(free, owned)


def _defines(facts: ModuleFacts, name: str) -> bool:
    return any(not one.resets_any for one in outlines_defining(facts, name))


class Resets:
    """The resets that are in force when one function fills its buffers."""

    def __init__(self, filling: Filling, functions: Functions) -> None:
        self._filling = filling
        self.functions = functions

    def reach(self, fill: Write) -> bool:
        """Tells whether anything in the block resets the buffer that `fill` fills."""
        return self._reset.may_be(fill.region) or any(self._by_peers(fill))

    @cached_property
    def _reset(self) -> Regions:
        return Regions(reset.region for reset in self._filling.resets)

    def reach_from_elsewhere(self, fill: Write) -> bool:
        """Tells whether anything in the rest of the module does."""
        return self.functions.is_reset_elsewhere(fill.region.leaf, self._filling.calls)

    def _by_peers(self, fill: Write) -> Iterator[tuple[Filling, Write]]:
        """Yields the resets of a filled buffer in other functions, made for this one."""
        leaf = fill.region.leaf
        for peer in self.functions.peers(self._filling, leaf):
            is_linked = peer.name in self._filling.calls or self._filling.name in peer.calls
            if is_linked or all(other.region.leaf != leaf for other in peer.fills):
                for reset in filter(_is_reset, peer.resets):
                    if reset.region.leaf == leaf or reset.region.may_be(fill.region):
                        yield peer, reset

    def siblings_of(self, fill: Write, *, voided: bool) -> Sequence[Sibling]:
        """Returns the resets of other buffers that show that a padded tail is read.

        Those that mark padded rows as empty show the reverse, unless it is read even so (`voided`).
        """
        found = {**self._reset_by_peers, **self._reset_here}
        shown = (
            one
            for leaf, one in found.items()
            if leaf != fill.region.leaf and (voided or not one.voids)
        )
        return sorted(shown, key=lambda sibling: sibling.span)

    @cached_property
    def _reset_here(self) -> Mapping[str, Sibling]:
        """The buffers that this function resets for the padding, and where it does so first."""
        found: dict[str, Sibling] = {}
        for reset in self._filling.resets:
            leaf = reset.region.leaf
            if leaf and leaf not in found and self._shows_padding(reset):
                found[leaf] = Sibling(leaf, self._filling.block.span(reset.site), reset.voids)
        return found

    @cached_property
    def _reset_by_peers(self) -> Mapping[str, Sibling]:
        """The buffers that this function fills and another one resets for it, and where."""
        found: dict[str, Sibling] = {}
        for fill in self._filling.fills:
            leaf = fill.region.leaf
            by_peer = None if leaf in found else next(self._by_peers(fill), None)
            if by_peer is not None:
                peer, reset = by_peer
                found[leaf] = Sibling(leaf, peer.block.span(reset.site), reset.voids)
        return found

    def last_before(self, fill: Write) -> Write | None:
        """Returns the last reset for the padding before `fill`, below which `fill`'s may stand.

        One that padded batches alone reach, if there is any; None if there is none at all, or if
        `fill` may be left out where the reset is made.
        """
        found, is_padded = None, False
        for reset in self._filling.resets:
            more = [test for test in reset.tests if test not in fill.tests]
            if (
                (reset.kind is Kind.CONSTANT and reset.order < fill.order)
                and all(test in reset.tests for test in fill.tests)
                and all(self._filling.reached(*test) is When.PADDED for test in more)
                and (more or (not is_padded and self._shows_padding(reset)))
            ):
                found, is_padded = reset, bool(more)
        if found is not None and self._may_be_left_out(fill, found):
            return None
        return found

    def _may_be_left_out(self, fill: Write, reset: Write) -> bool:
        """Tells whether a fill, or the list entry it is, stands under a test of its own."""
        known = [test for test, _ in reset.tests]
        return any(
            isinstance(node, cst.If)
            and not any(node.test is test for test in known)
            and any(inner is fill.region.node for inner in walk(node))
            for node in walk(self._filling.function)
        )

    def _shows_padding(self, reset: Write) -> bool:
        """Tells whether a reset of this function is there because of the padding."""
        if not _is_reset(reset) or self._is_second(reset.region):
            return False
        when = self._filling.when(reset)
        return when is When.PADDED or (
            when is When.ALWAYS
            and any(
                reset.region.may_be(fill.region) and fill.order > reset.order
                for fill in self._filling.fills
            )
        )

    def _is_second(self, region: Region) -> bool:
        """Tells `[n : 2 * n]`, where a second copy of the batch stands, from a padded tail."""
        start, stop = region.start, region.stop
        if start is None or not isinstance(stop, cst.BinaryOperation):
            return False
        code = self._filling.block.code
        return isinstance(stop.operator, cst.Multiply) and any(
            isinstance(one, cst.Integer) and code(other) == code(start)
            for one, other in ((stop.left, stop.right), (stop.right, stop.left))
        )


def candidates(found: Sequence[Outline]) -> Iterator[Outline]:
    """Yields the functions that fill a buffer where they or their peers reset one."""
    resetting = tuple(one for one in found if one.resets)
    lines = ",".join(str(one.line) for one in resetting)  # a text is hashed once
    peers: dict[str, list[Outline]] = {}
    for one in resetting:
        peers.setdefault(one.name, []).append(one)
    for one in found if resetting else ():
        if lines not in one.shows_padding and one.fills:
            one.shows_padding[lines] = Padding(one, resetting, peers).may_show()
        if one.fills and one.shows_padding[lines]:
            yield one


def _is_reset(write: Write) -> bool:
    """Tells a reset from a copy that happens to be as long as the buffer."""
    return write.kind is Kind.CONSTANT or write.region.is_tail
