"""Graph inputs: how a function fills and resets a graph runner's static buffers, and for whom."""

from __future__ import annotations

import enum
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from fmcheck.lint.graph_inputs.sizes import Sizes
from fmcheck.lint.model.expressions import (
    is_name,
    last_name,
    number,
    receiver,
    targets,
)
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.names import ANY, Region, Regions
from fmcheck.lint.model.vocabulary import RESET_WORDS
from fmcheck.lint.source.lazy import cst
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from libcst import CSTNode

    from fmcheck.lint.graph_inputs.sizes import Pair
    from fmcheck.lint.model.function import Function

#: Methods of a tensor that set all of it to one value; `fill` is numpy's.
RESETS = frozenset({"zero_", "fill_", "fill"})
#: Those that set the rows that a mask or an index picks, which may be all of a tail.
_PARTIAL_RESETS = frozenset({"index_fill_", "masked_fill_"})
#: Parts of the names of functions that reset nothing: they make a tensor, or look at one.
_NO_RESET = regex(r"zeros|non_?zero|is_?zero")
#: How the path of an element ends that a method returned.
_RETURNED = regex(r"\.\w+\(\)\[\*\]$")
#: Parts of a name that say that it is of lengths.
_LENGTH = frozenset({"len", "lens", "length", "lengths", "seqlen", "seqlens"})


class WriteKind(enum.Enum):
    """What a write puts into a buffer."""

    COPY = "a copy"
    CONSTANT = "one value"
    REBOUND = "another tensor"


class When(enum.Enum):
    """For which batches a write is reached."""

    ALWAYS = "always"
    PADDED = "when padded"
    UNPADDED = "when not padded"
    SOMETIMES = "sometimes"


class Handed(Struct, frozen=True):
    """A buffer that a call is handed, as an argument of its own or as one of a list."""

    call: cst.Call
    value: CSTNode
    region: Region
    is_listed: bool


Tests: TypeAlias = "tuple[tuple[CSTNode, bool], ...]"


class RegionWrite(Struct, frozen=True, dict=True):
    """One write to a region, by a call or an assignment of a function.

    `site` is what is written to, as the write names it; `order` counts the writes of the function;
    `in_place` tells a tensor's own method from an assignment. `voids` tells that the value marks
    rows as empty: a negative number, or zero for a length. `is_guessed` tells that the name of a
    function says it.
    """

    region: Region
    kind: WriteKind
    site: CSTNode
    order: int
    by: CSTNode
    function: Function
    in_place: bool
    voids: bool = False
    is_guessed: bool = False

    @cached_property
    def tests(self) -> Tests:
        """The conditions that it stands under, the outermost first, and whether each held."""
        return _tests_above(self.by, self.function)


def _tests_above(node: CSTNode, function: Function) -> Tests:
    found: list[tuple[CSTNode, bool]] = []
    while node is not function.node:
        inner, node = node, function.parents[node]
        if type(node) is cst.If and inner is not node.test:
            found.append((node.test, inner is node.body))
        elif type(node) is cst.MatchCase and inner is node.body:
            found.extend((one, True) for one in (node.guard, node) if one is not None)
    return tuple(reversed(found))


