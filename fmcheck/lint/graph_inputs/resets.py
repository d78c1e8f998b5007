"""Resets: which of a family's functions reset a buffer, and for which function they do."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.graph_inputs.fills import When, WriteKind, fillings
from fmcheck.lint.graph_inputs.handed import may_be_reset
from fmcheck.lint.model.expressions import dotted, last_name, targets
from fmcheck.lint.model.function import functions, lineage
from fmcheck.lint.model.names import ANY, Regions
from fmcheck.lint.model.vocabulary import BEFORE_REPLAY, CLASS, OVERWRITES
from fmcheck.lint.source.globs import fits
from fmcheck.lint.source.lazy import cst
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fmcheck.finding import Span
    from fmcheck.lint.graph_inputs.fills import Filling, RegionWrite
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.model.names import Region
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Family, Module, Part
    from fmcheck.lint.source.words import Words

#: What stands in a class, or in a function beside one, that resets a buffer.
RESETTING = (
    *("zero_", "_zero", ".zero(", " zero(", "fill_", "fill(", "foreach_"),
    *("reset(", "reset_", "clear(", "scrub"),
    *(":] =", ":*] = 0", ":*] = 1", ":*] = -", ":*] = False", ":*] = True", ":*] = self."),
)
#: What stands in every function that writes to a tensor in place.
WRITING = ((*RESETTING, "copy_(", "_copy(", "] =", "out="),)
#: What stands in every function that copies to the front of a buffer: an AND of ORs.
FRONT = (
    ("[:?", "[: ?", "[0:?", "[0: ?", "[ :", ", :?", ", : ?", "narrow("),
    (
        *("copy_(", "_copy(", "out=*[:"),
        *("[:?*] = ", "[: ?*] = ", "[0:?*] = ", "[0: ?*] = ", ", :?*] = ", ", : ?*] = "),
    ),
)
#: What stands in every class that has to do with graphs, or with batches that are padded.
GRAPHS = ("graph", "Graph", "replay", "Replay", "capture", "raw_", "padded_", "_padded")
# A module that has none of them holds host arrays, not graph inputs, unless it fills a buffer that
# the contract names. Each starts with plain text, for which `re` looks ten times as fast.
_IN_PLACE = {one: regex(rf"{one}(?<!\w{one})[\s\\)]*\(") for one in OVERWRITES}


def writes_in_place(file: File) -> bool:
    """Tells whether a file has any of a tensor's own ways to write."""
    return any(
        file.holds((word,)) and pattern.search(file.text) is not None
        for word, pattern in _IN_PLACE.items()
    )


class Sibling(Struct, frozen=True):
    """Another buffer of the same fill, and where it is reset for the padding.

    `voids` tells that the value marks padded rows as empty.
    """

    leaf: str
    span: Span
    voids: bool


