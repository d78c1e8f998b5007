"""Gathering: the journals of a run's processes, or of several runs, made into one record."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fmcheck.errors import UsageError
from fmcheck.finding import Coverage
from fmcheck.processes.journal import layout
from fmcheck.processes.journal.attribute import attributed
from fmcheck.processes.journal.ending import ending
from fmcheck.processes.journal.read import Library
from fmcheck.record.merging import one_each
from fmcheck.record.record import Process, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fmcheck.processes.journal.layout import StartLine
    from fmcheck.processes.journal.read import Pages


def gather(folders: Iterable[Path | str]) -> Run:
    """Returns what all processes wrote into run folders, or into folders that hold such.

    A violation of one test and one code site is one, in however many processes it was found.

    Raises:
        UsageError: if a folder holds no journal, or cannot be read.
    """
    libraries = []
    for folder in folders:
        found = list(_run_folders(str(folder)))
        if not found:
            raise UsageError(str(folder), "expected the journal of a run, found none")
        libraries += [Library(one) for one in found]
    for library in libraries:
        try:
            library.look(whole=True)
        except OSError as err:
            raise UsageError(library.folder, f"cannot be read: {err.strerror or err}") from None
    unread = [(pages, why) for one in libraries for pages, why in _unread(one)]
    if unread and not any(pages.head for one in libraries for pages in one.pages.values()):
        (first, why), more = unread[0], len(unread) - 1
        also = f", and neither can {more:,} more" if more else ""
        raise UsageError(f"{first.folder}/{first.name}{layout.LINES}", f"{why}{also}")
    run = record_of(libraries)
    lost = (f"journal {pages.name}{layout.LINES}: {why}" for pages, why in unread)
    return replace(run, problems=(*run.problems, *lost))


def _unread(library: Library) -> Iterator[tuple[Pages, str]]:
    """Yields the journals of which nothing can be read, each with the reason."""
    for pages in library.pages.values():
        if pages.why_unread:
            yield pages, f"cannot be read: {pages.why_unread}"
        elif pages.head is None:
            yield pages, "expected the lines of a journal, found none that can be read"


def record_of(libraries: Iterable[Library]) -> Run:
    """Returns the record of libraries that were read."""
    libraries = list(libraries)
    pages = [(one, library) for library in libraries for one in library.pages.values() if one.head]
    found = [
        (attributed(reported, one, of), reported.advice)
        for one, of in pages
        for reported in one.reported
    ]
    failing = one_each(violation for violation, is_advice in found if not is_advice)
    advice = one_each(violation for violation, is_advice in found if is_advice)
    coverage = merged(one.coverage for one, _ in pages)
    sessions = [one.session for one, _ in pages if one.session]
    walls = [one.head.wall for one, _ in pages if one.head]
    ends = [one.goodbye.wall for one, _ in pages if one.goodbye]
    return Run(
        version=sessions[0].version if sessions else "",
        root=sessions[0].root if sessions else "",
        mode=sessions[0].mode if sessions else "",
        started=min(walls, default=0.0),
        ended=max((*walls, *ends), default=0.0),
        violations=failing,
        advice=advice,
        processes=tuple(sorted(_processes(libraries), key=lambda process: process.started)),
        coverage=replace(
            coverage,
            violations=len({violation.key for violation in failing}),
            warnings=len({violation.key for violation in advice}),
        ),
        problems=(*coverage.problems, *(p for one in libraries for p in failures(one))),
    )


def merged(coverages: Iterable[Coverage]) -> Coverage:
    """Returns what several processes reached between them."""
    return sum(coverages, Coverage())


def failures(library: Library) -> Iterator[str]:
    """Yields a sentence for each process that was reached and could not be watched."""
    for start in library.starts:
        if start.failed:
            command = " ".join(start.command[:4])
            yield f"process {start.pid} ({command}) is not watched: {start.failed}"


def never_reached(library: Library) -> dict[int, tuple[str, ...]]:
    """Returns the commands of Python processes that a process of the run started in vain."""
    reached = {(start.host, start.pid) for start in library.starts}
    heads = [pages.head for pages in library.pages.values() if pages.head]
    reached |= {(head.host, head.pid) for head in heads}
    return {
        reaped.pid: reaped.command
        for pages in library.pages.values()
        for reaped in pages.reaped
        if reaped.command and pages.head and (pages.head.host, reaped.pid) not in reached
    }


def _processes(libraries: Iterable[Library]) -> Iterator[Process]:
    for library in libraries:
        written = set()
        for pages in library.pages.values():
            if pages.head is not None:
                written.add((pages.head.host, pages.head.pid))
                yield process_of(pages, library)
        for start in library.starts:
            if (start.host, start.pid) not in written:
                written.add((start.host, start.pid))
                yield _only_started(start)


def process_of(pages: Pages, library: Library) -> Process:
    """Returns what a journal says of its process."""
    head = pages.head
    assert head is not None
    return Process(
        pid=head.pid,
        parent=head.parent,
        host=head.host,
        role=pages.role,
        command=head.command,
        started=head.wall,
        ended=pages.goodbye.wall if pages.goodbye else None,
        ending=ending(pages, library),
        held=tuple(pages.facts.get("held", ())),
        coverage=pages.coverage,
    )


def _only_started(start: StartLine) -> Process:
    """Returns a process that was reached, and imported nothing that a contract names."""
    return Process(
        start.pid, start.parent, start.host, "", start.command, started=start.wall, ended=None
    )


def _run_folders(folder: str) -> Iterator[str]:
    """Yields a folder and those in it that hold a journal."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as err:
        raise UsageError(folder, f"cannot be read: {err.strerror}") from None
    if any(name.endswith(layout.LINES) for name in names):
        yield folder
    for name in names:
        inner = os.path.join(folder, name)
        if os.path.isdir(inner) and not os.path.islink(inner):
            yield from _run_folders(inner)
