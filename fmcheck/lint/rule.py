"""The rule: what a lint check is made of. Importing this must stay cheap (no libcst, no torch)."""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding, Severity
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts


class Scope(enum.Enum):
    """How much source a rule must see at once to give its verdict."""

    FUNCTION = "function"
    CLASS = "class"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class Example:
    """A piece of source that a rule must flag at `at`, or leave alone if `at` is empty.

    `at` holds (line, column) pairs, both from 1. `fixed` is the source after the rule's fix.
    `path` is the name under which the source is linted, for rules that look at it; `contract` is
    the text of a contract file that stands beside the registered ones.
    """

    code: str
    at: tuple[tuple[int, int], ...] = ()
    fixed: str | None = None
    path: str = "example.py"
    contract: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a rule's findings in a release when somebody read each of them."""

    corpus: str
    findings: int
    right: int

    def __str__(self) -> str:
        return f"{self.corpus}: {self.findings} findings, {self.right} right when read"


class Rule(ABC):
    """One lint rule. Its docstring is its page: what it does, why that is bad, what to use instead.

    Attributes:
        code: `FM` and three digits; the first is the family.
        name: a few words in lower case with hyphens.
        severity: of most findings; a rule may give single findings another.
        scope: the source around a needle that `check` is handed.
        needles: an AND of ORs of byte strings without which a file cannot concern the rule.
            Identifiers, never dotted chains: a module may import them under another name. A rule
            that a contract tells its names may set its own when it is made.
        anchors: byte strings of which one stands in every block that may hold a finding, where
            the needles do not say it; blocks without any are not looked at. Names that imports
            give to what is anchored count too. None means all needles, or every block of a rule
            with a `concerns` of its own; empty means every block.
        seen_in: public pull requests that taught the rule.
        bad, good: examples that the tests run.
        judged: how precise the rule was on released trees. On by default are only rules of which
            90 % was right.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    scope: ClassVar[Scope]
    needles: tuple[tuple[bytes, ...], ...]
    seen_in: ClassVar[tuple[str, ...]]
    bad: ClassVar[tuple[Example, ...]]
    good: ClassVar[tuple[Example, ...]]
    judged: ClassVar[tuple[Judged, ...]] = ()
    anchors: tuple[bytes, ...] | None = None
    on_by_default: ClassVar[bool] = True

    def __init__(self, contracts: Sequence[Contract]) -> None:
        self.contracts = contracts

    @classmethod
    def has_fix(cls) -> bool:
        """Tells whether an example shows a fix."""
        return any(example.fixed is not None for example in cls.bad)

    def concerns_path(self, identity: str) -> bool:
        """Tells whether the file of this identity may hold a finding, before it is looked into."""
        return True

    def concerns(self, text: bytes) -> bool:
        """Tells whether a file's text may hold a finding; asked if the needles are there."""
        return all(any(needle in text for needle in group) for group in self.needles)

    def words(self) -> tuple[str, ...]:
        """Returns the anchors that hold, as text; none if every block is to be looked at."""
        anchors = self.anchors
        if anchors is None:
            own = type(self).concerns is not Rule.concerns
            anchors = () if own else tuple(needle for group in self.needles for needle in group)
        return tuple(anchor.decode() for anchor in anchors)

    def concerns_module(self, facts: ModuleFacts) -> bool:
        """Tells whether a module may hold a finding, by its path and its facts, before any block.

        What it returns False for has no finding: `suspects` and `check` need not ask again.
        """
        return True

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Clears a module, whole statements or a method by the text alone, before any parsing.

        What clears a text clears every part of it.
        """
        return True

    def looks_into(self, text: str) -> bool:
        """Tells whether `suspects` learns anything from a method of this text.

        A rule with a class's width that says so is asked about such methods alone first, and about
        the whole class if it suspects those.
        """
        return True

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears a block by a necessary condition, cheaply; what it returns True for is checked."""
        return True

    @abstractmethod
    def check(self, block: Block) -> Iterator[Finding]:
        """Yields the findings of one block."""


def problems(rule: type[Rule]) -> Iterator[str]:
    """Yields what keeps `rule` from being a rule: for registration, so that the error is early."""
    wanted = ("code", "name", "severity", "scope", "needles", "seen_in", "bad", "good")
    missing = [name for name in wanted if not hasattr(rule, name)]
    if missing:
        yield f"lacks {', '.join(missing)}"
    elif not re.fullmatch(r"[A-Z]{2,8}\d{3}", rule.code):
        yield f"code `{rule.code}` is not capital letters and three digits"
    if not rule.__doc__:
        yield "lacks a docstring, which is its page"