class Group:
    """The functions that fill and reset buffers together: those of a class, or one by itself.

    Only those that copy to the front of a buffer are parsed at once; the others when one of their
    buffers is asked for.
    """

    def __init__(self, family: Family, alone: Function | None = None) -> None:
        self._family = family
        self._alone = alone

    @cached_property
    def has_tensors(self) -> bool:
        """Tells whether the module has any of a tensor's own ways to write."""
        return writes_in_place(self._family.module.file)

    def candidates(self) -> Iterator[Filling]:
        """Yields the functions that may leave a tail stale."""
        for filling in self.members(FRONT):
            for name in sorted(filling.calls) if filling.copies else ():
                for other in self.members(((f"def {name}(",), RESETTING)):
                    if other.name == name:
                        # A reset that was split off compares the sizes for the one who calls it.
                        filling.learn(other.function)
            if filling.fills:
                yield filling

    def members(self, words: Words) -> Iterator[Filling]:
        """Yields the functions in whose slices these words stand."""
        if self._alone is not None:
            yield from fillings([self._alone])
            return
        for part in self._family.near(words):
            if part.is_nested:
                yield from fillings(functions(part))

    def is_list(self, fill: RegionWrite) -> bool:
        """Tells whether the buffer is a Python list: no graph reads one."""
        leaf, module = fill.region.leaf, self._family.module
        known: dict[str, bool] = module.memo.setdefault("lists", {})
        if not fill.in_place and leaf not in known:
            near = module.parts_with(((f"{leaf}*=*[",),))
            known[leaf] = any(_makes_list(node, leaf) for part in near for node in part.nodes())
        return not fill.in_place and known[leaf]

    def peers(self, filling: Filling, leaf: str) -> Iterator[Filling]:
        """Yields the other functions that may reset a buffer between two replays.

        Those of the class, and of what it is derived from.
        """
        for family in lineage(self._family) if self._alone is None else ():
            for part in _parts_that_may_write(family, leaf):
                for one in fillings(functions(part)) if part.is_nested else ():
                    if one is not filling and not fits(one.name, BEFORE_REPLAY):
                        yield one

    def is_reset_elsewhere(self, leaf: str, calls: Collection[str]) -> bool:
        """Tells whether the module resets `leaf` outside this group, on behalf of others.

        A class that fills such a buffer too resets its own, unless it is called for it.
        """
        known: dict[str, Resetting] = self._family.module.memo.setdefault("resetting", {})
        if leaf not in known:
            known[leaf] = _resetting(leaf, self._family.module)
        found = known[leaf].free.union(*(known[leaf].owned.get(name, ()) for name in calls))
        return bool(found - {self.key})

    @property
    def key(self) -> tuple[int, int]:
        """What tells the groups of a module apart."""
        return self._family.place.start, 0 if self._alone is None else id(self._alone.node)


class Resetting(Struct, frozen=True):
    """The groups of a module that reset one buffer, by their keys.

    `owned` are those that fill it too, by the name of the function that resets it.
    """

    free: set[tuple[int, int]]
    owned: dict[str, set[tuple[int, int]]]


def _resetting(leaf: str, module: Module) -> Resetting:
    near: Words = ((leaf,), (*RESETTING, *FRONT[1]))
    found = Resetting(set(), {})
    for family in module.families_with(near):
        for group in groups(family, near):
            members = list(group.members(near))
            fills_it = any(one.mentions(leaf, one.copies) for one in members)
            for one in members:
                if fits(one.name, BEFORE_REPLAY) or one.mentions(leaf, one.copies):
                    continue
                if one.mentions(leaf, one.constants):
                    keys = found.owned.setdefault(one.name, set()) if fills_it else found.free
                    keys.add(group.key)
    return found


def groups(family: Family, words: Words = FRONT) -> Iterator[Group]:
    """Yields the groups of a family in which the words stand: a class, each function beside it."""
    is_class = False
    for part in family.near(words):
        is_class = is_class or part.is_nested
        for function in () if part.is_nested else functions(part):
            yield Group(family, function)
    if is_class:
        yield Group(family)


def _parts_that_may_write(family: Family, leaf: str) -> Iterator[Part]:
    """Yields what may write to a buffer of this name, and not before the first replay alone.

    It is asked of the text: to parse `__init__` costs more than all else.
    """
    for stretch in family.slices_naming(leaf, "getattr", "values", "items"):
        if stretch.holds(WRITING) and not all(fits(one, BEFORE_REPLAY) for one in stretch.defined):
            yield from stretch.parts


def _makes_list(node: cst.CSTNode, leaf: str) -> bool:
    """Tells whether a statement makes an attribute of this name a list."""
    if not isinstance(node, (cst.Assign, cst.AnnAssign)) or node.value is None:
        return False
    named = (one for one in targets(node) if isinstance(one, cst.Attribute))
    return _is_list(node.value) and any(one.attr.value == leaf for one in named)


def _is_list(value: cst.CSTNode) -> bool:
    if isinstance(value, cst.BinaryOperation):
        return _is_list(value.left) or _is_list(value.right)
    return isinstance(value, (cst.List, cst.ListComp))


