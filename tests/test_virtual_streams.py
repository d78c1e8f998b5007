"""Virtual streams: what torch.cpu's streams do in a session, and that nothing is left after it."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch.cpu import Stream as StreamFromBefore
from torch.cpu import synchronize as synchronize_from_before
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fmcheck.runtime.core import moment
from fmcheck.runtime.order import virtual
from fmcheck.runtime.order.virtual import current_lane, lane_of
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps import factories
from fmcheck.runtime.steps.torch_modes import is_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.order.fences import Fences

OLD_STREAM, OLD_EVENT = torch.cpu.Stream(), torch.cpu.Event()


@pytest.fixture
def fences() -> Iterator[Fences]:
    watch = Watch([], streams="tracked")
    watch.start()
    assert watch.services.streams is not None
    yield watch.services.streams.fences
    watch.stop()


def knows(fences: Fences, later: object, earlier: object) -> bool:
    """Tells whether all that a stream was given so far comes before what another does next."""
    lane = lane_of(earlier)
    epoch = fences.now(lane)
    # Whoever knows of the record knows of what came before it.
    return fences.ordered(epoch, fences.host if later == "host" else lane_of(later))


def state() -> list[object]:
    owners = (torch.cpu, torch.cpu.Stream, torch.cpu.Event, torch.cpu.StreamContext)
    return [dict(vars(owner)) for owner in owners] + [vars(torch.Tensor).get("record_stream")]


def test_nothing_is_patched_before_and_after() -> None:
    before = state()
    watch = Watch([], streams="tracked")
    watch.start()
    assert state() != before
    with torch.cpu.stream(torch.cpu.Stream()):
        torch.ones(2)
    watch.stop()
    assert state() == before
    assert moment.virtual is None
    assert synchronize_from_before is torch.cpu.synchronize


def test_a_session_without_streams_patches_nothing() -> None:
    before = state()
    watch = Watch([], streams="off")
    watch.start()
    assert state() == before
    watch.stop()


def test_objects_of_a_session_go_on_as_no_ops() -> None:
    watch = Watch([], streams="tracked")
    watch.start()
    stream, event = torch.cpu.Stream(), torch.cpu.Event()
    event.record(stream)
    watch.stop()
    event.record(stream)
    stream.wait_event(event)
    stream.wait_stream(torch.cpu.Stream())
    assert event.query()
    assert stream.record_event() is not None
    event.synchronize()
    stream.synchronize()
    with torch.cpu.stream(stream):
        assert torch.cpu.current_stream() is stream


def test_objects_of_one_session_are_new_to_the_next() -> None:
    first = Watch([], streams="tracked")
    first.start()
    stream, event = torch.cpu.Stream(), torch.cpu.Event()
    event.record(stream)
    first.stop()
    second = Watch([], streams="tracked")
    second.start()
    other = torch.cpu.Stream()
    other.wait_event(event)  # its record was another session's
    assert second.services.streams is not None
    assert not knows(second.services.streams.fences, other, stream)
    second.stop()


class OwnStream(torch.cpu.Stream):
    """A stream of an engine's own."""


def test_a_copy_of_a_stream_or_event_is_another_one() -> None:
    watch = Watch([], streams="tracked")
    watch.start()
    old = torch.cpu.Stream(), torch.cpu.Event(), OLD_STREAM, OLD_EVENT, OwnStream()
    for one in old:
        (one if isinstance(one, torch.cpu.Event) else torch.cpu.Event()).record(
            one if isinstance(one, torch.cpu.Stream) else None
        )
    kept = copy.deepcopy(old), pickle.loads(pickle.dumps(old))
    assert b"fmcheck" not in pickle.dumps(old[:2])
    for stream, event, *_, own in kept:
        event.record(stream)
        own.wait_event(event)
        assert stream.stream_id != old[0].stream_id
        assert lane_of(own) is not lane_of(old[-1])
    watch.stop()
    copy.deepcopy(old)


def test_classes_are_the_ones_that_were_imported_before(fences: Fences) -> None:
    assert torch.cpu.Stream is StreamFromBefore
    assert isinstance(torch.cpu.Stream(), StreamFromBefore)
    assert isinstance(OLD_STREAM, torch.cpu.Stream)
    assert torch.get_device_module("cpu").Stream is StreamFromBefore


