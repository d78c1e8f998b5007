"""An accelerator's streams, followed by wrapping: shown on a stand-in, for there may be no GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from fmcheck.runtime.core.site import unfollowed
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.device.device_streams import LONGEST, DeviceStreams, Stalls, why_not
from fmcheck.runtime.order.fences import Fences
from fmcheck.runtime.session.followed_streams import FollowedStreams
from fmcheck.runtime.steps import capturing


class Device(ModuleType):
    """What `torch.cuda` has, and a log of what reached it."""

    def __init__(self) -> None:
        super().__init__("stand_in_device")
        log = self.log = []
        module = self

        class Stream:
            numbers = iter(range(1, 100))

            def __init__(self, number: int | None = None) -> None:
                self.stream_id = next(self.numbers) if number is None else number
                self.device_index = 0
                self.done = False

            # They call one another, as torch's do.
            def wait_stream(self, stream: Stream) -> None:
                log.append("wait_stream")
                self.wait_event(stream.record_event())

            def wait_event(self, event: Event) -> None:
                log.append("wait_event")
                event.wait(self)

            def record_event(self, event: Event | None = None) -> Event:
                log.append("record_event")
                event = event or module.Event()
                event.record(self)
                return event

            def synchronize(self) -> None:
                log.append("synchronize")

            def query(self) -> bool:
                return self.done

        class Event:
            __slots__ = ("__dict__",)  # no weak reference is to be made to one
            done = False

            def record(self, stream: object = None) -> None:
                log.append("record")

            def wait(self, stream: object = None) -> None:
                log.append("wait")

            def synchronize(self) -> None:
                log.append("event synchronize")

            def query(self) -> bool:
                return self.done

        class graph:  # noqa: N801
            def __enter__(self) -> None:
                module.synchronize()
                module.CUDAGraph().capture_begin()

            def __exit__(self, *_: object) -> None:
                pass

        class StreamContext:
            def __init__(self, stream: Stream) -> None:
                self.stream = stream

            def __enter__(self) -> None:
                self.outer, module.current = module.current, self.stream

            def __exit__(self, *_: object) -> None:
                module.current = self.outer

        class CUDAGraph:
            def capture_begin(self) -> None:
                log.append("capture_begin")

            def replay(self) -> None:
                log.append("replay")

        class ExternalStream(Stream):
            def __new__(cls, pointer: int) -> ExternalStream:
                return super().__new__(cls)

        def synchronize() -> None:
            log.append("device")

        def sleep(cycles: int) -> None:
            log.append(f"sleep {self.current.stream_id} {cycles}")

        self.Stream, self.Event, self.graph, self.synchronize = Stream, Event, graph, synchronize
        self.StreamContext = self.stream = StreamContext
        self.CUDAGraph, self.ExternalStream, self._sleep = CUDAGraph, ExternalStream, sleep
        self.capturing = False
        self.is_current_stream_capturing = lambda: self.capturing
        self._current = [Stream(0)]
        self.current_stream = lambda device=None: self.current

    @property
    def current(self) -> object:
        return self._current[0]

    @current.setter
    def current(self, stream: object) -> None:
        self._current[0] = stream


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@pytest.fixture
def streams(device: Device):
    followed = DeviceStreams(Fences(Tally()), device, "cuda")
    undo = list(followed.follow())
    yield followed
    for one in reversed(undo):
        one()


def ordered_by(streams: DeviceStreams, device: Device, order) -> bool:
    one, two = device.Stream(), device.Stream()
    epoch = streams.fences.now(streams.lane(one))
    assert not streams.fences.ordered(epoch, streams.lane(two))
    order(one, two, device.Event())
    return streams.fences.ordered(epoch, streams.lane(two))


FENCES = {
    "wait_stream": lambda one, two, event: two.wait_stream(one),
    "wait_event": lambda one, two, event: (event.record(one), two.wait_event(event)),
    "wait": lambda one, two, event: (event.record(one), event.wait(two)),
    "record_event": lambda one, two, event: two.wait_event(one.record_event()),
    "record_event again": lambda one, two, event: two.wait_event(one.record_event(event)),
    "synchronize": lambda one, two, event: one.synchronize(),
    "event synchronize": lambda one, two, event: (event.record(one), event.synchronize()),
}


@pytest.mark.parametrize("name", FENCES)
def test_each_fence_reaches_the_device_and_orders(streams, device, name) -> None:
    assert ordered_by(streams, device, FENCES[name])
    assert name.split()[0] in " ".join(device.log)
    assert streams.fences.doubts == {}


@pytest.mark.parametrize("way", ["record", "record_event"])
def test_a_record_that_takes_another_s_place_is_known_to(streams, device, way) -> None:
    """What FR405 asks for: the wait meets the later record."""
    one, two, event = device.Stream(), device.Stream(), device.Event()
    event.record(one)
    first = streams._record_of(event)
    if way == "record":
        event.record(two)
    else:
        two.record_event(event)
    second = streams._record_of(event)
    assert second.lane is streams.lane(two)
    assert streams.fences.replaced_by(second) is first
    assert streams.fences.replaced_by(first) is None


def test_a_record_of_another_session_is_none_of_this_one_s(streams, device) -> None:
    event = device.Event()
    event.record(device.Stream())
    other = DeviceStreams(Fences(Tally()), device, "cuda")
    assert other._record_of(event) is None


def test_the_device_s_own_synchronize_orders(streams, device) -> None:
    assert ordered_by(streams, device, lambda *_: device.synchronize())
    assert device.log == ["device"]


@pytest.mark.parametrize("done", [True, False])
def test_a_query_orders_only_if_it_said_true(streams, device, done) -> None:
    def ask(one, two, event) -> None:
        event.record(one)
        event.done = one.done = done
        assert event.query() is one.query() is done

    assert ordered_by(streams, device, ask) is done


def test_the_current_stream_is_the_device_s(streams, device) -> None:
    event, two = device.Event(), device.Stream()
    epoch = streams.fences.now(streams.lane())
    event.record()
    assert streams.lane().name == "cuda/default stream"
    two.wait_event(event)
    assert streams.fences.ordered(epoch, streams.lane(two))


def test_a_stream_has_its_name_from_the_object_that_was_entered(streams, device) -> None:
    class Engine:
        def __init__(self) -> None:
            self.forward = device.Stream(7)

    engine = Engine()
    with device.stream(engine.forward):
        device.current = device.Stream(7)  # another object for the same stream, as torch makes
        assert streams.lane().name == "forward"
        assert streams.name_of_current("cuda:0") == "forward"


def test_two_objects_may_stand_for_one_stream(streams, device) -> None:
    assert streams.lane(device.Stream(7)) is streams.lane(device.Stream(7))


def test_after_a_capture_no_race_is_certain(streams, device) -> None:
    with device.graph():
        pass
    assert list(streams.fences.doubts) == [
        "a graph was captured, and what its replays touch is not seen"
    ]


def test_what_torch_waits_for_before_it_captures_is_a_wait(streams, device) -> None:
    lane = streams.lane(device.Stream())
    streams.fences.launch(lane)
    epoch = streams.fences.now(lane)
    assert not streams.fences.ordered(epoch, streams.fences.host)
    with device.graph():
        assert streams.fences.ordered(epoch, streams.fences.host)


@pytest.mark.parametrize("name", ["capture_begin", "replay"])
def test_after_a_graph_of_any_other_way_no_race_is_certain(streams, device, name) -> None:
    getattr(device.CUDAGraph(), name)()
    assert device.log == [name]
    assert len(streams.fences.doubts) == 1


def test_a_stream_from_outside_leaves_a_doubt(streams, device) -> None:
    assert device.ExternalStream(1234).stream_id > 0
    assert "a stream came from outside of torch" in next(iter(streams.fences.doubts))


def test_a_stream_of_another_class_leaves_a_doubt(streams, device) -> None:
    class Foreign:
        stream_id = 3

        def record_event(self) -> object:
            return device.Event()

    device.Stream().wait_stream(Foreign())
    assert "a stream of Foreign, whose waits are not seen" in streams.fences.doubts


def test_streams_of_torch_accelerator_leave_a_doubt(device, monkeypatch) -> None:
    accelerator = ModuleType("stand_in_accelerator")
    accelerator.current_stream = lambda: device.current
    accelerator.synchronize = lambda: device.log.append("accelerator")
    monkeypatch.setitem(sys.modules, accelerator.__name__, accelerator)
    followed = DeviceStreams(Fences(Tally()), device, "cuda")
    undo = list(followed.follow(accelerator))
    assert accelerator.current_stream() is device.current
    for one in reversed(undo):
        one()
    assert list(followed.fences.doubts) == [
        "torch.accelerator handed out a stream, whose waits are not seen"
    ]


def test_a_collective_that_is_waited_for_leaves_a_doubt(streams) -> None:
    class Work:
        def wait(self, timeout: float = 0) -> bool:
            return True

    (put_back,) = streams.follow_work(Work)
    within = compile("Work().wait()", "torch/distributed/distributed_c10d.py", "eval")
    assert eval(within, {"Work": Work}) is True
    assert streams.fences.doubts == {}
    assert Work().wait(1.0) is True
    put_back()
    assert list(streams.fences.doubts) == [
        "a collective was waited for, which orders streams where fmcheck cannot see it"
    ]


def test_what_torch_s_methods_call_is_reported_once(streams, device) -> None:
    one, two = device.Stream(), device.Stream()
    streams.lane(one)
    happened = []
    streams.fences.listeners.append(happened.append)
    two.wait_stream(one)
    two.record_event()
    assert [each.what for each in happened] == ["record", "wait", "record"]


def test_what_fmcheck_does_itself_is_not_told(streams, device) -> None:
    def order(one, two, event) -> None:
        with unfollowed():
            two.wait_stream(one)
            device.synchronize()

    assert not ordered_by(streams, device, order)
    assert device.log[-1] == "device"


# --- stalls ---


def stalled(device: Device, seed: int | None, fence) -> list[str]:
    followed = DeviceStreams(Fences(Tally()), device, "cuda", Stalls(device, seed))
    undo = list(followed.follow())
    device.log.clear()
    try:
        for _ in range(8):
            fence()
    finally:
        for one in reversed(undo):
            one()
    return [entry for entry in device.log if entry.startswith("sleep")]


def test_each_record_and_wait_is_followed_by_a_stall_on_its_stream(device) -> None:
    one, two, event = device.Stream(5), device.Stream(6), device.Event()
    expected = {
        "record": (lambda: event.record(one), 5),
        "record_event": (lambda: one.record_event(), 5),
        "current": (lambda: event.record(), 0),
        "wait": (lambda: event.wait(two), 6),
        "wait_event": (lambda: two.wait_event(event), 6),
        "wait_stream": (lambda: two.wait_stream(one), 6),
    }
    for fence, stream in expected.values():
        assert stalled(device, None, fence) == [f"sleep {stream} {LONGEST}"] * 8
    assert device.current.stream_id == 0


@pytest.mark.parametrize("name", ["synchronize", "query"])
def test_the_host_is_never_held_up(device, name) -> None:
    assert stalled(device, None, lambda: getattr(device.Stream(), name)()) == []


def test_random_stalls_are_drawn_by_the_seed(device) -> None:
    runs = [stalled(device, seed, lambda: device.Event().record()) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    lengths = [int(entry.split()[2]) for run in runs for entry in run]
    assert 0 < len(lengths) < 24
    assert len(set(lengths)) > 3
    assert max(lengths) <= LONGEST


def test_a_capture_is_never_stalled(device) -> None:
    device.capturing = True
    assert stalled(device, None, lambda: device.Event().record()) == []


@pytest.mark.parametrize("mode", ["tracked", "delayed", "random"])
def test_streams_are_stalled_in_the_modes_that_perturb(device, mode) -> None:
    followed = FollowedStreams(Tally(), mode, seed=3)
    undo = list(followed.follow_device(device, "cuda"))
    for _ in range(8):
        device.Event().record()
    for one in reversed(undo):
        one()
    assert any(entry.startswith("sleep") for entry in device.log) is (mode != "tracked")


def test_an_event_of_another_kind_leaves_a_doubt(streams, device) -> None:
    class Foreign:
        def wait(self, stream: object) -> None:
            pass

    device.Stream().wait_event(Foreign())
    assert "an event of Foreign" in next(iter(streams.fences.doubts))


def test_all_is_put_back(device) -> None:
    classes = (device.Stream, device.Event, device.graph, device.CUDAGraph, device.ExternalStream)
    before = [dict(vars(one)) for one in (device, *classes)]
    undo = list(DeviceStreams(Fences(Tally()), device, "cuda").follow())
    for one in reversed(undo):
        one()
    assert [dict(vars(one)) for one in (device, *classes)] == before


# --- other accelerators ---


@pytest.fixture
def accelerator(device, monkeypatch):
    """Lets torch name the stand-in as this machine's accelerator, an `npu`."""
    import torch

    named = SimpleNamespace(
        is_available=lambda: True, current_accelerator=lambda: SimpleNamespace(type="npu")
    )
    modules = torch.get_device_module
    monkeypatch.setattr(torch, "accelerator", named)
    monkeypatch.setattr(
        torch, "get_device_module", lambda kind: device if kind == "npu" else modules(kind)
    )
    return device


