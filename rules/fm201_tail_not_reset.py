"""FM201: a graph input's padded tail keeps what the last replay left there."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.graph_inputs import Filling, Kind, When
from fmcheck.lint.lazy import cst
from fmcheck.lint.outline import outlines, outlines_of
from fmcheck.lint.rule import Example, Rule, Scope

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Sequence

    import libcst
    from libcst import CSTNode

    from fmcheck.contract import Contract, Registry
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts
    from fmcheck.lint.graph_inputs import Write
    from fmcheck.lint.outline import Outline

#: A module that has none of a tensor's own ways to write holds host arrays, not graph inputs.
IN_PLACE = frozenset({"copy_", "zero_", "fill_"})
_WRITES = re.compile(rb"\b(copy_|zero_|fill_)\b")
#: Functions that run before the first replay: what they set, a replay has overwritten since.
BEFORE_REPLAY = ("__init__", "__post_init__", "*capture*", "*warmup*", "*warm_up*")


class TailNotReset(Rule):
    """A graph input's padded tail keeps what the last replay left there.

    TODO
    """

    code = "FM201"
    name = "tail-not-reset"
    severity = Severity.WARNING
    scope = Scope.CLASS
    needles = ((b"copy_", b"zero_", b"fill_"),)
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/26292",
        "https://github.com/sgl-project/sglang/pull/24401",
        "https://github.com/sgl-project/sglang/pull/23037",
        "https://github.com/sgl-project/sglang/pull/24743",
    )
    bad = ()
    good = ()

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        inputs = [one.graph_inputs for one in contracts]
        self._row_indices = [glob for one in inputs for glob in one.row_indices]
        self._index_like = [glob for one in inputs for glob in one.index_like]
        self._may_stay = [glob for one in inputs for glob in one.tail_may_stay]
        self._registries = {part.slot_class: part for one in inputs for part in one.registry}

    def concerns(self, text: bytes) -> bool:
        """Asks for whole words, and for the contracts' slot classes."""
        if super().concerns(text) and _WRITES.search(text):
            return True
        return any(name.encode() in text for name in self._registries)

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks in which no function fills a buffer while another one is reset."""
        found = outlines_of(node, facts)
        return any(_candidates(found)) or any(
            not one.calls.isdisjoint(self._registries) for one in found
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each buffer that a function fills and nobody resets."""
        yield from self._stale_slots(block)
        if not any(one.calls & IN_PLACE for one in outlines(block.facts)):
            return
        functions = Functions(block)
        for filling in functions.candidates():
            yield from self._stale_tails(filling, Resets(filling, functions))

    def _stale_tails(self, filling: Filling, resets: Resets) -> Iterator[Finding]:
        reported: set[str] = set()
        for fill in filling.fills:
            leaf = fill.region.leaf
            if leaf in reported or _fits(leaf, self._may_stay):
                continue
            siblings = resets.siblings_of(fill)
            if siblings and not resets.reach(fill):
                reported.add(leaf)
                yield self._finding(filling.block, fill, siblings)

    def _finding(self, block: Block, fill: Write, siblings: Sequence[Write]) -> Finding:
        leaf, stop = fill.region.leaf, fill.region.stop
        assert stop is not None
        names = list(dict.fromkeys(f"`{one.region.leaf}`" for one in siblings))
        is_row_index = _fits(leaf, self._row_indices)
        return block.finding(
            self,
            fill.region.node,
            f"`{leaf}` is filled up to `{block.code(stop)}` and its padded tail keeps the last "
            f"replay's values, while {_listed(names)} {'is' if len(names) == 1 else 'are'} reset",
            help=f"reset it",
            severity=Severity.ERROR if is_row_index else None,
            related=[(one.region.node, f"`{one.region.leaf}` is reset here") for one in siblings],
        )

    def _stale_slots(self, block: Block) -> Iterator[Finding]:
        return iter(())


