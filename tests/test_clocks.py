"""Vector clocks against brute force and against PyTorch's own, and each of their rules by hand."""

from __future__ import annotations

import functools
import itertools
import random
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from fmcheck.runtime.core.clocks import Clocks, Shadow
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.order.fences import Fences, Lane
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.session.watch import Watch
from tests.happens_before import HOST, Step, by_brute_force, by_clocks, compare, random_program

if TYPE_CHECKING:
    import numpy.typing as npt

sanitizer = pytest.importorskip("torch.cuda._sanitizer")


@pytest.fixture
def fences() -> Fences:
    return Fences(Tally())


def opened(fences: Fences, *names: str):
    return [fences.open(lambda name=name: name) for name in names]


def conflicts(fences, shadow, what, lane, *rows):
    fences.now(lane)
    found = getattr(shadow, what)(np.array(rows), lane.number, 0)
    return [(one.kind, fences.lanes[one.lane].name, one.rows.tolist()) for one in found]


def test_random_programs_are_judged_as_by_brute_force() -> None:
    """20,000 by `python -m tests.happens_before`."""
    judged, raced, differing = compare(300, seed=1)
    assert differing == []
    assert 0 < raced < judged


def test_a_list_of_rows_that_comes_again_is_judged_as_any(fences: Fences) -> None:
    @functools.cache
    def fixed(rows: tuple[int, ...]) -> npt.NDArray[np.int64]:
        made = np.array(sorted(rows))
        made.setflags(write=False)
        return made

    draw = random.Random(1)
    for program in (random_program(draw) for _ in range(300)):
        assert by_clocks(program, rows_of=fixed) == by_brute_force(program), program


def test_a_clock_that_forgot_a_wait_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clocks, "acquire", lambda *_: False)
    assert compare(50)[2]


def test_the_three_kinds_of_conflict(fences: Fences) -> None:
    one, two = opened(fences, "one", "two")
    shadow = Shadow(8, fences.clocks)
    assert conflicts(fences, shadow, "write", one, 1, 2) == []
    assert conflicts(fences, shadow, "read", two, 2, 3) == [("write-read", "one", [2])]
    assert conflicts(fences, shadow, "read", two, 4) == []
    assert conflicts(fences, shadow, "write", one, 4) == [("read-write", "two", [4])]
    assert conflicts(fences, shadow, "write", two, 1) == [("write-write", "one", [1])]


def test_nothing_is_held_against_a_forgotten_row(fences: Fences) -> None:
    one, two = opened(fences, "one", "two")
    shadow = Shadow(8, fences.clocks)
    conflicts(fences, shadow, "write", one, 1, 2)
    conflicts(fences, shadow, "read", one, 3)
    shadow.forget(np.array([1, 3]))
    assert conflicts(fences, shadow, "write", two, 1, 3) == []
    assert conflicts(fences, shadow, "read", two, 2) == [("write-read", "one", [2])]


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_row_is_in_use_until_what_another_lane_did_is_waited_for(
    fences: Fences, what: str
) -> None:
    one, two = opened(fences, "one", "two")
    shadow = Shadow(4, fences.clocks)
    conflicts(fences, shadow, what, one, 1)
    assert shadow.in_use(np.array([0, 1]), two.number)
    assert not shadow.in_use(np.array([0, 2]), two.number)
    assert not shadow.in_use(np.array([1]), one.number)
    fences.clocks.acquire(two.number, fences.clocks.release(one.number))
    assert not shadow.in_use(np.array([0, 1]), two.number)


def test_what_was_behind_lanes_earlier_may_lack_older_waits(fences: Fences) -> None:
    (one,) = opened(fences, "one")
    record = fences.record(one)
    now = fences.snapshot([one])
    assert now.all_waits
    assert not now.before(record.happening.number).all_waits


def test_a_write_of_another_lane_is_unseen_until_it_is_waited_for(fences: Fences) -> None:
    one, two = opened(fences, "one", "two")
    shadow = Shadow(4, fences.clocks)
    conflicts(fences, shadow, "write", one, 1)
    rows = np.array([0, 1])
    assert shadow.unseen_writes(rows, two.number).tolist() == [False, True]
    assert shadow.unseen_writes(rows, one.number).tolist() == [False, False]
    fences.wait(two, fences.record(one))
    assert shadow.unseen_writes(rows, two.number).tolist() == [False, False]


def test_a_reason_to_doubt_is_counted(fences: Fences) -> None:
    for reason in ("one", "two", "one"):
        fences.doubt(reason)
    assert fences.doubts == {"one": 2, "two": 1}


def test_an_event_tells_what_it_is_about_if_that_is_a_text(fences: Fences) -> None:
    (one,) = opened(fences, "one")
    said = fences.add_event(one, "launch", 0, about="a text")
    kept = fences.add_event(one, "launch", 0, about=fences)
    assert [fences.event(each).about for each in (said, kept)] == ["a text", ""]


