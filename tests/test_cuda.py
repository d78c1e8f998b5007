"""The watch on a CUDA device: same verdicts, and what is not checked is counted.

These need a GPU; without one each is skipped and says so. CI has none.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import fmcheck.contracts
from fmcheck.contract import load_contract
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay.owners import Owners
from fmcheck.runtime.relay.relay_tensor import RelayTensor, relay_tensor
from fmcheck.runtime.session import probes
from fmcheck.runtime.session.compiled import teach_dynamo
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

probes.load_device("cuda")
DTYPES = [torch.int64, torch.int32, torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.fixture
def tally() -> Tally:
    return Tally()


def watched(tally: Tally, dtype: torch.dtype = torch.int64, width: int = 0) -> RelayTensor:
    shape = (16, width) if width else (16,)
    bound = None if dtype.is_floating_point else (">=", 0)
    plain = torch.zeros(shape, dtype=dtype, device="cuda")
    made = relay_tensor(plain, "Map.buf", "engine:Map", tally, bound)
    made._relay.lay_poison()
    return made


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda")


def codes(tally: Tally) -> list[str]:
    return [violation.code for violation in tally.drain()]


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_healthy_rows_are_silent_and_keep_their_values(tally, dtype, width):
    buf = watched(tally, dtype, width)

    for step in range(1, 20):
        batch = rows(1 + step % 3, 5, 9)
        buf[batch] = torch.full((3, *buf.shape[1:]), step, dtype=dtype, device="cuda")
        assert (buf[batch] == step).all()

    assert codes(tally) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_faults_are_told_apart(tally, dtype):
    buf = watched(tally, dtype)
    buf[rows(1, 2)] = 1

    buf[rows(1, 2)]
    buf[rows(2, 3)]

    (double, unwritten) = sorted(tally.drain(), key=lambda violation: violation.code)[::-1]
    assert (double.code, double.rows) == ("FR102", (2,))
    assert (unwritten.code, unwritten.rows) == ("FR101", (3,))
    assert double.device == "cuda:0"


def test_sink_row_is_never_a_finding(tally):
    buf = watched(tally)

    buf[rows(0, 0)]
    buf[rows(0)]

    assert codes(tally) == []


def test_copy_to_pinned_memory_is_a_peek(tally):
    buf = watched(tally)
    buf[rows(1)] = 7
    mirror = torch.empty(16, dtype=torch.int64, pin_memory=True)

    mirror.copy_(buf, non_blocking=True)
    torch.cuda.synchronize()

    assert mirror[1] == 7
    assert (buf[rows(1)] == 7).all()
    assert codes(tally) == []


def test_another_stream_is_seen(tally):
    buf = watched(tally)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        buf[rows(1)] = 7
    torch.cuda.current_stream().wait_stream(side)

    buf[rows(1)]
    buf[rows(1)]

    assert codes(tally) == ["FR102"]


def test_a_replayed_double_read_is_found(tally):
    buf, batch, out = watched(tally), rows(1), torch.zeros(1, dtype=torch.int64, device="cuda")
    buf[batch] = 7
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(buf[batch])
    assert codes(tally) == []

    graph.replay()
    assert codes(tally) == []
    assert out.item() == 7
    graph.replay()

    assert codes(tally) == ["FR102"]


def test_an_access_waits_for_nothing(tally):
    buf, batch, values = watched(tally), rows(1, 2), rows(7, 8)
    buf[batch] = values
    buf[batch]
    torch.cuda.set_sync_debug_mode("error")
    try:
        buf[batch] = values
        got = buf[batch]
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert got.tolist() == [7, 8]
    assert codes(tally) == []


def test_findings_past_the_end_of_the_ring_are_counted(tally):
    buf = watched(tally)
    buf._relay._ring.capacity = 3

    buf[rows(1, 2, 3, 4, 5)]

    ((code, count),) = [(one.code, one.row_count) for one in tally.drain()]
    assert (code, count) == ("FR101", 3)
    assert [note for note in tally.notes if "2 findings on cuda:0 did not fit" in note]


@pytest.fixture
def taught() -> Iterator[None]:
    """Dynamo knows relay tensors, as in a session."""
    undo = teach_dynamo(torch._dynamo)
    yield
    undo()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_function_stays_watched(tally, backend, taught):
    def take(buf: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return buf[batch] * 2

    compiled = torch.compile(take, backend=backend)
    buf = watched(tally)
    buf[rows(1)] = 7

    assert compiled(buf, rows(1)).item() == 14
    compiled(buf, rows(1))

    assert codes(tally) == ["FR102"]


DEAD_ASSERT = """
import torch, sys
def check(values):
    torch._assert_async((values >= 0).all(){message})
