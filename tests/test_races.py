"""FR401 on small programs: two streams, one relay row or one tensor between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from _pytest._io.saferepr import saferepr

from fmcheck.contract import parse_contract
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps.placements import declare_host, take_for_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.finding import Violation


class Relay:
    """Two streams and a buffer between them."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.forward = torch.cpu.Stream()
        self.schedule = torch.cpu.Stream()
        plain = torch.zeros(8, dtype=torch.int64)
        streams = watch.services.streams
        self.buf = relay_tensor(
            plain, "Map.buf", "engine:Map", watch.tally, (">=", 0), streams=streams
        )
        self.buf._relay.lay_poison()

    def found(self) -> tuple[Violation, ...]:
        return self.watch.drain()


@pytest.fixture
def relay() -> Iterator[Relay]:
    watch = Watch([], streams="tracked")
    watch.start()
    yield Relay(watch)
    watch.stop()


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def test_a_gather_that_nothing_orders_after_the_write_is_a_race(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(1, 2)] = 5
    with torch.cpu.stream(relay.schedule):
        _ = relay.buf[rows(2)]
    (race,) = relay.found()
    assert (race.code, race.name, race.buffer, race.rows) == (
        "FR401",
        "stream-race",
        "Map.buf",
        (2,),
    )
    assert (race.access.verb, race.access.stream) == ("gather", "schedule")
    assert race.last_write is not None
    assert race.last_write.stream == "forward"
    assert race.last_write.site.line < race.access.site.line
    line = race.last_write.site.line
    assert race.missing == (
        f"a wait of stream `schedule` for an event recorded after test_races.py:{line} "
        "on stream `forward`"
    )


@pytest.mark.parametrize(
    ("shown", "code"), [("rows", "FR401"), ("tensor", "FR401"), ("tokens_cpu", "FR404")]
)
def test_what_pytest_reads_to_show_it_is_no_race(relay: Relay, shown: str, code: str) -> None:
    class Batch:
        def __repr__(self) -> str:
            if shown == "rows":
                return str(relay.buf[rows(1)].tolist())
            return str(tensor if shown == "tensor" else tokens_cpu)

    for show, found in (saferepr, []), (repr, [code]):
        with torch.cpu.stream(relay.forward):
            tensor = torch.ones(2) + 1
            tokens_cpu = torch.empty(2)
            tokens_cpu.copy_(torch.ones(2), non_blocking=True)
            relay.buf[rows(1)] = 5
        with torch.cpu.stream(relay.schedule):
            assert show(Batch())
        assert [race.code for race in relay.found()] == found


HOST = "cpu"
SENT: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[str]]] = {
    "by cpu()": (lambda rows: rows.cpu(), []),
    "by its name": (lambda rows: rows.to("cpu"), []),
    "by a setting": (lambda rows: rows.to(HOST), ["FR401"]),  # it may stay on the device
}


@pytest.mark.parametrize("how", SENT)
def test_what_the_host_has_copied_is_read_whenever(relay: Relay, how: str) -> None:
    send, expected = SENT[how]
    with torch.cpu.stream(relay.forward):
        torch.zeros(1, device=HOST)  # so that a name that is spelled is another thing
        relay.buf[rows(1)] = 5
        kept = send(relay.buf[1:2])
        relay.buf[rows(1)] = 6
    with torch.cpu.stream(relay.schedule):
        _ = kept + 1
    assert [race.code for race in relay.found() if race.code != "FR103"] == expected


@pytest.mark.parametrize("is_async", [False, True])
def test_the_host_waits_for_rows_that_it_copies(relay: Relay, is_async: bool) -> None:
    with torch.cpu.stream(relay.forward):
        torch.zeros(1, device=HOST)
        relay.buf[rows(1)] = 5
        relay.buf[1:2].to("cpu", non_blocking=is_async)
    with torch.cpu.stream(relay.schedule):
        _ = relay.buf[rows(1)]
    assert [race.code for race in relay.found()] == ["FR401"] * is_async


def test_its_fenced_twin_is_silent(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(1, 2)] = 5
    relay.schedule.wait_stream(relay.forward)
    with torch.cpu.stream(relay.schedule):
        _ = relay.buf[rows(2)]
    assert relay.found() == ()


