"""The clocks of guarded buffers, in Triton's interpreter: run by test_guard.py, as its neighbours.

The streams are the virtual ones of the CPU, so that each program has a twin without a guard.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import weakref

import pytest
import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from fmcheck.errors import ViolationError
from fmcheck.runtime.core.site import unfollowed
from fmcheck.runtime.core.tally import HaltingLock, Tally
from fmcheck.runtime.device import clock_kernels, ring
from fmcheck.runtime.device.guard import GuardedBuffer
from fmcheck.runtime.device.guarded_lanes import GuardedLanes
from fmcheck.runtime.order.fences import REMEMBERED, Fences
from fmcheck.runtime.relay import relay_tensor
from fmcheck.runtime.relay.owners import Owners
from fmcheck.runtime.session import probes, stream_probes
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps import capturing
from tests.device_clocks import OnDevice
from tests.happens_before import HOST, ROWS, Step, by_brute_force, by_clocks, random_program
from tests.test_device_streams import Device

PROGRAMS = int(os.environ.get("FMCHECK_CLOCK_PROGRAMS", "25"))


class Engine:
    """Streams and a relay buffer between them, guarded or as on a CPU."""

    def __init__(self, guarded=True, rows=8, sink_rows=(0,), drained=False):
        self.watch = Watch([], streams="tracked")
        self.watch.start()
        self.owners = Owners()
        self.owners.drained = drained
        relay_tensor.wants_guard = lambda _: guarded
        plain = torch.zeros(rows, dtype=torch.int64)
        self.buf = relay_tensor.relay_tensor(
            plain,
            "Map.buf",
            "m:Map",
            self.watch.tally,
            (">=", 0),
            sink_rows,
            self.owners,
            "always",
            self.watch.services.streams,
        )
        self.buf._relay.lay_poison()
        assert (type(self.buf._relay) is GuardedBuffer) is guarded
        self.forward, self.schedule = torch.cpu.Stream(), torch.cpu.Stream()
        self.fences = self.watch.services.streams.fences

    def write(self, stream, *rows, value=5):
        with torch.cpu.stream(stream):
            self.buf[torch.tensor(rows)] = value

    def gather(self, stream, *rows):
        with torch.cpu.stream(stream):
            return self.buf[torch.tensor(rows)]

    def races(self):
        return [one for one in self.watch.drain() if one.code == "FR401"]

    def reported(self):
        """The kind of each race, with its rows and how many they are."""
        return [(one.notes[0].partition(":")[0], one.rows, one.row_count) for one in self.races()]


@pytest.fixture(autouse=True)
def _unguarded_again(monkeypatch):
    monkeypatch.setattr(relay_tensor, "wants_guard", relay_tensor.wants_guard)


@pytest.fixture
def make():
    made = []

    def engine(*args, **kwargs):
        made.append(Engine(*args, **kwargs))
        return made[-1]

    yield engine
    for one in reversed(made):
        one.watch.stop()


@pytest.fixture
def launched(monkeypatch):
    counts = []
    kernel = clock_kernels.touch_rows

    class Counting:
        def __getitem__(self, grid):
            counts.append(grid)
            return kernel[grid]

    monkeypatch.setattr(clock_kernels, "touch_rows", Counting())
    return counts


# --- against `Shadow` and brute force ---


def on_device(fences):
    made = OnDevice(fences)
    assert type(made.lanes) is GuardedLanes
    return made


@pytest.fixture
def guarded(monkeypatch):
    monkeypatch.setattr(relay_tensor, "wants_guard", lambda _: True)


def test_random_programs_are_judged_as_by_brute_force(guarded, monkeypatch):
    for class_ in (GuardedBuffer, GuardedLanes):  # an interpreter has nothing to compile
        monkeypatch.setattr(class_, "_warm_up", lambda _: None)
    raced = 0
    for seed in range(PROGRAMS):
        program = random_program(random.Random(seed))
        expected = by_brute_force(program)
        assert by_clocks(program, on_device) == expected == by_clocks(program), program
        raced += any(expected)
    assert 0 < raced < PROGRAMS


def test_lanes_beyond_a_page_are_judged_as_by_brute_force(guarded):
    """Six lanes, in two pages: row 3 has been everybody's."""
    program = [Step("write", HOST, rows=(0, 1, 2, 3))]
    for stream in range(5):
        program += [Step("read", stream, rows=(stream % ROWS, 3)), Step("write", stream, rows=(3,))]
    program += [Step("record", 4, 1), Step("wait", 0, 1), Step("write", 0, rows=(0, 3))]
    program += [Step("write", HOST, rows=(3,)), Step("read", 4, rows=(3,))]
    said = by_clocks(program, on_device)
    assert said == by_brute_force(program)
    assert any(("write-write", 3, 3) in one for one in said)


