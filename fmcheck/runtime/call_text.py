"""Call text: what the source says at the place where a frame stands.

On a CPU device host and device tensors look alike; the words by which engine code makes and names
them do not. Positions are read from the code object (Python 3.11 and on); before that, or without
source, there is no text.
"""

from __future__ import annotations

import ast
import linecache
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType, FrameType

#: Expressions by code and offset; the code is kept, lest another gets its id.
_known: dict[tuple[int, int], tuple[CodeType, ast.expr | None]] = {}
_CALLS_OF_NUMBERS = frozenset({"int", "float", "bool", "len", "max", "min", "sum", "list", "any"})


def call_at(frame: FrameType) -> ast.expr | None:
    """Returns the expression that a frame is evaluating, None where there is no telling."""
    # By id: code that Dynamo rewrote may hold a slice, and then it has no hash.
    key = (id(frame.f_code), frame.f_lasti)
    known = _known.get(key)
    if known is None:
        known = _known[key] = (frame.f_code, _expression(frame.f_code, frame.f_lasti))
    return known[1]


def subject(node: ast.expr | None) -> ast.expr | None:
    """Returns what an expression reads: the receiver of a method, what is subscripted."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return node.func.value
        if isinstance(node.func, ast.Name) and node.func.id in _CALLS_OF_NUMBERS and node.args:
            return node.args[0]
    if isinstance(node, ast.Subscript):
        return node.value
    return node


def names(node: ast.expr | None) -> tuple[str, ...]:
    """Returns the names along an expression, outermost first: `c`, `b`, `a` of `a.b[i].c()`."""
    found = []
    while node is not None:
        if isinstance(node, ast.Attribute):
            found.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Name):
            found.append(node.id)
            node = None
        else:
            node = None
    return tuple(found)


def argument(node: ast.expr | None, name: str) -> ast.expr | None:
    """Returns the value of a keyword of a call, None if the call does not give it by name."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == name:
                return keyword.value
    return None


def passes_keywords_on(node: ast.expr | None) -> bool:
    """Tells whether a call is given `**options`, so that any keyword may be among them."""
    return isinstance(node, ast.Call) and any(one.arg is None for one in node.keywords)


def _expression(code: CodeType, offset: int) -> ast.expr | None:
    positions = getattr(code, "co_positions", None)
    if positions is None or offset < 0:
        return None
    line, end_line, column, end_column = next(
        islice(positions(), offset // 2, None), (None, None, None, None)
    )
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [linecache.getline(code.co_filename, number) for number in range(line, end_line + 1)]
    if not lines[0]:
        return None
    # Columns count bytes of UTF-8.
    encoded = [text.encode() for text in lines]
    encoded[-1] = encoded[-1][:end_column]
    encoded[0] = encoded[0][column:]
    try:
        return ast.parse(b"(" + b"".join(encoded) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return None
