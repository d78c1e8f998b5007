"""FR401, FR403 and FR404 on a device's own streams, shown on a stand-in.

They order what runs on the CPU here, and `meta` stands for the host's memory; for uploads it is the
other way round.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import fmcheck
from fmcheck.runtime.core.site import unfollowed
from fmcheck.runtime.device import device_ops
from fmcheck.runtime.relay.relay_tensor import RelayTensor, relay_tensor
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps import capturing
from tests.test_device_streams import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.finding import Violation
    from fmcheck.runtime.session.followed_streams import FollowedStreams


class Engine:
    """Two streams of a device and a relay buffer between them."""

    def __init__(self, watch: Watch, device: Device) -> None:
        self.watch, self.device = watch, device
        self.forward, self.schedule = device.Stream(), device.Stream()
        plain = torch.zeros(8, dtype=torch.int64)
        streams = watch.services.streams
        self.buf = relay_tensor(
            plain, "Map.buf", "engine:Map", watch.tally, (">=", 0), streams=streams
        )
        self.buf._relay.lay_poison()

    @property
    def streams(self) -> FollowedStreams:
        assert self.watch.services.streams is not None
        return self.watch.services.streams

    def found(self) -> tuple[Violation, ...]:
        return self.watch.drain()

    def reported(self) -> list[tuple[str, str]]:
        return [(one.buffer, one.notes[0].partition(":")[0]) for one in self.found()]


@contextmanager
def following(kind: str) -> Iterator[Engine]:
    """Memory of a kind is the stand-in's."""
    device = Device()
    watch = Watch([], streams="tracked")
    watch.start()
    assert watch.services.streams is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, device.__name__, device)
        undo = list(watch.services.streams.follow_device(device, kind))
        yield Engine(watch, device)
        watch.tally.active = False
        for one in reversed(undo):
            one()
        watch.stop()
    assert _get_current_dispatch_mode_stack() == []


@pytest.fixture
def engine() -> Iterator[Engine]:
    with following("cpu") as engine:
        yield engine


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def test_a_relay_row_and_a_tensor_between_streams_are_races(engine: Engine) -> None:
    with engine.device.stream(engine.forward):
        engine.buf[rows(1)] = 5
        tokens = torch.arange(4) + 1
    with engine.device.stream(engine.schedule):
        _ = engine.buf[rows(1)]
        _ = tokens * 2
    races = engine.found()
    assert [race.buffer.partition(" of ")[0] for race in races] == ["Map.buf", "tensor"]
    for race in races:
        assert race.access.stream == "schedule"
        assert race.last_write is not None
        assert race.last_write.stream == "forward"
        assert race.confidence == ""


def test_their_fenced_twin_is_silent(engine: Engine) -> None:
    with engine.device.stream(engine.forward):
        engine.buf[rows(1)] = 5
        tokens = torch.arange(4) + 1
    engine.schedule.wait_stream(engine.forward)
    with engine.device.stream(engine.schedule):
        _ = engine.buf[rows(1)]
        _ = tokens * 2
    assert engine.found() == ()


@pytest.mark.parametrize("fenced", [True, False])
def test_a_tensor_like_another_is_made_where_that_one_is(engine: Engine, fenced: bool) -> None:
    """`zeros_like` neither reads its tensor nor names a device."""
    with engine.device.stream(engine.forward):
        made = torch.zeros_like(torch.arange(4))
    if fenced:
        engine.schedule.wait_stream(engine.forward)
    with engine.device.stream(engine.schedule):
        _ = made * 2
    assert len(engine.found()) == (not fenced)


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda one: one[0].item(),
    "tolist": lambda one: one.tolist(),
    "cpu": lambda one: one.cpu(),
    "bool": lambda one: bool(one[0]),
    "nonzero": lambda one: one.nonzero(),
    "mask": lambda one: one[one > 0],
    "masked_select": lambda one: one.masked_select(one > 0),
    "upload of values": lambda one: torch.tensor([1, 2]),
    "repeat_interleave": lambda one: one.repeat_interleave(one),
    "equal": lambda one: torch.equal(one, one),
    "copy to the host": lambda one: torch.empty(4, device="meta").copy_(one),
    "to the host": lambda one: one.to("meta"),
}
# As code of fmcheck's own would, which looks at what it was given.
LOOK = compile(
    "one.nonzero()", str(Path(fmcheck.__file__).parent / "runtime" / "relay" / "picks.py"), "eval"
)
LAUNCHES: dict[str, Callable[[torch.Tensor], object]] = {
    "add": lambda one: one + 1,
    "index": lambda one: one[one - 1],
    "put": lambda one: one.index_put_((one - 1,), one + 1),
    "known length": lambda one: one.repeat_interleave(one, output_size=10),
    "a look of fmcheck's own": lambda one: eval(LOOK, {"one": one}),
    "copy": lambda one: one.clone().copy_(one),
    "asynchronous copy": lambda one: torch.empty(4, device="meta").copy_(one, non_blocking=True),
    "to the host at some time": lambda one: one.to("meta", non_blocking=True),
}