def test_a_kernel_that_does_nothing_would_be_seen(guarded, monkeypatch):
    class Nothing:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: None

    monkeypatch.setattr(clock_kernels, "touch_rows", Nothing())
    programs = [random_program(random.Random(seed)) for seed in range(5)]
    assert any(by_clocks(one, on_device) != by_brute_force(one) for one in programs)


# --- a device runs what nothing orders in any order ---


class Queues:
    """A device of streams: a launch waits in its stream until somebody runs that far."""

    def __init__(self, draw):
        self.draw = draw
        self.queues = [[] for _ in range(5)]  # of (what is run, on which marks it waits)
        self.done = set()
        self.marks = 0

    def put(self, stream, run=lambda: None, after=()):
        self.marks += 1
        self.queues[stream].append((self.marks, run, tuple(after)))
        return self.marks

    def last(self, stream):
        return self.put(stream)

    def run_until(self, marks=None):
        """Runs streams in turns that are drawn, until the marks are done, or all is."""
        while any(self.queues) if marks is None else not self.done.issuperset(marks):
            ready = [one for one in self.queues if one and self.done.issuperset(one[0][2])]
            mark, run, _ = self.draw.choice(ready).pop(0)
            run()
            self.done.add(mark)


def by_queues(program, seed, monkeypatch):
    """Returns which lanes were found to race on which rows, with kernels run in a drawn order."""
    device = Queues(random.Random(seed))
    fences = Fences(Tally())
    clocks = on_device(fences)
    lanes = [fences.open(lambda: "s") for _ in range(5)]
    kernel, events, at = clock_kernels.touch_rows, {}, [0]

    class Queued:
        def __getitem__(self, grid):
            def launch(*args, **kwargs):
                device.put(at[0], lambda: kernel[grid](*args, **kwargs))

            return launch

    with monkeypatch.context() as patched:
        patched.setattr(clock_kernels, "touch_rows", Queued())
        patched.setattr(clocks.lanes, "_wait", device.run_until)
        for step in program:
            is_host = step.stream == HOST
            lane = fences.host if is_host else lanes[step.stream]
            if step.what in ("read", "write"):
                at[0] = step.other if is_host else step.stream
                writes, index = step.what == "write", torch.tensor(step.rows)
                verb = "write" if writes else "gather"
                clocks.lanes._enter(verb, index, 0, lane, writes=writes)
            elif step.what == "record":
                events[step.other] = (fences.record(lane), device.last(step.stream))
            elif step.what == "wait" and step.other in events:
                record, mark = events[step.other]
                fences.wait(lane, record)
                device.put(step.stream, after=[mark])
            elif step.what == "join" and step.other != step.stream:
                fences.wait_lane(lane, lanes[step.other])
                device.put(step.stream, after=[device.last(step.other)])
            elif step.what == "sync event" and step.other in events:
                fences.synchronize(events[step.other][0])
                device.run_until([events[step.other][1]])
            elif step.what == "sync stream":
                fences.synchronize_lane(lanes[step.other])
                device.run_until([device.last(step.other)])
            elif step.what == "sync all":
                fences.synchronize_all()
                device.run_until()
    device.run_until()
    records, _, _ = clocks.lanes._ring.drain()
    slots = clocks.lanes._lanes
    pairs = [((one.slot, one.own), one.row) for one in records]
    return {
        (frozenset(slots[slot].number - 1 for slot in pair), row) for pair, row in pairs
    }, records


