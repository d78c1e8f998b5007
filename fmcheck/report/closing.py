"""The end of a run as text: what was checked, what was not, and what was suppressed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcheck.finding import Coverage


def closing_line(coverage: Coverage, accepted: int = 0) -> str:
    """Returns what was checked: never only that all is well.

    `accepted` are the violations that a test expects or allows; `coverage` counts them with others.
    """
    counts = coverage.counts
    checked = ", ".join(
        _count(number, noun)
        for number, noun in (
            (counts.buffers, "buffer"),
            (counts.writes, "write"),
            (counts.gathers, "gather"),
            (counts.peeks, "peek"),
        )
    )
    extra = ""
    if counts.unchecked:
        extra += f", {_count(counts.unchecked, 'call')} not checked: in graph capture"
    if counts.unseen_writes:
        extra += f", {_count(counts.unseen_writes, 'row')} written out of our sight"
    found = _count(coverage.violations, "violation")
    if accepted:
        found += f", {accepted:,} of them expected or allowed"
    if coverage.warnings:
        found += f", {_count(coverage.warnings, 'warning')}"
    if coverage.suppressed:
        found += f", {coverage.suppressed:,} suppressed"
    return f"fmcheck: {checked} checked{extra}; {found}"


def gaps(coverage: Coverage) -> list[str]:
    """Returns a sentence for each part of the contract that was not put to the test."""
    return [*coverage.notes, *_unreached(coverage), *unmatched(coverage)]


def unmatched(coverage: Coverage) -> list[str]:
    """Returns a sentence for each suppression that met nothing in the whole run."""
    return [
        f"suppression {one} met nothing in this run: remove it, if the run was a whole one"
        for one in coverage.unmatched
    ]


def _unreached(coverage: Coverage) -> list[str]:
    if not coverage.imported:
        return ["no declared relay was imported: nothing was checked"]
    return [
        f"declared relay {relay} was imported, but no buffer of it was ever written or gathered: "
        "nothing was checked"
        for relay in coverage.imported
        if relay not in coverage.touched
    ]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
