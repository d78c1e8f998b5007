"""Changes: what a fix does to a libcst tree, as edits of the file's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.finding import Edit, Span
from fmcheck.lint.source.lazy import cst

if TYPE_CHECKING:
    from fmcheck.lint.source.module import Part


def replaced(part: Part, node: cst.BaseExpression, new: cst.BaseExpression) -> Edit:
    """Returns the edit that puts another expression in the place of one, inside its brackets."""
    from libcst._nodes.internal import CodegenState

    bare = new.with_changes(lpar=(), rpar=())
    state = CodegenState(default_indent="    ", default_newline="\n")
    state.increase_indent(_indent(part, node))
    bare._codegen(state)
    text, (start, end) = "".join(state.tokens), part.place(node)
    # Only what differs, so that fixes within one expression do not overlap.
    old = part.module.text[start:end]
    head = _alike(old, text)
    tail = _alike(old[head:][::-1], text[head:][::-1])
    return Edit(part.module.span(start + head, end - tail), text[head : len(text) - tail])


def _alike(old: str, new: str) -> int:
    """Returns with how many characters two texts begin alike."""
    pairs = zip(old, new, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new))
    )


def _indent(part: Part, node: cst.CSTNode) -> str:
    """Returns how far the statement is indented that a node stands in."""
    while not isinstance(node, (cst.BaseStatement, cst.BaseSuite)):
        node = part.parents[node]
    line = part.module.lines[part.span(node).line - 1]
    return line[: len(line) - len(line.lstrip())]


def without(call: cst.Call, keyword: str) -> cst.Call:
    """Returns a call without one of its keyword arguments."""
    kept = [one for one in call.args if one.keyword is None or one.keyword.value != keyword]
    if kept and call.args[-1] is not kept[-1]:
        kept[-1] = kept[-1].with_changes(comma=call.args[-1].comma)
    return call.with_changes(args=kept)


def added_below(
    part: Part, statement: cst.SimpleStatementLine, new: cst.BaseSmallStatement
) -> Edit:
    """Returns the edit that puts a statement on a line of its own below another one."""
    span = part.span(statement)
    below = Span(span.end_line + 1, 1, span.end_line + 1, 1)
    return Edit(below, f"{_indent(part, statement)}{cst.Module([]).code_for_node(new)}\n")
