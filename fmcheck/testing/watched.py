"""The fixture `fmcheck`: what a test may ask about itself while it runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError, ViolationError
from fmcheck.report.text import count
from fmcheck.testing.mark import checks, fits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fmcheck.finding import Counts, Violation
    from fmcheck.testing.book import Book


class Watched:
    """What fmcheck has seen in the running test, its set-up included.

    `take_in` puts what was found since it was last called into `book`; `counts_now` gives the
    counts of the whole run; `fail` fails the test with a text.
    """

    def __init__(
        self,
        book: Book,
        take_in: Callable[[], None],
        counts_now: Callable[[], Counts],
        fail: Callable[[str], None],
    ) -> None:
        self._book = book
        self._take_in = take_in
        self._counts_now = counts_now
        self._fail = fail
        self._before = counts_now()

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What was found in this test so far, but for what a block of `expect` was to find.

        What the test's marks expect or allow is in it, and advice.
        """
        self.sync()
        return self._book.unexpected

    @property
    def expected(self) -> tuple[Violation, ...]:
        """What was found in this test's blocks of `expect`, as they were to."""
        self.sync()
        return self._book.expected

    @property
    def counts(self) -> Counts:
        """What was checked since the fixture was made."""
        return self._counts_now() - self._before

    def sync(self) -> None:
        """Takes in what was found and is still kept on a device, or in a child's journal."""
        self._take_in()

    @contextmanager
    def expect(self, *codes: str) -> Iterator[None]:
        """Expects each of these checks to be found in the block; what else is found fails the test.

        Fails the test at the end of a block in which one of them was not found. In mode `halt` the
        block ends where it was found.

        Raises:
            UsageError: if there is no such check.
        """
        wanted = checks(codes, "fmcheck.expect")
        if not wanted:
            raise UsageError("fmcheck.expect", "expected at least one check, as FR102")
        self.sync()
        before, counts, begun = self._times(wanted), self.counts, self._book.open_block()
        try:
            yield
        except ViolationError:
            self.sync()
            if self._times(wanted) == before:
                raise
        self.sync()
        now = self._times(wanted)
        self._book.close_block(wanted, begun)
        absent = [code for code in wanted if now[code] == before[code]]
        if absent:
            self._fail(not_found_text(absent, self.counts - counts))

    def _times(self, codes: Iterable[str]) -> dict[str, int]:
        found = self._book.found
        return {code: sum(one.count for one in found if fits(one, (code,))) for code in codes}


def not_found_text(codes: Sequence[str], counts: Counts) -> str:
    """Returns what to tell of checks that were expected and not found."""
    numbers = ((counts.writes, "write"), (counts.gathers, "gather"), (counts.peeks, "peek"))
    checked = ", ".join(count(number, noun) for number, noun in numbers)
    return f"FMCHECK: expected {', '.join(codes)}, and it was not found ({checked} were checked)"
