"""Attribution: the test that a violation in another process belongs to, by their common clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fmcheck.record.record import FOUND_IN

if TYPE_CHECKING:
    from fmcheck.finding import Violation
    from fmcheck.processes.journal.layout import Reported
    from fmcheck.processes.journal.read import Library, Pages, Phase


def phase_of(reported: Reported, pages: Pages, library: Library) -> Phase | None:
    """Returns the phase of a test that was on when a violation was found, None between two."""
    board = library.pages.get(pages.board)
    return board.phases.get(reported.phase) if board else None


def attributed(reported: Reported, pages: Pages, library: Library) -> Violation:
    """Returns a violation with its test, its count, and a note on the process it was found in.

    The notes of one that no test was on for say which had ended last.
    """
    phase = phase_of(reported, pages, library)
    notes = list(reported.violation.notes)
    if not pages.is_board:
        notes.append(f"{FOUND_IN}{who(pages)}")
        notes += _after(reported, pages, library) if phase is None else []
    return replace(
        reported.violation,
        test=phase.test if phase else "",
        count=pages.seen(reported),
        notes=tuple(notes),
    )


def who(pages: Pages) -> str:
    """Returns a process as a reader wants it: its pid, what it is, and whose child."""
    if pages.head is None:
        return pages.name
    role = f" ({pages.role})" if pages.role else ""
    return f"{pages.head.pid}{role}, a child of {pages.head.parent}"


def _after(reported: Reported, pages: Pages, library: Library) -> list[str]:
    board = library.pages.get(pages.board)
    ended = [
        phase
        for phase in (board.phases.values() if board else ())
        if phase.ended is not None and phase.ended <= reported.clock
    ]
    if not ended:
        return ["no test had run by then"]
    last = max(ended, key=lambda phase: phase.ended or 0)
    late = (reported.clock - (last.ended or 0)) / 1e6
    return [f"no test was running: the {last.when} of {last.test} had ended {late:.1f} ms before"]
