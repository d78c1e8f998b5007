"""Nodes of `ast`, walked in a quarter of the time that `ast.walk` takes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: What defines a function.
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Trees deeper than this may end libcst, and its process with it.
MOST_DEPTH = 1000
#: Fields that hold no node, or one that says nothing but its class.
_TEXTS = ("arg", "asname", "attr", "id", "kind", "kwd_attrs", "module", "rest", "s", "str", "tag")
_NUMBERS = ("conversion", "is_async", "level", "lineno", "n", "simple")
_BARE = frozenset((*_TEXTS, *_NUMBERS, "ctx", "op", "ops", "type_comment", "type_ignores"))
#: The fields of each class of node that may hold nodes, as they were met.
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Constant: (),
    ast.Name: (),
    ast.Global: (),
    ast.Nonlocal: (),
    ast.MatchSingleton: (),
    ast.FunctionDef: ("args", "body", "decorator_list", "returns"),
    ast.AsyncFunctionDef: ("args", "body", "decorator_list", "returns"),
    ast.ClassDef: ("bases", "keywords", "body", "decorator_list"),
    ast.ExceptHandler: ("type", "body"),
    ast.alias: (),
    ast.arg: ("annotation",),
    ast.MatchAs: ("pattern",),
    ast.MatchStar: (),
}
# Of newer grammar: what has a text among its fields.
for _name, _kept in (
    ("TypeVar", ("bound", "default_value")),
    ("ParamSpec", ("default_value",)),
    ("TypeVarTuple", ("default_value",)),
    ("Interpolation", ("value", "format_spec")),
):
    if hasattr(ast, _name):
        _FIELDS[getattr(ast, _name)] = _kept


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    found = tuple(name for name in kind._fields if name not in _BARE)
    _FIELDS[kind] = found
    return found


def walk(root: ast.AST) -> Iterator[ast.AST]:
    """Yields `root` and all below it but operators and contexts, in no order."""
    stack: list[ast.AST | None] = [root]
    pop, known = stack.pop, _FIELDS
    while stack:
        node = pop()
        if node is None:
            continue
        yield node
        kind = node.__class__
        fields = known.get(kind)
        if fields is None:
            fields = _fields(kind)
        for name in fields:
            value = getattr(node, name, None)
            if value.__class__ is list:
                stack += value
            else:
                stack.append(value)


def gather(root: ast.AST, kinds: Iterable[type[ast.AST]]) -> dict[type[ast.AST], list[Any]]:
    """Returns the nodes of these classes below `root`, itself included, by class, in no order."""
    found: dict[type[ast.AST], list[Any]] = {kind: [] for kind in kinds}
    for node in walk(root):
        listed = found.get(node.__class__)
        if listed is not None:
            listed.append(node)
    return found


def indices(node: ast.Subscript) -> Sequence[ast.expr]:
    """Returns what stands between a subscript's commas."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes right below another one but operators and contexts."""
    kind = node.__class__
    fields = _FIELDS.get(kind)
    for name in _fields(kind) if fields is None else fields:
        value = getattr(node, name, None)
        if value.__class__ is list:
            yield from (one for one in value if one is not None)
        elif value is not None:
            yield value


def depth(root: ast.AST) -> int:
    """Returns how deep a tree is, layer by layer: recursion is what a deep one would break."""
    layer: list[ast.AST | None] = [root]
    found = 0
    while layer:
        found += 1
        below: list[ast.AST | None] = []
        for node in layer:
            if node is not None:
                fields = _FIELDS.get(node.__class__)
                for name in _fields(node.__class__) if fields is None else fields:
                    value = getattr(node, name, None)
                    if value.__class__ is list:
                        below += value
                    elif value is not None:
                        below.append(value)
        layer = below
    return found
