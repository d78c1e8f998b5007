"""Growing the patterns of `match`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fmcheck.lint import tree
from fmcheck.lint.growing import Growing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmcheck.lint.tree import CSTNode


class Patterns(Growing):
    """Grows what a `case` asks for."""

    def _match_value(self, node: ast.MatchValue) -> CSTNode:
        first = self._open()
        return self._close(first, tree.MatchValue, node, value=self._one(node.value))

    def _match_singleton(self, node: ast.MatchSingleton) -> CSTNode:
        first = self._open()
        value = self._name(str(node.value), node)
        return self._close(first, tree.MatchSingleton, node, value=value)

    def _match_sequence(self, node: ast.MatchSequence) -> CSTNode:
        first = self._open()
        is_list = self.places.text_at(node).startswith("[")
        patterns = self._match_elements(node.patterns)
        kind = tree.MatchList if is_list else tree.MatchTuple
        return self._close(first, kind, node, patterns=patterns)

    def _match_elements(self, nodes: Iterable[ast.pattern]) -> tuple[CSTNode, ...]:
        found = []
        for one in nodes:
            if isinstance(one, ast.MatchStar):
                found.append(self._match_star(one))
            else:
                opened = self._open()
                value = self._one(one)
                found.append(self._close(opened, tree.MatchSequenceElement, one, value=value))
        return tuple(found)

    def _last_name(self, name: str | None, node: ast.AST) -> CSTNode | None:
        """Grows the name that a pattern ends in."""
        return None if name is None else self._name(name, (node, len(name)))

    def _match_star(self, node: ast.MatchStar) -> CSTNode:
        first = self._open()
        name = self._last_name(node.name, node)
        return self._close(first, tree.MatchStar, node, name=name)

    def _match_mapping(self, node: ast.MatchMapping) -> CSTNode:
        first = self._open()
        found = []
        for key, pattern in zip(node.keys, node.patterns, strict=True):
            opened = self._open()
            left, right = self._one(key), self._one(pattern)
            found.append(
                self._close(opened, tree.MatchMappingElement, pattern, key=left, pattern=right)
            )
        rest = None
        if node.rest is not None:
            after = self.places.of(node.patterns[-1] if node.patterns else node)
            at = self.places.next_name(after[bool(node.patterns)], "**", node.rest)
            rest = self._name(node.rest, at)
        return self._close(first, tree.MatchMapping, node, elements=tuple(found), rest=rest)

    def _match_class(self, node: ast.MatchClass) -> CSTNode:
        first = self._open()
        held, patterns = self._one(node.cls), self._match_elements(node.patterns)
        words = []
        for key, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            opened = self._open()
            end = self.places.of(pattern)[0]
            start = self.places.text.rfind(key, 0, end)
            left, right = self._name(key, (start, start + len(key))), self._one(pattern)
            words.append(
                self._close(opened, tree.MatchKeywordElement, pattern, key=left, pattern=right)
            )
        return self._close(
            first, tree.MatchClass, node, cls=held, patterns=patterns, kwds=tuple(words)
        )

    def _match_as(self, node: ast.MatchAs) -> CSTNode:
        first = self._open()
        pattern = self._maybe(node.pattern)
        name = self._last_name(node.name, node)
        return self._close(first, tree.MatchAs, node, pattern=pattern, name=name)

    def _match_or(self, node: ast.MatchOr) -> CSTNode:
        first = self._open()
        found = []
        for one in node.patterns:
            opened = self._open()
            found.append(self._close(opened, tree.MatchOrElement, one, pattern=self._one(one)))
        return self._close(first, tree.MatchOr, node, patterns=tuple(found))
