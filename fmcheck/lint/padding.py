"""Padding: whether a function may show, by `ast` alone, that it resets buffers for padded rows.

A necessary condition of what `graph_inputs` and `resets` then find out in a tree: it follows names
to all that they are bound to, and takes every size that a slice is cut to for one of a copy.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.lint.buffers import HELD, VIEWS
from fmcheck.lint.names import fits
from fmcheck.lint.nodes import walk
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.outline import leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.lint.outline import Outline

#: Functions that run before the first replay: what they set, a replay has overwritten since.
BEFORE_REPLAY = ("__init__", "__post_init__", "*capture*", "*warmup*", "*warm_up*")
#: Methods that set all of a tensor.
WIPES = frozenset({"zero_", "fill_", "fill"})
#: Calls whose result is, or is in, what they are called on or handed.
_SAME = VIEWS | {"getattr", "get", "narrow"}
#: What may be the size of a batch.
_SIZES = (ast.Name, ast.Attribute, ast.BinOp, ast.Subscript, ast.Call)
_ORDERED = (ast.Eq, ast.NotEq, ast.Lt, ast.Gt)


class Padding:
    """What one function shows of padding.

    `resetting` are the functions of its block that reset a buffer.
    """

    def __init__(self, outline: Outline, resetting: Sequence[Outline]) -> None:
        self._outline = outline
        self._resetting = resetting
        self._nodes = list(walk(outline.function))
        self._parameters = {node.arg for node in self._nodes if isinstance(node, ast.arg)}
        self._values: dict[str, list[ast.expr]] = defaultdict(list)
        #: What a loop binds may be anything.
        self._looped: set[str] = set()
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value)
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                self._bind(node.target, node.value)
            elif isinstance(node, (ast.For, ast.comprehension)):
                names = (one.id for one in all_below(node.target) if isinstance(one, ast.Name))
                self._looped.update(names)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Starred):
            target = target.value
        if isinstance(target, ast.Name):
            self._values[target.id].append(value)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for left, right in zip(target.elts, value.elts, strict=False):
                self._bind(left, right)

    def may_show(self) -> bool:
        """Tells whether the function may fill up to a raw size where a reset is for the padding."""
        stale = list(self._may_be_stale())
        return bool(stale) and self._may_be_reset_for_it() and self._may_be_raw(stale)

    def _may_be_stale(self) -> Iterator[ast.expr]:
        """Yields the buffers that may be filled at their front and are not surely reset here."""
        surely = {
            ast.unparse(node.func.value)
            for node in self._nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in WIPES
            # A name for the front of a buffer: its tail stays.
            and not self._may_be_head(node.func.value)
            and not any(first <= node.lineno <= last for first, last in self._compared)
        }
        for site in self._heads:
            if self._may_be_buffer(site) and ast.unparse(_base(site)) not in surely:
                yield site

    @cached_property
    def _heads(self) -> Sequence[ast.expr]:
        return [site for site in self._sites() if self._may_be_head(site)]

    def _sites(self) -> Iterator[ast.expr]:
        """Yields what may be copied to, as it is written."""
        listed: list[ast.expr] = []
        groups = False
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                yield from (one for one in node.targets if isinstance(one, ast.Subscript))
            elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
                listed += node.elts
            elif isinstance(node, ast.Call):
                word = getattr(node.func, "attr", getattr(node.func, "id", ""))
                yield from (one.value for one in node.keywords if one.arg == "out")
                if word == "copy_" and isinstance(node.func, ast.Attribute):
                    yield node.func.value
                elif "copy" in word:
                    groups = True
                elif word in ("append", "extend"):
                    listed += node.args
        if groups:
            yield from listed

    def _may_be_head(self, site: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Tells whether an expression may be the front of a buffer, by itself or by its names."""
        if isinstance(site, ast.Subscript):
            inner = site.slice.elts if isinstance(site.slice, ast.Tuple) else [site.slice]
            for one in inner:
                if isinstance(one, ast.Slice) and (one.upper or not _is_zero(one.lower)):
                    return one.upper is not None and _is_zero(one.lower)
            is_all = all(isinstance(one, ast.Slice) or _is_dots(one) for one in inner)
            return is_all and self._may_be_head(site.value, seen)
        if isinstance(site, ast.Name):
            return site.id in self._looped or (
                site.id not in seen
                and any(
                    self._may_be_head(one, seen | {site.id})
                    for one in self._values.get(site.id, ())
                )
            )
        if isinstance(site, ast.Attribute):
            return site.attr in HELD and self._may_be_head(site.value, seen)
        if isinstance(site, ast.Call) and isinstance(site.func, ast.Attribute):
            word = site.func.attr
            return word == "narrow" or (word in VIEWS and self._may_be_head(site.func.value, seen))
        if isinstance(site, ast.IfExp):
            return any(self._may_be_head(one, seen) for one in (site.body, site.orelse))
        if isinstance(site, ast.BoolOp):
            return any(self._may_be_head(one, seen) for one in site.values)
        return isinstance(site, ast.Starred) and self._may_be_head(site.value, seen)

    def _may_be_buffer(self, site: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Tells a buffer with a name of its own from what a call returned and from a global."""
        if isinstance(site, ast.Subscript) and _is_cut(site):
            return self._may_be_buffer(site.value, seen)
        if isinstance(site, ast.Name):
            return (
                site.id in self._parameters
                or site.id in self._looped
                or site.id in seen
                or any(
                    self._may_be_buffer(one, seen | {site.id})
                    for one in self._values.get(site.id, ())
                )
            )
        if isinstance(site, ast.Call):
            word = getattr(site.func, "attr", getattr(site.func, "id", ""))
            return word in _SAME
        return True

    def _may_be_reset_for_it(self) -> bool:
        """Tells whether a reset may be for the padding: by its test, or as one before a fill."""
        fills = self._outline.fills
        for name, lines in self._resets:
            filled = set().union(*fills.values()) if name == "" else fills.get(name, ())
            if filled and min(lines) <= max(filled):
                return True
        if any(
            one.resets_any or not one.resets.keys().isdisjoint(fills)
            for one in self._resetting
            if one is not self._outline and not fits(one.name, BEFORE_REPLAY)
        ):
            return True
        return any(
            first <= line <= last
            for _, lines in self._resets
            for line in lines
            for first, last in self._compared
        )

    @property
    def _resets(self) -> Sequence[tuple[str, set[int]]]:
        return [*self._outline.resets.items(), *self._outline.tails.items()]

    @cached_property
    def _compared(self) -> Sequence[tuple[int, int]]:
        """The lines of each `if` that may compare a raw size with a padded one."""
        return [
            (node.lineno, node.end_lineno or node.lineno)
            for node in self._nodes
            if isinstance(node, ast.If) and self._compares(node.test)
        ]

    def _compares(self, test: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        if isinstance(test, ast.UnaryOp):
            return self._compares(test.operand, seen)
        if isinstance(test, ast.BoolOp):
            return any(self._compares(one, seen) for one in test.values)
        if isinstance(test, ast.Name) and test.id not in seen:
            values = self._values.get(test.id, ())
            return any(self._compares(one, seen | {test.id}) for one in values)
        return any(True for _ in self._pairs(test))

    def _pairs(
        self, node: ast.expr, seen: frozenset[str] = frozenset()
    ) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Yields what may be (raw, padded) in a comparison or a difference."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            yield node.right, node.left
        elif isinstance(node, ast.Name) and node.id not in seen:
            for value in self._values.get(node.id, ()):
                if isinstance(value, ast.BinOp):
                    yield from self._pairs(value, seen | {node.id})
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = node.left, node.comparators[0]
            if isinstance(right, ast.Constant):
                yield from self._pairs(left) if isinstance(left, (ast.Name, ast.BinOp)) else ()
            elif isinstance(node.ops[0], _ORDERED):
                yield left, right
                yield right, left

    def _may_be_raw(self, stale: Sequence[ast.expr]) -> bool:
        """Tells whether one of the sites may be cut to what is shown to be a raw size."""
        wanted: set[str] = set()
        for site in stale:
            stop = _stop(site)
            if stop is None:
                # A name stands for it: any size here may be its.
                wanted.update(name for one in self._stops for name in self._texts(one))
            else:
                wanted |= self._texts(stop)
        return not wanted.isdisjoint(self._raw)

    @cached_property
    def _raw(self) -> set[str]:
        """The sizes that comparisons show to be raw, and those that a reset buffer is filled to."""
        found: set[str] = set()
        resets = {name for name, _ in self._resets}
        for site in self._heads:
            if "" in resets or not resets.isdisjoint(leaves(site)):
                stop = _stop(site)
                for one in self._stops if stop is None else [stop]:
                    found |= self._texts(one)
        copied = {name for stop in self._copied() for name in self._atoms(stop)}
        tests = self._tests(self._nodes)
        for peer in self._resetting:
            if peer is not self._outline and peer.name in self._outline.calls:
                tests += self._tests(walk(peer.function))
        for test in tests:
            for raw, padded in self._pairs(test):
                own = {name for name in self._atoms(raw) if not name.startswith("self.")}
                if isinstance(padded, _SIZES) and not copied.isdisjoint(own):
                    found |= own | {ast.unparse(raw)}
        return found

    def _copied(self) -> Iterator[ast.expr]:
        """Yields the sizes that copies may be cut to."""
        for site in self._heads:
            stop = _stop(site)
            if stop is None:
                yield from self._stops
                return
            yield stop

    def _texts(self, size: ast.expr) -> set[str]:
        """Returns an expression, and what it is computed from or by."""
        return self._atoms(size) | {ast.unparse(size)}

    @property
    def _stops(self) -> Iterator[ast.expr]:
        for node in self._nodes:
            if isinstance(node, ast.Slice) and node.upper is not None:
                yield node.upper
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "narrow":
                yield from node.args
                yield from (keyword.value for keyword in node.keywords)

    @staticmethod
    def _tests(nodes: Iterable[ast.AST]) -> list[ast.expr]:
        found: list[ast.expr] = []
        for node in nodes:
            if isinstance(node, ast.Compare):
                found.append(node)
            elif isinstance(node, (ast.If, ast.IfExp)):
                found.append(node.test)
        return found

    def _atoms(self, size: ast.expr, seen: frozenset[str] = frozenset()) -> set[str]:
        """Returns what an expression mentions, and what the names in it were computed from."""
        found = set(_mentioned(size))
        for name in found - seen:
            for value in self._values.get(name, ()):
                if isinstance(value, (ast.BinOp, ast.IfExp, ast.Name, ast.Attribute)):
                    found |= self._atoms(value, seen | found)
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


def _is_zero(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value == 0)


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _is_cut(node: ast.Subscript) -> bool:
    """Tells whether a subscript takes rows, and not the tensor that a key stands for."""
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(one, ast.Slice) for one in inner)


def _stop(site: ast.expr) -> ast.expr | None:
    """Returns what a site is cut to where it is written; None where a name stands for it."""
    if isinstance(site, ast.Subscript):
        inner = site.slice.elts if isinstance(site.slice, ast.Tuple) else [site.slice]
        uppers = [one.upper for one in inner if isinstance(one, ast.Slice) and one.upper]
        if len(uppers) == 1:
            return uppers[0]
    return None


def _base(site: ast.expr) -> ast.expr:
    while isinstance(site, ast.Subscript) and _is_cut(site):
        site = site.value
    return site
