"""Made-up runs: what reports are made of, without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fmcheck.finding import Access, Counts, Coverage, Event, Neighbour, Site, Violation
from fmcheck.record.record import Process, Run

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = """\
def stash(self, rows, tokens):
    self.buf[rows] = tokens


def gather(self, rows):
    return self.buf[rows]
"""


def made_up_run(folder: Path) -> Run:
    """Returns a run with one violation of each kind; its engine is written into `folder`."""
    engine = folder / "engine.py"
    engine.write_text(ENGINE)
    gather = Site(str(engine), 6, "FutureMap.gather", Site(str(engine), 3, "step"))
    stash = Site(str(engine), 2, "FutureMap.stash")
    twice = Violation(
        code="FR102",
        name="double-read",
        buffer="FutureMap.tokens_buf",
        rows=(11, 12),
        row_count=2,
        values=("-1", "-1"),
        access=Access("gather", gather, 312, "schedule", "r-9f3", 41),
        last_write=Access("write", stash, 311, "forward", "r-77a", 40),
        last_read=Access("gather", gather, 311, "schedule"),
        test="tests/test_it.py::test_<b>it</b>",
        device="cuda:0",
        pid=7,
        owner="r-9f3",
        previous_owner="r-77a",
        neighbours=(Neighbour(10, "live", "5", "r-1"), Neighbour(11, "consumed", "-1")),
        expected=">= 0",
        notes=("gather waited on event 7",),
    )
    race = replace(
        twice,
        code="FR401",
        name="stream-race",
        buffer="FutureMap.lens_buf",
        access=replace(twice.access, step=313),
        last_read=None,
        test="",
        missing="a wait of `schedule` for a record of `forward` made after the write",
        confidence="incomplete",
        history=(
            Event(1, "forward", "write", stash, 311),
            Event(2, "forward", "record", None, 311),
            Event(3, "schedule", "wait", None, 312, after=2),
            Event(4, "forward", "write", stash, 312, ordered=False),
            Event(5, "schedule", "gather", gather, 313),
        ),
    )
    dead = replace(
        twice, code="FR602", name="dead-assert", buffer="guard", rows=(), row_count=0, values=()
    )
    counts = Counts(buffers=2, writes=120, gathers=240, peeks=3)
    coverage = Coverage(counts, violations=2, imported=("e:F",), touched=("e:F",), warnings=1)
    process = Process(7, 1, "node-1", "pytest", ("pytest",), 100.0, 109.0, "exit 1", ("e:F",))
    return Run(
        version="0.1.0",
        root=str(folder),
        mode="fail",
        started=100.0,
        ended=193.2,
        violations=(twice, replace(twice, test="tests/test_it.py::test_two", count=4), race),
        advice=(dead,),
        accepted=(replace(twice, test="tests/test_it.py::test_expects"),),
        processes=(replace(process, coverage=coverage),),
        coverage=coverage,
    )


def healthy_run(folder: Path) -> Run:
    """Returns the same run without what was found."""
    run = made_up_run(folder)
    coverage = replace(run.coverage, violations=0, warnings=0)
    return replace(run, violations=(), advice=(), accepted=(), coverage=coverage)
