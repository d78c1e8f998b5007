"""Names: of what libcst trees mention, and whether a glob of a contract is meant by one."""

from __future__ import annotations

import fnmatch
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from fmcheck.lint.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import libcst

#: Where what a glob says stops being what it means.
_WILD = re.compile(r"[*?\[]")
#: Parts of a glob that stand for others.
_MARKS = re.compile(r"[*?]|\[.*?\]")


def dotted(node: libcst.CSTNode) -> str | None:
    """Returns `a.b.c` for a chain of plain names, None for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


def last_name(node: libcst.CSTNode) -> str:
    """Returns the last part of what is called: `f` of `a.b().f`."""
    if isinstance(node, cst.Attribute):
        return str(node.attr.value)
    return dotted(node) or ""


def number(node: libcst.CSTNode) -> int | None:
    """Returns what an integer literal is, with its sign; None for anything else."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = number(node.expression)
        return None if inner is None else -inner
    return int(node.value, 0) if isinstance(node, cst.Integer) else None


def fits(name: str, globs: Iterable[str]) -> bool:
    """Tells whether one of the globs means `name`."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def literal(glob: str) -> str:
    """Returns the longest part of a glob that a name must have literally, "" if there is none."""
    return max(_MARKS.split(glob), key=len)


def lies_in(path: str, globs: Iterable[str]) -> bool:
    """Tells whether a glob means this path; globs start at a package's root, paths may not."""
    path = f"/{path}".replace("\\", "/")
    return any(
        start in path and pattern.match(path) is not None
        for start, pattern in _any_of(tuple(globs))
    )


@lru_cache(maxsize=32)
def _any_of(globs: tuple[str, ...]) -> Sequence[tuple[str, re.Pattern[str]]]:
    """Returns of each glob what it starts with, as it is, and the whole of it."""
    names = [os.path.normcase(glob) for glob in globs]
    return [(_WILD.split(name)[0], re.compile(fnmatch.translate(f"*/{name}"))) for name in names]
