"""Relay rows that a captured graph touches: entered in the ledger when the contract says so."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "toy_replay:FutureMap"

    [[relay.buffer]]
    name = "*_buf"
    valid = ">= 0"

    [[graph_inputs.replay]]
    function = "toy_replay:Verify.note"
    rows = "self.inputs[*].rows"
    count = "bs"
    writes = ["self.relay.tokens_buf"]

    [[graph_inputs.replay]]
    function = "toy_replay:replayed"
    rows = "relay.rows"
    reads = ["relay.tokens_buf"]
    writes = ["relay.lens_buf"]
"""


class FutureMap:
    def __init__(self) -> None:
        self.tokens_buf = torch.zeros(8, dtype=torch.int64)
        self.lens_buf = torch.zeros(8, dtype=torch.int64)
        self.rows = torch.tensor([1, 2])


class Inputs:
    def __init__(self, *rows: int) -> None:
        self.rows = torch.tensor(rows)


def kernel(buffer: Any, rows: list[int], value: int) -> None:
    """Writes out of Python's sight."""
    np.asarray(buffer.numpy())[rows] = value


class Verify:
    def __init__(self, relay: FutureMap | None) -> None:
        self.relay = relay
        self.inputs = {2: Inputs(1, 2), 4: Inputs(1, 2, 3, 0)}

    def note(self, bs: int) -> None:
        if self.relay is not None:
            kernel(self.relay.tokens_buf, [1, 2, 3][:bs], 7)


def replayed(relay: Any) -> None:
    kernel(relay.lens_buf, [1, 2], 9)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    module: Any = ModuleType("toy_replay")
    for thing in (FutureMap, Verify, replayed):
        setattr(module, thing.__name__, thing)
    monkeypatch.setitem(sys.modules, "toy_replay", module)
    watch = Watch([parse_contract(CONTRACT, "toy.toml")])
    watch.start()
    yield watch
    watch.stop()


def codes(watch: Watch) -> list[str]:
    assert watch.coverage().problems == ()
    return [violation.code for violation in watch.drain()]


def test_a_row_that_a_graph_wrote_is_live(watch: Watch) -> None:
    relay = FutureMap()
    Verify(relay).note(3)
    assert relay.tokens_buf[torch.tensor([1, 2, 3])].tolist() == [7, 7, 7]
    assert codes(watch) == []
    assert watch.coverage().counts.writes == 1
    assert watch.coverage().counts.unseen_writes == 0


def test_only_the_real_rows_are_entered(watch: Watch) -> None:
    relay = FutureMap()
    Verify(relay).note(2)
    relay.tokens_buf[torch.tensor([3])]
    assert codes(watch) == ["FR101"]


def test_a_row_beyond_the_count_was_written_out_of_sight(watch: Watch) -> None:
    relay = FutureMap()
    Verify(relay).note(2)
    kernel(relay.tokens_buf, [3], 7)
    relay.tokens_buf[torch.tensor([1, 2])]
    kernel(relay.tokens_buf, [1, 2], 7)
    Verify(relay).note(1)
    relay.tokens_buf[torch.tensor([1, 2, 3])]
    assert codes(watch) == []
    assert watch.coverage().counts.unseen_writes == 2
    # Row 2 got the very value that stood there: whether it was written cannot be known.
    ((what, _, count),) = watch.coverage().untracked
    assert (what, count) == ("gathers", 1)


def test_memory_handed_out_is_noted_where_dynamo_is_kept_out_of_our_code(watch: Watch) -> None:
    importlib.import_module("torch._dynamo")
    buffer = FutureMap().tokens_buf
    buffer.numpy()
    (((how, _), count),) = buffer._relay.escapes.items()
    assert (how, count) == ("numpy", 1)


def test_the_graphs_write_is_reported_as_the_last_one(watch: Watch) -> None:
    relay = FutureMap()
    Verify(relay).note(2)
    relay.tokens_buf[relay.rows]
    relay.tokens_buf[relay.rows]
    (violation,) = watch.drain()
    assert violation.code == "FR102"
    assert violation.last_write is not None
    assert violation.last_write.site.function == (
        "test_the_graphs_write_is_reported_as_the_last_one"
    )


def test_a_graph_that_gathers_consumes(watch: Watch) -> None:
    relay = FutureMap()
    relay.tokens_buf[relay.rows] = 5
    sys.modules["toy_replay"].replayed(relay)
    assert relay.lens_buf[relay.rows].tolist() == [9, 9]
    assert codes(watch) == []
    relay.tokens_buf[relay.rows]
    assert codes(watch) == ["FR102"]


def test_a_graph_that_gathers_what_nobody_wrote_is_reported(watch: Watch) -> None:
    sys.modules["toy_replay"].replayed(FutureMap())
    assert codes(watch) == ["FR101"]


def test_a_graph_without_a_relay_touches_none(watch: Watch) -> None:
    Verify(None).note(2)
    assert codes(watch) == []


def test_a_path_that_leads_nowhere_is_a_problem(watch: Watch) -> None:
    class Odd(Verify):
        def __init__(self) -> None:
            self.relay = FutureMap()

    Odd().note(1)
    (problem,) = watch.coverage().problems
    assert "replay `toy_replay:Verify.note`: path `self.inputs[*].rows`" in problem


def test_after_the_watch_the_functions_are_as_they_were(watch: Watch) -> None:
    watch.stop()
    assert not hasattr(Verify.note, "__wrapped__")
    assert sys.modules["toy_replay"].replayed is replayed