def test_the_host_never_waits_for_itself(fences: Fences) -> None:
    one, two = opened(fences, "one", "two")
    fences.synchronize_all()
    assert set(fences.host.waits) == {one.number, two.number}


def test_a_record_carries_what_the_host_had_done(fences: Fences) -> None:
    one, two = opened(fences, "one", "two")
    fences.synchronize_lane(one)
    done = fences.clocks.now(fences.host.number).time
    record = fences.record(one)
    fences.wait(two, record)
    assert fences.clocks.known(two.number, fences.host.number) >= done


def test_a_new_stream_knows_what_the_host_had_done(fences: Fences) -> None:
    done = fences.clocks.now(fences.host.number).time
    (one,) = opened(fences, "one")
    assert fences.clocks.known(one.number, fences.host.number) >= done


def test_a_lane_is_itself_alone(fences: Fences) -> None:
    (one,) = opened(fences, "one")
    again = Lane(one.number, fences, one.naming)
    assert len({one, again}) == 2


def test_an_event_stands_for_its_last_record(fences: Fences) -> None:
    one, two = opened(fences, "one", "two")
    shadow = Shadow(4, fences.clocks)
    early = fences.record(one)
    conflicts(fences, shadow, "write", one, 0)
    fences.wait(two, early)
    assert conflicts(fences, shadow, "read", two, 0) == [("write-read", "one", [0])]
    fences.wait(two, fences.record(one))
    assert conflicts(fences, shadow, "read", two, 0) == []


def test_waits_go_on_from_stream_to_stream(fences: Fences) -> None:
    one, two, three = opened(fences, "one", "two", "three")
    shadow = Shadow(4, fences.clocks)
    conflicts(fences, shadow, "write", one, 0)
    fences.wait_lane(two, one)
    fences.wait_lane(three, two)
    assert conflicts(fences, shadow, "read", three, 0) == []


def test_what_the_host_did_comes_before_what_it_launches_next(fences: Fences) -> None:
    (one,) = opened(fences, "one")
    shadow = Shadow(4, fences.clocks)
    conflicts(fences, shadow, "write", fences.host, 0)
    assert conflicts(fences, shadow, "read", one, 0) == []
    assert conflicts(fences, shadow, "write", fences.host, 0) == [("read-write", "one", [0])]
    fences.synchronize_lane(one)
    assert conflicts(fences, shadow, "write", fences.host, 0) == []


def test_a_stream_that_is_gone_gives_its_lane_to_the_next(fences: Fences) -> None:
    class Stream:
        pass

    for _ in range(50):
        stream = Stream()
        fences.open(lambda: "s", stream)
        del stream
    assert fences.clocks.lanes == 2


def test_lanes_may_be_many(fences: Fences) -> None:
    lanes = opened(fences, *map(str, range(40)))
    shadow = Shadow(4, fences.clocks)
    conflicts(fences, shadow, "write", lanes[0], 0)
    record = fences.record(lanes[0])
    for lane in lanes[1:]:
        assert conflicts(fences, shadow, "read", lane, 0) != []
        fences.wait(lane, record)
        assert conflicts(fences, shadow, "read", lane, 0) == []


def test_what_a_lane_remembers_is_bounded(fences: Fences) -> None:
    one, two = opened(fences, "one", "two")
    for _ in range(1000):
        fences.wait_lane(two, one)
    assert len(fences.history([one, two])) < 200


def test_the_history_says_which_record_a_wait_met(fences: Fences) -> None:
    one, two = opened(fences, "one", "two")
    fences.wait(two, fences.record(one))
    record, wait = fences.history([one, two])
    assert (record.stream, record.what, record.after) == ("one", "record", None)
    assert (wait.stream, wait.what, wait.after) == ("two", "wait", record.number)
    (met,) = fences.waited(two)
    assert met.after is not None
    assert met.after.lane is one


# --- PyTorch's own sanitizer beside it ---


def by_sanitizer(program: list[Step]) -> list[bool]:
    """Whether CSAN's handler calls each access a race, with one pointer a row."""
    handler = sanitizer.EventHandler()
    for stream in range(5):
        handler.syncs.create_stream(stream + 1)
    recorded = set()
    said = []
    for step in program:
        stream, other = step.stream + 1, step.other + 1
        if step.what in ("read", "write"):
            rows = {row + 1 for row in step.rows}
            said.append(launched(handler, stream, rows, is_write=step.what == "write"))
        elif step.what == "record":
            recorded.add(step.other)
            handler.syncs.record_state(step.other, stream)
        elif step.what == "wait" and step.other in recorded:
            handler.syncs.stream_wait_for_event(stream, step.other)
        elif step.what == "join":
            handler.syncs.record_state(99, other)
            handler.syncs.stream_wait_for_event(stream, 99)
        elif step.what == "sync event" and step.other in recorded:
            handler.syncs.all_streams_wait_for_event(step.other)
        elif step.what == "sync stream":
            handler.syncs.all_streams_wait_for_stream(other)
        elif step.what == "sync all":
            handler.syncs.sync_all_streams()
    return said


