"""Expressions: what one names, calls, or says as a literal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmcheck.lint.model.vocabulary import HELD
from fmcheck.lint.source.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def dotted(node: cst.CSTNode) -> str | None:
    """Returns `a.b.c` for a chain of plain names, None for anything else."""
    # By class: to ask `isinstance` of a class with an abstract base takes three times as long.
    if type(node) is cst.Name:
        return node.value
    parts: list[str] = []
    while type(node) is cst.Attribute:
        parts.append(node.attr.value)
        node = node.value
    if type(node) is not cst.Name:
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


def last_name(node: cst.CSTNode) -> str:
    """Returns the last part of what is called: `f` of `a.b().f`."""
    if isinstance(node, cst.Attribute):
        return str(node.attr.value)
    return dotted(node) or ""


def number(node: cst.CSTNode) -> int | None:
    """Returns what an integer literal is, with its sign; None for anything else."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = number(node.expression)
        return None if inner is None else -inner
    return int(node.value, 0) if isinstance(node, cst.Integer) else None


def keywords(call: cst.Call) -> Mapping[str, cst.BaseExpression]:
    """Returns the keyword arguments of a call by their names."""
    return {one.keyword.value: one.value for one in call.args if one.keyword is not None}


def arguments(call: cst.Call) -> Sequence[cst.BaseExpression]:
    """Returns the values of a call's arguments."""
    return [one.value for one in call.args]


def non_blocking(call: cst.Call) -> cst.BaseExpression | None:
    """Returns what a copy is given as `non_blocking`, by name or, if a literal, by position."""
    by_position = [one.value for one in call.args if one.keyword is None][1:]
    flags = (one for one in by_position if is_name(one, "True") or is_name(one, "False"))
    return keywords(call).get("non_blocking") or next(flags, None)


def receiver(call: cst.Call) -> cst.BaseExpression | None:
    """Returns what a method is called on, None for a plain function."""
    return call.func.value if isinstance(call.func, cst.Attribute) else None


def is_name(node: cst.CSTNode | None, name: str) -> bool:
    """Tells whether a node is this plain name: `True` and `None` are names too."""
    return isinstance(node, cst.Name) and node.value == name


def is_entry(target: cst.Subscript) -> bool:
    """Tells whether a subscript is an entry of a dict, by the string that it is under."""
    index = target.slice[0].slice if len(target.slice) == 1 else None
    return isinstance(index, cst.Index) and isinstance(index.value, cst.BaseString)


def literal_elements(node: cst.CSTNode) -> Sequence[cst.BaseExpression] | None:
    """Returns the elements of a list, tuple or set display, None for any other expression."""
    if isinstance(node, (cst.List, cst.Tuple, cst.Set)):
        return [element.value for element in node.elements]
    return None


def holder(node: cst.CSTNode) -> str:
    """Returns the dotted name of what an expression is, or is a part, half or view of."""
    parts: list[str] = []
    while True:
        if isinstance(node, cst.Attribute):
            parts.append(node.attr.value)
            node = node.value
        elif isinstance(node, cst.Subscript):
            parts.clear()
            node = node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            parts.clear()
            node = node.func.value
        else:
            break
    name = node.value if isinstance(node, cst.Name) else ""
    while parts and parts[0] in HELD and (name, len(parts)) != ("self", 1):
        del parts[0]
    return ".".join([name, *reversed(parts)])


def targets(node: cst.CSTNode) -> Sequence[cst.BaseExpression]:
    """Returns what a statement or a walrus assigns to; nothing for anything else."""
    # By class: it is asked of every node.
    if type(node) is cst.Assign:
        return [one.target for one in node.targets]
    if type(node) is cst.AnnAssign or type(node) is cst.NamedExpr:
        return () if node.value is None else [node.target]
    return ()


def bound_names(target: cst.CSTNode) -> Iterator[str]:
    """Yields the plain names that an assignment binds."""
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from bound_names(element.value)


def squeezed(code: str) -> str:
    """Returns source text without its white space, so that equal expressions are equal texts."""
    return re.sub(r"\s+", "", code)