def is_race_after(engine: Engine, call: Callable[[torch.Tensor], object]) -> bool:
    with engine.device.stream(engine.forward):
        values = torch.arange(4) + 1
        engine.buf[rows(1)] = 5
        call(values)
    with engine.device.stream(engine.schedule):
        _ = engine.buf[rows(1)]
    return engine.reported() == [("Map.buf", "write-read")]


@pytest.mark.parametrize("name", WAITS)
def test_what_the_host_waits_for_is_a_fence(engine: Engine, name: str) -> None:
    assert not is_race_after(engine, WAITS[name])


@pytest.mark.parametrize("name", LAUNCHES)
def test_what_it_only_launches_is_none(engine: Engine, name: str) -> None:
    assert is_race_after(engine, LAUNCHES[name])


def test_what_the_host_waited_for_includes_the_copy_itself(engine: Engine) -> None:
    with engine.device.stream(engine.forward):
        tokens = torch.zeros(4)
        torch.empty(4, device="meta").copy_(tokens)
        tokens.tolist()
        engine.buf[rows(1)] = 5
        engine.buf.tolist()
    with engine.device.stream(engine.schedule):
        tokens.fill_(1)
        engine.buf[rows(1)] = 6
    assert engine.found() == ()


def test_a_read_by_fmcheck_is_no_fence(engine: Engine) -> None:
    def look(_: torch.Tensor) -> None:
        with unfollowed():
            torch.zeros(4).nonzero()
            engine.forward.synchronize()
            engine.device.synchronize()

    assert is_race_after(engine, look)


