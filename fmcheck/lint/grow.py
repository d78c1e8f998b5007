"""Growing the tree that rules look at: out of `ast`, or out of libcst's for newer grammar."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING, Any

from fmcheck.lint import tree
from fmcheck.lint.grow_patterns import Patterns
from fmcheck.lint.grow_statements import Statements
from fmcheck.lint.growing import GROWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.lint.tree import CSTNode

#: Deeper than `nodes.MOST_DEPTH` nothing gets here; each level takes two or three calls.
_DEEPEST = 4000


class Tree(Statements, Patterns):
    """A tree grown out of `ast`, and where its nodes stand in `text`.

    The lines of `parsed` are by `moved` further down than those of the text.
    """

    def __init__(self, parsed: ast.Module, text: str, moved: int = 0) -> None:
        super().__init__(parsed, text, moved)
        self.order.owner = self
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, _DEEPEST))
        try:
            first = self._open()
            statements = self._statements(parsed.body)
        finally:
            sys.setrecursionlimit(before)
        self.module = self._close(first, tree.Module, None, body=statements)

    def span(self, node: CSTNode) -> tuple[int, int, int, int]:
        """Returns first line and column and last line and column of a node, from 1."""
        start, end = self.places.of(node)
        return (*self.places.line_and_column(start), *self.places.line_and_column(end))

    def code(self, node: CSTNode) -> str:
        """Returns the source of a node."""
        return self.places.code(node)


_MAKERS: dict[str, Callable[[Tree, Any], CSTNode]] = {
    "Name": Tree._identifier,
    "Constant": Tree._constant,
    "JoinedStr": Tree._joined,
    "FormattedValue": Tree._formatted,
    "Attribute": Tree._attribute,
    "Subscript": Tree._subscript,
    "Call": Tree._call,
    "Compare": Tree._comparison,
    "UnaryOp": Tree._unary,
    "BinOp": Tree._binary,
    "BoolOp": Tree._boolean,
    "Lambda": Tree._lambda,
    "Await": Tree._await,
    "IfExp": Tree._if_else,
    "Yield": Tree._yield,
    "YieldFrom": Tree._yield,
    "Tuple": Tree._display,
    "List": Tree._display,
    "Set": Tree._display,
    "Starred": Tree._starred,
    "Dict": Tree._dict,
    "GeneratorExp": Tree._comprehension,
    "ListComp": Tree._comprehension,
    "SetComp": Tree._comprehension,
    "DictComp": Tree._dict_comprehension,
    "NamedExpr": Tree._named_expression,
    "If": Tree._if,
    "While": Tree._while,
    "For": Tree._for,
    "AsyncFor": Tree._for,
    "With": Tree._with,
    "AsyncWith": Tree._with,
    "Try": Tree._try,
    "TryStar": Tree._try,
    "FunctionDef": Tree._function,
    "AsyncFunctionDef": Tree._function,
    "ClassDef": Tree._class,
    "Expr": Tree._expression,
    "Return": Tree._return,
    "Assign": Tree._assign,
    "AnnAssign": Tree._annotated,
    "AugAssign": Tree._augmented,
    "Delete": Tree._delete,
    "Raise": Tree._raise,
    "Assert": Tree._assert,
    "Import": Tree._import,
    "ImportFrom": Tree._import_from,
    "Global": Tree._declared,
    "Nonlocal": Tree._declared,
    "Pass": Tree._word,
    "Break": Tree._word,
    "Continue": Tree._word,
    "Match": Tree._match,
    "MatchValue": Tree._match_value,
    "MatchSingleton": Tree._match_singleton,
    "MatchSequence": Tree._match_sequence,
    "MatchStar": Tree._match_star,
    "MatchMapping": Tree._match_mapping,
    "MatchClass": Tree._match_class,
    "MatchAs": Tree._match_as,
    "MatchOr": Tree._match_or,
    "TypeAlias": Tree._type_alias,
}
GROWN.update({getattr(ast, name): make for name, make in _MAKERS.items() if hasattr(ast, name)})
