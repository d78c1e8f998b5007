"""FR602: an async assert that torch.compile has deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.contract import Buffer, Contract, Engine, Relay
from fmcheck.finding import Site
from fmcheck.runtime.graphs.dead_assert import gone
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = torch.tensor([1, 2])


class FutureMap:
    def __init__(self) -> None:
        self.buf: Any = torch.zeros(8, dtype=torch.int64)


@pytest.fixture(autouse=True)
def watch() -> Iterator[Watch]:
    torch._dynamo.reset()
    relay = Relay(class_=f"{__name__}:FutureMap", buffer=(Buffer(name="buf", valid=">= 0"),))
    watch = Watch([Contract(engine=Engine(name="toy"), relay=(relay,))])
    watch.start()
    yield watch
    watch.stop()


def bare(values: Any, buf: Any, rows: Any) -> None:
    torch._assert_async((values >= 0).all())
    buf[rows] = -1


def worded(values: Any, buf: Any, rows: Any) -> None:
    torch._assert_async((values >= 0).all(), "stale")
    buf[rows] = -1


def both(values: Any, buf: Any, rows: Any) -> None:
    torch._assert_async((values >= 0).all(), "stale")
    torch._assert_async((values >= 0).all())
    buf[rows] = -1


def line(function: Any, offset: int) -> int:
    return int(function.__code__.co_firstlineno) + offset


def reported(watch: Watch) -> list[tuple[str, str, int]]:
    found = watch.drain()
    return [(one.code, one.buffer, one.access.site.line) for one in found]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_plain_call_tells_the_dead_assert_and_no_other(watch: Watch, backend: str) -> None:
    for function in (worded, both, bare):
        torch.compile(function, dynamic=True, backend=backend)(torch.ones(2), torch.zeros(8), ROWS)
    assert reported(watch) == [("FR602", "both", line(both, 2)), ("FR602", "bare", line(bare, 1))]
    assert watch.coverage().notes == ()


def test_a_guard_that_is_handed_a_relay_buffer_is_seen_too(watch: Watch) -> None:
    fm = FutureMap()
    fm.buf[ROWS] = 5
    torch.compile(bare, dynamic=True, backend="aot_eager")(fm.buf[ROWS], fm.buf, ROWS)
    assert reported(watch) == [("FR602", "bare", line(bare, 1))]


def test_it_is_reported_once_however_often_it_is_compiled(watch: Watch) -> None:
    compiled = torch.compile(bare, dynamic=False, backend="aot_eager")
    for size in (2, 3, 4):
        compiled(torch.ones(size), torch.zeros(8), torch.arange(size))
    (violation,) = watch.drain()
    assert violation.count == 1


def test_an_assert_that_runs_eagerly_is_alive(watch: Watch) -> None:
    torch.compile(bare, backend="eager")(torch.ones(2), torch.zeros(8), ROWS)
    assert reported(watch) == []


def test_it_is_advice_and_fails_nothing_unless_asked(watch: Watch) -> None:
    torch.compile(bare, backend="aot_eager")(torch.ones(2), torch.zeros(8), ROWS)
    (violation,) = watch.drain()
    assert watch.is_advice(violation)
    assert not Watch((), fail_on=("FR602",)).is_advice(violation)
    assert (watch.coverage().violations, watch.coverage().warnings) == (0, 1)


def test_of_two_asserts_on_a_line_one_may_go() -> None:
    here = Site("a.py", 1, "f")
    assert gone([here, here], [here]) == (here,)
    assert gone([here], [here, here]) == ()
