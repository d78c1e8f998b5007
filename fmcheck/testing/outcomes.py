"""Outcomes: what becomes of a test by what was found in it, and by what its marks ask for."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from fmcheck.errors import FmcheckWarning, UsageError, ViolationError
from fmcheck.report.run.violation import headline, render_all
from fmcheck.testing.book import Book
from fmcheck.testing.gathered import Gathered
from fmcheck.testing.mark import MarkRequest, asked
from fmcheck.testing.watched import Watched, not_found_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fmcheck.finding import Counts, Violation

    #: Gives what was found since it was last called, in a test, and the advice.
    Drain = Callable[[str], tuple[tuple[Violation, ...], tuple[Violation, ...]]]


class ViolationFailed(pytest.fail.Exception, ViolationError):  # type: ignore[name-defined,misc]  # noqa: N818
    """Fails the phase of a test in which a violation was found."""

    # As pytest's own outcomes do it: the short summary then begins with what was found.
    __module__ = "builtins"

    def __init__(self, found: Sequence[Violation], root: Path) -> None:
        pytest.fail.Exception.__init__(self, render_all(found, root), pytrace=False)
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        #: For pytest's summary, which cuts a line off at its end: the code comes first.
        self.short = headline(found[0]).removeprefix("FMCHECK: ") + more


class Outcomes:
    """Judges the tests of one process, in the run's `mode`.

    `counts` tells what was checked up to now; `settle` waits for children that are at work. `root`
    is what paths are shown relative to.
    """

    def __init__(
        self,
        mode: str,
        counts: Callable[[], Counts],
        settle: Callable[[], None],
        drain: Drain,
        root: Path,
    ) -> None:
        self.gathered = Gathered()
        self._mode = mode
        self._counts = counts
        self._settle = settle
        self._drain = drain
        self._root = root

    def open(self, item: pytest.Item) -> None:
        """A test begins: fails it if its marks do not fit."""
        book = item.stash[_BOOK] = Book(MarkRequest(), self._counts())
        try:
            book.asked = asked((one.args, one.kwargs) for one in item.iter_markers("fmcheck"))
        except UsageError as err:
            pytest.fail(f"fmcheck: {item.nodeid}: {err}", pytrace=False)

    def passed(self, item: pytest.Item, when: str) -> None:
        """A phase ended well: fails it for what was found, or was expected and not found."""
        kept = kept_aside(item)
        self.skipped(item)
        if (
            when == "call"
            and not kept
            and (expected_but_absent := item.stash[_BOOK].expected_but_absent())
        ):
            counts = self._counts() - item.stash[_BOOK].before
            pytest.fail(not_found_text(expected_but_absent, counts), pytrace=False)

    def skipped(self, item: pytest.Item) -> None:
        """A phase skipped the test, which would hide what was found: fails it for that."""
        found = self._judged(item)
        if not found:
            return
        if (item.stash[_BOOK].asked.mode or self._mode) == "warn":
            path, line, _ = item.location
            text = f"\n{render_all(found, self._root)}"
            warnings.warn_explicit(FmcheckWarning(text), None, path, (line or 0) + 1)
        else:
            kept_aside(item).clear()  # a skip, which pytest would put in this failure's place
            raise ViolationFailed(found, self._root)

    def failed(self, item: pytest.Item, when: str, err: BaseException) -> bool:
        """A phase failed by itself: adds what was found to that.

        Returns False if it is no failure: the test was halted by what it expects.
        """
        self._take_in(item)
        book = item.stash[_BOOK]
        halted = self._mode == "halt" and isinstance(err, ViolationError)
        expected = halted and book.holds_only_expected()
        found = self._judged(item)
        if found:
            item.add_report_section(when, "fmcheck", render_all(found, self._root))
            if hasattr(err, "add_note"):  # from Python 3.11 on
                err.add_note("\n".join(headline(violation) for violation in found))
        return not expected

    def cut_short(self, item: pytest.Item) -> tuple[Violation, ...]:
        """A test ends the run, and is not reported: returns what fails it."""
        return self._judged(item)

    def reported(self, report: pytest.TestReport) -> None:
        """A phase was reported: what an xfail asks for fails nothing."""
        if report.skipped and hasattr(report, "wasxfail"):
            self.gathered.accept(report.nodeid)

    def watched(self, item: pytest.Item) -> Watched:
        """Returns what the fixture gives to a test."""

        def take_in() -> None:
            self._settle()
            self._take_in(item)

        return Watched(
            item.stash[_BOOK],
            take_in=take_in,
            counts_now=self._counts,
            fail=lambda text: pytest.fail(text, pytrace=False),
        )

    def _take_in(self, item: pytest.Item) -> None:
        item.stash[_BOOK].add(*self._drain(item.nodeid))

    def _judged(self, item: pytest.Item) -> tuple[Violation, ...]:
        """Returns what fails a test, and keeps that and what the test asks for."""
        self._take_in(item)
        judged = item.stash[_BOOK].judge()
        self.gathered.failing += judged.failing
        self.gathered.accepted += judged.accepted
        item.user_properties += [("fmcheck", headline(one)) for one in judged.failing]
        item.user_properties += [("fmcheck-accepted", headline(one)) for one in judged.accepted]
        return judged.failing


def kept_aside(item: pytest.Item) -> list[Any]:
    """Returns how a `unittest.TestCase` ended, which pytest keeps aside and does not raise."""
    return getattr(item, "_excinfo", None) or []


_BOOK = pytest.StashKey[Book]()
