"""The book of one test: what was found in it, and what becomes of that as the test asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.record.merging import one_each
from fmcheck.testing.mark import fits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmcheck.finding import Counts, Violation
    from fmcheck.testing.mark import MarkRequest


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found since the last judgement: what fails the test, and what it asked for."""

    failing: tuple[Violation, ...] = ()
    accepted: tuple[Violation, ...] = ()


class Book:
    """What was found in one test. `asked` comes from its marks, `before` counts up to its start."""

    def __init__(self, asked: MarkRequest, before: Counts) -> None:
        self.asked = asked
        self.before = before
        self._found: list[Violation] = []
        self._expected: set[int] = set()
        self._pending: list[Violation] = []
        self._accepted: list[Violation] = []

    @property
    def found(self) -> tuple[Violation, ...]:
        """All that was found in the test so far, the same violation once, advice included."""
        return one_each(self._found)

    @property
    def expected(self) -> tuple[Violation, ...]:
        """What was found in blocks that expect it."""
        return one_each(self._found[place] for place in sorted(self._expected))

    @property
    def unexpected(self) -> tuple[Violation, ...]:
        """All that was found and not in a block that expects it."""
        return one_each(one for place, one in enumerate(self._found) if place not in self._expected)

    def add(self, found: Iterable[Violation], advice: Iterable[Violation] = ()) -> None:
        """Takes in what was found since it was last asked; advice never fails a test."""
        found = tuple(found)
        self._found += (*found, *advice)
        self._pending += found

    def accept(self, codes: Iterable[str]) -> None:
        """Accepts what these codes name of what is not judged yet."""
        codes = tuple(codes)
        taken = [one for one in self._pending if fits(one, codes)]
        self._pending = [one for one in self._pending if not fits(one, codes)]
        self._accepted += taken

    def open_block(self) -> tuple[int, int]:
        """Returns where a block begins that expects something, for `close_block`."""
        return len(self._found), len(self._pending)

    def close_block(self, codes: Iterable[str], begun: tuple[int, int]) -> None:
        """Accepts what these codes name of what was found in a block, and nothing before it."""
        codes, (found, pending) = tuple(codes), begun
        self._expected |= {
            place for place, one in enumerate(self._found[found:], found) if fits(one, codes)
        }
        earlier, self._pending = self._pending[:pending], self._pending[pending:]
        self.accept(codes)
        self._pending = earlier + self._pending

    def judge(self) -> Judgement:
        """Returns what was found and is not judged yet, by what the test asks for."""
        self.accept((*self.asked.expect, *self.asked.allow))
        judged = Judgement(one_each(self._pending), one_each(self._accepted))
        self._pending, self._accepted = [], []
        return judged

    def holds_only_expected(self) -> bool:
        """Tells whether something waits to be judged, and the test expects all of it."""
        expected = [fits(one, self.asked.expect) for one in self._pending]
        return bool(expected) and all(expected)

    def expected_but_absent(self) -> tuple[str, ...]:
        """Returns the checks that the test expects and that were not found in it."""
        return tuple(
            code for code in self.asked.expect if not any(fits(one, (code,)) for one in self._found)
        )
