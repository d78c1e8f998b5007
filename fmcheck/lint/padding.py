"""Padding: whether a function may show, by `ast` alone, that it resets buffers for padded rows.

A necessary condition of what `graph_inputs` and `resets` then find out in a tree: it follows names
to all that they are bound to, and takes every size that a slice is cut to for one of a copy.
"""

from __future__ import annotations

import ast
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from fmcheck.lint.names import fits
from fmcheck.lint.outline import leaves
from fmcheck.lint.sites import WIPES, Holders, Sites, base, called, is_bounded, stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from fmcheck.lint.outline import Outline

#: Functions that run before the first replay: what they set, a replay has overwritten since.
BEFORE_REPLAY = ("__init__", "__post_init__", "*capture*", "*warmup*", "*warm_up*")
#: What may be the size of a batch.
_SIZES = (ast.Name, ast.Attribute, ast.BinOp, ast.Subscript, ast.Call)
_ORDERED = (ast.Eq, ast.NotEq, ast.Lt, ast.Gt)


class Padding:
    """What one function shows of padding.

    `resetting` are the functions of its block that reset a buffer, `peers` the same by name.
    """

    def __init__(
        self,
        outline: Outline,
        resetting: Sequence[Outline],
        peers: Mapping[str, Sequence[Outline]],
    ) -> None:
        self._outline = outline
        self._resetting = resetting
        self._peers = peers
        self._sites = Sites(outline)

    def may_show(self) -> bool:
        """Tells whether the function may fill up to a raw size where a reset is for the padding."""
        stale = list(self._may_be_stale())
        return (
            bool(stale)
            and self._may_differ()
            and self._may_be_reset_for_it()
            and self._may_be_raw(stale)
        )

    def _may_be_stale(self) -> Iterator[ast.expr]:
        """Yields the buffers that may be filled at their front and are not surely reset here."""
        sites = self._sites
        heads = [site for site in sites.heads if sites.may_be_buffer(site)]
        surely = {
            ast.unparse(node.func.value)
            for node in (sites.nodes[ast.Call] if heads else ())
            if isinstance(node.func, ast.Attribute)
            and node.func.attr in WIPES
            # A name for the front of a buffer: its tail stays.
            and not sites.may_be_head(node.func.value)
            and not any(first <= node.lineno <= last for first, last in self._compared)
        }
        for site in heads:
            if ast.unparse(base(site)) not in surely:
                yield site

    def _may_differ(self) -> bool:
        """Tells whether a buffer may be filled beside another one that is reset for the padding.

        A reset that all batches reach shows nothing of the padding but by a fill of its buffer.
        """
        heads = {ast.unparse(base(site)): base(site) for site in self._sites.heads}
        return (
            len(heads) > 1
            or not all(map(self._sites.is_one, heads.values()))
            or any(ast.unparse(base(site)) not in heads for site in self._guarded)
        )

    @cached_property
    def _reset(self) -> Sequence[ast.expr]:
        """What may be reset here: to one value, or from some row on."""
        sites = self._sites
        return [*sites.wiped, *(one for one in sites.copied if sites.may_be_tail(one))]

    @cached_property
    def _guarded(self) -> Sequence[ast.expr]:
        """What may be reset where sizes may have been compared."""
        return [
            site
            for site in (self._reset if self._compared else ())
            if any(first <= site.lineno <= last for first, last in self._compared)
        ]

    def _may_be_reset_for_it(self) -> bool:
        """Tells whether a reset may be for the padding: by its test, or as one before a fill."""
        if self._guarded:
            return True
        fills = self._outline.fills
        filled = {"": set().union(*fills.values()), **fills}
        if any(
            name in filled and min(lines) <= max(filled[name]) for name, lines in self._resets
        ) and self._may_be_of(self._reset, self._sites.heads):
            return True
        return any(
            one.resets_any or not one.resets.keys().isdisjoint(fills)
            for one in self._resetting
            if one is not self._outline and not fits(one.name, BEFORE_REPLAY)
        )

    def _may_be_of(self, reset: Sequence[ast.expr], filled: Sequence[ast.expr]) -> bool:
        """Tells whether what is reset may be, or hold, something that is filled."""
        return any(map(Holders(self._sites, reset).may_hold, filled))

    @property
    def _resets(self) -> Sequence[tuple[str, set[int]]]:
        return [*self._outline.resets.items(), *self._outline.tails.items()]

    @cached_property
    def _compared(self) -> Sequence[tuple[int, int]]:
        """The lines of each `if` that may compare a raw size with a padded one."""
        return [
            (node.lineno, node.end_lineno or node.lineno)
            for node in self._sites.nodes[ast.If]
            if self._compares(node.test)
        ]

    def _compares(self, test: ast.expr, seen: set[str] | None = None) -> bool:
        """Tells whether a test may compare sizes; `seen` are the names that it has followed."""
        seen = set() if seen is None else seen
        if isinstance(test, ast.UnaryOp):
            return self._compares(test.operand, seen)
        if isinstance(test, ast.BoolOp):
            return any(self._compares(one, seen) for one in test.values)
        if isinstance(test, ast.Name) and test.id not in seen:
            seen.add(test.id)
            return any(self._compares(one, seen) for one in self._sites.values(test.id))
        return any(self._raw_of(*pair) for pair in self._pairs(test))

    def _pairs(
        self, node: ast.expr, seen: set[str] | None = None
    ) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Yields what may be (raw, padded) in a comparison or a difference."""
        seen = set() if seen is None else seen
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            yield node.right, node.left
        elif isinstance(node, ast.Name) and node.id not in seen:
            seen.add(node.id)
            for value in self._sites.values(node.id):
                if isinstance(value, ast.BinOp):
                    yield from self._pairs(value, seen)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = node.left, node.comparators[0]
            if isinstance(right, ast.Constant):
                yield from self._pairs(left) if isinstance(left, (ast.Name, ast.BinOp)) else ()
            elif isinstance(node.ops[0], _ORDERED):
                yield left, right
                yield right, left

    def _raw_of(self, raw: ast.expr, padded: ast.expr) -> set[str]:
        """Returns what two sizes show to be raw: nothing if copies are not cut to the first."""
        own = {name for name in self._atoms(raw) if not name.startswith("self.")}
        is_told = isinstance(padded, _SIZES) and not self._copied.isdisjoint(own)
        return own | {ast.unparse(raw)} if is_told else set()

    def _may_be_raw(self, stale: Sequence[ast.expr]) -> bool:
        """Tells whether one of the sites may be cut to what is shown to be a raw size."""
        wanted = {name for size in self._cuts(stale) for name in self._texts(size)}
        return not wanted.isdisjoint(self._raw)

    @cached_property
    def _raw(self) -> set[str]:
        """The sizes that comparisons show to be raw, and those that a reset buffer is filled to."""
        found: set[str] = set()
        resets = {name for name, _ in self._resets}
        whole = [site for site in self._sites.wiped if not is_bounded(site)]
        holders = Holders(self._sites, whole)
        for site in self._sites.heads if whole else ():
            is_named = "" in resets or not resets.isdisjoint(leaves(site))
            if is_named and holders.may_hold(site):
                found.update(name for size in self._cuts([site]) for name in self._texts(size))
        told = [self._sites.nodes]
        called = self._outline.calls & self._peers.keys()
        told += [
            peer.nodes for name in called for peer in self._peers[name] if peer is not self._outline
        ]
        for raw, padded in (pair for nodes in told for pair in self._all_pairs(nodes)):
            found |= self._raw_of(raw, padded)
        return found

    def _all_pairs(
        self, nodes: Mapping[type[ast.AST], Sequence[Any]]
    ) -> Iterator[tuple[ast.expr, ast.expr]]:
        for node in nodes[ast.Compare]:
            yield from self._pairs(node)
        for node in chain(nodes[ast.If], nodes[ast.IfExp]):
            if not isinstance(node.test, ast.Compare):
                yield from self._pairs(node.test)

    @cached_property
    def _copied(self) -> set[str]:
        """The sizes that copies may be cut to, and what they are computed from."""
        return {name for size in self._cuts(self._sites.heads) for name in self._atoms(size)}

    def _cuts(self, sites: Sequence[ast.expr]) -> Sequence[ast.expr]:
        """Returns the sizes that sites may be cut to."""
        found = [stop(site) for site in sites]
        # A name stands for one of them: any size here may be its.
        return self._stops if None in found else [size for size in found if size is not None]

    def _texts(self, size: ast.expr) -> set[str]:
        """Returns an expression, and what it is computed from or by."""
        return self._atoms(size) | {ast.unparse(size)}

    @cached_property
    def _stops(self) -> Sequence[ast.expr]:
        """All that anything is cut to here."""
        found = [node.upper for node in self._sites.nodes[ast.Slice] if node.upper is not None]
        for call in self._sites.nodes[ast.Call]:
            if called(call) == "narrow":
                found += [*call.args, *(keyword.value for keyword in call.keywords)]
        return found

    def _atoms(self, size: ast.expr) -> set[str]:
        """Returns what an expression mentions, and what the names in it were computed from."""
        found = set(_mentioned(size))
        asked = list(found)
        while asked:
            for value in self._sites.values(asked.pop()):
                if isinstance(value, (ast.BinOp, ast.IfExp, ast.Name, ast.Attribute)):
                    new = set(_mentioned(value)) - found
                    found |= new
                    asked += new
        return found


def _mentioned(size: ast.expr) -> Iterator[str]:
    if isinstance(size, ast.BinOp):
        yield from _mentioned(size.left)
        if not isinstance(size.op, ast.Sub):
            yield from _mentioned(size.right)
    elif isinstance(size, ast.IfExp):
        yield from _mentioned(size.body)
        yield from _mentioned(size.orelse)
    elif isinstance(size, ast.Name):
        yield size.id
    elif isinstance(size, (ast.Attribute, ast.Subscript, ast.Call)):
        yield ast.unparse(size)