def test_races_are_the_same_in_any_order_that_the_fences_allow(guarded, monkeypatch):
    for class_ in (GuardedBuffer, GuardedLanes):
        monkeypatch.setattr(class_, "_warm_up", lambda _: None)
    turned = 0
    for seed in range(PROGRAMS):
        program = random_program(random.Random(seed))
        accesses = [one for one in program if one.what in ("read", "write")]
        expected = {
            (frozenset((access.stream, lane)), row)
            for access, said in zip(accesses, by_brute_force(program), strict=True)
            for _, lane, row in said
        }
        found, records = by_queues(program, seed, monkeypatch)
        # What the host did may be missed, if its kernel comes so late that a row was used again.
        assert found <= expected, program
        assert all(HOST in pair for pair, _ in expected - found), program
        turned += any(one.earlier_number > one.number for one in records)
    assert turned > PROGRAMS // 10


def queued(monkeypatch):
    """Holds the clock kernels back; returns what is held."""
    held, kernel = [], clock_kernels.touch_rows

    class Held:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: held.append(lambda: run(grid, args, kwargs))

    def run(grid, args, kwargs):
        with unfollowed():
            kernel[grid](*args, **kwargs)

    monkeypatch.setattr(clock_kernels, "touch_rows", Held())
    return held


@pytest.mark.parametrize("turned", [False, True])
def test_a_race_is_reported_by_the_order_of_issue(make, monkeypatch, turned):
    one = make()
    one.write(one.schedule, 2)
    held = queued(monkeypatch)
    one.write(one.forward, 1)
    with torch.cpu.stream(one.schedule):
        _ = one.buf[:2].clone()
    for run in reversed(held) if turned else held:
        run()
    (race,) = one.races()
    assert race.notes[0] == "write-read: write on stream `forward`, then peek on stream `schedule`"
    assert (race.access.verb, race.access.stream) == ("peek", "schedule")
    assert (race.last_write.verb, race.last_write.stream) == ("write", "forward")
    assert [(event.what, event.ordered) for event in race.history][-1] == ("peek", False)


def test_what_the_host_did_is_not_late_because_its_kernel_is(make, monkeypatch):
    one = make(drained=True)
    held = queued(monkeypatch)
    one.owners.hand_out([1], ["first"])
    one.write(one.forward, 1)
    for run in reversed(held):
        run()
    assert len(held) == 2
    assert one.reported() == []


# --- each rule by hand ---


def test_the_three_kinds_and_their_fenced_twins(make):
    def run(fenced):
        one, reported = make(), []

        def fence(late, early):
            if fenced:
                late.wait_stream(early)

        one.write(one.forward, 1, 2)
        fence(one.schedule, one.forward)
        one.gather(one.schedule, 2)
        reported += one.reported()
        fence(one.forward, one.schedule)
        one.write(one.forward, 2)
        reported += one.reported()
        fence(one.schedule, one.forward)
        one.write(one.schedule, 1)
        return reported + one.reported()

    assert run(fenced=False) == [
        ("write-read", (2,), 1),
        ("read-write", (2,), 1),
        ("write-write", (1,), 1),
    ]
    assert run(fenced=True) == []


def test_disjoint_rows_are_no_race(make):
    one = make()
    one.write(one.forward, 1, 2)
    one.write(one.schedule, 3, 4)
    one.gather(one.schedule, 3)
    assert one.reported() == []


def test_a_third_lane_races_with_both(make):
    one, third = make(), torch.cpu.Stream()
    one.write(one.forward, 1)
    one.write(one.schedule, 2)
    one.gather(third, 1, 2)
    (race,) = one.races()
    assert race.count == 2
    third.wait_stream(one.forward)
    third.wait_stream(one.schedule)
    one.gather(third, 1, 2)
    assert one.reported() == []


def test_the_ninth_lane_knows_of_the_first(make, launched):
    one = make()
    many = [torch.cpu.Stream() for _ in range(9)]
    one.write(many[0], 1)
    for stream in many[1:]:
        stream.wait_stream(many[0])
        one.gather(stream, 1)
    assert one.reported() == []
    before = len(launched)
    one.write(many[0], 1)
    assert len(launched) - before == 3
    (race,) = one.races()
    assert (race.count, race.row_count) == (8, 1)