def test_objects_from_before_are_followed(fences: Fences) -> None:
    stream = torch.cpu.Stream()
    OLD_EVENT.record(stream)
    assert not knows(fences, OLD_STREAM, stream)
    OLD_STREAM.wait_event(OLD_EVENT)
    OLD_EVENT.record(stream)
    fences.now(lane_of(stream))
    OLD_STREAM.wait_stream(stream)
    assert OLD_STREAM.stream_id != stream.stream_id


@pytest.mark.parametrize(
    "order",
    [
        lambda one, two, event: (event.record(one), event.wait(two)),
        lambda one, two, event: (event.record(one), two.wait_event(event)),
        lambda one, two, event: two.wait_event(one.record_event(event)),
        lambda one, two, event: two.wait_event(one.record_event()),
        lambda one, two, event: two.wait_stream(one),
        lambda one, two, event: (event.record(one), event.synchronize()),
        lambda one, two, event: (event.record(one), event.query()),
        lambda one, two, event: one.synchronize(),
        lambda one, two, event: one.query(),
        lambda one, two, event: torch.cpu.synchronize(),
        lambda one, two, event: synchronize_from_before(),
    ],
    ids=[
        *("event.wait", "wait_event", "record_event", "record_event again", "wait_stream"),
        *("event.synchronize", "event.query", "synchronize", "query", "device", "imported before"),
    ],
)
def test_each_fence_orders(fences: Fences, order) -> None:
    one, two, event = torch.cpu.Stream(), torch.cpu.Stream(), torch.cpu.Event()
    epoch = fences.now(lane_of(one))
    assert not fences.ordered(epoch, lane_of(two))
    order(one, two, event)
    assert fences.ordered(epoch, lane_of(two))
    assert not fences.ordered(fences.now(lane_of(one)), lane_of(two))


def test_the_current_stream_is_that_of_the_innermost_context(fences: Fences) -> None:
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    default = torch.cpu.current_stream()
    assert default.stream_id == 0
    with torch.cpu.stream(one):
        with torch.cpu.stream(two), torch.cpu.stream(None):
            assert torch.cpu.current_stream() is two
            assert current_lane() is lane_of(two)
        assert torch.cpu.current_stream() is one
    assert torch.cpu.current_stream() is default


def test_a_context_may_be_entered_again(fences: Fences) -> None:
    one = torch.cpu.Stream()
    context = torch.cpu.stream(one)
    for _ in range(2):
        with context, context:
            assert torch.cpu.current_stream() is one
    assert torch.cpu.current_stream() is not one


def test_each_thread_has_a_current_stream_of_its_own(fences: Fences) -> None:
    one, seen = torch.cpu.Stream(), []

    def look() -> None:
        seen.append(torch.cpu.current_stream().stream_id)
        with torch.cpu.stream(torch.cpu.Stream()):
            torch.ones(2) + 1
            seen.append(torch.cpu.current_stream() is one)

    with torch.cpu.stream(one):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert torch.cpu.current_stream() is one
    assert seen == [0, False]


def test_a_race_between_threads_is_seen(fences: Fences) -> None:
    one = torch.cpu.Stream()
    two = torch.cpu.Stream()
    kept = []

    def write() -> None:
        with torch.cpu.stream(one):
            kept.append(torch.arange(3) + 1)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    with torch.cpu.stream(two):
        _ = kept[0] + 1
    assert [race.access.stream for race in fences.tally.drain()] == ["two"]


def test_a_context_left_by_an_error_is_left(fences: Fences) -> None:
    before = torch.cpu.current_stream()
    with pytest.raises(ValueError, match="left"), torch.cpu.stream(torch.cpu.Stream()):
        raise ValueError("left")
    assert torch.cpu.current_stream() is before


def test_a_context_entered_before_the_session_may_be_left_in_it() -> None:
    watch = Watch([], streams="tracked")
    with torch.cpu.stream(torch.cpu.Stream()):
        watch.start()
        torch.ones(2) + 1
    assert torch.cpu.current_stream().stream_id == 0
    watch.stop()


def test_a_context_entered_in_the_session_may_be_left_after_it() -> None:
    watch = Watch([], streams="tracked")
    watch.start()
    with torch.cpu.stream(torch.cpu.Stream()):
        watch.stop()
        torch.ones(2) + 1
    assert torch.cpu.current_stream() is torch.cpu._default_cpu_stream


