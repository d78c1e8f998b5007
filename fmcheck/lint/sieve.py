"""The sieve: which rules the bytes of a file may concern, each needle looked for at most once."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Parts of many needles: where one is missing, none of those need be looked for. A search of all
#: of a large tree for one string takes 25 ms.
HINTS = (b"copy", b"cuda", b"record", b"resolve_", b"stream", b"wait_")
_UNKNOWN, _MISSING, _HELD = range(3)


class Sieve:
    """The needles of some rules, which are known by number: for each an AND of ORs."""

    def __init__(self, asked: Sequence[Sequence[Sequence[bytes]]]) -> None:
        numbers: dict[tuple[bytes, ...], int] = {}
        self._asked = [
            [numbers.setdefault(tuple(group), len(numbers)) for group in groups] for groups in asked
        ]
        self._groups = [[(needle, _hint(needle)) for needle in group] for group in numbers]
        # What several rules ask for comes first: where it is missing, they are cleared at once.
        uses = [0] * len(numbers)
        for groups in self._asked:
            for number in groups:
                uses[number] += 1
        for groups in self._asked:
            groups.sort(key=lambda number: uses[number] == 1)

    def held(
        self, text: bytes, rules: Iterable[int], seen: dict[bytes, bool] | None = None
    ) -> Iterator[int]:
        """Yields those of the rules whose needles stand in a text.

        `seen` takes in which needles do, of those that were looked for.
        """
        known = [_UNKNOWN] * len(self._groups)
        seen = {} if seen is None else seen
        for rule in rules:
            for number in self._asked[rule]:
                if known[number] == _UNKNOWN:
                    known[number] = _look(self._groups[number], text, seen)
                if known[number] == _MISSING:
                    break
            else:
                yield rule


def _look(group: Sequence[tuple[bytes, bytes]], text: bytes, seen: dict[bytes, bool]) -> int:
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
