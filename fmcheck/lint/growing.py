"""What growing is made of: a place in the order for each node, and the node when it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmcheck.lint import tree
from fmcheck.lint.places import Places

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterable

    from fmcheck.lint.tree import CSTNode

#: What grows each class of `ast`'s nodes; see `grow.py`.
GROWN: dict[type[ast.AST], Callable[[Any, Any], CSTNode]] = {}
_DOT = tree.Dot()


class Growing:
    """Nodes of one tree in the making, and where they stand in `text`.

    The lines of `parsed` are by `moved` further down than those of the text.
    """

    def __init__(self, parsed: ast.Module, text: str, moved: int) -> None:
        self.places = Places(text, parsed, moved)
        self.order = tree.Order()

    def _open(self) -> int:
        """Keeps a node's place in the order; what is opened next is below it."""
        self.order.append(_DOT)
        return len(self.order) - 1

    def _close(self, first: int, kind: type[CSTNode], at: Any, **fields: Any) -> CSTNode:
        """Makes the node of a place that was kept. Its fields come in the order of the class."""
        node = object.__new__(kind)
        order = self.order
        fields["at"], fields["first"], fields["last"] = at, first, len(order)
        fields["order"] = order
        node.__dict__ = fields
        order[first] = node
        return node

    def _leaf(self, kind: type[CSTNode], at: Any, **fields: Any) -> CSTNode:
        self.order.append(_DOT)
        return self._close(len(self.order) - 1, kind, at, **fields)

    def _sign(self, node: CSTNode) -> CSTNode:
        self.order.append(node)
        return node

    def _name(self, value: str, at: Any) -> CSTNode:
        """Grows a name that is no expression, so that brackets around it are not its own."""
        return self._leaf(tree.Name, at, value=value, bare=1)

    def _one(self, node: ast.AST) -> CSTNode:
        return GROWN[node.__class__](self, node)

    def _maybe(self, node: ast.AST | None) -> CSTNode | None:
        return None if node is None else GROWN[node.__class__](self, node)

    def _all(self, nodes: Iterable[ast.AST]) -> tuple[CSTNode, ...]:
        return tuple([GROWN[node.__class__](self, node) for node in nodes])

    def _wrapped(self, kind: type[CSTNode], field: str, node: ast.AST | None) -> CSTNode | None:
        """Grows a node that does nothing but hold another one."""
        if node is None:
            return None
        first = self._open()
        held = self._one(node)
        return self._close(first, kind, (held, held), **{field: held})