def followed_by_a_session(mode: str = "tracked") -> tuple[FollowedStreams, list]:
    made = FollowedStreams(Tally(), mode, seed=3)
    return made, list(made.follow())


def test_streams_of_another_accelerator_are_followed(accelerator) -> None:
    streams, undo = followed_by_a_session()
    one, two = accelerator.Stream(), accelerator.Stream()
    lanes = [streams.devices["npu"].lane(stream) for stream in (one, two)]
    epoch = streams.fences.now(lanes[0])
    two.wait_stream(one)
    for each in reversed(undo):
        each()
    assert streams.fences.ordered(epoch, lanes[1])
    assert lanes[0].name == f"npu/stream {one.stream_id}"
    assert streams.tally.notes == {}
    assert streams.devices == {}


@pytest.mark.parametrize(
    ("owner", "name"),
    [("", "Stream"), ("", "Event"), ("", "current_stream"), ("", "stream"), ("Event", "query")],
)
def test_an_accelerator_without_one_of_these_is_refused_by_name(accelerator, owner, name) -> None:
    delattr(getattr(accelerator, owner) if owner else accelerator, name)
    streams, undo = followed_by_a_session()
    for each in reversed(undo):
        each()
    missing = f"{owner}.{name}" if owner else name
    assert list(streams.tally.notes) == [
        f"streams of `npu` are not followed: its module has no `{missing}`"
    ]