class Filling:
    """One function's writes to buffers, and the calls by which others write for it.

    What functions of the module reset is read there, and not guessed from their names.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.part = function.part
        self.name = function.name
        self._names = function.names
        self.writes: list[RegionWrite] = []
        self._last_reads: dict[str, tuple[int, int]] = {}
        self.calls: set[str] = set()
        self._gather()
        copies = [one for one in self.writes if one.kind is WriteKind.COPY and one.region.is_head]
        self.sizes = Sizes(self._names, self.part, [one.region.stop for one in copies])
        self.learn(function)
        for fill in self.writes:
            stop = fill.region.stop if self._is_reset(fill) else None
            if stop is not None:
                self.sizes.learn_raw(stop)

    def _is_reset(self, fill: RegionWrite) -> bool:
        """Tells whether a buffer whose head is copied to is also made one value as a whole."""
        is_head = fill.kind is WriteKind.COPY and fill.region.is_head
        return is_head and self._reset_whole.may_be(fill.region)

    @cached_property
    def _reset_whole(self) -> Regions:
        return Regions(
            write.region
            for write in self.writes
            if write.kind is WriteKind.CONSTANT and write.region.is_whole
        )

    @cached_property
    def written(self) -> set[CSTNode | None]:
        """What the function assigns to or writes."""
        nodes = {one.region.node for one in self.writes}
        return {
            *(target for node in self.function.nodes for target in targets(node)),
            *nodes,
            *(other for node in nodes for other in self._names.alike(node)),
        }

    @cached_property
    def replays(self) -> bool:
        """Tells whether it calls what may replay a graph."""
        return any("replay" in last_name(one.func) for one in self.function.calls)

    def last_reads(self, buffer: str) -> tuple[int, int]:
        """Returns where the raw rows alone of a buffer are read last, and where any others are.

        Orders of nodes, -1 for nowhere.
        """
        if buffer not in self._last_reads:
            head, other, function = -1, -1, self.function
            for node in function.named.get(buffer, ()):
                outer = function.parents.get(node)
                if self.written.isdisjoint((node, outer)):
                    regions = self._names.regions(outer) if isinstance(outer, cst.Subscript) else ()
                    if regions and all(
                        one.is_head and self.sizes.is_raw(one.stop) for one in regions
                    ):
                        head = function.order[node]
                    else:
                        other = function.order[node]
            self._last_reads[buffer] = head, other
        return self._last_reads[buffer]

    @cached_property
    def filled_in_part(self) -> set[str]:
        """The paths of the buffers that it copies to parts of."""
        copies = (one for one in self.writes if one.kind is WriteKind.COPY)
        return {one.region.path for one in copies if not one.region.is_whole}

    @cached_property
    def copies(self) -> Sequence[RegionWrite]:
        """Its copies to the front of a buffer."""
        return [one for one in self.writes if one.kind is WriteKind.COPY and one.region.is_head]

    @cached_property
    def constants(self) -> Sequence[RegionWrite]:
        """What it sets to one value, and the tails that it writes."""
        return [one for one in self.writes if one.kind is WriteKind.CONSTANT or one.region.is_tail]

    def mentions(self, leaf: str, writes: Iterable[RegionWrite]) -> bool:
        """Tells whether one of some writes is to a buffer of this name, or to what holds one."""
        names = (one.region.path.replace(ANY, "").split(".") for one in writes)
        return any(leaf in parts for parts in names)

    @cached_property
    def fills(self) -> Sequence[RegionWrite]:
        """The copies that reach up to the raw size only."""
        return [
            write
            for write in self.writes
            if write.kind is WriteKind.COPY
            and write.region.leaf
            and write.region.is_head
            and self.sizes.is_raw(write.region.stop)
            and self.when(write) is not When.UNPADDED
        ]

    @cached_property
    def resets(self) -> Sequence[RegionWrite]:
        """The writes that leave nothing stale in a padded tail."""
        return [
            write
            for write in self.writes
            if self._covers_tail(write) and self.when(write) is not When.UNPADDED
        ]

    def _covers_tail(self, write: RegionWrite) -> bool:
        region = write.region
        if region.is_whole:
            return True
        # `buf[1:n]` starts at the front, as `buf[:n]` does.
        if region.is_tail and not (isinstance(region.start, cst.Integer) and region.stop):
            return not self.sizes.is_padded(region.start)
        if self.sizes.is_padded(region.stop):
            return True
        is_known = self.sizes.is_raw(region.stop) or isinstance(region.stop, cst.Integer)
        return write.kind is WriteKind.CONSTANT and not is_known

    def is_padded(self, node: CSTNode) -> bool:
        """Tells whether padded batches alone reach a node."""
        return any(self.reached(*one) is When.PADDED for one in _tests_above(node, self.function))

    @cached_property
    def handed(self) -> Mapping[str, Sequence[Handed]]:
        """What its calls are handed: buffers with their padded rows, or what holds one, by path."""
        found: dict[str, list[Handed]] = {}
        for call in self.function.calls:
            for one in self._handed_to(call):
                found.setdefault(one.region.path.removesuffix(ANY), []).append(one)
        return found

    def _handed_to(self, call: cst.Call) -> Iterator[Handed]:
        for value in (one.value for one in call.args if not one.star):
            elements = self._names.elements(value)
            for one in elements or [value]:
                for region in self._names.regions(_memory(one)):
                    if region.leaf and not self.sizes.is_raw(region.stop):
                        yield Handed(call, value, region, elements is not None)

    def when(self, write: RegionWrite) -> When:
        """Returns for which batches a write of this function is reached."""
        held = {self.reached(test, outcome) for test, outcome in write.tests}
        for one in (When.UNPADDED, When.PADDED, When.SOMETIMES):
            if one in held:
                return one
        return When.ALWAYS

    def reached(self, test: CSTNode, outcome: bool) -> When:
        """Returns which batches see `test` come out as `outcome`."""
        return self._reached(test, outcome, {})

    def _reached(self, test: CSTNode, outcome: bool, known: dict[tuple[str, bool], When]) -> When:
        """Returns the same; `known` holds what names came to, which may be made of themselves."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self._reached(test.expression, not outcome, known)
        if isinstance(test, cst.BooleanOperation):
            sides = {self._reached(side, outcome, known) for side in (test.left, test.right)}
            if len(sides) == 1:
                return sides.pop()
            # Both sides hold for an `and` that is true, both fail for an `or` that is false.
            if isinstance(test.operator, cst.And) is outcome:
                certain = sides & {When.PADDED, When.UNPADDED}
                return certain.pop() if len(certain) == 1 else When.SOMETIMES
            # `pad or raw != bs` holds for every padded batch, and for others too; so does the
            # `else` of `raw == bs and whole`.
            return When.PADDED if When.PADDED in sides else When.SOMETIMES
        if isinstance(test, cst.NamedExpr):
            return self._reached(test.value, outcome, known)
        if isinstance(test, cst.Name):
            values = self._names.bound(test)
            if len(values) == 1 and not isinstance(values[0], cst.Name):
                key = (test.value, outcome)
                if key not in known:
                    known[key] = When.SOMETIMES  # what is read while it is being made
                    known[key] = self._reached(values[0], outcome, known)
                return known[key]
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            operator, right = test.comparisons[0].operator, test.comparisons[0].comparator
            if isinstance(right, cst.Name) and right.value == "None":
                # A buffer that is not there needs no reset.
                is_there = isinstance(operator, cst.IsNot) is outcome
                return When.ALWAYS if is_there else When.SOMETIMES
            outcome = outcome is not isinstance(operator, cst.Equal)
        if not self.sizes.compare(self._pair(test)):
            return When.SOMETIMES
        return When.PADDED if outcome else When.UNPADDED

    def _pair(self, node: CSTNode) -> Pair:
        """Returns what may be (raw, padded) in a comparison or a difference, or nothing.

        No order for `raw > x` and `raw <= x`: those ask whether the batch fits.
        """
        if isinstance(node, cst.NamedExpr):
            return self._pair(node.value)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Subtract):
            return [(node.right, node.left)]
        if isinstance(node, cst.Name):
            values = self._names.bound(node)
            if len(values) == 1 and isinstance(values[0], cst.BinaryOperation):
                return self._pair(values[0])
        if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
            return ()
        left, right = node.left, node.comparisons[0].comparator
        operator = node.comparisons[0].operator
        if isinstance(right, cst.Integer):
            # `padding > 0`
            computed = (cst.Name, cst.NamedExpr, cst.BinaryOperation)
            return self._pair(left) if isinstance(left, computed) else ()
        if isinstance(operator, (cst.Equal, cst.NotEqual)):
            return [(left, right), (right, left)]
        if isinstance(operator, cst.LessThan):
            return [(left, right)]
        return [(right, left)] if isinstance(operator, cst.GreaterThan) else ()

    def learn(self, function: Function) -> None:
        """Reads a function's comparisons for what they say about raw and padded sizes."""
        nodes = function.nodes
        tests: list[CSTNode] = [node for node in nodes if type(node) is cst.Comparison]
        asked = [node.test for node in nodes if type(node) is cst.If or type(node) is cst.IfExp]
        for test in (*tests, *asked):
            self.sizes.compare(self._pair(test))

    # From here on: gathering the writes.

    def _gather(self) -> None:
        for node in self.function.nodes:
            # By class: these are most of a file's nodes.
            if type(node) is cst.Call:
                self._call(node)
            elif type(node) is cst.Assign:
                for target in node.targets:
                    self._assignment(node, target.target)
            elif type(node) is cst.AugAssign and _is_multiplied_by_zero(node):
                self._write(node, node.target, WriteKind.CONSTANT, in_place=False, value=0)

    def _write(
        self,
        by: CSTNode,
        site: CSTNode,
        kind: WriteKind,
        regions: Iterable[Region] | None = None,
        *,
        in_place: bool = True,
        value: int | None = None,
        guessed: bool = False,
    ) -> None:
        """Notes a write of `value` to `regions`, by default to those that `site` names."""
        for region in self._names.regions(site) if regions is None else regions:
            order = len(self.writes)
            voids = value is not None and (value < 0 or (not value and _is_length(region.leaf)))
            self.writes.append(
                RegionWrite(region, kind, site, order, by, self.function, in_place, voids, guessed)
            )

    def _assignment(self, node: cst.Assign, target: CSTNode) -> None:
        if isinstance(target, cst.Attribute):
            self._write(node, target, WriteKind.REBOUND, in_place=False)
        elif isinstance(target, cst.Subscript):
            kind = WriteKind.CONSTANT if _is_constant(node.value) else WriteKind.COPY
            self._write(node, target, kind, in_place=False, value=number(node.value))

    def _call(self, call: cst.Call) -> None:
        # `kernel[grid](...)` calls a kernel.
        func = call.func.value if isinstance(call.func, cst.Subscript) else call.func
        name = func.attr if isinstance(func, cst.Attribute) else func
        word = name.value if isinstance(name, cst.Name) else ""
        receiver = func.value if isinstance(func, cst.Attribute) else None
        args = [arg.value for arg in call.args]
        if args and word.endswith("_") and receiver is not None and is_name(receiver, "torch"):
            receiver, *args = args  # `torch.zero_(x)`
        for arg in call.args:
            if arg.keyword is not None and arg.keyword.value == "out":
                self._write(call, arg.value, WriteKind.COPY)
        if receiver is not None and word in RESETS:
            value = number(args[0]) if args else 0
            self._write(call, receiver, WriteKind.CONSTANT, value=value)
            # Which buffers a call returned, nobody knows: they may be any of its object's.
            of_call = [
                one.path for one in self._names.regions(receiver) if _RETURNED.search(one.path)
            ]
            unknown = [Region(_RETURNED.sub(ANY, path), "", call) for path in of_call]
            self._write(call, receiver, WriteKind.CONSTANT, unknown, guessed=True)
        elif receiver is not None and (
            word in _PARTIAL_RESETS or (word == "mul_" and args and self._is_mask(args[0]))
        ):
            self._write(call, receiver, WriteKind.CONSTANT, guessed=True)
        elif receiver is not None and word == "mul_" and args and number(args[0]) == 0:
            self._write(call, receiver, WriteKind.CONSTANT, value=0)
        elif receiver is not None and word == "copy_":
            self._write(call, receiver, WriteKind.COPY)
        elif "copy" in word and call.args:
            self._grouped(call, WriteKind.COPY)
        elif "foreach_" in word and any(reset in word for reset in ("zero", "fill")) and call.args:
            self._grouped(call, WriteKind.CONSTANT)
        else:
            self._helper(call, word, receiver)

    def _is_mask(self, node: CSTNode) -> bool:
        """Tells whether an expression is 0 for some rows: a comparison, whatever its type."""
        while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value
        if isinstance(node, cst.Name):
            return any(isinstance(one, cst.Comparison) for one in self._names.bound(node))
        return isinstance(node, cst.Comparison)

    def _is_defined(self, word: str) -> bool:
        """Tells whether the module has a function of this name, which names what it resets."""
        parts = self.part.module.defining(word)
        found = [one for part in parts for one in functions(part) if one.name == word]
        return any(not _resets_any(one) for one in found)

    def _grouped(self, call: cst.Call, kind: WriteKind) -> None:
        """Notes one call that writes all tensors of a list."""
        for element in self._names.elements(call.args[0].value) or ():
            self._write(call, element, kind)

    def _helper(self, call: cst.Call, word: str, receiver: CSTNode | None) -> None:
        """Notes a call of a function that is not seen here and that, by its name, resets."""
        if receiver is None or self.part.code(receiver) in ("self", "cls", "super()"):
            self.calls.add(word)
        name = _NO_RESET.sub("", word)
        if not any(part in name for part in RESET_WORDS) or self._is_defined(word):
            return
        handed: list[CSTNode] = [arg.value for arg in call.args]
        # `context.reset()` resets something, but nobody knows what.
        is_own = not handed
        if receiver is not None and self.part.code(receiver) != "super()":
            handed.append(receiver)
        elif receiver is not None:
            self._write(
                call, call, WriteKind.CONSTANT, [Region(f"self{ANY}", "", call)], guessed=True
            )
        for one in handed:
            for element in self._names.elements(one) or [one]:
                regions = self._names.regions(element)
                held = [region.element(call) for region in regions]
                self._write(call, call, WriteKind.CONSTANT, [*regions, *held], guessed=is_own)


def fillings(these: Iterable[Function]) -> Iterator[Filling]:
    """Yields the fillings of some functions, each made once for all rules."""
    for function in these:
        memo = function.module.memo.setdefault("fillings", {})
        if function not in memo:
            memo[function] = Filling(function)
        yield memo[function]


def _resets_any(function: Function) -> bool:
    """Tells whether a function may reset buffers that it does not name: in a loop over some."""
    words = {last_name(call.func) for call in function.calls}
    return bool(words & RESETS) and bool(words & {"getattr", "values", "items"})


def _memory(node: CSTNode) -> CSTNode:
    """Returns the tensor whose address an expression is, or the expression itself."""
    if isinstance(node, cst.Call) and last_name(node.func) == "data_ptr":
        return receiver(node) or node
    return node


def _is_length(leaf: str) -> bool:
    return not _LENGTH.isdisjoint(leaf.split("_"))


def _is_multiplied_by_zero(node: cst.AugAssign) -> bool:
    return isinstance(node.operator, cst.MultiplyAssign) and number(node.value) == 0


def _is_constant(node: CSTNode) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return _is_constant(node.expression)
    return isinstance(node, (cst.Integer, cst.Float)) or (
        isinstance(node, cst.Name) and node.value in ("True", "False")
    )
