"""Sizes: which expressions of a function are the raw batch size, and which the padded one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from fmcheck.lint.model.expressions import squeezed
from fmcheck.lint.source.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.names import Names
    from fmcheck.lint.source.module import Part

#: What may be (raw, padded) in a comparison: both orders of `a != b`, one of `a < b`.
Pair: TypeAlias = "Sequence[tuple[CSTNode, CSTNode]]"


class Sizes:
    """Which expressions of a function are raw sizes, and which are padded ones.

    A comparison says so: of `bs != raw_bs`, the side that copies are cut to is raw. `copied` are
    the sizes that copies are cut to.
    """

    def __init__(self, names: Names, part: Part, copied: Sequence[CSTNode | None]) -> None:
        self._names = names
        self._part = part
        self.raw: set[str] = set()
        self.padded: set[str] = set()
        self._copied: set[str] = set()
        self._texts: dict[CSTNode, str] = {}
        for size in copied:
            self._copied |= self._atoms(size)

    def compare(self, pair: Pair) -> bool:
        """Learns from two compared sizes; tells whether they are a raw and a padded one."""
        for of in (self._mentioned, self._atoms):
            for raw, padded in pair:
                is_raw = bool(_own(of(raw)) & self._copied)
                is_either = bool(_own(of(padded)) & self._copied)
                if is_raw and _is_size(padded) and (not is_either or self._says_raw(raw, padded)):
                    self.padded |= _own(self._mentioned(padded))
                    self.learn_raw(raw)
                    return True
        return False

    def _says_raw(self, raw: CSTNode, padded: CSTNode) -> bool:
        """Tells two sizes apart by their names, where copies are cut to both."""
        return "raw" in self.text(raw) and "raw" not in self.text(padded)

    def learn_raw(self, size: CSTNode) -> None:
        """Takes `size`, and what it is computed from or by, for raw."""
        self.raw |= _own(self._atoms(size)) | {self.text(size)}

    def text(self, size: CSTNode) -> str:
        """Returns the text of an expression, without white space."""
        found = self._texts.get(size)
        if found is None:
            found = self._texts[size] = squeezed(self._part.code(size))
        return found

    def is_raw(self, size: CSTNode | None) -> bool:
        """Tells whether `size` is a raw size, as far as is known."""
        if size is None:
            return False
        return bool(({self.text(size)} | self._atoms(size)) & self.raw)

    def is_padded(self, size: CSTNode | None) -> bool:
        """Tells whether `size` is a padded size, as far as is known."""
        return size is not None and bool(self._atoms(size) & self.padded)

    def _mentioned(self, size: CSTNode | None) -> set[str]:
        """Returns the names and dotted names in an arithmetic expression."""
        if isinstance(size, cst.NamedExpr):
            return self._mentioned(size.target)
        if isinstance(size, cst.BinaryOperation):
            # `a - b` is as much a raw size as `a` is, and says nothing about `b`.
            is_difference = isinstance(size.operator, cst.Subtract)
            right = set() if is_difference else self._mentioned(size.right)
            return self._mentioned(size.left) | right
        if isinstance(size, cst.IfExp):
            return self._mentioned(size.body) | self._mentioned(size.orelse)
        if isinstance(size, (cst.Name, cst.Attribute, cst.Subscript, cst.Call)):
            return {self.text(size)}
        return set()

    def _atoms(self, size: CSTNode | None) -> set[str]:
        """Returns what an expression mentions, and what the names in it were computed from."""
        found = self._mentioned(size)
        asked = list(found)
        while asked:
            for value in self._names.values(asked.pop()):
                if isinstance(value, (cst.BinaryOperation, cst.IfExp, cst.Name, cst.Attribute)):
                    new = self._mentioned(value) - found
                    found |= new
                    asked += new
        return found


def _own(names: set[str]) -> set[str]:
    """Leaves out the attributes of `self`: a width per request is neither raw nor padded."""
    return {name for name in names if not name.startswith("self.")}


def _is_size(node: CSTNode) -> bool:
    kinds = (cst.Attribute, cst.BinaryOperation, cst.Call, cst.Name, cst.NamedExpr, cst.Subscript)
    return isinstance(node, kinds)
