"""The watch of a child: the run's own settings, and a journal in place of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.config import unpack
from fmcheck.first_import import after_import
from fmcheck.processes.journal.writer import Journal
from fmcheck.processes.presence import Presence
from fmcheck.processes.stowaway import stow
from fmcheck.runtime.session.session import Session, is_on
from fmcheck.stream_options import StreamOptions

if TYPE_CHECKING:
    from fmcheck.processes.packet import Packet


def begin(packet: Packet, way: str) -> None:
    """Starts the watch in this process.

    Raises:
        Exception: if it cannot be; the process is then as it would be without.
    """
    if is_on():
        return  # it has one of its own, by `fmcheck.watch`
    streams = StreamOptions(packet.streams, packet.seed)
    who = "the run that started this process"
    session = Session(
        unpack(packet.settings), packet.mode, who, streams, uninitialized=packet.uninitialized
    )
    presence = Presence(session, Journal(packet.folder, way, board=packet.board))
    presence.enter()
    session.start(gives_way=True)
    after_import("multiprocessing.spawn", lambda _: stow(packet))
    presence.milestone()
