"""The end of a run as text: what was checked, what was not, and what was suppressed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.finding import ContractUse, Counts, Coverage
    from fmcheck.record.record import Process, Run

#: Further processes that ended alike are counted.
_MOST_NAMES = 4


def closing_line(coverage: Coverage, processes: int = 0, accepted: int = 0, tests: int = 0) -> str:
    """Returns what was checked: never only that all is well.

    `processes` is in how many it was, 0 for none but this one. `accepted` are the violations that a
    test expects or allows; `coverage` counts them with others. `tests` are those that violations
    failed: one violation may fail several.
    """
    counts = coverage.counts
    checks = ", ".join(_count(number, noun) for number, noun in checked(counts))
    extra = ""
    if counts.unchecked:
        extra += f", {_count(counts.unchecked, 'call')} not checked: in graph capture"
    if counts.unseen_writes:
        extra += f", {_count(counts.unseen_writes, 'row')} written by untracked code"
    found = _count(coverage.violations, "violation")
    if tests > 1:
        found += f" in {tests:,} tests"
    if accepted:
        found += f", {accepted:,} of them expected or allowed"
    if coverage.warnings:
        found += f", {_count(coverage.warnings, 'warning')}"
    if coverage.suppressed:
        found += f", {coverage.suppressed:,} suppressed"
    where = f" in {_count(processes, 'process', 'processes')}" if processes else ""
    return f"fmcheck: {checks} checked{where}{extra}; {found}"


def checked(counts: Counts) -> list[tuple[int, str]]:
    """Returns how many of what were checked: what only some runs ask for, where there is any."""
    always = [
        (counts.buffers, "buffer"),
        (counts.writes, "write"),
        (counts.gathers, "gather"),
        (counts.peeks, "peek"),
    ]
    asked_for = [(counts.tails, "padded tail"), (counts.allocations, "unfilled allocation")]
    return always + [one for one in asked_for if one[0]]


def closing_line_of(run: Run) -> str:
    """Returns the closing line of a whole run."""
    return closing_line(run.coverage, run.checked_in, run.only_accepted, run.tests_failed)


def unchecked(use: ContractUse, allow: str) -> str:
    """Returns a sentence on a contract of which nothing was checked; `allow` is what permits it."""
    first, *more = use.missing or (_never_imported(use),)
    rest = f" (and {_count(len(more), 'more reason')})" if more else ""
    why = f"{first}{rest}"
    return (
        f"nothing that contract `{use.name}` declares was checked: {why}"
        f"{'' if why.endswith('?') else ';'} "
        f"run `fmcheck contract {use.source} SRC` to check its names"
        + (f", or allow it with `{allow}`" if allow else "")
    )


def left_unchecked(coverage: Coverage) -> bool:
    """Tells whether nothing of a contract was checked, or no contract applied."""
    uses = coverage.uses
    return bool(coverage.unchecked or (uses and not any(use.checked for use in uses)))


def not_watched(run: Run) -> list[str]:
    """Returns a sentence for each part of what was asked for that fails the run unwatched."""
    failing = (use for use in run.coverage.unchecked if not use.allowed)
    return [*run.problems, *(unchecked(use, "") for use in failing)]


def not_applied(coverage: Coverage) -> list[str]:
    """Returns a sentence on the shipped contracts for engines that were not imported."""
    names = ", ".join(f"`{use.name}`" for use in coverage.uses if not use.applied)
    if not names or any(use.applied for use in coverage.uses):
        return []
    what = "nothing that a contract declares was checked"
    return [f"no contract applied: {what} (not imported: {names})"]


def _never_imported(use: ContractUse) -> str:
    if use.imported:
        return "nothing that it declares was used"
    names = " or ".join(f"`{name}`" for name in use.packages)
    return f"{names} was never imported"


def gaps(coverage: Coverage) -> list[str]:
    """Returns a sentence for each part of the contract that was not put to the test."""
    return [
        *coverage.incomplete,
        *coverage.notes,
        *_untracked(coverage),
        *_unreached(coverage),
        *unmatched(coverage),
    ]


def _untracked(coverage: Coverage) -> Iterator[str]:
    """Yields what stopped being followed, the most of it first."""
    for what, why, count in sorted(coverage.untracked, key=lambda entry: -entry[2]):
        yield f"not followed: {count:,} {_singular(what) if count == 1 else what}: {why}"


def _singular(noun: str) -> str:
    return noun.removesuffix("es" if noun.endswith(("sses", "xes", "ches")) else "s")


def endings(processes: Iterable[Process]) -> list[str]:
    """Returns a sentence for each way in which processes were cut short."""
    cut: dict[str, list[Process]] = {}
    for process in processes:
        how = process.ending
        if how.startswith("killed") or (how == "unknown" and process.held):
            cut.setdefault(how, []).append(process)
    return [
        f"{_count(len(ended), 'process', 'processes')} "
        f"{'ended unexpectedly, for an unknown reason' if how == 'unknown' else how}: "
        f"{_named(ended)}; what they had checked and found by then is reported"
        for how, ended in cut.items()
    ]


def still_running(processes: Sequence[Process], folder: str) -> list[str]:
    """Returns a sentence on processes that outlive their run, whose journal stays in `folder`."""
    if not processes:
        return []
    return [
        f"{_count(len(processes), 'process', 'processes')} still ran when the run ended: "
        f"{_named(processes)}; what is found there from now on is not in this report and fails "
        f"nothing: `fmcheck report show {folder}` shows it"
    ]


def _named(processes: Sequence[Process]) -> str:
    names = [f"{one.pid} ({one.role})" if one.role else str(one.pid) for one in processes]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def unmatched(coverage: Coverage) -> list[str]:
    """Returns a sentence for each suppression that met nothing in the whole run."""
    return [
        f"suppression {one} matched nothing in this run: remove it if all tests were run"
        for one in coverage.unmatched
    ]


def _unreached(coverage: Coverage) -> list[str]:
    if coverage.uses:
        lines = not_applied(coverage)
        lines += [unchecked(use, "") for use in coverage.unchecked if use.allowed]
    else:  # an older record, which has no uses
        lines = [] if coverage.imported else [_nothing(coverage)]
    if coverage.uses and not any(use.checked for use in coverage.uses):
        return lines
    return lines + [
        f"declared relay {relay} was imported, but no buffer of it was ever written or gathered: "
        "it was not checked"
        for relay in coverage.imported
        if relay not in coverage.touched
    ]


def _nothing(coverage: Coverage) -> str:
    """Says that no relay was imported: which ones there are, and what was checked all the same."""
    shown, more = coverage.declared[:_MOST_NAMES], len(coverage.declared) - _MOST_NAMES
    names = ", ".join(f"`{name}`" for name in shown) + (f" and {more} more" if more > 0 else "")
    # Streams, and steps that have a budget, need no relay: what they found is in the same report.
    what = "no relay" if coverage.counts.tails or not names else "nothing"
    declared = f" (the contracts name {names})" if names else " (the contracts name none)"
    return f"no declared relay was imported: {what} was checked{declared}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
