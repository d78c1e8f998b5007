"""The sieve: which rules the bytes of a file may concern, each needle looked for at most once.

What is looked for in every file are gates: strings, as few as will do, of which each rule needs one
or another. Which of them a file holds leaves a few rules, and only their needles are looked for.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

#: Parts of many needles: where one is missing, none of those need be looked for. A search of all
#: of a large tree for one string takes 25 ms.
HINTS = (b"compile", b"copy", b"cuda", b"fill_", b"record", b"tream", b"uture", b"zero_")


def _any_rule(rule: int) -> bool:
    return True


class Sieve:
    """The needles of some rules, which are known by number: for each an AND of ORs.

    `rare` are rules that are asked of few files: no gate is looked for in every file for them.
    """

    def __init__(
        self, asked: Sequence[Sequence[Sequence[bytes]]], rare: Collection[int] = ()
    ) -> None:
        self._asked = [
            [[(needle, _hint(needle)) for needle in group] for group in groups] for groups in asked
        ]
        chosen: set[bytes] = set()
        for number, groups in enumerate(self._asked):
            sides = [{hint for _, hint in group} for group in groups]
            if number in rare:
                sides = [side for side in sides if side <= {*HINTS}]
            if sides:
                chosen |= min(sides, key=lambda side: (len(side - chosen - {*HINTS}), len(side)))
        self._gates = sorted(chosen)
        #: The rules that are left where a file holds these of the gates.
        self._left: dict[tuple[bytes, ...], Sequence[int]] = {}

    def held(
        self,
        text: bytes,
        wants: Callable[[int], bool] = _any_rule,
        seen: dict[bytes, bool] | None = None,
    ) -> Iterator[int]:
        """Yields those of the rules whose needles stand in a text, if they are wanted at all.

        `seen` takes in which needles do, of those that were looked for.
        """
        open_gates = tuple([gate for gate in self._gates if gate in text])
        left = self._left.get(open_gates)
        if left is None:
            left = self._left[open_gates] = self._behind(open_gates)
        if left:
            seen = {} if seen is None else seen
            seen.update({gate: gate in open_gates for gate in self._gates})
            for rule in left:
                if wants(rule) and all(_stands(group, text, seen) for group in self._asked[rule]):
                    yield rule

    def _behind(self, open_gates: Collection[bytes]) -> Sequence[int]:
        """Returns the rules of whose needles the gates say nothing against."""
        closed = {*self._gates}.difference(open_gates)
        return [
            rule
            for rule, groups in enumerate(self._asked)
            if not any(all(hint in closed for _, hint in group) for group in groups)
        ]


def _stands(group: Sequence[tuple[bytes, bytes]], text: bytes, seen: dict[bytes, bool]) -> bool:
    """Tells whether one of a group's needles stands in a text."""
    for needle, hint in group:
        holds = seen.get(needle)
        if holds is None:
            may_hold = seen.get(hint)
            if may_hold is None:
                may_hold = seen[hint] = hint in text
            holds = seen[needle] = may_hold and (needle is hint or needle in text)
        if holds:
            return True
    return False


def _hint(needle: bytes) -> bytes:
    """Returns what a needle holds and is looked for before it; itself if there is nothing."""
    return next((hint for hint in HINTS if hint in needle), needle)
