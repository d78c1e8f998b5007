"""The timeline: a Chrome trace with a lane a stream, arrows for fences, and a mark a finding."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import fmcheck
from fmcheck.finding import Access, Event, Site, Violation
from fmcheck.report.run.trace import trace
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.order.fences import Fences, RecentEvents
from tests.trace_picture import picture

ROOT = Path("/src")
SITE = Site("/src/engine.py", 7, "publish")
EVENTS = (
    Event(3, "forward", "write", SITE, 1, about="FutureMap.tokens_buf"),
    Event(4, "forward", "record", SITE, 1),
    Event(6, "schedule", "wait", Site("/src/engine.py", 9, "resolve"), 2, after=4),
    Event(7, "schedule", "gather", None, 2, ordered=False, about="FutureMap.tokens_buf"),
    Event(8, "host", "synchronize", None, None, after=2),
)
FOUND = Violation(
    code="FR401",
    name="stream-race",
    buffer="FutureMap.tokens_buf",
    rows=(1,),
    row_count=1,
    access=Access("gather", SITE, 2, "schedule"),
    test="",
    device="cpu",
    pid=1,
    missing="a wait",
    history=EVENTS[:4],
)


def of(kind: str, text: str) -> list[dict[str, Any]]:
    return [one for one in json.loads(text)["traceEvents"] if one["ph"] == kind]


def test_each_stream_has_a_lane_and_the_host_the_first() -> None:
    lanes = [one for one in of("M", trace(EVENTS, (), ROOT)) if one["name"] == "thread_name"]
    assert [(one["tid"], one["args"]["name"]) for one in lanes] == [
        (0, "host"),
        (1, "stream forward"),
        (2, "stream schedule"),
    ]


def test_happenings_are_slices_in_the_order_of_issue() -> None:
    slices = of("X", trace(reversed(EVENTS), (), ROOT))
    assert [one["name"] for one in slices] == [
        *("write tokens_buf", "record", "wait", "gather tokens_buf", "synchronize"),
    ]
    begins = [one["ts"] for one in slices]
    assert begins == sorted(begins)
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in itertools.pairwise(slices))
    assert slices[0]["args"]["site"] == "engine.py:7 in publish"
    assert slices[3]["args"]["ordered"] == "nothing orders this"


def test_a_wait_has_an_arrow_from_the_record_that_it_met() -> None:
    text = trace(EVENTS, (), ROOT)
    (begin,), (end,) = of("s", text), of("f", text)
    slices = {one["args"]["number"]: one for one in of("X", text)}
    assert (begin["id"], begin["tid"]) == (end["id"], slices[4]["tid"])
    assert end["tid"] == slices[6]["tid"]
    for one, number in ((begin, 4), (end, 6)):
        assert 0 <= one["ts"] - slices[number]["ts"] <= slices[number]["dur"]


def test_a_finding_is_a_mark_where_it_happened() -> None:
    (mark,) = of("i", trace(EVENTS, (FOUND,), ROOT))
    assert mark["name"] == "FR401 stream-race"
    assert mark["args"]["missing"] == "a wait"
    (last,) = [one for one in of("X", trace(EVENTS, (), ROOT)) if one["args"]["number"] == 7]
    assert (mark["tid"], mark["ts"] - last["ts"] < last["dur"]) == (last["tid"], True)


def test_a_finding_whose_happenings_were_dropped_has_no_mark() -> None:
    assert of("i", trace(EVENTS[4:], (FOUND, replace(FOUND, history=())), ROOT)) == []


def test_the_picture_shows_lanes_slices_and_the_finding() -> None:
    page = picture(trace(EVENTS, (FOUND,), ROOT))
    assert "FR401 stream-race in FutureMap.tokens_buf" in page
    assert all(f">{lane}</text>" in page for lane in ("host", "stream forward", "stream schedule"))
    assert page.count("<rect") == len(EVENTS)
    assert page.count("<circle") == 1


def test_it_is_strict_json() -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(name)

    odd = replace(EVENTS[0], about='a "quoted" \\ name \u2028 \ud800')
    read = json.loads(trace((odd,), (), ROOT, dropped=5), parse_constant=refuse)
    assert read["otherData"]["dropped"] == 5
    assert json.loads(trace((), (), ROOT))["traceEvents"]


def test_old_happenings_are_dropped_and_counted() -> None:
    fences = Fences(Tally())
    timeline = RecentEvents(fences, kept=3)
    for _ in range(5):
        fences.add_event(fences.host, "write", 0)
    assert (len(timeline.events()), timeline.dropped) == (3, 2)
    assert [one.number for one in timeline.events()] == [3, 4, 5]


def test_a_watch_writes_it_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with fmcheck.watch(contracts=[], trace=path, allow_unchecked=True):
        stream = torch.cpu.Stream()
        stream.record_event().wait(torch.cpu.Stream())
    assert {one["name"] for one in of("X", path.read_text())} >= {"record", "wait"}
    assert len(of("s", path.read_text())) == 1


@pytest.mark.parametrize("options", [[], ["--fmcheck-streams=off"]])
def test_pytest_writes_it_whatever_was_found(tmp_path: Path, root: Path, options: Any) -> None:
    test = tmp_path / "test_race.py"
    test.write_text(
        "import torch\n"
        "kept = []\n"
        "def test_race():\n"
        "    forward, copy = torch.cpu.Stream(), torch.cpu.Stream()\n"
        "    with torch.cpu.stream(forward):\n"
        "        made = torch.ones(2, device='cpu') + 1\n"
        "    with torch.cpu.stream(copy):\n"
        "        kept.append((made, made + 1))\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "fmcheck", "--fmcheck-trace=out.json"]
    environ = {"PYTHONPATH": str(root), "PATH": ""}
    done = subprocess.run(
        [*command, *options, "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if options else 1), done.stdout
    marks = of("i", (tmp_path / "out.json").read_text())
    assert [one["name"] for one in marks] == ([] if options else ["FR401 stream-race"])