def test_disjoint_rows_are_no_race(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(1, 2)] = 5
    with torch.cpu.stream(relay.schedule):
        relay.buf[rows(3, 4)] = 5
        _ = relay.buf[rows(3)]
    assert relay.found() == ()


def test_an_undeclared_tensor_that_is_handed_over_unfenced_is_a_race(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        tokens = torch.arange(4) + 1
    with torch.cpu.stream(relay.schedule):
        _ = tokens * 2
    (race,) = relay.found()
    assert race.buffer.startswith("tensor of test_races.py:")
    assert (race.access.stream, race.last_write and race.last_write.stream) == (
        "schedule",
        "forward",
    )


def test_a_write_over_what_another_stream_still_gathers_is_a_race(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(1)] = 5
    relay.schedule.wait_stream(relay.forward)
    with torch.cpu.stream(relay.schedule):
        _ = relay.buf[rows(1)]
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(1)] = 6
    (race,) = relay.found()
    assert (race.code, race.access.verb, race.access.stream) == ("FR401", "write", "forward")
    assert race.last_read is not None
    assert race.last_read.stream == "schedule"
    assert "stream `forward` had synchronized with nothing" in race.notes
    assert any(
        "stream `schedule` had synchronized with stream `forward` up to" in n for n in race.notes
    )


def test_two_writes_that_nothing_orders_are_a_race(relay: Relay) -> None:
    for stream in (relay.forward, relay.schedule):
        with torch.cpu.stream(stream):
            relay.buf[rows(1)] = 5
    assert [race.notes[0].partition(":")[0] for race in relay.found()] == ["write-write"]


def test_the_sink_row_is_never_a_race(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(0, 1)] = 5
    with torch.cpu.stream(relay.schedule):
        _ = relay.buf[rows(0)]
    assert relay.found() == ()


def test_a_peek_of_the_whole_buffer_reads_every_row(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(3)] = 5
    with torch.cpu.stream(relay.schedule):
        _ = relay.buf.clone()
    (race,) = relay.found()
    assert (race.access.verb, race.rows) == ("peek", (3,))


def test_a_peek_of_a_view_reads_its_rows_alone(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(3)] = 5
    with torch.cpu.stream(relay.schedule):
        _ = relay.buf[4:6].clone()
    assert relay.found() == ()


def test_an_earlier_peek_is_reported_as_one(relay: Relay) -> None:
    with torch.cpu.stream(relay.schedule):
        _ = relay.buf[4:6].clone()
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(4)] = 5
    (race,) = relay.found()
    assert race.notes[0] == "read-write: peek on stream `schedule`, then write on stream `forward`"


@pytest.mark.parametrize("read", ["tolist", "item", "cpu"])
def test_the_host_that_reads_unfenced_races(relay: Relay, read: str) -> None:
    with torch.cpu.stream(relay.forward):
        tokens = torch.arange(1) + 1
    with torch.cpu.stream(relay.schedule):
        getattr(tokens, read)()
    (race,) = relay.found()
    assert race.access.stream == "host"
    assert race.missing.startswith("a wait of the host for an event recorded after")


