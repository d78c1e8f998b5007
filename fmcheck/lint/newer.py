"""The tree of source that only libcst parses: its own nodes, copied to those that rules look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmcheck.lint import tree

if TYPE_CHECKING:
    import libcst
    from libcst.metadata import CodeRange

    from fmcheck.lint.tree import CSTNode


_SILENT = ("whitespace", "leading_lines", "lpar", "rpar", "semicolon", "comma", "header", "footer")


class CstError(Exception):
    """libcst does not parse it either."""


class Copied:
    """The tree of a text, and where its nodes stand; as `grow.Tree`, at thirty times the price.

    Raises:
        CstError: if libcst does not parse the text.
    """

    def __init__(self, text: str) -> None:
        import libcst
        from libcst.metadata import MetadataWrapper, PositionProvider

        try:
            parsed = libcst.parse_module(text)
        except libcst.ParserSyntaxError as err:
            raise CstError(f"libcst cannot parse this: {err.message}") from err
        wrapper = MetadataWrapper(parsed, unsafe_skip_copy=True)
        self._ranges: dict[libcst.CSTNode, CodeRange] = dict(wrapper.resolve(PositionProvider))
        self._parsed = parsed
        self.order = tree.Order()
        self.order.owner = self
        self.module = self._copy(parsed)

    def _copy(self, node: libcst.CSTNode) -> CSTNode:
        kind = getattr(tree, type(node).__name__, tree.Unknown)
        first = len(self.order)
        self.order.append(tree.Dot())
        held = [name for name in node.__dataclass_fields__ if not name.startswith(_SILENT)]
        fields = {name: self._field(getattr(node, name)) for name in kind.fields if name in held}
        if kind is tree.Unknown:
            fields["parts"] = self._field([one for one in node.children if _says(one)])
        for name in held:
            if name not in fields and isinstance(getattr(node, name), str):
                fields[name] = getattr(node, name)
        copied: CSTNode = kind(node, **fields)
        copied.order, copied.first, copied.last = self.order, first, len(self.order)
        self.order[first] = copied
        return copied

    def _field(self, value: Any) -> Any:
        import libcst

        if isinstance(value, (list, tuple)):
            return tuple([self._copy(one) for one in value])
        if isinstance(value, libcst.CSTNode):
            return self._copy(value)
        return value if isinstance(value, str) else None

    def span(self, node: CSTNode) -> tuple[int, int, int, int]:
        """Returns first line and column and last line and column of a node, from 1."""
        found = self._ranges[node.at]
        return found.start.line, found.start.column + 1, found.end.line, found.end.column + 1

    def code(self, node: CSTNode) -> str:
        """Returns the source of a node."""
        return self._parsed.code_for_node(node.at)


def _says(node: libcst.CSTNode) -> bool:
    return type(node).__name__ in vars(tree)