class Resets:
    """The resets that are in force when one function fills its buffers."""

    def __init__(self, filling: Filling, group: Group) -> None:
        self._filling = filling
        self.group = group
        self._all_shown: dict[bool, tuple[Sequence[Sibling], Mapping[str, int]]] = {}

    def reach(self, fill: RegionWrite) -> bool:
        """Tells whether anything in the group resets the buffer that `fill` fills."""
        if self._reset.may_be(fill.region) or self._restored.get(fill.region.path, -1) > fill.order:
            return True
        return self._may_be_keyed(fill.region) or any(self._by_peers(fill))

    @cached_property
    def _restored(self) -> Mapping[str, int]:
        """The buffers whose raw rows are made one value again, and where last."""
        return {
            write.region.path: write.order
            for write in self._filling.writes
            if write.kind is WriteKind.CONSTANT
            and write.region.is_head
            and self._filling.sizes.is_raw(write.region.stop)
        }

    def _may_be_keyed(self, region: Region) -> bool:
        """Tells whether an entry under an unknown key may be one that is reset by its own key."""
        holder = region.path.removesuffix(ANY)
        return (
            holder not in (region.path, "self")
            and None not in region.cuts[-1]
            and any(one.region.path.startswith(f"{holder}.") for one in self._filling.resets)
        )

    @cached_property
    def _reset(self) -> Regions:
        return Regions(reset.region for reset in self._filling.resets)

    def reach_from_elsewhere(self, fill: RegionWrite) -> bool:
        """Tells whether anything else in the module does, or a function that is handed it."""
        return self.group.is_reset_elsewhere(fill.region.leaf, self._filling.calls) or may_be_reset(
            self._filling, fill.region.path
        )

    def _by_peers(self, fill: RegionWrite) -> Iterator[tuple[Filling, RegionWrite]]:
        """Yields the resets of a filled buffer in other functions, made for this one."""
        leaf = fill.region.leaf
        for peer in self.group.peers(self._filling, leaf):
            is_linked = peer.name in self._filling.calls or self._filling.name in peer.calls
            if is_linked or all(other.region.leaf != leaf for other in peer.fills):
                for reset in filter(_is_reset, peer.resets):
                    if reset.region.leaf == leaf or reset.region.may_be(fill.region):
                        yield peer, reset

    def siblings_of(self, fill: RegionWrite, *, voided: bool) -> Sequence[Sibling]:
        """Returns the resets of other buffers that show that a padded tail is read.

        Those that mark padded rows as empty show the reverse, unless it is read even so (`voided`).
        """
        shown, places = self._shown(voided)
        place = places.get(fill.region.leaf, len(shown))
        return [*shown[:place], *shown[place + 1 :]]

    def _shown(self, voided: bool) -> tuple[Sequence[Sibling], Mapping[str, int]]:
        """Returns the resets that show that a tail is read, in order, and the place of each."""
        if voided not in self._all_shown:
            every = {**self._reset_by_peers, **self._reset_here}.values()
            shown = sorted(
                (one for one in every if voided or not one.voids), key=attrgetter("span")
            )
            self._all_shown[voided] = shown, {one.leaf: place for place, one in enumerate(shown)}
        return self._all_shown[voided]

    @cached_property
    def _reset_here(self) -> Mapping[str, Sibling]:
        """The buffers that this function resets for the padding, and where it does so first."""
        found: dict[str, Sibling] = {}
        for reset in self._filling.resets:
            leaf = reset.region.leaf
            if leaf and leaf not in found and self._shows_padding(reset):
                found[leaf] = Sibling(leaf, self._filling.part.span(reset.site), reset.voids)
        return found

    @cached_property
    def _reset_by_peers(self) -> Mapping[str, Sibling]:
        """The buffers that this function fills and another one resets for it, and where."""
        found: dict[str, Sibling] = {}
        for fill in self._filling.fills:
            leaf = fill.region.leaf
            shown = (one for one in self._by_peers(fill) if self._is_seen_with(one[0]))
            by_peer = None if leaf in found else next(shown, None)
            if by_peer is not None:
                peer, reset = by_peer
                found[leaf] = Sibling(leaf, peer.part.span(reset.site), reset.voids)
        return found

    def _is_seen_with(self, peer: Filling) -> bool:
        """Tells whether a finding may show what another function resets: in the same file."""
        if peer.part.stretch.family is self._filling.part.stretch.family:
            return True
        return peer.part.module is self._filling.part.module and peer.name in self._filling.calls

    def last_before(self, fill: RegionWrite) -> RegionWrite | None:
        """Returns the last reset for the padding before `fill`, below which `fill`'s may stand.

        One that padded batches alone reach, if there is any; None if there is none at all, or if
        `fill` may be left out where the reset is made.
        """
        found: RegionWrite | None = None
        resets = self._filling.resets
        before = bisect_left(resets, fill.order, key=attrgetter("order"))
        for reset in (resets[place] for place in reversed(range(before))):
            more = [test for test in reset.tests if test not in fill.tests]
            if (
                (more or (found is None and self._shows_padding(reset)))
                and reset.kind is WriteKind.CONSTANT
                and all(test in reset.tests for test in fill.tests)
                and all(self._filling.reached(*test) is When.PADDED for test in more)
            ):
                found = reset
                if more:
                    break
        if found is not None and self._may_be_left_out(fill, found):
            return None
        return found

    def _may_be_left_out(self, fill: RegionWrite, reset: RegionWrite) -> bool:
        """Tells whether a fill, or the list entry it is, stands under a test of its own."""
        known = [test for test, _ in reset.tests]
        node, function = fill.region.node, self._filling.function
        while node in function.order:
            node = function.parents[node]
            if isinstance(node, cst.If) and not any(node.test is test for test in known):
                return True
        return False

    def _shows_padding(self, reset: RegionWrite) -> bool:
        """Tells whether a reset of this function is there because of the padding."""
        if not _is_reset(reset) or reset.is_guessed or self._is_second(reset.region):
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
        code = self._filling.part.code
        return isinstance(stop.operator, cst.Multiply) and any(
            isinstance(one, cst.Integer) and code(other) == code(start)
            for one, other in ((stop.left, stop.right), (stop.right, stop.left))
        )


