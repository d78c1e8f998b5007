"""The sieve: which rules the bytes of a file may concern, each needle looked for at most once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.lint.rule import Rule

#: Parts of many needles: where one is missing, none of those need be looked for. A search of all
#: of a large tree for one string takes 25 ms.
HINTS = (b"copy", b"cuda", b"record", b"resolve_", b"stream", b"wait_")
_UNKNOWN, _MISSING, _HELD = range(3)


class Sieve:
    """The needles of some rules. A group is an OR of them, and a rule an AND of groups."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        numbers: dict[tuple[bytes, ...], int] = {}
        self._rules = [
            (
                rule,
                tuple([numbers.setdefault(tuple(group), len(numbers)) for group in rule.needles]),
            )
            for rule in rules
        ]
        # What several rules ask for first: a rule that it clears costs nothing more.
        uses = Counter(number for _, groups in self._rules for number in groups)
        self._rules = [
            (rule, tuple(sorted(groups, key=lambda number: uses[number] == 1)))
            for rule, groups in self._rules
        ]
        self._groups = [[(needle, _hint(needle)) for needle in group] for group in numbers]

    def concerned(self, text: bytes, path: str) -> Iterator[Rule]:
        """Yields the rules whose needles stand in the text of a file of this name."""
        known = [_UNKNOWN] * len(self._groups)
        seen: dict[bytes, bool] = {}
        for rule, groups in self._rules:
            if not rule.concerns_path(path):
                continue
            for number in groups:
                if known[number] == _UNKNOWN:
                    known[number] = self._look(self._groups[number], text, seen)
                if known[number] == _MISSING:
                    break
            else:
                yield rule

    def _look(
        self, group: Sequence[tuple[bytes, bytes]], text: bytes, seen: dict[bytes, bool]
    ) -> int:
        for needle, hint in group:
            holds = seen.get(needle)
            if holds is None:
                may_hold = seen.get(hint)
                if may_hold is None:
                    may_hold = seen[hint] = hint in text
                holds = seen[needle] = may_hold and (needle is hint or needle in text)
            if holds:
                return _HELD
        return _MISSING


def _hint(needle: bytes) -> bytes:
    """Returns what a needle holds and is looked for before it; itself if there is nothing."""
    return next((hint for hint in HINTS if hint in needle), needle)