def test_a_row_that_stands_in_the_index_twice_is_one_row(make):
    one = make(rows=200)
    one.write(one.forward, *range(1, 150))
    one.gather(one.schedule, *range(1, 150), *range(1, 150), 7, 7)
    ((kind, _, count),) = one.reported()
    assert (kind, count) == ("write-read", 149)
    one.write(one.schedule, 7, 7)
    ((kind, rows, count),) = one.reported()
    assert (kind, rows, count) == ("write-write", (7,), 1)


def test_rows_may_be_counted_from_the_end_and_out_of_range_is_left_to_torch(make):
    one = make()
    one.write(one.forward, -1)
    with torch.cpu.stream(one.schedule):
        one.buf._relay.lanes.gathered(torch.tensor([-9, 8, 99, 7]), 0)
    assert one.reported() == [("write-read", (7,), 1)]


def test_a_sink_is_nobody_s(make):
    one = make(sink_rows=(0, 3))
    one.write(one.forward, 0, 3, 1)
    one.gather(one.schedule, 0, 3)
    one.write(one.schedule, 0, 3)
    assert one.reported() == []


@pytest.mark.parametrize("drained", [True, False])
def test_drained_rows_are_handed_out_only_when_nobody_uses_them(make, drained):
    one = make(drained=drained)
    one.write(one.forward, 1, 2)
    one.owners.hand_out([2], ["second"])
    expected = [("write-write", (2,), 1)] if drained else []
    assert one.reported() == expected
    one.forward.synchronize()
    one.owners.take_back([2])
    one.owners.hand_out([2], ["third"])
    assert one.reported() == []


@pytest.mark.parametrize(("end", "races"), [(None, []), (4, [("read-write", (2,), 1)])])
def test_a_copy_of_the_whole_buffer_is_no_use_by_the_last_owner(make, end, races):
    one = make(drained=True)
    one.write(one.forward, 2)
    one.forward.synchronize()
    with torch.cpu.stream(one.forward):
        _ = one.buf[:end].clone()
    one.owners.hand_out([2], ["second"])
    assert one.reported() == races


def test_the_host_s_ways_and_the_kernels_share_one_memory(make):
    one = make()
    with torch.cpu.stream(one.forward):
        one.buf[2:5] = torch.tensor([1, 2, 3])
        one.buf[torch.arange(8) == 6] = 4
    one.gather(one.schedule, 3, 6)
    assert one.reported() == [("write-read", (3, 6), 2)]
    one.write(one.forward, 1, 7)
    with torch.cpu.stream(one.schedule):
        _ = one.buf[4:8].clone()
        _ = one.buf[torch.arange(8) == 1]
    assert sorted(one.reported()) == [("write-read", (1,), 1), ("write-read", (4, 6, 7), 3)]


def test_a_peek_by_the_host_waits_for_the_current_stream_alone(make):
    one = make()
    one.write(one.forward, 1)
    with torch.cpu.stream(one.forward):
        one.buf.tolist()
    assert one.reported() == []
    one.write(one.forward, 1)
    with torch.cpu.stream(one.schedule):
        one.buf.tolist()
    (race,) = one.races()
    assert (race.access.verb, race.access.stream, race.rows) == ("peek", "host", (1,))


# --- the finding ---


def program_of_races(one):
    """Every kind of race, by every way in, with some fences."""
    buf, forward, schedule = one.buf, one.forward, one.schedule
    some = [torch.tensor(rows) for rows in ([1, 2, 3], [1], [1, 2], [3], [2, 3], [5, 6], [6])]
    torch.cpu.synchronize()
    one.owners.hand_out([1, 2, 3], ["a", "b", "c"])
    with torch.cpu.stream(forward):
        buf[some[0]] = 5
    schedule.wait_event(forward.record_event())
    with torch.cpu.stream(schedule):
        _ = buf[some[1]]
    with torch.cpu.stream(forward):
        buf[some[2]] = 6
    forward.wait_stream(schedule)
    with torch.cpu.stream(forward):
        buf[some[3]] = 7
    with torch.cpu.stream(schedule):
        _ = buf[some[4]]
        _ = buf.clone()
        buf[4:6] = 2
    with torch.cpu.stream(forward):
        buf[some[5]] = 8
    one.owners.hand_out([2], ["d"])
    with torch.cpu.stream(schedule):
        _ = buf[some[6]]
        buf.tolist()
    torch.cpu.synchronize()
    with torch.cpu.stream(forward):
        buf[some[6]] = 9


