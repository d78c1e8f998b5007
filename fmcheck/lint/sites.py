"""Sites: what one function copies to and resets, as it is written, by `ast` alone.

A name is followed to all that it is bound to anywhere in the function, as `buffers` does it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from fmcheck.lint.front_words import HELD, VIEWS
from fmcheck.lint.nodes import indices, walk
from fmcheck.lint.outline import RESET_WORDS, leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fmcheck.lint.outline import Outline

#: Methods that set all of a tensor.
WIPES = frozenset({"zero_", "fill_", "fill"})
#: Calls whose result is, or is in, what they are called on or handed.
_SAME = VIEWS | {"getattr", "get", "narrow"}
#: What reaches any attribute of an object, or any element of a container.
_ANY = frozenset({"getattr", "values", "items", "vars", "__dict__", "super"})


class Sites:
    """What one function writes, and what the names in it stand for."""

    def __init__(self, outline: Outline) -> None:
        self.nodes = outline.nodes
        self._parameters = {node.arg for node in self.nodes[ast.arg]}
        self._values: dict[str, list[ast.expr]] = defaultdict(list)
        #: What a loop binds may be anything.
        self._looped: dict[str, list[ast.expr]] = defaultdict(list)
        self._followed: dict[ast.expr, set[str]] = {}
        for node in self.nodes[ast.Assign]:
            for target in node.targets:
                self._bind(target, node.value)
        for node in chain(self.nodes[ast.AnnAssign], self.nodes[ast.NamedExpr]):
            if node.value is not None:
                self._bind(node.target, node.value)
        for node in chain(
            *(self.nodes[kind] for kind in (ast.For, ast.AsyncFor, ast.comprehension))
        ):
            for one in walk(node.target):
                if isinstance(one, ast.Name):
                    self._looped[one.id].append(node.iter)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Starred):
            target = target.value
        if isinstance(target, ast.Name):
            self._values[target.id].append(value)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for left, right in zip(target.elts, value.elts, strict=False):
                self._bind(left, right)

    def values(self, name: str) -> Sequence[ast.expr]:
        """Returns what is assigned to a name."""
        return self._values.get(name, ())

    @cached_property
    def heads(self) -> Sequence[ast.expr]:
        """What may be copied to and may be the front of a buffer."""
        return [site for site in self.copied if self.may_be_head(site)]

    @cached_property
    def copied(self) -> Sequence[ast.expr]:
        """What may be copied to, as it is written."""
        found: list[ast.expr] = [*self._direct]
        listed: list[ast.expr] = []
        groups = False
        for node in self.nodes[ast.Assign]:
            if len(node.targets) > 1:
                found += [target for target in node.targets if isinstance(target, ast.Subscript)]
        for call in self.nodes[ast.Call]:
            word = called(call)
            found += [one.value for one in call.keywords if one.arg == "out"]
            if "copy" in word and not (word == "copy_" and isinstance(call.func, ast.Attribute)):
                # A list of tensors is handed to it.
                groups = groups or bool(call.args or call.keywords)
            elif word in ("append", "extend"):
                listed += call.args
        if groups:
            for display in chain(*(self.nodes[kind] for kind in (ast.List, ast.Tuple, ast.Set))):
                listed += display.elts
            found += listed
        return found

    @cached_property
    def _direct(self) -> Sequence[ast.expr]:
        """What is copied to where it stands: the one target of a store, or by its own method."""
        return [
            *(
                node.targets[0]
                for node in self.nodes[ast.Assign]
                if len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript)
            ),
            *(
                call.func.value
                for call in self.nodes[ast.Call]
                if isinstance(call.func, ast.Attribute) and call.func.attr == "copy_"
            ),
        ]

    def is_before(self, one: ast.expr, front: ast.expr) -> bool:
        """Tells whether an expression surely stands ahead of a copy to a front.

        What a list or an argument holds is written elsewhere than it stands.
        """
        end = one.end_lineno or one.lineno
        return end < front.lineno and any(site is front for site in self._direct)

    @cached_property
    def wiped(self) -> Sequence[ast.expr]:
        """What may be set to one value, all of it or a part."""
        found: list[ast.expr] = []
        for call in self.nodes[ast.Call]:
            word = called(call)
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
            if receiver is not None and word in WIPES:
                found.append(receiver)
            elif any(part in word for part in RESET_WORDS) or (
                "foreach_" in word and "fill" in word
            ):
                # By its name it resets what it is handed.
                found += [*call.args, *(one.value for one in call.keywords)]
                found += [] if receiver is None else [receiver]
        found += [
            target
            for node in self.nodes[ast.Assign]
            for target in node.targets
            if isinstance(target, ast.Subscript) and _is_constant(node.value)
        ]
        return found

    def may_be_head(self, site: ast.expr) -> bool:
        """Tells whether an expression may be the front of a buffer, by itself or by its names."""
        return self._may_be_cut(site, set(), is_head=True)

    def may_be_tail(self, site: ast.expr) -> bool:
        """Tells whether an expression may be a buffer from some row on."""
        return self._may_be_cut(site, set(), is_head=False)

    def _may_be_cut(self, site: ast.expr, seen: set[str], *, is_head: bool) -> bool:
        if isinstance(site, ast.Subscript):
            inner = indices(site)
            for one in inner:
                if isinstance(one, ast.Slice) and (one.upper or not _is_zero(one.lower)):
                    starts = _is_zero(one.lower)
                    return one.upper is not None and starts if is_head else not starts
            is_all = all(isinstance(one, ast.Slice) or _is_dots(one) for one in inner)
            return is_all and self._may_be_cut(site.value, seen, is_head=is_head)
        below: Iterable[ast.expr] = ()
        if isinstance(site, ast.Name):
            if site.id in self._looped:
                return True
            if site.id not in seen:
                seen.add(site.id)
                below = self.values(site.id)
        elif isinstance(site, ast.Attribute):
            below = [site.value] if site.attr in HELD else ()
        elif isinstance(site, ast.Call) and isinstance(site.func, ast.Attribute):
            if site.func.attr == "narrow":
                return True
            below = [site.func.value] if site.func.attr in VIEWS else ()
        elif isinstance(site, ast.IfExp):
            below = (site.body, site.orelse)
        elif isinstance(site, ast.BoolOp):
            below = site.values
        elif isinstance(site, ast.Starred):
            below = [site.value]
        return any(self._may_be_cut(one, seen, is_head=is_head) for one in below)

    def may_be_buffer(self, site: ast.expr, known: dict[str, bool] | None = None) -> bool:
        """Tells a buffer with a name of its own from what a call returned and from a global.

        `known` holds what names came to, True for one that is made of itself.
        """
        known = {} if known is None else known
        if isinstance(site, ast.Subscript) and _is_cut(site):
            return self.may_be_buffer(site.value, known)
        if isinstance(site, ast.Name):
            if site.id in self._parameters or site.id in self._looped:
                return True
            if site.id not in known:
                known[site.id] = True
                values = self.values(site.id)
                known[site.id] = any(self.may_be_buffer(one, known) for one in values)
            return known[site.id]
        return called(site) in _SAME if isinstance(site, ast.Call) else True

    def is_one(self, site: ast.expr, known: dict[str, bool] | None = None) -> bool:
        """Tells whether an expression surely names no more than one buffer.

        `known` holds what names came to, False for one that is made of itself.
        """
        known = {} if known is None else known
        if isinstance(site, ast.Name):
            values = self.values(site.id)
            if site.id in self._looped or len(values) + (site.id in self._parameters) > 1:
                return False
            if site.id not in known:
                known[site.id] = False
                known[site.id] = all(self.is_one(one, known) for one in values)
            return known[site.id]
        if isinstance(site, ast.Attribute):
            return self.is_one(site.value, known)
        if isinstance(site, ast.Subscript):
            keys = [site.slice] if isinstance(site.slice, ast.Name) else []
            return all(self.is_one(one, known) for one in (*keys, site.value))
        if isinstance(site, ast.Call):
            return all(self.is_one(one, known) for one in (site.func, *site.args))
        return isinstance(site, ast.Constant)

    def path(self, site: ast.expr) -> str:
        """Returns `a.b` for what is cut from it, where nothing here binds `a`; "" for the rest."""
        node, parts = base(site), []
        while isinstance(node, ast.Attribute) and node.attr not in HELD:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or self.values(node.id) or node.id in self._looped:
            return ""
        return ".".join((node.id, *reversed(parts)))

    def reached(self, site: ast.expr) -> set[str]:
        """Returns the names of what an expression is and of what holds it.

        Names are followed as far as it goes. "" is what may be any of an object's buffers.
        """
        found = self._followed.get(site)
        if found is None:
            # What holds everything is no name of its own.
            found = self._followed[site] = leaves(site) or {""}
            asked = list(found)
            while asked:
                name = asked.pop()
                for value in chain(self.values(name), self._looped.get(name, ())):
                    new = leaves(value) - found
                    found |= new
                    asked += new
            if not found.isdisjoint(_ANY):
                found.add("")
        return found


class Holders:
    """Some expressions of a function, read once however many others are compared with them."""

    def __init__(self, sites: Sites, expressions: Sequence[ast.expr]) -> None:
        self._sites = sites
        self._paths: set[str] = set()
        #: What they reach, and what those of them reach that have no path.
        self._names: set[str] = set()
        self._names_without_path: set[str] = set()
        for one in expressions:
            path, names = sites.path(one), sites.reached(base(one))
            self._names |= names
            if path:
                self._paths.add(path)
            else:
                self._names_without_path |= names

    def may_hold(self, other: ast.expr) -> bool:
        """Tells whether what one of them names may be the buffer of the other, or hold it."""
        path = self._sites.path(other)
        if path:
            parts = path.split(".")
            if any(".".join(parts[: end + 1]) in self._paths for end in range(len(parts))):
                return True
        names = self._names_without_path if path else self._names
        return "" in names or not names.isdisjoint(self._sites.reached(base(other)))


def called(call: ast.Call) -> str:
    """Returns the last name of what is called."""
    found: str = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return found


def base(site: ast.expr) -> ast.expr:
    """Returns what a site is cut from."""
    while isinstance(site, ast.Subscript) and _is_cut(site):
        site = site.value
    return site


def stop(site: ast.expr) -> ast.expr | None:
    """Returns what a site is cut to where it is written; None where a name stands for it."""
    if isinstance(site, ast.Subscript):
        uppers = [one.upper for one in indices(site) if isinstance(one, ast.Slice) and one.upper]
        if len(uppers) == 1:
            return uppers[0]
    return None


def is_bounded(site: ast.expr) -> bool:
    """Tells whether a site is cut to less than all of a buffer where it is written."""
    return isinstance(site, ast.Subscript) and any(
        isinstance(one, ast.Slice) and (one.upper is not None or not _is_zero(one.lower))
        for one in indices(site)
    )


def _is_cut(node: ast.Subscript) -> bool:
    """Tells whether a subscript takes rows, and not the tensor that a key stands for."""
    return any(isinstance(one, ast.Slice) for one in indices(node))


def _is_zero(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value == 0)


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _is_constant(value: ast.expr) -> bool:
    while isinstance(value, ast.UnaryOp):
        value = value.operand
    return isinstance(value, ast.Constant)