def test_what_a_stream_did_before_it_was_gone_is_not_taken_for_the_next_one_s(
    fences: Fences,
) -> None:
    stream = torch.cpu.Stream()
    number = lane_of(stream).number
    epoch = fences.now(lane_of(stream))
    del stream
    following = torch.cpu.Stream()
    assert lane_of(following).number != number
    assert not fences.ordered(epoch, lane_of(following))


def test_the_place_of_a_stream_that_was_waited_for_is_used_again(fences: Fences) -> None:
    stream = torch.cpu.Stream()
    number = lane_of(stream).number
    fences.now(lane_of(stream))
    stream.synchronize()
    del stream
    assert lane_of(torch.cpu.Stream()).number == number


def test_streams_that_nobody_waits_for_take_a_bounded_number_of_places(fences: Fences) -> None:
    for _ in range(200):
        fences.now(lane_of(torch.cpu.Stream()))
    assert len(fences.lanes) < 50


def test_a_tensor_may_be_lent_to_a_stream(fences: Fences) -> None:
    reported = []
    fences.listeners.append(lambda happened: reported.append((happened.what, happened.about)))
    tensor = torch.ones(2)
    tensor.record_stream(torch.cpu.Stream())
    assert [what for what, _ in reported] == ["lend"]
    assert reported[0][1]() is tensor


def test_outside_of_a_session_torch_refuses_to_lend() -> None:
    with pytest.raises(RuntimeError):
        torch.ones(2).record_stream(torch.cpu.Stream())


def test_events_take_what_a_device_s_take(fences: Fences) -> None:
    begin, end = torch.cpu.Event(enable_timing=True), torch.cpu.Event(enable_timing=True)
    begin.record()
    end.record()
    assert begin.elapsed_time(end) >= 0
    torch.cpu.Stream(priority=-1)


class Loop:
    def __init__(self) -> None:
        self.forward_stream = torch.cpu.Stream()
        self.others = [torch.cpu.Stream() for _ in range(2)]


class Slotted:
    __slots__ = ("copy",)

    def __init__(self, stream: object) -> None:
        self.copy = stream


def made() -> torch.cpu.Stream:
    return torch.cpu.Stream()


def test_a_stream_has_the_name_that_the_engine_gives_it(fences: Fences) -> None:
    loop, slotted = Loop(), Slotted(made())
    local = torch.cpu.Stream()
    assert lane_of(loop.forward_stream).name == "forward_stream"
    assert lane_of(slotted.copy).name == "copy"
    assert lane_of(local).name == "local"
    assert lane_of(loop.others[0]).name.startswith("stream ")
    assert lane_of(Loop().forward_stream).name == "forward_stream (2)"
    assert lane_of(torch.cpu.current_stream()).name == "default stream"


def test_streams_that_one_line_makes_again_and_again_are_not_all_looked_for(
    fences: Fences, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(virtual, "holder_of", lambda stream: looks.append(stream) or "")

    def stream() -> torch.cpu.Stream:
        return torch.cpu.Stream()

    names = {lane_of(stream()).name for _ in range(20)}
    assert len(looks) == 8
    assert len(names) == 20
    assert lane_of((lambda: torch.cpu.Stream())()).name.startswith("stream ")
    assert len(looks) == 9


def test_a_mode_of_the_engine_s_own_may_be_entered_and_left_around_streams(fences: Fences) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    outer, inner = Counting(), Counting()
    with outer:
        with torch.cpu.stream(torch.cpu.Stream()), inner:
            torch.ones(2) + 1
        assert _get_current_dispatch_mode_stack()[-1] is outer
    assert outer not in _get_current_dispatch_mode_stack()
    assert outer.count >= inner.count > 0


def test_a_mode_may_be_left_inside_of_a_stream_that_was_entered_in_it(fences: Fences) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    mode, stream = Passing(), torch.cpu.stream(torch.cpu.Stream())
    mode.__enter__()
    stream.__enter__()
    mode.__exit__(None, None, None)
    assert mode not in _get_current_dispatch_mode_stack()
    stream.__exit__(None, None, None)


def test_compiled_code_stays_compiled_in_a_stream(fences: Fences) -> None:
    frames = []

    def backend(graph, inputs):
        frames.append(len(inputs))
        return graph.forward

    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    with torch.cpu.stream(torch.cpu.Stream()):
        assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))
    assert len(frames) == 1


