"""Which rules a run uses: codes, families and `ALL`, chosen and left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.errors import UsageError, nearest_code
from fmcheck.finding import CHECKS
from fmcheck.lint.own import OPTIONAL, OWN_CODES, REMOVED, why_removed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from fmcheck.lint.rule import Rule


class Codes(Struct, frozen=True):
    """Codes of rules: `known` are all there are, `checked` those that a file is checked for."""

    known: frozenset[str]
    checked: frozenset[str]

    def knows(self, code: str) -> bool:
        """Tells whether a comment may name a rule: one there is, or one that was removed."""
        return code in self.known or code in REMOVED

    def judges(self, code: str) -> bool:
        """Tells whether a comment that names a rule suppresses a finding of it, or is unused."""
        return code in self.checked or code in REMOVED


#: A selector and the place it came from, for the error: `("FM2", "--select")`.
Selector = tuple[str, str]


def select_codes(
    known: Mapping[str, type[Rule]], select: Collection[Selector], ignore: Iterable[Selector]
) -> frozenset[str]:
    """Returns the codes that `select` names (those on by default if none) less `ignore`.

    What the linter itself says of suppressions is selected with any rule, unless it is ignored.

    Raises:
        UsageError: if a selector names no code, one that nothing turns off, or, of those in
            `select`, a removed rule.
    """
    for selector, where in select:
        if selector in REMOVED:
            raise UsageError(where, why_removed(selector))
    wanted = (
        _matching(known, select)
        if select
        else {code for code, rule in known.items() if rule.on_by_default}
    )
    return frozenset((wanted | OPTIONAL) - _matching(known, ignore))


def named_codes(known: Mapping[str, type[Rule]], selectors: Iterable[Selector]) -> frozenset[str]:
    """Returns the codes that the selectors name.

    Raises:
        UsageError: if a selector names no code, or one that nothing turns off.
    """
    return frozenset(_matching(known, selectors))


def removed_rules(ignored: Iterable[Selector]) -> Iterator[str]:
    """Yields a note on each selector of `ignored` that names a removed rule."""
    for selector, where in ignored:
        if selector in REMOVED:
            yield f"{where}: rule `{selector}` was removed; ignoring it has no effect"


def _matching(known: Mapping[str, type[Rule]], selectors: Iterable[Selector]) -> set[str]:
    found: set[str] = set()
    names = {*known, *OPTIONAL}
    for selector, where in selectors:
        if selector in REMOVED:
            continue
        codes = {code for code in names if selector == "ALL" or _covers(selector, code)}
        if selector in OWN_CODES and not codes:
            raise UsageError(where, f"`{selector}` cannot be turned off or on")
        if selector.upper() in {*CHECKS, *(code[:3] for code in CHECKS)}:
            raise UsageError(
                where, f"`{selector}` is of the run-time checks, which are not selected here"
            )
        if not codes:
            raise UsageError(
                where,
                f"expected a rule code, a family like `FM2`, or `ALL`, got `{selector}`"
                f"{_named(selector, known) or nearest_code(selector, names)}",
            )
        found |= codes
    return found


def _named(selector: str, known: Mapping[str, type[Rule]]) -> str:
    """Returns the code of the rule of this name, as a question."""
    code = next((code for code, rule in known.items() if rule.name == selector.lower()), "")
    return f"; did you mean `{code}`?" if code else ""


def _covers(selector: str, code: str) -> bool:
    """Tells whether `selector` is the code or a family: its letters, or them and a digit."""
    family = code.rstrip("0123456789")
    return selector in (code, family, code[: len(family) + 1])