torch.compile(check, backend={backend!r})(torch.full((4,), -1, device="cuda"))
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("backend", "message", "fires"),
    [
        ("eager", "", True),
        ("aot_eager", "", False),
        ("inductor", "", False),
        ("aot_eager", ", 'stale'", True),
        ("inductor", ", 'stale'", True),
    ],
)
def test_an_async_assert_without_a_message_is_dead_when_compiled(backend, message, fires):
    """The ground that FM601 stands on. A device assert ends the process: hence one for each."""
    source = DEAD_ASSERT.format(backend=backend, message=message)

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)

    assert (done.returncode != 0) is fires, done.stderr
    assert ("device-side assert" in done.stderr) is fires


# --- streams ---


class Engine:
    """Two streams of the device and a relay buffer between them, while a session follows both."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.tally = watch, watch.tally
        self.owners = Owners()
        plain = torch.zeros(16, dtype=torch.int64, device="cuda")
        self.buf = relay_tensor(
            plain,
            "Map.buf",
            "m:Map",
            watch.tally,
            (">=", 0),
            (0,),
            self.owners,
            "always",
            watch.services.streams,
        )
        self.buf._relay.lay_poison()
        self.batch = {row: rows(row) for row in range(1, 6)}
        self.forward, self.schedule = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()

    def write(self, stream: torch.cuda.Stream, row: int = 1) -> None:
        with torch.cuda.stream(stream):
            self.buf[self.batch[row]] = 5

    def gather(self, stream: torch.cuda.Stream, row: int = 1) -> None:
        with torch.cuda.stream(stream):
            _ = self.buf[self.batch[row]]

    def races(self) -> list[tuple[str, tuple[int, ...]]]:
        found = [one for one in self.tally.drain() if one.code == "FR401"]
        return [(one.notes[0].partition(":")[0], one.rows) for one in found]


@pytest.fixture
def engine() -> Iterator[Engine]:
    watch = Watch([], streams="tracked")
    watch.start()
    yield Engine(watch)
    watch.stop()
    torch.cuda.synchronize()


def test_an_assert_on_the_device_leaves_what_was_found_before():
    """It ends the process's context: hence a process of its own."""
    done = subprocess.run([sys.executable, "-c", ASSERTED], capture_output=True, text=True)

    assert "device-side assert" in done.stderr, done.stderr
    assert done.stdout.splitlines() == ["FR102 (1,) gather"], done.stderr


ASSERTED = """
import torch
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.session import probes
probes.load_device("cuda")
tally = Tally()
buf = relay_tensor(torch.zeros(16, dtype=torch.int64, device="cuda"), "Map.buf", "m:Map", tally)
rows = torch.tensor([1], device="cuda")
buf[rows] = 7
buf[rows]
buf[rows]
torch._assert_async((rows < 0).all(), "stale")
for one in tally.drain():
    print(one.code, one.rows, one.access.verb)
assert any("cannot be read any more" in note for note in tally.notes), tally.notes
torch.cuda.synchronize()
"""


def test_the_three_kinds_of_race_are_seen(engine):
    engine.write(engine.forward)
    engine.gather(engine.schedule)
    assert engine.races() == [("write-read", (1,))]

    engine.schedule.wait_stream(engine.forward)
    engine.gather(engine.schedule)
    engine.write(engine.forward)
    assert engine.races() == [("read-write", (1,))]

    engine.write(engine.forward, 2)
    engine.write(engine.schedule, 2)
    assert engine.races() == [("write-write", (2,))]


def test_a_race_is_reported_with_both_streams_and_no_doubt(engine):
    engine.write(engine.forward)
    engine.gather(engine.schedule)

    (race,) = [one for one in engine.tally.drain() if one.code == "FR401"]
    assert (race.access.stream, race.last_write.stream) == ("schedule", "forward")
    assert race.missing.startswith("a wait of stream `schedule` for an event recorded after test_")
    assert (race.device, race.confidence) == ("cuda:0", "")
    assert "stream `schedule` had synchronized with nothing" in race.notes


