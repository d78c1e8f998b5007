"""FR401 on small programs: two streams, one relay row or one tensor between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fmcheck.runtime.relay_tensor import relay_tensor
from fmcheck.runtime.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Violation


class Relay:
    """Two streams and a buffer between them."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.forward = torch.cpu.Stream()
        self.schedule = torch.cpu.Stream()
        plain = torch.zeros(8, dtype=torch.int64)
        self.buf = relay_tensor(plain, "Map.buf", "engine:Map", watch.tally, (">=", 0))
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
