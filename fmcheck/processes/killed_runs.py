"""Earlier runs that left a journal behind: what was not reported is, and the journal goes.

An engine that dies may take the whole pytest process with it: SGLang's scheduler, when it fails,
kills the tree that it belongs to. What was found by then is in the run's journal, and the next run
says so. It says as well what a process found that outlived its run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.processes.journal.attribute import attributed
from fmcheck.processes.journal.ending import RUNNING, ending
from fmcheck.processes.journal.layout import LOOKED
from fmcheck.processes.journal.read import Library
from fmcheck.processes.role import is_pytest
from fmcheck.processes.run_folder import REPORTED, over, remove
from fmcheck.report.run.violation import headline, short_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fmcheck.finding import Violation
    from fmcheck.processes.journal.read import Pages

#: So many journals of runs that were killed are kept for `fmcheck report show`.
_KEPT = 3


def unreported(root: Path | str) -> Iterator[str]:
    """Yields a sentence, once, for each run of the same tests that was killed with findings.

    Journals of runs that are over and were reported are removed, whichever project they are of.
    """
    kept = 0
    for folder in over():
        library = Library(str(folder))
        library.look(whole=True)
        if any(ending(pages, library) == RUNNING for pages in library.pages.values()):
            continue  # a process that the tests left behind is still at work
        # An xdist worker reports to its controller, and has no report of its own.
        sessions = [one for one in library.pages.values() if one.session and is_pytest(one.role)]
        was_killed = not any(one.goodbye for one in sessions)
        found = _found(library, -1 if was_killed else _looked(sessions))
        if not found or kept == _KEPT:
            remove(folder)
            continue
        kept += 1
        is_ours = any(one.session and one.session.root == str(root) for one in sessions)
        if not is_ours or (folder / REPORTED).exists():
            continue
        try:
            (folder / REPORTED).touch()
        except OSError:
            continue
        pids = ", ".join(str(one.head.pid) for one in sessions if one.head)
        site = found[0].access.site
        what = headline(found[0]).removeprefix("FMCHECK: ")
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        how = (
            "was killed before it could report"
            if was_killed
            else "ended before a process that it had started found"
        )
        yield (
            f"an earlier run (process {pids}) {how} "
            f"{what} at {short_path(site.path, Path(root))}:{site.line}{more}: "
            f"fmcheck report show {folder}"
        )


def _looked(sessions: Iterable[Pages]) -> int:
    """Returns the clock up to which a run that came to its end reported what was found."""
    clocks = [int(clock) for one in sessions for clock in one.facts.get(LOOKED, ())]
    return max(clocks) if clocks else max(one.goodbye.clock for one in sessions if one.goodbye)


def _found(library: Library, since: int) -> list[Violation]:
    """Returns what the processes of a run found since a clock, each check at each site once."""
    found = {
        reported.violation.key: attributed(reported, pages, library)
        for pages in library.pages.values()
        for reported in pages.reported
        if not reported.advice and reported.clock > since
    }
    return list(found.values())
