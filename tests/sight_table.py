"""Right/all by tree at first sight, and where the two readers differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.sight_records import Found, Record, judged, records, verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tests.sight_records import Verdict
    from tests.trees import Fresh

#: What the share is asked of, and from how many findings on.
LEAST_SHARE, LEAST_FOUND = 0.85, 30


class Score(NamedTuple):
    """Findings of one kind: how many both readers call right, how many there are, how many are
    not read by both.
    """

    right: int = 0
    all: int = 0
    unread: int = 0

    def __str__(self) -> str:
        return f"{self.right}/{self.all}" + (f" ({self.unread} unread)" if self.unread else "")

    def plus(self, other: Score) -> Score:
        """Returns both together."""
        return Score(self.right + other.right, self.all + other.all, self.unread + other.unread)


class Row(NamedTuple):
    """One tree: warnings and errors outside tests, which count; notes there; all in tests."""

    record: Record
    counted: Score
    notes: Score
    in_tests: Score


def table(folder: Path, fresh: Sequence[Fresh]) -> tuple[list[str], int]:
    """Returns the lines of the table, and how many findings are not read by both readers."""
    rows = [row_of(folder, record) for record in records(folder) if record.kind != "historic"]
    lines = [f"{'tree':44} {'outside tests':>16} {'notes':>16} {'in tests':>16}"]
    lines += [
        f"{row.record.tree:44.44} {row.counted!s:>16} {row.notes!s:>16} {row.in_tests!s:>16}"
        for row in rows
    ]
    lines += _totals(rows)
    lines += _skipped(rows, fresh)
    unread = sum(one.unread for row in rows for one in row[1:])
    return lines, unread


def row_of(folder: Path, record: Record) -> Row:
    """Counts the findings of one record."""
    said = verdicts(folder, record)

    def score(wanted: Callable[[Found], bool]) -> Score:
        pairs = [said[one.number] for one in judged(record) if wanted(one)]
        right = sum(all(one is not None and one.verdict == "right" for one in two) for two in pairs)
        return Score(right, len(pairs), sum(None in two for two in pairs))

    return Row(
        record,
        score(lambda one: not one.in_tests and one.severity != "note"),
        score(lambda one: not one.in_tests and one.severity == "note"),
        score(lambda one: one.in_tests),
    )


def disagreements(folder: Path, record: Record) -> Iterator[str]:
    """Yields the findings of a record on which the readers differ, with both reasons."""
    for number, (first, second) in verdicts(folder, record).items():
        if first is None or second is None or first.verdict == second.verdict:
            continue
        found = next(one for one in record.found if one.number == number)
        yield f"{record.tree} [{number}] {found.path}:{found.line} {found.code}: {found.message}"
        yield from (f"  {name}: {_said(one)}" for name, one in _named(first, second))


def _named(first: Verdict, second: Verdict) -> Iterable[tuple[str, Verdict]]:
    return (("first reader", first), ("second reader", second))


def _said(verdict: Verdict) -> str:
    return f"{verdict.verdict}, {verdict.reason}"


def _totals(rows: Sequence[Row]) -> Iterator[str]:
    counted = _sum(row.counted for row in rows)
    for name, part in (
        ("all", rows),
        ("packages", [row for row in rows if row.record.kind != "commit"]),
        ("commits of repositories", [row for row in rows if row.record.kind == "commit"]),
        ("not related to an opened tree", [row for row in rows if not row.record.related]),
    ):
        sums = [_sum(row[place] for row in part) for place in (1, 2, 3)]
        label = f"{name} ({len(part)})"
        yield f"{label:44} {sums[0]!s:>16} {sums[1]!s:>16} {sums[2]!s:>16}"
    share = f"{counted.right / counted.all:.0%}" if counted.all else "-"
    wanted = f"at least {LEAST_SHARE:.0%} of at least {LEAST_FOUND}"
    yield f"right of warnings and errors outside tests: {share} of {counted.all} (wanted: {wanted})"
    linters = sorted({f"{row.record.linter[:12]} ({row.record.rules})" for row in rows})
    yield f"linted by: {', '.join(linters) or 'nobody'}"


def _skipped(rows: Sequence[Row], fresh: Sequence[Fresh]) -> Iterator[str]:
    """Yields the trees that stand before a recorded one in the order, and were left out."""
    known = {row.record.tree for row in rows}
    names = [tree.name for tree in fresh]
    last = max((number for number, name in enumerate(names) if name in known), default=-1)
    left_out = [name for name in names[:last] if name not in known]
    if left_out:
        yield f"left out, though earlier in the order: {', '.join(left_out)}"


def _sum(scores: Iterable[Score]) -> Score:
    total = Score()
    for one in scores:
        total = total.plus(one)
    return total