def launched(handler, stream: int, pointers: set[int], *, is_write: bool) -> bool:
    reads, writes = (set(), pointers) if is_write else (pointers, set())
    errors = handler._handle_kernel_launch(
        stream, reads, writes, set(), "kernel", defaultdict(list)
    )
    return bool(errors)


def test_with_a_pointer_a_row_the_sanitizer_of_pytorch_agrees() -> None:
    """Up to a program's first race: it forgets what a write that raced went over."""
    raced = 0
    for seed in range(300):
        program = [one for one in random_program(random.Random(seed)) if one.stream != HOST]
        ours, theirs = [bool(one) for one in by_clocks(program)], by_sanitizer(program)
        first = ours.index(True) if True in ours else len(ours)
        assert ours[: first + 1] == theirs[: first + 1], program
        raced += True in ours
    assert 0 < raced < 300


def test_it_takes_disjoint_rows_of_one_buffer_for_a_race_and_we_do_not(fences: Fences) -> None:
    handler = sanitizer.EventHandler()
    assert not launched(handler, 1, {7}, is_write=True)
    assert launched(handler, 2, {7}, is_write=True)
    one, two = opened(fences, "one", "two")
    shadow = Shadow(8, fences.clocks)
    assert conflicts(fences, shadow, "write", one, 1, 2) == []
    assert conflicts(fences, shadow, "write", two, 3, 4) == []


@pytest.fixture
def relay():
    watch = Watch([], streams="tracked")
    watch.start()
    plain = torch.zeros(8, dtype=torch.int64)
    made = relay_tensor(
        plain, "Map.buf", "engine:Map", watch.tally, (">=", 0), streams=watch.services.streams
    )
    made._relay.lay_poison()
    yield watch, made
    watch.stop()


def test_it_misses_an_overlapping_view_and_we_do_not(relay) -> None:
    handler = sanitizer.EventHandler()
    assert not launched(handler, 1, {1000}, is_write=True)
    assert not launched(handler, 2, {1000 + 16}, is_write=False)
    watch, buf = relay
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(one):
        buf[torch.arange(8)] = 5
    with torch.cpu.stream(two):
        _ = buf[2:4] + 1
    (race,) = watch.drain()
    assert (race.code, race.rows) == ("FR401", (2, 3))


def test_it_misses_what_is_ordered_but_stale_and_the_life_of_a_row_does_not(relay) -> None:
    handler = sanitizer.EventHandler()
    assert not launched(handler, 1, {7}, is_write=True)
    handler.syncs.record_state(1, 1)
    handler.syncs.stream_wait_for_event(2, 1)
    for _ in range(2):
        assert not launched(handler, 2, {7}, is_write=False)
    watch, buf = relay
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(one):
        buf[torch.tensor([1])] = 5
        event = one.record_event()
    for _ in range(2):
        two.wait_event(event)
        with torch.cpu.stream(two):
            _ = buf[torch.tensor([1])]
    assert [found.code for found in watch.drain()] == ["FR102"]


def test_a_lane_that_begins_again_knows_nothing_and_none_knows_what_it_does_next() -> None:
    clocks = Clocks()
    one, two = clocks.add(), clocks.add()
    clocks.acquire(two, clocks.release(one))
    clocks.acquire(one, clocks.release(two))
    clocks.reopen(two)
    assert clocks.known(two, one) == 0
    assert not clocks.covers(one, clocks.now(two))


def test_a_lane_that_is_opened_knows_of_the_one_thing_that_the_host_did(fences: Fences) -> None:
    shadow = Shadow(4, fences.clocks)
    conflicts(fences, shadow, "write", fences.host, 1)
    (one,) = opened(fences, "one")
    assert conflicts(fences, shadow, "read", one, 1) == []


def test_all_that_lanes_did_is_settled_for_each_of_them(fences: Fences) -> None:
    one, two = opened(fences, "one", "two")
    shadow = Shadow(4, fences.clocks)
    conflicts(fences, shadow, "write", one, 1)
    conflicts(fences, shadow, "write", two, 2)
    fences.settle()
    assert conflicts(fences, shadow, "write", two, 1) == []
    assert conflicts(fences, shadow, "write", one, 2) == []


def test_of_records_that_were_replaced_the_last_are_remembered(
    fences: Fences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fmcheck.runtime.order.fences._REPLACED", 2)
    (one,) = opened(fences, "one")
    records = [fences.record(one) for _ in range(4)]
    for before, made in itertools.pairwise(records):
        fences.record_again(before, made)
    replaced = [fences.replaced_by(each) for each in records]
    assert replaced == [None, None, records[1], records[2]]
