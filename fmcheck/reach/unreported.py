"""Runs that never came to report: an engine that dies may take the whole pytest process with it.

SGLang's scheduler does, for one: when it fails, it kills the tree that it belongs to. What was
found by then stands in the run's journal, and the next run says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.journal.read import Library
from fmcheck.reach.folder import over

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: In a run's folder: that it was killed has been told.
_TOLD = "told"


def unreported(root: Path | str) -> Iterator[str]:
    """Yields a sentence, once, for each run of the same tests that was killed with findings."""
    for folder in over():
        if (folder / _TOLD).exists():
            continue
        library = Library(str(folder))
        library.look(whole=True)
        pages = list(library.pages.values())
        sessions = [one for one in pages if one.session and one.session.root == str(root)]
        found = {told.violation.key for one in pages for told in one.told if not told.advice}
        if not found or not sessions or any(one.goodbye for one in sessions):
            continue
        try:
            (folder / _TOLD).touch()
        except OSError:
            continue
        pids = ", ".join(str(one.head.pid) for one in sessions if one.head)
        yield (
            f"an earlier run (process {pids}) was killed before it could report "
            f"{len(found)} violation{'s' * (len(found) > 1)}: fmcheck report show {folder}"
        )