def _is_reset(write: RegionWrite) -> bool:
    """Tells a reset from a copy that happens to be as long as the buffer."""
    return write.kind is WriteKind.CONSTANT or write.region.is_tail


def is_made_here(fill: RegionWrite, filling: Filling) -> bool:
    """Tells whether a buffer, or the object that holds it, is created by each call.

    A graph input outlives the call, since a graph reads it at each replay.
    """
    function, root = filling.function, _root(fill.region.node)
    values = function.names.unlike(root)
    return (
        bool(values)
        and all(isinstance(one, cst.Call) and _creates(one) for one in values)
        and not any(
            isinstance(held, cst.Assign)
            and held.value is node
            and any(isinstance(one.target, cst.Attribute) for one in held.targets)
            for node in function.named.get(root, ())
            for held in [function.parents[node]]
        )
    )


def _root(node: cst.CSTNode) -> str:
    """Returns the name with which an expression starts."""
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _creates(call: cst.Call) -> bool:
    word = last_name(call.func)
    is_class = CLASS.match(word) is not None and dotted(call.func) is not None
    return word == "clone" or is_class


def reads_head(fill: RegionWrite, filling: Filling) -> bool:
    """Tells whether a function that replays nothing reads on the raw rows of a buffer alone."""
    buffer = dotted(getattr(fill.region.node, "value", fill.region.node)) or ""
    start = filling.function.order.get(fill.region.node, 0)
    head, other = (-1, -1) if filling.replays else filling.last_reads(buffer)
    return other < start <= head
