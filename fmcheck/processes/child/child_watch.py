"""The watch of a child: the run's own settings, and a journal in place of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.config import unpack
from fmcheck.first_import import after_import
from fmcheck.processes.child.spawn_hook import hook_spawn
from fmcheck.processes.journal.writer import Journal
from fmcheck.processes.process_watch import ProcessWatch
from fmcheck.runtime.session.session import Session, is_on
from fmcheck.stream_options import StreamOptions

if TYPE_CHECKING:
    from fmcheck.processes.child.run_context import RunContext


def begin(context: RunContext, way: str) -> None:
    """Starts the watch in this process.

    Raises:
        Exception: if it cannot be; the process is then as it would be without.
    """
    if is_on():
        return  # it has one of its own, by `fmcheck.watch`
    streams = StreamOptions(context.streams, context.seed)
    who = "the run that started this process"
    session = Session(
        unpack(context.settings), context.mode, who, streams, uninitialized=context.uninitialized
    )
    process_watch = ProcessWatch(session, Journal(context.folder, way, board=context.board))
    process_watch.enter()
    session.start(gives_way=True)
    after_import("multiprocessing.spawn", lambda _: hook_spawn(context))
    process_watch.milestone()
