"""Kills: a child that counts and finds all the time is killed at a random moment.

It says on a pipe what it has done, after each call; all that it said must be in its journal. Some
children write the journal alone, which is fast; others are forks of a watched engine.
`python -m tests.reach.kills 200 200` says how many of each.
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import signal
import struct
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.config import Located, Settings
from fmcheck.finding import Access, Site, Violation
from fmcheck.processes.journal.read import Library
from fmcheck.processes.journal.writer import Journal
from fmcheck.processes.process_watch import ProcessWatch
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.session.session import Session
from tests.reach.project import CONTRACT, ENGINE, SITES

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The longest that a child lives, in seconds.
_LONGEST = 0.02


@dataclass(frozen=True)
class Death:
    """What one child said that it did, and what its journal has: violations, seen, writes."""

    said: tuple[int, int, int]
    written: tuple[int, int, int]
    damaged: int

    @property
    def is_whole(self) -> bool:
        """Tells whether nothing is lost, and nothing is there that cannot be read."""
        return not self.damaged and all(
            a <= b for a, b in zip(self.said, self.written, strict=True)
        )


def violation(number: int) -> Violation:
    """Returns a violation at a code site of its own."""
    site = Site("engine.py", number, "gather")
    return Violation(
        code="FR102",
        name="double-read",
        buffer="FutureMap.tokens_buf",
        rows=(1, 2),
        row_count=2,
        values=("-1", "-1"),
        access=Access("gather", site),
        last_write=Access("write", site),
        last_read=None,
        test="",
        device="cpu",
        pid=os.getpid(),
        notes=("long " * random.randrange(100),),
    )


class Keeper:
    """Hands a tally's violations to a journal, without a watch around it."""

    phase_moved = False

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def violation(self, one: Violation) -> None:
        self.journal.violation(one, advice=False)

    def again(self, key: object) -> None:
        self.journal.again(key)

    def suppressed(self, number: int) -> None:
        raise AssertionError

    def milestone(self) -> None:
        pass


Say = Callable[[int, int, int], None]


def write(folder: str, say: Say) -> None:
    """A child without an engine: counts, finds something new, finds it again, without an end."""
    journal = Journal(folder, "fork")
    tally = Tally()
    tally.keep(Keeper(journal), journal.counts)
    for number in itertools.count(1):
        tally.writes += 1
        tally.report(violation(number))
        say(number, 2 * number - 1, number)
        tally.seen_again(violation(number).key)
        say(number, 2 * number, number)


def serve(sites: Sequence[Callable[[], object]], say: Say) -> None:
    """A fork of a watched engine: each call is a write and two gathers, the second one stale."""
    for number, site in enumerate(itertools.cycle(sites), 1):
        site()
        say(min(number, len(sites)), number, number)


def kill_one(folder: str, child: Callable[[Say], None], live: float) -> Death:
    """Forks a child, kills it after a while, and reads what it left in a folder."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            child(lambda *done: os.write(writer, struct.pack("3q", *done)) and None)
        finally:
            os._exit(1)
    os.close(writer)
    said = os.read(reader, 24)  # it is at work
    time.sleep(live)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while more := os.read(reader, 1 << 20):
        said = (said + more)[-24:]
    os.close(reader)
    library = Library(folder)
    library.look(whole=True)
    (pages,) = (one for one in library.pages.values() if one.head and one.head.pid == pid)
    written = (len(pages.reported), sum(map(pages.seen, pages.reported)), pages.counts.writes)
    return Death(struct.unpack("3q", said), written, pages.damaged)


def kill_writers(times: int, seed: int = 0) -> list[Death]:
    """Kills children that write the journal alone, one after the other."""
    draw = random.Random(seed)
    deaths = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            deaths.append(kill_one(folder, partial(write, folder), draw.random() * _LONGEST))
    return deaths


def kill_engines(times: int, seed: int = 0) -> list[Death]:
    """Kills forks of this process, which becomes one with an engine that is watched."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        sites = _watched_engine(Path(folder))
        return [
            kill_one(f"{folder}/run", partial(serve, sites), 10 * draw.random() * _LONGEST)
            for _ in range(times)
        ]


def _watched_engine(folder: Path) -> list[Callable[[], object]]:
    body = textwrap.dedent(ENGINE)
    more = [body[body.index("def stale") :].replace("stale", f"stale{n}") for n in range(SITES)]
    (folder / "toy_engine.py").write_text(body + "\n".join(more))
    (folder / "toy.toml").write_text(textwrap.dedent(CONTRACT))
    (folder / "run").mkdir()
    sys.path.insert(0, str(folder))
    session = Session(Located(Settings(contracts=("toy.toml",)), folder / "settings.toml"))
    session.start()
    ProcessWatch(session, Journal(f"{folder}/run", "", role="parent")).enter()
    engine = importlib.import_module("toy_engine")
    return [getattr(engine, f"stale{n}") for n in range(SITES)]


def main(arguments: Sequence[str]) -> int:
    """Says how many children of each kind were killed and what was lost; 1 if anything was."""
    writers, engines = map(int, arguments)
    lost = 0
    for kind, deaths in (("journal", kill_writers(writers)), ("engine", kill_engines(engines))):
        if not deaths:
            continue
        wrong = [one for one in deaths if not one.is_whole]
        lost += len(wrong)
        said = [sum(numbers) for numbers in zip(*(one.said for one in deaths), strict=True)]
        print(
            f"{kind}: {len(deaths)} killed after {said[0]} violations, seen {said[1]} times, and "
            f"{said[2]} writes; {len(wrong)} lost something {wrong[:3] or ''}"
        )
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