def is_watched() -> bool:
    return any(is_ours(mode) for mode in _get_current_dispatch_mode_stack())


NO_USES = {
    "a stream is made": lambda stream, event: torch.cpu.Stream(),
    "an event is made": lambda stream, event: torch.cpu.Event(),
    "the current stream is asked for": lambda stream, event: torch.cpu.current_stream(),
    "the device is waited for": lambda stream, event: torch.cpu.synchronize(),
    "memory is copied": lambda stream, event: torch.ones(2).copy_(torch.ones(2), True),
}
USES = {
    "a stream is entered": lambda stream, event: torch.cpu.stream(stream).__enter__(),
    "an event is recorded": lambda stream, event: event.record(),
    "an event is waited for": lambda stream, event: event.wait(),
    "the host waits for an event": lambda stream, event: event.synchronize(),
    "an event is asked for": lambda stream, event: event.query(),
    "a stream records": lambda stream, event: stream.record_event(),
    "a stream waits for an event": lambda stream, event: stream.wait_event(event),
    "a stream waits for a stream": lambda stream, event: stream.wait_stream(
        torch.get_device_module("cpu").current_stream()
    ),
    "the host waits for a stream": lambda stream, event: stream.synchronize(),
    "memory is lent": lambda stream, event: torch.ones(2).record_stream(stream),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_thread_is_watched_from_its_first_use_of_streams(fences: Fences, use) -> None:
    stream, event = torch.cpu.Stream(), torch.cpu.Event()
    assert not is_watched()
    use(stream, event)
    assert is_watched()
    torch.cpu.StreamContext(stream).__exit__(None, None, None)


@pytest.mark.parametrize("setup", NO_USES.values(), ids=NO_USES)
def test_what_an_engine_does_to_set_up_begins_no_watch(fences: Fences, setup) -> None:
    setup(torch.cpu.Stream(), torch.cpu.Event())
    assert not is_watched()


def test_each_thread_is_watched_from_its_own_first_use(fences: Fences) -> None:
    seen = []

    def look() -> None:
        seen.append(is_watched())
        torch.cpu.Event().record()
        seen.append(is_watched())

    torch.cpu.Event().record()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [False, True]


def test_each_test_is_watched_from_its_own_first_use() -> None:
    watch = Watch([], streams="tracked")
    watch.start()
    try:
        event = torch.cpu.Event()
        event.record()
        watch.begin_test()
        assert not is_watched()
        event.query()
        assert is_watched()
    finally:
        watch.stop()


def _backward(hook: Callable[[torch.Tensor], object]) -> None:
    """A backward pass with two leaves, for each of which a hook is called."""
    leaves = [torch.ones(4, requires_grad=True) for _ in range(2)]
    for leaf in leaves:
        leaf.register_post_accumulate_grad_hook(hook)
    sum(leaf.sum() for leaf in leaves).backward()


@pytest.mark.parametrize("waits", [False, True])
def test_what_hooks_of_a_backward_pass_do_is_followed_in_each_pass(waits: bool) -> None:
    """As a trainer's that reduces each gradient on a stream of its own, and uses none elsewhere."""
    watch = Watch([], streams="tracked")
    watch.start()
    try:
        side = torch.cpu.Stream()
        bucket, reduced = torch.zeros(4), []

        def hook(leaf: torch.Tensor) -> None:
            if waits:
                torch.get_device_module("cpu").current_stream().wait_stream(side)
            bucket.copy_(leaf.grad)
            side.wait_stream(torch.get_device_module("cpu").current_stream())
            with torch.cpu.stream(side):
                reduced.append(bucket * 2)

        for _ in range(2):
            _backward(hook)
            assert not is_watched()
            bucket.zero_()  # nobody knows what was waited for
        with torch.cpu.stream(side):
            bucket.add_(1)
        assert not is_watched()
        assert [one.code for one in watch.drain()] == ([] if waits else ["FR401"])
    finally:
        watch.stop()


def test_streams_that_are_first_used_behind_a_backward_pass_are_followed() -> None:
    watch = Watch([], streams="tracked")
    watch.start()
    try:
        side = torch.cpu.Stream()
        _backward(lambda leaf: None)
        assert not is_watched()
        with torch.cpu.stream(side):
            pass
        assert is_watched()
    finally:
        watch.stop()


def test_a_backward_pass_that_fails_leaves_no_watch() -> None:
    def fail(leaf: torch.Tensor) -> None:
        raise ValueError(leaf.shape)

    watch = Watch([], streams="tracked")
    watch.start()
    try:
        torch.cpu.Stream()
        with pytest.raises(ValueError, match="4"):
            _backward(fail)
        assert not is_watched()
    finally:
        watch.stop()


@pytest.mark.parametrize("begun", [False, True])
def test_a_backward_pass_that_fails_is_over_for_who_began_to_watch_it_alone(begun: bool) -> None:
    def fail(leaf: torch.Tensor) -> None:
        raise ValueError(leaf.shape)

    seen: list[bool] = []
    undo = factories.hear_backward(lambda: begun, seen.append)
    try:
        with pytest.raises(ValueError, match="4"):
            _backward(fail)
        assert seen == [True] * begun
        _backward(lambda leaf: None)
        assert seen == [*[True] * begun, begun]
    finally:
        undo()


def test_a_backward_pass_of_an_engine_without_streams_begins_no_watch() -> None:
    watch = Watch([], streams="tracked")
    watch.start()
    try:
        seen: list[bool] = []
        _backward(lambda leaf: seen.append(is_watched()))
        assert seen == [False, False]
    finally:
        watch.stop()


def raced(use: Callable[[], object]) -> list[str]:
    """What is said of a write on the default stream that a stream in a thread reads unordered."""
    watch = Watch([], streams="tracked")
    watch.start()
    try:
        shared, side = torch.zeros(4, device=torch.device("cpu")), torch.cpu.Stream()
        use()
        shared.fill_(2)

        def read() -> None:
            with torch.cpu.stream(side):
                _ = shared + 1

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        return [one.code for one in watch.drain()]
    finally:
        watch.stop()


def test_the_default_stream_of_a_thread_that_enters_none_is_a_stream_like_others() -> None:
    assert raced(lambda: torch.cpu.Event().record()) == ["FR401"]
    assert raced(lambda: None) == []


def test_a_wait_in_a_thread_lets_others_launch_what_races_with_it(monkeypatch) -> None:
    watch = Watch([], streams="tracked")
    waiting, written = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        waiting.set()
        assert written.wait(10)

    monkeypatch.setattr("fmcheck.runtime.order.virtual._sleep", sleep)
    watch.start()
    try:
        shared, side = torch.zeros(4, device=torch.device("cpu")), torch.cpu.Stream()
        torch.cpu.Event().record()

        def save() -> None:
            with torch.cpu.stream(side):
                _ = shared.clone()
                done = side.record_event()
            done.synchronize()
            done.synchronize()  # it has waited: this takes no time

        thread = threading.Thread(target=save)
        thread.start()
        has_waited = waiting.wait(10)
        shared.fill_(2)
        written.set()
        thread.join()
        assert has_waited
        assert [one.code for one in watch.drain()] == ["FR401"]
    finally:
        watch.stop()


def slept(fences: Fences, monkeypatch, use: Callable[[torch.cpu.Stream], object]) -> int:
    """How often a thread sleeps that waits for a stream twice, after it was used."""
    slept: list[float] = []
    monkeypatch.setattr("fmcheck.runtime.order.virtual._sleep", slept.append)
    stream = torch.cpu.Stream()

    def wait() -> None:
        use(stream)
        stream.synchronize()
        stream.synchronize()  # it has waited: nothing is pending

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert not fences.tally.broken
    return len(slept)


def test_a_thread_does_not_sleep_for_a_stream_with_nothing_pending(
    fences: Fences, monkeypatch
) -> None:
    assert slept(fences, monkeypatch, lambda stream: stream.record_event()) == 0


def test_a_thread_sleeps_for_what_a_stream_did(fences: Fences, monkeypatch) -> None:
    def write(stream: torch.cpu.Stream) -> None:
        with torch.cpu.stream(stream):
            torch.ones(2).add_(1)

    assert slept(fences, monkeypatch, write) == 1


def test_a_thread_sleeps_for_what_a_stream_waits_for(fences: Fences, monkeypatch) -> None:
    def wait_for_another(stream: torch.cpu.Stream) -> None:
        other = torch.cpu.Stream()
        with torch.cpu.stream(other):
            torch.ones(2).add_(1)
        stream.wait_stream(other)

    assert slept(fences, monkeypatch, wait_for_another) == 1