def test_an_accelerator_whose_streams_are_torch_s_own_class_is_refused(accelerator) -> None:
    import torch

    accelerator.Stream = torch.Stream  # as torch.mtia has it
    streams, undo = followed_by_a_session()
    for each in reversed(undo):
        each()
    (note,) = streams.tally.notes
    assert note == (
        "streams of `npu` are not followed: "
        "its `Stream` is a class of C++, whose methods cannot be wrapped"
    )


@pytest.mark.parametrize("module", ["xpu", "cuda"])
def test_the_streams_of_torch_s_own_modules_can_be_followed(module) -> None:
    import torch

    assert why_not(getattr(torch, module)) == ""


def test_an_accelerator_that_cannot_hold_streams_up_says_so_and_is_followed(accelerator) -> None:
    del accelerator._sleep
    streams, undo = followed_by_a_session("delayed")
    accelerator.Event().record()
    for each in reversed(undo):
        each()
    assert list(streams.tally.notes) == [
        "streams of `npu` are not delayed: its module has no `_sleep`"
    ]
    assert streams.tally.broken == {}


def test_a_buffer_on_a_device_that_torch_does_not_name_is_said_to_be_unfollowed() -> None:
    streams = FollowedStreams(Tally())
    buffer = SimpleNamespace(device="npu:0", guard=None)
    assert streams.lanes_for(buffer) is None
    assert streams.lanes_for(buffer) is None
    assert streams.tally.notes == {
        "streams of `npu` are not followed: torch does not name it as this machine's accelerator": 1
    }


def test_a_graph_of_another_accelerator_leaves_no_race_certain(device) -> None:
    device.XPUGraph = device.CUDAGraph
    del device.CUDAGraph
    followed = DeviceStreams(Fences(Tally()), device, "xpu")
    undo = list(followed.follow())
    device.XPUGraph().replay()
    for one in reversed(undo):
        one()
    assert len(followed.fences.doubts) == 1


def test_a_capture_on_another_accelerator_is_seen(device, monkeypatch) -> None:
    import torch

    npu = SimpleNamespace(type="npu")
    monkeypatch.setattr(torch, "get_device_module", lambda _: device)
    assert not capturing.on(npu)
    device.capturing = True
    assert capturing.on(npu)


def test_a_device_whose_context_an_error_has_ended_captures_nothing(monkeypatch) -> None:
    import torch

    def ended() -> bool:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", ended)
    assert not capturing.on(torch.device("cuda", 0))