def test_it_is_reported_as_on_a_cpu(make):
    found = []
    for guarded in (True, False):
        one = make(guarded=guarded)
        program_of_races(one)
        # The rows beside are shown as they are when the report is made.
        found.append([replace(race, neighbours=()) for race in one.races()])
        one.watch.stop()
    assert len(found[1]) == 6
    for ours, theirs in zip(*found, strict=True):
        assert ours == theirs


def test_the_story_is_that_of_the_moment(make):
    one = make()
    one.owners.hand_out([1], ["first"])
    one.write(one.forward, 1)
    one.gather(one.schedule, 1)
    late = one.schedule.wait_stream(one.forward)
    assert late is None
    for _ in range(3 * REMEMBERED):
        one.schedule.wait_stream(one.forward)
    one.gather(one.schedule, 1)
    one.fences.doubt("a graph was captured")
    (race,) = one.races()
    assert "stream `schedule` had synchronized with nothing" in race.notes
    assert race.confidence == ""
    assert [(event.stream, event.what, event.ordered) for event in race.history] == [
        ("forward", "write", True),
        ("schedule", "gather", False),
    ]
    assert race.last_read is None


def test_a_doubt_of_before_counts(make):
    one = make()
    one.fences.doubt("a graph was captured")
    one.write(one.forward, 1)
    one.gather(one.schedule, 1)
    (race,) = one.races()
    assert race.confidence == "incomplete"
    assert "fences may have been missed: a graph was captured" in race.notes


def test_of_an_access_long_ago_what_is_remembered_is_reported(make, monkeypatch):
    monkeypatch.setattr(ring, "KEPT", 4)
    one = make()
    one.forward.wait_stream(one.schedule)
    one.write(one.forward, 1)
    one.gather(one.schedule, 1)
    for _ in range(6):
        one.gather(one.schedule, 2)
    (race,) = one.races()
    assert (race.rows, race.access.verb, race.access.stream) == ((1,), "gather", "schedule")
    assert "stream `schedule` had synchronized with nothing on record" in race.notes
    assert any(
        "stream `forward` had synchronized with stream `schedule`" in note for note in race.notes
    )
    assert race.history[-1].what == "gather"


def test_the_timeline_marks_what_turned_out_to_race(make):
    one = make()
    happened = []
    one.fences.listeners.append(happened.append)
    one.write(one.forward, 1)
    one.gather(one.schedule, 1)
    assert all(one.fences.event(each).ordered for each in happened)
    one.races()
    unordered = [each.what for each in happened if not one.fences.event(each).ordered]
    assert unordered == ["gather"]


def test_races_past_the_end_of_the_ring_are_counted(make):
    one = make(rows=64)
    one.buf._relay.lanes._ring.capacity = 10
    one.write(one.forward, *range(1, 41))
    one.gather(one.schedule, *range(1, 41))
    ((_, _, count),) = one.reported()
    assert count == 10
    assert [note for note in one.watch.tally.notes if "30 races on cpu did not fit" in note]


def test_mode_halt_raises_at_the_line(make):
    one = make()
    one.watch.tally.lock = HaltingLock()
    one.write(one.forward, 1)
    with pytest.raises(ViolationError, match=r"FR401 .* Map\.buf rows 1: gather"):
        one.gather(one.schedule, 1)
    one.watch.tally.lock = HaltingLock()
    one.write(one.forward, 2)
    with torch.cpu.stream(one.schedule), pytest.raises(ViolationError, match="peek"):
        one.buf.clone()


def test_a_buffer_that_is_gone_is_not_kept_but_its_races_are_reported(make):
    one = make()
    one.write(one.forward, 1)
    one.gather(one.schedule, 1)
    gone = weakref.ref(one.buf._relay)
    del one.buf
    assert one.reported() == [("write-read", (1,), 1)]
    one.watch.tally.fresh.clear()
    gc.collect()
    assert gone() is None


