"""Expectations: what the contract says that the tail of a graph input must hold after a fill."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fmcheck.contract import Fill, GraphInputs

SINK = 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a tail must hold: `expected`, or, if that is None, anything but what was there.

    `path` leads to the number where the contract names one; `bound` is what each value must be
    besides. `rule` is the contract's key. An input that is not `always` filled is judged only where
    the fill was seen to write it. Of the entries before the tail, `head` is what each must be, and
    `rewritten` tells that the fill writes them all. Where `of_head_only`, the tail may be anything.
    Where `rises`, no entry of it may be less than the one before it. `first` is how many entries
    there are before those of the rows.
    """

    expected: int | None
    rule: str
    path: str = ""
    bound: tuple[str, int] | None = None
    always: bool = False
    head: tuple[str, int] | None = None
    rewritten: bool = False
    of_head_only: bool = False
    rises: bool = False
    first: int = 0

    @property
    def is_of_head(self) -> bool:
        """Tells whether anything is demanded of the entries before the tail."""
        return self.head is not None or self.rewritten

    @property
    def sentence(self) -> str:
        """What would have been right."""
        if self.rises:
            return "no entry of the tail less than the one before it, and none left from before"
        number = f"what `{self.path}` leads to" if self.expected is None else str(self.expected)
        if self.expected is None and not self.path:
            return "a reset of the tail"
        extra = "" if self.bound is None else f", which must be {' '.join(map(str, self.bound))}"
        return f"{number} in every entry of the tail{extra}"


@dataclass(eq=False)
class Expectations:
    """The demands of one fill, by the name of the input."""

    declared: GraphInputs
    fill: Fill
    _known: dict[tuple[str, bool], Expectation | None] = field(default_factory=dict)

    def of(self, name: str, is_mask: bool) -> Expectation | None:
        """Returns what the tail of an input must hold, None if it may hold anything."""
        key = (name, is_mask)
        if key not in self._known:
            made = self._with_head(name, self._made(name, is_mask))
            if made is not None and _matches(name, self.declared.offsets):
                made = replace(made, first=1)
            self._known[key] = made
        return self._known[key]

    def _with_head(self, name: str, expectation: Expectation | None) -> Expectation | None:
        """Adds what is demanded of the entries before the tail."""
        if self.fill.only and not _matches(name, self.fill.only):
            return expectation
        head = _condition(_entry(name, self.declared.head))
        rewritten = _matches(name, self.declared.rewritten)
        if head is None and not rewritten:
            return expectation
        of_head_only = expectation is None
        expectation = expectation or Expectation(None, "head" if head else "rewritten")
        return replace(expectation, head=head, rewritten=rewritten, of_head_only=of_head_only)

    def _made(self, name: str, is_mask: bool) -> Expectation | None:
        declared, bound = self.declared, self._bound(name)
        if self.fill.only and not _matches(name, self.fill.only):
            return None
        held = _entry(name, self.fill.holds)
        if isinstance(held, str):
            return Expectation(None, "fill.holds", held, bound)
        if held is not None:
            return Expectation(held, "fill.holds", bound=bound)
        if _matches(name, declared.tail_may_stay) or _matches(name, declared.tail_is_discarded):
            return None
        if _matches(name, declared.row_indices):
            return Expectation(SINK, "row_indices", always=True)
        held = _entry(name, declared.holds)
        if held is not None:
            return Expectation(held, "holds", bound=bound)
        if _matches(name, declared.offsets):
            return Expectation(None, "offsets", bound=bound, rises=True)
        if _matches(name, declared.index_like):
            # A mask has no third value to be poisoned with: a padded row must not be chosen.
            return Expectation(0 if is_mask else None, "index_like", bound=bound)
        return None

    def _bound(self, name: str) -> tuple[str, int] | None:
        return _condition(_entry(name, self.declared.valid))

    def dim(self, name: str) -> int:
        """Returns the dimension of an input that is padded."""
        return int(_entry(name, self.declared.batch_dim) or 0)


def _condition(text: str | None) -> tuple[str, int] | None:
    if not text:
        return None
    sign, _, limit = text.partition(" ")
    return sign, int(limit)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _entry(name: str, table: Mapping[str, Any]) -> Any:
    """Returns the entry of a table whose key is the name, or a glob that matches it."""
    if name in table:
        return table[name]
    return next((table[key] for key in table if fnmatch.fnmatchcase(name, key)), None)
