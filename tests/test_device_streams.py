"""An accelerator's streams, followed by wrapping: shown on a stand-in, for there may be no GPU."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from fmcheck.runtime.device_streams import DeviceStreams
from fmcheck.runtime.fences import Fences
from fmcheck.runtime.tally import Tally


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

            def wait_stream(self, stream: Stream) -> None:
                log.append("wait_stream")

            def wait_event(self, event: object) -> None:
                log.append("wait_event")

            def record_event(self, event: object = None) -> object:
                log.append("record_event")
                return event or module.Event()

            def synchronize(self) -> None:
                log.append("synchronize")

            def query(self) -> bool:
                return self.done

        class Event:
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
                log.append("capture")

            def __exit__(self, *_: object) -> None:
                pass

        def synchronize() -> None:
            log.append("device")

        self.Stream, self.Event, self.graph, self.synchronize = Stream, Event, graph, synchronize
        self.current = Stream(0)
        self.current_stream = lambda device=None: self.current


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
    "record_event anew": lambda one, two, event: two.wait_event(one.record_event(event)),
    "synchronize": lambda one, two, event: one.synchronize(),
    "event synchronize": lambda one, two, event: (event.record(one), event.synchronize()),
}


@pytest.mark.parametrize("name", FENCES)
def test_each_fence_reaches_the_device_and_orders(streams, device, name) -> None:
    assert ordered_by(streams, device, FENCES[name])
    assert name.split()[0] in " ".join(device.log)
    assert streams.fences.doubts == {}


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


def test_two_objects_may_stand_for_one_stream(streams, device) -> None:
    assert streams.lane(device.Stream(7)) is streams.lane(device.Stream(7))


def test_after_a_capture_no_race_is_certain(streams, device) -> None:
    with device.graph():
        pass
    assert list(streams.fences.doubts) == [
        "a graph was captured, and what its replays touch is not seen"
    ]


def test_an_event_of_another_kind_leaves_a_doubt(streams, device) -> None:
    class Foreign:
        pass

    device.Stream().wait_event(Foreign())
    assert "an event of Foreign" in next(iter(streams.fences.doubts))


def test_all_is_put_back(device) -> None:
    before = [dict(vars(one)) for one in (device, device.Stream, device.Event, device.graph)]
    undo = list(DeviceStreams(Fences(Tally()), device, "cuda").follow())
    for one in reversed(undo):
        one()
    assert [
        dict(vars(one)) for one in (device, device.Stream, device.Event, device.graph)
    ] == before