class Functions:
    """The functions of a block, each read by libcst only when it matters."""

    def __init__(self, block: Block) -> None:
        self._block = block
        everywhere = outlines(block.facts)
        self._defined = {one.name for one in everywhere}
        is_here = range(block.first_line, block.last_line + 1).__contains__
        self._here = [one for one in everywhere if is_here(one.line)]
        self._elsewhere = [one for one in everywhere if not is_here(one.line)]
        self._read: dict[int, Filling] = {}

    def filling(self, outline: Outline) -> Filling:
        """Returns the function that an outline is about."""
        if outline.line not in self._read:
            part = self._block.part(outline.line, outline.end_line)
            self._read[outline.line] = Filling(part, self._defined)
        return self._read[outline.line]

    def candidates(self) -> Iterator[Filling]:
        """Yields the functions that may leave a tail stale."""
        for outline in _candidates(self._here):
            yield self.filling(outline)

    def peers(self, filling: Filling, leaf: str) -> Iterator[Filling]:
        """Yields the block's other functions that may reset `leaf` between two replays."""
        for outline in self._here:
            if leaf in outline.resets and not _fits(outline.name, BEFORE_REPLAY):
                peer = self.filling(outline)
                if peer is not filling:
                    yield peer

    def is_reset_elsewhere(self, leaf: str) -> bool:
        """Tells whether the module resets `leaf` outside this block, on behalf of others."""
        return any(
            leaf in outline.resets - outline.fills
            for outline in self._elsewhere
            if not _fits(outline.name, BEFORE_REPLAY)
        )


class Resets:
    """The resets that are in force when one function fills its buffers."""

    def __init__(self, filling: Filling, functions: Functions) -> None:
        self._filling = filling
        self._functions = functions

    def reach(self, fill: Write) -> bool:
        """Tells whether anything resets the buffer that `fill` fills."""
        leaf = fill.region.leaf
        return (
            any(reset.region.may_be(fill.region) for reset in self._filling.resets)
            or any(self._by_peers(leaf))
            or self._functions.is_reset_elsewhere(leaf)
        )

    def _by_peers(self, leaf: str) -> Iterator[Write]:
        """Yields the resets of `leaf` in other functions of the block, made for this one."""
        for peer in self._functions.peers(self._filling, leaf):
            is_linked = peer.name in self._filling.calls or self._filling.name in peer.calls
            if is_linked or all(fill.region.leaf != leaf for fill in peer.fills):
                for reset in peer.resets:
                    is_reset = reset.kind is Kind.CONSTANT or reset.region.is_tail
                    if is_reset and reset.region.leaf == leaf:
                        yield reset

    def siblings_of(self, fill: Write) -> Sequence[Write]:
        """Returns the resets of other buffers that show that a padded tail is read."""
        found = {
            reset.region.leaf: reset
            for reset in reversed(self._filling.resets)
            if reset.region.leaf not in ("", fill.region.leaf) and self._shows_padding(reset)
        }
        if self._filling.compares_sizes:
            for other in self._filling.fills:
                leaf = other.region.leaf
                if leaf != fill.region.leaf and leaf not in found:
                    found.update({leaf: reset for reset in self._by_peers(leaf)})
        return sorted(found.values(), key=lambda reset: reset.order)

    def _shows_padding(self, reset: Write) -> bool:
        """Tells whether a reset of this function is there because of the padding."""
        if reset.kind is not Kind.CONSTANT:
            return False
        when = self._filling.when(reset)
        return when is When.PADDED or (
            when is When.ALWAYS
            and any(
                reset.region.may_be(fill.region) and fill.order > reset.order
                for fill in self._filling.fills
            )
        )


def _candidates(found: Sequence[Outline]) -> Iterator[Outline]:
    """Yields the functions that fill a buffer where they or their peers reset one."""
    by_peers = {leaf for one in found for leaf in one.resets}
    for one in found:
        if one.fills and (one.resets or not one.fills.isdisjoint(by_peers)):
            yield one


def _fits(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _listed(names: Sequence[str]) -> str:
    if len(names) > 3:
        names = [*names[:3], f"{len(names) - 3} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
