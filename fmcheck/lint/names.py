"""Names in libcst trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint.lazy import cst

if TYPE_CHECKING:
    import libcst


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
    """Returns `c` of `a.b.c`, whatever `a.b` is, and "" for what ends in no name."""
    if isinstance(node, cst.Attribute):
        return str(node.attr.value)
    return str(node.value) if isinstance(node, cst.Name) else ""