def test_what_runs_in_a_capture_is_passed_over(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = torch.zeros(4)
    engine.device.synchronize()
    with monkeypatch.context() as patched, engine.device.stream(engine.forward):
        patched.setattr(capturing, "on", lambda _: True)
        shared.fill_(1)
    with engine.device.stream(engine.schedule):
        _ = shared + 1
    assert engine.found() == ()


def test_a_capture_s_own_stream_leaves_the_thread_watched_once(engine: Engine) -> None:
    watched = _get_current_dispatch_mode_stack()
    context = engine.device.stream(engine.forward)
    with unfollowed():
        context.__enter__()
    context.__exit__(None, None, None)
    assert _get_current_dispatch_mode_stack() == watched
    with engine.device.stream(engine.forward):
        assert _get_current_dispatch_mode_stack() == watched
    assert _get_current_dispatch_mode_stack() == watched


def test_a_context_that_fmcheck_enters_has_no_thread_watched(engine: Engine) -> None:
    watched = []

    def elsewhere() -> None:
        with unfollowed(), engine.device.stream(engine.forward):
            watched.append(len(_get_current_dispatch_mode_stack()))
        with engine.device.stream(engine.forward):
            watched.append(len(_get_current_dispatch_mode_stack()))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert watched == [0, 1]


def test_a_race_is_reported_with_its_device(engine: Engine) -> None:
    other = Device()
    undo = list(engine.streams.follow_device(other, "meta"))
    with other.stream(other.Stream()):
        tokens = torch.empty(4, device="meta") + 1
    with other.stream(other.Stream()):
        _ = tokens * 2
    for one in reversed(undo):
        one()
    (race,) = engine.found()
    assert race.device == "meta"


def test_a_context_that_is_older_than_the_session_may_be_left_in_it() -> None:
    watch = Watch([], streams="tracked")
    with torch.cpu.stream(torch.cpu.Stream()):
        watch.start()
    watch.stop()
    assert _get_current_dispatch_mode_stack() == []


def test_a_thread_that_is_not_watched_leaves_a_doubt(engine: Engine) -> None:
    with engine.device.stream(engine.forward):
        engine.buf[rows(1)] = 5
    assert engine.streams.fences.doubts == {}

    def elsewhere() -> None:
        engine.device.current = engine.schedule
        _ = engine.buf[rows(1)]

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    (race,) = engine.found()
    assert race.confidence == "incomplete"
    assert "fences may have been missed: a thread's waits for the device are not seen" in race.notes


def test_a_relay_buffer_of_a_device_has_its_thread_watched(engine: Engine) -> None:
    assert len(_get_current_dispatch_mode_stack()) == 1
    values = torch.arange(4) + 1
    engine.buf[rows(1)] = 5
    values.nonzero()  # on the default stream, in no context
    with engine.device.stream(engine.schedule):
        _ = engine.buf[rows(1)]
    assert engine.found() == ()


def test_memory_of_the_host_is_nobody_s_launch(engine: Engine) -> None:
    heard = []

    class Listener:
        def before(self, call: object) -> None:
            heard.append(call)

        def after(self, call: object) -> None:
            pass

    engine.streams.ops.listeners.append(Listener())
    with engine.device.stream(engine.forward):
        _ = torch.empty(4, device="meta") + 1
    assert heard == []
    with torch.cpu.stream(torch.cpu.Stream()):
        _ = torch.empty(4, device="meta") + 1
    assert heard != []


def test_a_relay_tensor_is_as_it_was(engine: Engine) -> None:
    assert type(engine.buf) is RelayTensor
    with engine.device.stream(engine.forward):
        engine.buf[rows(1, 2)] = 5
        assert engine.buf[rows(1, 2)].tolist() == [5, 5]
    assert engine.found() == ()


# --- copies from and to the host's memory ---


TOUCHES: dict[str, Callable[[torch.Tensor], object]] = {
    "add": lambda one: one + 1,
    "index": lambda one: one[1:].sum(),
    "clone": lambda one: one.clone(),
    "copy from": lambda one: torch.empty(4, device="meta").copy_(one),
}


@pytest.mark.parametrize("waits", ["", "stream", "event", "device", "item"])
@pytest.mark.parametrize("touch", TOUCHES)
def test_the_host_reads_what_a_device_copies_to_it_once_it_has_waited(
    engine: Engine, touch: str, waits: str
) -> None:
    device, done = engine.device, engine.device.Event()
    target = torch.zeros(4, device="meta")
    with device.stream(engine.forward):
        one = torch.arange(4.0)
        target.copy_(one, non_blocking=True)
        done.record()
        if waits == "item":
            one[0].item()
    {"stream": engine.forward.synchronize, "event": done.synchronize}.get(waits, lambda: None)()
    if waits == "device":
        device.synchronize()
    TOUCHES[touch](target)
    found = engine.found()
    assert [one.code for one in found] == ([] if waits else ["FR404"])
    for one in found:
        assert one.last_write is not None
        assert (one.access.stream, one.last_write.stream) == ("host", "forward")


def test_what_to_made_on_the_host_is_read_after_a_wait(engine: Engine) -> None:
    with engine.device.stream(engine.forward):
        sent = torch.arange(4).to("meta", non_blocking=True)
    _ = sent + 1
    assert [one.code for one in engine.found()] == ["FR404"]


def test_a_device_s_copies_of_two_buffers_are_two(engine: Engine) -> None:
    """As an engine with two pairs of buffers, which waits for the other pair's event."""
    targets = [torch.zeros(4, device="meta") for _ in range(2)]
    done = [engine.device.Event() for _ in range(2)]
    for step in range(4):
        with engine.device.stream(engine.forward):
            targets[step % 2].copy_(torch.arange(4), non_blocking=True)
            done[step % 2].record()
        if step:
            done[1 - step % 2].synchronize()
            _ = targets[1 - step % 2] + 1
    assert engine.found() == ()


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Here `meta` is the device, and this process's memory the host's, all of it pinned."""
    monkeypatch.setattr(device_ops, "_is_pinned", lambda tensor: True)
    with following("meta") as engine:
        yield engine


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "fill_": lambda one: one.fill_(7),
    "copy_": lambda one: one.copy_(torch.ones(4)),
    "by index": lambda one: one.__setitem__(torch.tensor([1]), 7.0),
    "a part": lambda one: one[1:].zero_(),
    "NumPy": lambda one: one.numpy().fill(7),
}


@pytest.mark.parametrize("waited", [True, False])
@pytest.mark.parametrize("way", ["copy_", "to"])
@pytest.mark.parametrize("write", WRITES)
def test_the_host_writes_what_a_device_has_yet_to_read(
    uploads: Engine, write: str, way: str, waited: bool
) -> None:
    staging, target = torch.arange(4.0), torch.empty(4, device="meta")
    with uploads.device.stream(uploads.forward):
        if way == "to":
            target = staging.to("meta", non_blocking=True)
        else:
            target.copy_(staging, non_blocking=True)
    if waited:
        uploads.forward.synchronize()
    WRITES[write](staging)
    uploads.device.synchronize()
    found = uploads.found()
    assert [one.code for one in found] == ([] if waited else ["FR403"])


def test_a_buffer_that_is_only_read_meanwhile_is_no_one_s_fault(uploads: Engine) -> None:
    staging, target = torch.arange(4.0), torch.empty(4, device="meta")
    with uploads.device.stream(uploads.forward):
        target.copy_(staging, non_blocking=True)
    _ = staging + 1, staging.tolist(), staging.clone()
    assert uploads.found() == ()
    lifetimes = uploads.streams.lifetimes
    assert lifetimes is not None
    assert lifetimes.awaits_devices
    uploads.device.synchronize()
    assert not lifetimes.awaits_devices


def test_what_a_device_brought_meanwhile_is_no_write_of_the_host(uploads: Engine) -> None:
    """As by `staging.copy_(device)`, which the host waits for, while another copy reads it."""
    staging, target = torch.arange(4.0), torch.empty(4, device="meta")
    with uploads.device.stream(uploads.forward):
        target.copy_(staging, non_blocking=True)
    lifetimes = uploads.streams.lifetimes
    assert lifetimes is not None
    lifetimes.brought_by_device(staging)
    staging.numpy()[:] = 7
    uploads.device.synchronize()
    assert uploads.found() == ()


# --- what torch does in threads of its own ---


@contextmanager
def without_a_line(engine: Engine) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.watch.tally.sites, "here", lambda ours=0: 0)
        yield


def test_what_torch_alone_does_is_nobody_s_race(engine: Engine) -> None:
    with without_a_line(engine):
        with engine.device.stream(engine.forward):
            grad = torch.arange(4) + 1
        with engine.device.stream(engine.schedule):
            _ = grad * 2
    assert engine.found() == ()
    assert engine.watch.coverage().untracked != ()


def test_a_race_with_what_torch_alone_does_is_incomplete(engine: Engine) -> None:
    with engine.device.stream(engine.forward):
        tokens = torch.arange(4) + 1
    with without_a_line(engine), engine.device.stream(engine.schedule):
        _ = tokens * 2
    assert [(one.code, one.confidence) for one in engine.found()] == [("FR401", "incomplete")]


@pytest.mark.parametrize("by_torch", [True, False])
def test_after_a_backward_pass_its_nodes_are_waited_for(engine: Engine, by_torch: bool) -> None:
    """What a hook of the program does on a stream of its own is not."""
    made = []

    def node(grad: torch.Tensor) -> None:
        with engine.device.stream(engine.forward):
            made.append(torch.arange(4) + 1)

    def hook(grad: torch.Tensor) -> None:
        with without_a_line(engine) if by_torch else nullcontext():
            node(grad)

    with engine.device.stream(engine.schedule):
        leaf = torch.ones(2, requires_grad=True)
        leaf.register_hook(hook)
        (leaf * 2).sum().backward()
        _ = made[0] * 2
    assert [one.code for one in engine.found()] == ([] if by_torch else ["FR401"])
