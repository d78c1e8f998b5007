"""Which rules a run uses: codes, families and `ALL`, chosen and left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fmcheck.lint.rule import Rule


def select_rules(
    known: Mapping[str, type[Rule]],
    select: Sequence[str],
    ignore: Sequence[str],
    where: tuple[str, str],
) -> list[type[Rule]]:
    """Returns the rules that `select` names (by default those on by default) less `ignore`.

    `where` names the places that `select` and `ignore` came from, for the error.

    Raises:
        UsageError: if a selector names no rule.
    """
    wanted = (
        _matching(known, select, where[0])
        if select
        else {code for code, rule in known.items() if rule.on_by_default}
    )
    wanted -= _matching(known, ignore, where[1])
    return [rule for code, rule in known.items() if code in wanted]


def _matching(known: Mapping[str, type[Rule]], selectors: Iterable[str], where: str) -> set[str]:
    found: set[str] = set()
    for selector in selectors:
        codes = {code for code in known if selector == "ALL" or _covers(selector, code)}
        if not codes:
            raise UsageError(
                where,
                f"expected a rule code, a family like `FM2`, or `ALL`, got `{selector}`"
                f"{nearest(selector, known)}",
            )
        found |= codes
    return found


def _covers(selector: str, code: str) -> bool:
    """Tells whether `selector` is the code or a family: its letters, or them and a digit."""
    family = code.rstrip("0123456789")
    return selector in (code, family, code[: len(family) + 1])
