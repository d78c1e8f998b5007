"""The museum's table: how many entries are covered by a case and caught, by class and by rule."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests import museum_runs
from tests.museum import Case, Entry, cases, entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

#: The least share that has to be caught.
LEAST_CAUGHT = {"lint": 0.90, "run": 0.85}


@dataclass(frozen=True, slots=True)
class Half:
    """Linting or running: which entries it can see, what it sees them by, and which it does."""

    name: str
    wanted: tuple[Entry, ...]
    by: Callable[[Entry], tuple[str, ...]]
    covered: frozenset[str]
    caught: frozenset[str]
    why_not: Mapping[str, str]


@dataclass(slots=True)
class Row:
    """One line of the table: entries of one class or rule that a half can show."""

    name: str
    detectable: int = 0
    covered: int = 0
    caught: int = 0

    def __str__(self) -> str:
        share = f"{self.caught / self.detectable:.0%}" if self.detectable else "-"
        counts = f"{self.detectable:10}  {self.covered:7}  {self.caught:6}"
        return f"{self.name:32.32}  {counts}  {share:>5}"


def halves() -> tuple[Half, Half]:
    """Lints and runs all cases."""
    by_id: dict[str, list[Case]] = defaultdict(list)
    for case in cases():
        by_id[case.file.id].append(case)
    everything = tuple(entries().values())
    return (
        _half(
            "lint",
            tuple(entry for entry in everything if entry.can_be_linted),
            lambda entry: entry.lint_rules,
            lambda case: case.is_linted,
            by_id,
            lambda case: case.is_caught,
            lambda case: case.file.why_not,
        ),
        _half(
            "run",
            tuple(entry for entry in everything if entry.can_be_run),
            lambda entry: entry.checks,
            lambda case: case.is_run,
            by_id,
            museum_runs.is_caught,
            lambda case: case.file.missed,
        ),
    )


def _half(
    name: str,
    wanted: tuple[Entry, ...],
    by: Callable[[Entry], tuple[str, ...]],
    covers: Callable[[Case], bool],
    by_id: Mapping[str, Sequence[Case]],
    is_caught: Callable[[Case], bool],
    why_not: Callable[[Case], str],
) -> Half:
    own = {entry.id: by_id.get(entry.id, ()) for entry in wanted}
    return Half(
        name,
        wanted,
        by,
        frozenset(id_ for id_, some in own.items() if any(map(covers, some))),
        frozenset(
            id_
            for id_, some in own.items()
            if any(covers(case) and not why_not(case) and is_caught(case) for case in some)
        ),
        {id_: next(filter(None, map(why_not, some)), "") for id_, some in own.items()},
    )


def main() -> int:
    """Prints the tables, what is missed and why, and what has no case."""
    too_few = False
    for half in halves():
        print(f"{half.name:32}  detectable  covered  caught  share")
        total = _row("all", half, half.wanted)
        for row in (*_rows(half), total):
            print(row)
        print()
        for entry in half.wanted:
            if entry.id not in half.caught:
                by = ", ".join(half.by(entry)) or "-"
                print(f"{_missing(half, entry)}: {entry.id} ({by})")
        print()
        too_few |= total.caught < LEAST_CAUGHT[half.name] * total.detectable
    return int(too_few)


def _rows(half: Half) -> Iterator[Row]:
    for name in sorted({entry.class_ for entry in half.wanted}):
        part = [entry for entry in half.wanted if entry.class_ == name]
        yield _row(f"class {name}", half, part)
    for name in sorted({rule for entry in half.wanted for rule in half.by(entry)}, key=_number):
        yield _row(name, half, [entry for entry in half.wanted if name in half.by(entry)])


def _row(name: str, half: Half, part: Iterable[Entry]) -> Row:
    row = Row(name)
    for entry in part:
        row.detectable += 1
        row.covered += entry.id in half.covered
        row.caught += entry.id in half.caught
    return row


def _number(rule: str) -> int:
    return int(rule.split()[0].lstrip("LR"))


def _missing(half: Half, entry: Entry) -> str:
    case = "not caught" if entry.id in half.covered else "no case"
    reason = half.why_not[entry.id]
    if reason:
        return f"{case}, {reason}"
    return case if case == "no case" else case.upper()