def test_streams_of_a_device_s_module_are_followed_as_the_virtual_ones(make, monkeypatch):
    device = Device()
    monkeypatch.setitem(sys.modules, device.__name__, device)
    one = make()
    undo = list(one.watch.services.streams.follow_device(device, "cpu"))
    plain = torch.zeros(8, dtype=torch.int64)
    buf = relay_tensor.relay_tensor(
        plain,
        "Map.on",
        "m:Map",
        one.watch.tally,
        (">=", 0),
        streams=one.watch.services.streams,
    )
    assert type(buf._relay.lanes) is GuardedLanes
    one.forward, one.schedule = forward, schedule = device.Stream(), device.Stream()
    row = torch.tensor([1])
    for fenced in (True, False):
        with device.stream(forward):
            buf[row] = 5
        if fenced:
            schedule.wait_stream(forward)
        with device.stream(schedule):
            _ = buf[row]
        forward.wait_stream(schedule)
    (race,) = one.races()
    streams = (race.access.stream, race.last_write.stream)
    for put_back in reversed(undo):
        put_back()
    assert (race.buffer, race.rows, streams) == ("Map.on", (1,), ("schedule", "forward"))
    assert "stream `schedule` had synchronized with stream `forward` up to" in "".join(race.notes)


# --- what it costs, and what it leaves alone ---


def test_an_access_is_one_launch_more_and_waits_for_nothing(make, launched):
    one = make()
    one.write(one.forward, 1)
    before, seen = len(launched), []

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    rows = torch.tensor([1, 2])
    with torch.cpu.stream(one.forward), Ops():
        one.buf[rows] = 5
        one.buf[rows]
    assert len(launched) - before == 2
    assert not {name for name in seen if "local_scalar" in name or "nonzero" in name}


def test_without_streams_there_is_no_launch(guarded, launched):
    tally = Tally()
    plain = torch.zeros(8, dtype=torch.int64)
    buf = relay_tensor.relay_tensor(plain, "Map.buf", "m:Map", tally, (">=", 0))
    buf[torch.tensor([1])] = 5
    assert buf._relay.lanes is None
    assert launched == []


def test_nothing_is_entered_while_a_graph_is_captured(make, monkeypatch, launched):
    one = make()
    one.write(one.schedule, 3)
    with monkeypatch.context() as patched:
        patched.setattr(capturing, "on", lambda _: True)
        before = len(launched)
        one.write(one.forward, 1)
        with torch.cpu.stream(one.forward):
            one.buf.clone()
        assert len(launched) == before
        assert one.races() == []
    one.gather(one.schedule, 1)
    assert one.reported() == []
    one.gather(one.forward, 3)
    assert one.reported() == [("write-read", (3,), 1)]


def test_a_replay_that_a_contract_declares_is_entered_when_it_was_made(make):
    one = make()
    rows = torch.tensor([1])
    one.write(one.forward, 1)
    with torch.cpu.stream(one.schedule):
        relay_tensor.before_call([one.buf], rows)
        relay_tensor.after_call([one.buf], [one.buf], rows)
    assert one.reported() == [("write-read", (1,), 1), ("write-write", (1,), 1)]


def test_memory_of_the_guard_s_own_is_never_judged(make):
    one = make()
    for stream in (one.forward, one.schedule) * 3:
        one.write(stream, 1)
        with torch.cpu.stream(stream):
            one.buf[2:4] = 1
            _ = one.buf.clone()
    assert {race.buffer for race in one.watch.drain()} == {"Map.buf"}


def test_the_detector_is_proved_by_the_kernels(guarded, launched, monkeypatch):
    (probe,) = [probe for probe in probes.PROBES if probe.code == "FR401"]
    assert probes.tried(probe, probes.ProbeTarget("cpu")) == ""
    assert launched

    class Nothing:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: None

    monkeypatch.setattr(clock_kernels, "touch_rows", Nothing())
    assert "was reported as nothing" in probes.tried(probe, probes.ProbeTarget("cpu"))
    assert stream_probes.race_codes("cpu", fenced=True) == []
