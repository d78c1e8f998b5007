"""The rule: what a lint check is made of. Importing this must stay cheap (no libcst, no torch)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding, Severity
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Family, Module, Part
    from fmcheck.lint.source.words import Words


#: The name of the engine of files that no contract binds.
NO_ENGINE = "any"


class Example(Struct, frozen=True):
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


class Judged(Struct, frozen=True):
    """What became of a rule's findings in a release when somebody read each of them."""

    corpus: str
    findings: int
    right: int

    def __str__(self) -> str:
        return (
            f"{self.corpus}: {self.findings} findings, {self.right} true positives on manual review"
        )


class Rule(ABC):
    """One lint rule. Its docstring is its page: what it does, why that is bad, what to use instead.

    A rule is one of the three below, by how much source it must see at once. See
    `docs/write-a-rule.md`.

    Attributes:
        code: `FM` and three digits; the first is the family.
        name: a few words in lower case with hyphens.
        severity: of most findings; a rule may give single findings another.
        warns_undeclared: whether it says more than notes of files that no contract binds.
        words: an AND of ORs of words without which nothing can be found. The engine looks for
            them in a file, then in each class and function of it; what lacks them is not parsed.
            Names that an import gives to what a word is about count as that word. A rule that a
            contract tells its words sets its own when it is made.
        seen_in: public pull requests that taught the rule.
        bad, good: examples that the tests run.
        judged: how precise the rule was on released trees.
        on_by_default: whether it is; only rules of which 85 % was right on trees that they were
            not written on.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    warns_undeclared: ClassVar[bool] = True
    words: Words = ()
    seen_in: ClassVar[tuple[str, ...]]
    bad: ClassVar[tuple[Example, ...]]
    good: ClassVar[tuple[Example, ...]]
    judged: ClassVar[tuple[Judged, ...]] = ()
    on_by_default: ClassVar[bool] = True

    def __init__(self, contracts: Sequence[Contract]) -> None:
        self.contracts = contracts

    @property
    def usual_severity(self) -> Severity:
        """How much its findings weigh in this file, where they do not say otherwise."""
        from fmcheck.finding import Severity

        is_bound = any(one.engine.name != NO_ENGINE for one in self.contracts)
        return self.severity if is_bound or self.warns_undeclared else Severity.NOTE

    @classmethod
    def has_fix(cls) -> bool:
        """Tells whether an example shows a fix."""
        return any(example.fixed is not None for example in cls.bad)

    def applies(self, file: File) -> bool:
        """Tells whether a file may hold a finding, by its path and by words anywhere in it."""
        return True

    @abstractmethod
    def pieces(self, module: Module) -> Iterator[Any]:
        """Yields what `check` is handed, one by one: each kind of rule has its own."""

    @abstractmethod
    def check(self, piece: Any) -> Iterator[Finding]:
        """Yields the findings of one piece of a module."""


class FunctionRule(Rule):
    """A rule that sees one function, method or other statement at a time.

    Attributes:
        judges: the names of the functions that it judges, as `match` finds them; what defines no
            such function is not parsed. None for a rule that judges other statements too.
    """

    judges: ClassVar[re.Pattern[str] | None] = None

    @abstractmethod
    def check(self, part: Part) -> Iterator[Finding]:
        """Yields the findings of one part of a module."""

    def pieces(self, module: Module) -> Iterator[Part]:
        """Yields the parts in whose slices the words stand."""
        return module.parts_with(self.words, self.judges)


class ClassRule(Rule):
    """A rule that sees a whole class at a time, or what stands beside classes."""

    @abstractmethod
    def check(self, family: Family) -> Iterator[Finding]:
        """Yields the findings of one class, or of statements beside classes."""

    def pieces(self, module: Module) -> Iterator[Family]:
        """Yields the families in whose slices the words stand."""
        return module.families_with(self.words)


class ModuleRule(Rule):
    """A rule that sees a whole module."""

    @abstractmethod
    def check(self, module: Module) -> Iterator[Finding]:
        """Yields the findings of one module."""

    def pieces(self, module: Module) -> Iterator[Module]:
        """Yields the module."""
        yield module


def problems(rule: type[Rule]) -> Iterator[str]:
    """Yields what keeps `rule` from being a rule: for registration, so that the error is early."""
    wanted = ("code", "name", "severity", "seen_in", "bad", "good")
    missing = [name for name in wanted if not hasattr(rule, name)]
    if missing:
        yield f"lacks {', '.join(missing)}"
    elif not re.fullmatch(r"[A-Z]{2,8}\d{3}", rule.code):
        yield f"code `{rule.code}` is not capital letters and three digits"
    if not issubclass(rule, (FunctionRule, ClassRule, ModuleRule)):
        yield "is no `FunctionRule`, `ClassRule` or `ModuleRule`"
    if not rule.__doc__:
        yield "lacks a docstring, which is its page"
