"""An outline: which buffers each function of a module may fill and reset, by name and by `ast`.

It clears most functions before libcst is needed, and tells a block what the rest of its module
resets. So it errs to one side: a name is listed if there is any chance.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.lint.facts import ModuleFacts

_RESETS = frozenset({"zero_", "fill_", "fill"})


@dataclass(slots=True)
class Outline:
    """What one function, nested ones included, may do to the buffers whose names are listed.

    `line` is that of the `def`, `end_line` the last; `fills` are copies cut to a length, `resets`
    set one value, `calls` are the names of what it calls, `lists` the attributes that it makes
    Python lists.
    """

    name: str
    line: int
    end_line: int
    fills: set[str] = field(default_factory=set)
    resets: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    lists: set[str] = field(default_factory=set)

    @property
    def resets_any(self) -> bool:
        """Tells whether it may reset buffers that it does not name, as in a loop over fields."""
        return not self.resets.isdisjoint(("getattr", "values", "items"))


@lru_cache(maxsize=1)
def outlines(facts: ModuleFacts) -> Sequence[Outline]:
    """Returns the outlines of a module's functions and methods."""
    return [one for node in facts.tree.body for one in outlines_of(node)]


@lru_cache(maxsize=4)
def outlines_of(node: ast.AST) -> Sequence[Outline]:
    """Returns the outlines of the functions in `node`, a top-level statement of a module."""
    return [_outline(function) for function in _functions([node])]


def _functions(body: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        else:
            for name in ("body", "orelse", "finalbody", "handlers"):
                yield from _functions(getattr(node, name, ()))


def _outline(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Outline:
    last = function.end_lineno or function.lineno
    found = Outline(function.name, function.lineno, last)
    stands_for: dict[str, set[str]] = defaultdict(set)
    listed: list[ast.expr] = []
    for node in _telling(function):
        if isinstance(node, ast.Call):
            _note_call(node, found, listed)
        elif isinstance(node, (ast.List, ast.Tuple)):
            listed += node.elts
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                _note_store(target, found)
                if isinstance(target, ast.Attribute) and _is_list(node.value):
                    found.lists.add(target.attr)
                _stand(target, node.value, stands_for)
        elif isinstance(node, (ast.For, ast.comprehension)):
            _stand(node.target, node.iter, stands_for)
    if any("copy" in word for word in found.calls):
        for element in listed:
            found.fills |= _cut(element)
    for names in (found.fills, found.resets):
        for name in list(names):
            names |= stands_for.get(name, set())
    return found


#: Nodes that tell nothing by themselves; most of a tree, so they are not even looked into.
_MUTE = frozenset({ast.Name, ast.Constant, ast.Load, ast.Store, ast.Pass, ast.arg, ast.alias})


def _telling(function: ast.AST) -> Iterator[ast.AST]:
    """Yields a function's nodes in half the time that `ast.walk` takes over each name."""
    stack = [function]
    while stack:
        node = stack.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name)
            if value.__class__ is list:
                stack.extend(
                    one for one in value if isinstance(one, ast.AST) and type(one) not in _MUTE
                )
            elif isinstance(value, ast.AST) and type(value) not in _MUTE:
                stack.append(value)


def _note_call(call: ast.Call, found: Outline, listed: list[ast.expr]) -> None:
    word = getattr(call.func, "attr", getattr(call.func, "id", ""))
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    found.calls.add(word)
    if receiver is not None and word in _RESETS:
        found.resets |= _leaves(receiver)
    elif "foreach_" in word and call.args:
        found.resets |= _leaves(call.args[0])
    if receiver is not None and word == "copy_":
        # A plain name may stand for a slice.
        found.fills |= _leaves(receiver) if isinstance(receiver, ast.Name) else _cut(receiver)
    elif word in ("append", "extend"):
        listed += call.args
    for keyword in call.keywords:
        if keyword.arg == "out":
            found.fills |= _leaves(keyword.value)


def _note_store(target: ast.expr, found: Outline) -> None:
    """Notes `buffer[:n] = ...`, `buffer[n:] = ...` and `buffer[:] = ...`."""
    if isinstance(target, ast.Subscript):
        inner = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        slices = [one for one in inner if isinstance(one, ast.Slice)]
        if any(one.upper for one in slices):
            found.fills |= _leaves(target.value)
        if slices and (any(one.lower for one in slices) or not any(one.upper for one in slices)):
            found.resets |= _leaves(target.value)


def _is_list(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_list(value.left) or _is_list(value.right)
    return isinstance(value, (ast.List, ast.ListComp))


def _cut(node: ast.expr) -> set[str]:
    """Returns the names of what is cut to a length in an expression, views of it included."""
    found: set[str] = set()
    for inner in ast.walk(node):
        is_narrow = isinstance(inner, ast.Attribute) and inner.attr == "narrow"
        if is_narrow or (isinstance(inner, ast.Slice) and inner.upper is not None):
            found |= _leaves(node)
    return found


def _leaves(node: ast.AST) -> set[str]:
    """Returns the names by which an expression is reached: of the buffer and of what holds it."""
    if isinstance(node, ast.Name):
        return set() if node.id == "self" else {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr} | _leaves(node.value)
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.Subscript):
        # The bounds of a slice are sizes, not buffers.
        key = _leaves(node.slice) if isinstance(node.slice, (ast.Constant, ast.Name)) else set()
        return key | _leaves(node.value)
    return {name for child in ast.iter_child_nodes(node) for name in _leaves(child)}


def _stand(target: ast.AST, value: ast.expr, stands_for: dict[str, set[str]]) -> None:
    mentioned = _leaves(value)
    for name in ast.walk(target):
        if isinstance(name, ast.Name):
            stands_for[name.id] |= mentioned