FENCES = {
    "wait_stream": lambda one, two: two.wait_stream(one),
    "wait_event": lambda one, two: two.wait_event(one.record_event()),
    "synchronize": lambda one, two: one.synchronize(),
    "the device": lambda one, two: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("name", FENCES)
def test_each_fence_orders(engine, name):
    fence = FENCES[name]
    engine.write(engine.forward)
    fence(engine.forward, engine.schedule)
    engine.gather(engine.schedule)
    fence(engine.schedule, engine.forward)
    engine.write(engine.forward)

    assert engine.races() == []


WAITS = {
    "item": lambda one: one[0].item(),
    "tolist": lambda one: one.tolist(),
    "cpu": lambda one: one.cpu(),
    "to": lambda one: one.to("cpu"),
    "copy_": lambda one: torch.empty(4, dtype=torch.int64).copy_(one),
    "nonzero": lambda one: one.nonzero(),
    "tensor": lambda one: torch.tensor([1, 2], device="cuda"),
    "mask": lambda one: one[one > 0],
}


@pytest.mark.parametrize("name", WAITS)
def test_what_the_host_waits_for_orders(engine, name):
    engine.write(engine.forward)
    with torch.cuda.stream(engine.forward):
        WAITS[name](torch.arange(4, device="cuda"))
    engine.gather(engine.schedule)

    assert engine.races() == []


def test_what_it_does_not_wait_for_orders_nothing(engine):
    pinned = torch.empty(4, dtype=torch.int64, pin_memory=True)
    engine.write(engine.forward)
    with torch.cuda.stream(engine.forward):
        values = torch.arange(4, device="cuda")
        pinned.copy_(values + 1, non_blocking=True)
        _ = values[values.clone().clamp_(max=3)]
    engine.gather(engine.schedule)
    torch.cuda.synchronize()

    assert engine.races() == [("write-read", (1,))]


def test_a_buffer_that_is_brought_to_the_host_is_read_by_it(engine):
    engine.write(engine.forward)
    with torch.cuda.stream(engine.forward):
        assert engine.buf.cpu()[1] == 5
        assert engine.buf.tolist()[1] == 5
    engine.write(engine.schedule)

    assert engine.races() == []


def test_more_lanes_than_a_page_has_slots(engine):
    engine.write(engine.forward)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(9)]
    for stream in streams:
        engine.gather(stream)
    assert engine.races() == []
    engine.write(engine.forward)

    assert {kind for kind, _ in engine.races()} == {"read-write"}


def test_the_clocks_make_no_host_sync(engine):
    value = torch.full((1,), 7, device="cuda")
    engine.write(engine.forward)
    engine.gather(engine.schedule)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for stream in (engine.forward, engine.schedule):
            with torch.cuda.stream(stream):
                engine.buf[engine.batch[1]] = value
                _ = engine.buf[engine.batch[1]]
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert engine.races() != []


def test_our_own_fence_behind_a_hand_out_is_none_of_the_engine_s(engine):
    engine.owners.hand_out([1], ["first"])
    engine.write(engine.forward)
    engine.owners.take_back([1])
    engine.owners.hand_out([1], ["second"])
    engine.write(engine.schedule)

    assert engine.races() == [("write-write", (1,))]


def test_after_a_capture_races_are_incomplete_and_the_graph_s_own_accesses_are_left_out(engine):
    engine.write(engine.forward)
    torch.cuda.synchronize()
    graph, out = torch.cuda.CUDAGraph(), torch.zeros(1, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out.copy_(engine.buf[engine.batch[1]])
    engine.write(engine.forward)
    assert engine.races() == []
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    assert out.item() == 5
    engine.write(engine.forward, 2)
    engine.gather(engine.schedule, 2)

    races = [one for one in engine.tally.drain() if one.code == "FR401"]
    assert [(one.rows, one.confidence) for one in races] == [((2,), "incomplete")]


def test_a_tensor_that_is_handed_over_unfenced_is_a_race(engine):
    with torch.cuda.stream(engine.forward):
        tokens = torch.arange(4, device="cuda") + 1
    with torch.cuda.stream(engine.schedule):
        _ = tokens * 2
    torch.cuda.synchronize()

    (race,) = [one for one in engine.tally.drain() if one.code == "FR401"]
    assert race.buffer.startswith("tensor of test_cuda.py:")
    assert (race.access.stream, race.last_write.stream) == ("schedule", "forward")
    assert race.device == "cuda:0"


def test_the_detector_of_races_is_proved(engine):
    (probe,) = [probe for probe in probes.PROBES if probe.code == "FR401"]

    assert probes.tried(probe, probes.ProbeTarget("cuda")) == ""
    engine.write(engine.forward)
    engine.gather(engine.schedule)
    assert engine.races() == [("write-read", (1,))]


@pytest.mark.parametrize("mode", ["delayed", "random"])
def test_stalled_streams_change_nothing_that_is_fenced(mode, monkeypatch):
    slept, sleep = [], torch.cuda._sleep
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: (slept.append(cycles), sleep(cycles)))
    watch = Watch([], streams=mode, seed=3)
    watch.start()
    try:
        engine = Engine(watch)
        for step in range(20):
            engine.forward.wait_stream(engine.schedule)
            with torch.cuda.stream(engine.forward):
                engine.buf[engine.batch[1]] = step
            engine.schedule.wait_stream(engine.forward)
            with torch.cuda.stream(engine.schedule):
                got = engine.buf[engine.batch[1]]
                assert got.item() == step
        assert engine.races() == []
        assert slept
    finally:
        watch.stop()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_default_device_moves_nothing_of_what_is_watched(tally, device):
    torch.set_default_device("cuda")
    try:
        plain = torch.zeros(16, dtype=torch.int64, device=device)
        buf = relay_tensor(plain, "Map.buf", "engine:Map", tally, (">=", 0))
        buf._relay.lay_poison()
        batch = torch.tensor([1, 2], device=device)
        buf[batch] = 5
        assert buf[batch].tolist() == [5, 5]
        _ = buf[batch]
    finally:
        torch.set_default_device(None)

    assert codes(tally) == ["FR102"]


