"""Random programs over streams, and what happened before what in them, by brute force.

`python -m tests.happens_before [PROGRAMS] [SEED]` compares fmcheck's clocks with a graph of all
that a program did, in which one thing happened before another if there is a path.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.order.fences import FenceRecord, Fences, Lane
from fmcheck.runtime.order.races import Shadow

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 4
HOST = -1


@dataclass(frozen=True)
class Step:
    """One thing a program does. `stream` is HOST for the host; `other` a stream or an event."""

    what: str
    stream: int
    other: int = 0
    rows: tuple[int, ...] = ()


def random_program(draw: random.Random) -> list[Step]:
    """Draws a program of 5 to 40 steps over 2 to 5 streams, 3 events and 4 rows."""
    streams = draw.randint(2, 5)
    program = []
    for _ in range(draw.randint(5, 40)):
        stream = draw.randrange(streams)
        what = draw.choices(
            ("read", "write", "record", "wait", "join", "sync event", "sync stream", "sync all"),
            (6, 6, 5, 5, 2, 1, 1, 0.3),
        )[0]
        if what in ("read", "write"):
            stream = HOST if draw.random() < 0.1 else stream
            rows = tuple(draw.sample(range(ROWS), draw.randint(1, ROWS)))
            program.append(Step(what, stream, rows=rows))
        elif what in ("join", "sync stream"):
            program.append(Step(what, stream, draw.randrange(streams)))
        else:
            program.append(Step(what, stream, draw.randrange(3)))
    return program


@dataclass
class Graph:
    """Everything a program did, as nodes, with an edge from each to what comes right after it."""

    before: list[set[int]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)

    def add(self, lane: int, *after: int) -> int:
        """Adds what a lane does next, after its last and after the nodes given."""
        direct = {*after, *([self.last[lane]] if lane in self.last else [])}
        reached = set(direct)
        for node in direct:
            reached |= self.before[node]
        self.before.append(reached)
        self.last[lane] = len(self.before) - 1
        return self.last[lane]

    def launch(self, lane: int) -> int:
        """Adds what the host puts on a stream: it comes after all that the host did."""
        return self.add(lane, *([self.last[HOST]] if HOST in self.last and lane != HOST else []))


def by_brute_force(program: list[Step]) -> list[set[tuple[str, int, int]]]:
    """Returns for each access its conflicts: (kind, the other lane, row)."""
    graph, events, said = Graph(), {}, []
    done: list[tuple[str, int, int, int]] = []  # what, lane, row, node
    for step in program:
        if step.what in ("read", "write"):
            node = graph.launch(step.stream)
            said.append(
                {
                    (f"{what}-{step.what}", lane, row)
                    for what, lane, row, earlier in done
                    if row in step.rows
                    and "write" in (what, step.what)
                    and lane != step.stream
                    and earlier not in graph.before[node]
                }
            )
            done += [(step.what, step.stream, row, node) for row in step.rows]
        elif step.what == "record":
            events[step.other] = graph.launch(step.stream)
        elif step.what == "wait" and step.other in events:
            graph.add(step.stream, events[step.other], graph.launch(step.stream))
        elif step.what == "join" and step.other != step.stream:
            graph.add(step.stream, graph.launch(step.other), graph.launch(step.stream))
        elif step.what == "sync event" and step.other in events:
            graph.add(HOST, events[step.other])
        elif step.what == "sync stream":
            graph.add(HOST, graph.launch(step.other))
        elif step.what == "sync all":
            streams = {one.stream for one in program} | {one.other for one in program}
            graph.add(HOST, *(graph.launch(one) for one in streams if one != HOST))
    return said


def by_clocks(
    program: list[Step],
    made: Callable[[Fences], Any] = lambda fences: Shadow(ROWS, fences.clocks),
    rows_of: Callable[[tuple[int, ...]], Any] = list,
) -> list[set[tuple[str, int, int]]]:
    """Returns the same as the clocks have it, with a `Shadow` or its like."""
    fences = Fences(Tally())
    shadow = made(fences)
    streams = [fences.open(lambda: "s") for _ in range(5)]
    events: dict[int, FenceRecord] = {}
    said = []

    def lane_of(stream: int) -> Lane:
        return fences.host if stream == HOST else streams[stream]

    for step in program:
        lane = lane_of(step.stream)
        if step.what in ("read", "write"):
            fences.now(lane)
            touch = shadow.read if step.what == "read" else shadow.write
            said.append(
                {
                    (one.kind, one.lane - 1, int(row))
                    for one in touch(rows_of(step.rows), lane.number, 0)
                    for row in one.rows
                }
            )
        elif step.what == "record":
            events[step.other] = fences.record(lane)
        elif step.what == "wait":
            fences.wait(lane, events.get(step.other))
        elif step.what == "join":
            fences.wait_lane(lane, lane_of(step.other))
        elif step.what == "sync event":
            fences.synchronize(events.get(step.other))
        elif step.what == "sync stream":
            fences.synchronize_lane(lane_of(step.other))
        else:
            fences.synchronize_all()
    return said


def compare(programs: int, seed: int = 0) -> tuple[int, int, list[list[Step]]]:
    """Returns how many accesses were judged, how many raced, and the programs that differ."""
    judged = raced = 0
    differing = []
    for number in range(programs):
        program = random_program(random.Random(seed * 1_000_003 + number))
        expected = by_brute_force(program)
        judged += len(expected)
        raced += sum(bool(one) for one in expected)
        if by_clocks(program) != expected:
            differing.append(program)
    return judged, raced, differing


def main() -> int:
    """Prints what was compared; exits with 1 if anything differs."""
    programs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    start = time.perf_counter()
    judged, raced, differing = compare(programs, seed)
    print(
        f"{programs} programs, {judged} accesses, {raced} of them races: {len(differing)} programs "
        f"judged otherwise by the clocks, {time.perf_counter() - start:.0f} s"
    )
    for program in differing[:1]:
        print(*program, sep="\n")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