def test_what_is_read_as_numpy_is_host_memory(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        tokens = torch.arange(4) + 1
    with torch.cpu.stream(relay.schedule):
        tokens.numpy()  # of a device's memory torch refuses it
    assert relay.found() == ()


def test_the_host_waits_for_the_current_stream_by_reading(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        (torch.arange(4) + 1).tolist()
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(1)] = 5
        int(relay.buf[1])
    assert relay.found() == ()


def test_the_target_of_a_copy_that_nobody_waits_for_is_another_check_s(relay: Relay) -> None:
    mirror = torch.empty(4, dtype=torch.int64)
    with torch.cpu.stream(relay.forward):
        mirror.copy_(torch.arange(4) + 1, non_blocking=True)
    mirror.tolist()
    assert [one.code for one in relay.found()] == ["FR404"]


def test_undeclared_memory_is_judged_by_the_bytes_that_are_touched(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        shared = torch.zeros(8)
    torch.cpu.synchronize()
    with torch.cpu.stream(relay.forward):
        shared[:4].fill_(1)
    with torch.cpu.stream(relay.schedule):
        shared[4:].fill_(1)
        _ = shared[4:] + 1
    assert relay.found() == ()
    with torch.cpu.stream(relay.schedule):
        _ = shared[3:] + 1
    assert len(relay.found()) == 1


def test_undeclared_memory_that_is_written_by_index_is_left_alone(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        mapping = torch.zeros(8, dtype=torch.int64)
    torch.cpu.synchronize()
    with torch.cpu.stream(relay.forward):
        mapping[rows(1)] = 1
    with torch.cpu.stream(relay.schedule):
        _ = mapping[rows(5)]
    assert relay.found() == ()


def test_memory_that_was_freed_is_nobody_s(relay: Relay) -> None:
    for stream in (relay.forward, relay.schedule) * 20:
        with torch.cpu.stream(stream):
            tensor = torch.arange(1000) + 1
            del tensor
    assert relay.found() == ()
    streams = relay.watch.services.streams
    assert streams is not None
    assert len([*streams.cross_stream.blocks]) < 20


def test_one_missing_fence_is_one_report(relay: Relay) -> None:
    with torch.cpu.stream(relay.forward):
        several = [torch.arange(4) + n for n in range(6)]
    with torch.cpu.stream(relay.schedule):
        for one in several:
            _ = one * 2
    (race,) = relay.found()
    assert race.count == 6


def test_where_a_fence_may_be_out_of_sight_a_race_fails_nothing(relay: Relay) -> None:
    streams = relay.watch.services.streams
    assert streams is not None
    streams.fences.doubt("a graph was captured")
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(1)] = 5
    with torch.cpu.stream(relay.schedule):
        _ = relay.buf[rows(1)]
    (race,) = relay.found()
    assert race.confidence == "incomplete"
    assert "fences may have been missed: a graph was captured" in race.notes
    assert relay.watch.is_advice(race)


GATED = """
    [engine]
    name = "toy"

    [[relay]]
    class = "{package}:Map"
    optional = true

    [[relay.buffer]]
    name = "buf"

    [streams]
    gated = "the toy fences on CUDA alone"
"""


@pytest.mark.parametrize(("package", "fails"), [("torch", False), ("not_imported", True)])
def test_a_write_behind_a_fence_of_some_platforms_alone_fails_nothing(
    package: str, fails: bool
) -> None:
    contract = parse_contract(GATED.format(package=package), "toy.toml")
    watch = Watch([contract], streams="tracked")
    watch.start()
    try:
        relay = Relay(watch)
        shared = torch.zeros(8)
        with torch.cpu.stream(relay.forward):
            _ = shared + 1
        with torch.cpu.stream(relay.schedule):
            shared.fill_(2)
            relay.buf[rows(1)] = 5
        with torch.cpu.stream(relay.forward):
            _ = relay.buf[rows(1)]
        before, after = relay.found()
    finally:
        watch.stop()
    assert before.notes[0].startswith("read-write")
    assert watch.is_advice(before) is not fails
    assert ("the contract says: the toy fences on CUDA alone" in before.notes) is not fails
    assert after.notes[0].startswith("write-read")
    assert not watch.is_advice(after)


def test_without_streams_of_the_engine_s_own_no_operator_is_looked_at(relay: Relay) -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    assert _get_current_dispatch_mode_stack() == []
    relay.buf[rows(1)] = 5
    _ = relay.buf[rows(1)]
    assert relay.found() == ()


def delayed(mode: str, seed: int = 0) -> list[int]:
    """What a stream gathers of rows 1 to 7 that another wrote twice, with a fence between."""
    watch = Watch([], streams=mode, seed=seed)
    watch.start()
    try:
        relay = Relay(watch)
        with torch.cpu.stream(relay.forward):
            relay.buf[torch.arange(1, 8)] = 5
            relay.schedule.wait_event(relay.forward.record_event())
            relay.buf[rows(2, 3)] = 6
            own = relay.buf[rows(3)]
        with torch.cpu.stream(relay.schedule):
            got = relay.buf.clone().tolist()[1:]
        torch.cpu.synchronize()
        assert own.tolist() == [6]
        return got
    finally:
        watch.stop()


def test_a_delayed_write_is_seen_by_its_own_stream_and_by_whom_a_fence_lets() -> None:
    assert delayed("tracked") == [5, 6, 6, 5, 5, 5, 5]
    assert delayed("delayed")[:2] == [5, 5]


def test_a_random_delivery_is_one_of_the_two() -> None:
    seen = {delayed("random", seed)[1] for seed in range(10)}
    assert seen == {5, 6}
    assert delayed("random", 3) == delayed("random", 3)


# --- a read may be the late side ---


def overtaken(
    mode: str, read: str, fenced: bool, used: bool = False
) -> tuple[list[int], list[str]]:
    """What a stream read of memory that another stream writes afterwards, and what was reported."""
    watch = Watch([], streams=mode)
    watch.start()
    try:
        relay = Relay(watch)
        plain, target = torch.full((8,), 5), torch.zeros(8, dtype=torch.int64)
        source = relay.buf if read.startswith("relay") else plain
        relay.buf[torch.arange(8)] = torch.full((8,), 5)
        for stream in (relay.forward, relay.schedule):
            stream.wait_stream(torch.cpu.current_stream())
        with torch.cpu.stream(relay.schedule):
            got = target
            if read.endswith("gather"):
                got = source[rows(1, 2)]
            else:
                target.copy_(source, non_blocking=True)
            if used:
                got.add_(0)
            if fenced:
                relay.forward.wait_event(relay.schedule.record_event())
        with torch.cpu.stream(relay.forward):
            source[rows(1, 2)] = torch.tensor([7, 8])
        torch.cpu.synchronize()
        return got[-2:].tolist() if read.endswith("gather") else got[1:3].tolist(), [
            one.code for one in relay.found()
        ]
    finally:
        watch.stop()


READS = ("relay gather", "relay copy", "copy")


@pytest.mark.parametrize("read", READS)
def test_a_read_that_a_write_may_overtake_gets_what_that_leaves(read: str) -> None:
    assert overtaken("tracked", read, fenced=False) == ([5, 5], ["FR401"])
    assert overtaken("delayed", read, fenced=False) == ([7, 8], ["FR401"])


@pytest.mark.parametrize("read", READS)
def test_a_read_that_a_fence_lets_be_done_is_not_overtaken(read: str) -> None:
    assert overtaken("delayed", read, fenced=True) == ([5, 5], [])


def test_a_read_that_was_used_stays_as_it_is() -> None:
    assert overtaken("delayed", "relay gather", fenced=False, used=True) == ([5, 5], ["FR401"])


def read_and_kept(read: str, is_host: bool = False) -> tuple[list[int], list[str]]:
    """What a stream read of memory that the same stream writes next, by itself or by a copy."""
    watch = Watch([], streams="delayed")
    watch.start()
    try:
        relay = Relay(watch)
        torch.cpu.current_stream().wait_stream(relay.schedule)  # what is made from here on is known
        kept, target = torch.full((4,), 5), torch.zeros(4, dtype=torch.int64)
        relay.forward.wait_stream(torch.cpu.current_stream())
        if is_host:
            declare_host(kept)
        with torch.cpu.stream(relay.forward):
            if read == "clone":
                target = kept.clone()
                kept.copy_(torch.full((4,), 6), non_blocking=True)
            elif read == "clone, shown":
                target = kept.clone()
                _ = kept.numpy().sum()
            else:
                target.copy_(kept, non_blocking=True)
            kept.mul_(2)
        torch.cpu.synchronize()
        return target.tolist(), [one.code for one in relay.found()]
    finally:
        watch.stop()


@pytest.mark.parametrize("read", ["clone", "clone, shown", "copy"])
def test_a_stream_s_read_comes_before_its_own_write_whosever_the_memory_is(read: str) -> None:
    assert read_and_kept(read) == ([5] * 4, [])


def test_a_copy_of_what_is_the_host_s_is_overtaken_by_the_host() -> None:
    assert read_and_kept("copy", is_host=True) == ([10] * 4, ["FR403"])


def test_a_relay_buffer_goes_to_the_host_by_a_copy_as_any_tensor_of_the_device_does(
    relay: Relay,
) -> None:
    take_for_device(relay.buf)
    with torch.cpu.stream(relay.forward):
        relay.buf[rows(1)] = 5
        pulled = relay.buf.to("cpu", non_blocking=True)
        relay.buf[rows(1)] = 6
    relay.forward.synchronize()
    assert pulled.tolist()[1] == 5
    assert relay.found() == ()