def test_a_session_with_the_shipped_contracts_lets_go_of_graphs():
    before = dict(vars(torch.cuda.CUDAGraph))
    shipped = Path(fmcheck.contracts.__path__[0]).glob("*.toml")
    watch = Watch([load_contract(path) for path in shipped])
    watch.start()
    assert vars(torch.cuda.CUDAGraph)["replay"] is not before["replay"]
    watch.stop()

    assert dict(vars(torch.cuda.CUDAGraph)) == before


# --- the host's memory, and what torch does by itself ---


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("way", ["copy_", "to"])
@pytest.mark.parametrize("read", ["tolist", "clone", "numpy"])
def test_what_is_copied_to_the_host_is_read_after_a_wait(engine, way, read, fenced):
    target = torch.zeros(4, dtype=torch.int64, pin_memory=True)
    with torch.cuda.stream(engine.forward):
        tokens = torch.arange(4, device="cuda")
        if way == "copy_":
            target.copy_(tokens, non_blocking=True)
        else:
            target = tokens.to("cpu", non_blocking=True)
    if fenced:
        engine.forward.synchronize()
    getattr(target, read)()

    assert codes(engine.tally) == ([] if fenced else ["FR404"])


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("by_numpy", [True, False])
def test_what_is_copied_from_the_host_is_written_after_a_wait(engine, by_numpy, fenced):
    staging = torch.arange(4).pin_memory()
    with torch.cuda.stream(engine.forward):
        _ = staging.to("cuda", non_blocking=True)
    if fenced:
        engine.forward.synchronize()
    if by_numpy:
        staging.numpy()[:] = 9
    else:
        staging.fill_(9)
    torch.cuda.synchronize()

    assert codes(engine.tally) == ([] if fenced else ["FR403"])


def test_memory_that_is_not_pinned_is_waited_for(engine):
    with torch.cuda.stream(engine.forward):
        target = torch.zeros(4)
        target.copy_(torch.ones(4, device="cuda"), non_blocking=True)
    assert target.tolist() == [1.0] * 4
    assert codes(engine.tally) == []


def test_a_backward_pass_joins_the_streams_of_its_nodes(engine):
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(engine.forward):
        out = torch.ones(4, 64, device="cuda") @ weight
    engine.schedule.wait_stream(engine.forward)
    with torch.cuda.stream(engine.schedule):
        (out * 2).sum().backward()
        with torch.no_grad():
            weight -= weight.grad
    torch.cuda.synchronize()

    assert codes(engine.tally) == []


def test_a_capture_begins_with_a_wait(engine):
    with torch.cuda.stream(engine.forward):
        tokens = torch.arange(4, device="cuda") + 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(4, device="cuda")
    with torch.cuda.stream(engine.schedule):
        tokens.add_(1)
    torch.cuda.synchronize()

    assert codes(engine.tally) == []


@pytest.mark.parametrize("wait", ["item", "cpu", "copy back"])
def test_what_the_host_reads_is_a_wait_for_what_a_copy_read(engine, wait):
    staging = torch.arange(4).pin_memory()
    with torch.cuda.stream(engine.forward):
        sent = staging.to("cuda", non_blocking=True)
        if wait == "copy back":
            staging.copy_(sent * 2)
        else:
            getattr(sent.sum(), wait)()
    staging.numpy()[:] = 9
    torch.cuda.synchronize()

    assert codes(engine.tally) == []
