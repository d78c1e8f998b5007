"""Facts about a whole module that a rule needs while it looks at one block of it."""

from __future__ import annotations

import ast
from functools import cached_property


class ModuleFacts:
    """A module's syntax tree and what can be read off it. Made once a file, shared by the rules."""

    def __init__(self, tree: ast.Module, path: str) -> None:
        self.tree = tree
        self.path = path

    @cached_property
    def imported(self) -> dict[str, str]:
        """Local names of imports, to the dotted name each stands for, wherever they are made.

        `from torch.cuda import Event as E` gives `{"E": "torch.cuda.Event"}`.
        """
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    names[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return names

    @cached_property
    def names(self) -> frozenset[str]:
        """Every identifier that the module reads, as a name or an attribute."""
        return frozenset(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Name, ast.Attribute))
        )

    def mentioned(self, node: ast.AST) -> set[str]:
        """Returns the dotted names that stand below `node`, imports included, each resolved."""
        found: set[str] = set()
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Name, ast.Attribute)):
                name = _dotted(inner)
                if name is not None:
                    found.add(self.resolve(name))
            elif isinstance(inner, ast.ImportFrom):
                found.update(f"{inner.module}.{alias.name}" for alias in inner.names)
        return found

    def resolve(self, dotted: str) -> str:
        """Returns what `dotted` stands for after imports: `Event` may be `torch.cuda.Event`."""
        head, dot, rest = dotted.partition(".")
        return self.imported.get(head, head) + dot + rest


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])
