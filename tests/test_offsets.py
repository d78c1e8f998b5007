"""FR201 to FR203 of inputs with one entry more than rows: where each row's tokens begin and end."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime.graphs import open_fill
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Violation

ROWS = 6
CONTRACT = """
    [engine]
    name = "toy"

    [graph_inputs]
    offsets = ["starts"]
    rewritten = ["starts"]
    head = { starts = "> 0" }

    [[graph_inputs.fill]]
    class = "toy_attention:Runner"
    methods = ["plan"]
    settled_by = ["replay"]
    inputs = "self"
    axis.rows = { raw = "count", padded = "self.padded", capacity = "self.rows" }
"""


@dataclass
class Runner:
    """Plans an attention over `padded` rows; how a tail is filled says `pad`."""

    pad: Any = None
    rows: int = ROWS
    padded: int = 4
    skips: int = 0

    def __post_init__(self) -> None:
        self.starts = torch.zeros(ROWS + 1, dtype=torch.int32)

    def plan(self, lens: list[int], count: int) -> None:
        ends = torch.tensor(lens).cumsum(0).to(torch.int32)
        self.starts[1 : count + 1 - self.skips] = ends[: count - self.skips]
        if self.pad is not None:
            self.starts[count + 1 : self.padded + 1] = self.pad(ends[-1])
        self.replay()

    def replay(self) -> None:
        pass


@pytest.fixture(params=["host", "device"])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    module: Any = ModuleType("toy_attention")
    module.Runner = Runner
    monkeypatch.setitem(sys.modules, "toy_attention", module)
    monkeypatch.setattr(open_fill, "compares_on_device", request.param == "device")
    watch = Watch([parse_contract(CONTRACT, "toy.toml")])
    watch.start()
    yield watch
    watch.stop()


def found(watch: Watch) -> list[Violation]:
    assert watch.tally.broken == {}
    return list(watch.drain())


def plan(runner: Runner, *lens: int) -> None:
    runner.plan([*lens], len(lens))


@pytest.mark.parametrize(
    "pad",
    [lambda last: last, lambda last: last + torch.arange(1, 3)],
    ids=["as empty rows", "as rows of one token"],
)
def test_a_tail_that_does_not_fall_is_right(watch: Watch, pad: Any) -> None:
    runner = Runner(pad)
    for _ in range(2):
        plan(runner, 3, 2)
    runner.padded, runner.pad = 2, None
    plan(runner, 5, 4)
    assert found(watch) == []
    assert watch.coverage().counts.tails == 2
    assert watch.coverage().problems == ()


def test_a_tail_that_falls_is_reported_at_the_entry_where_it_does(watch: Watch) -> None:
    plan(Runner(lambda last: torch.tensor([9, 0])), 3, 2)
    (violation,) = found(watch)
    assert (violation.code, violation.rows, violation.values) == ("FR201", (4,), ("0",))
    assert violation.expected.startswith("no entry of the tail less than the one before it")
    assert "`graph_inputs.offsets`" in violation.notes[1]


def test_what_a_larger_batch_has_left_is_reported(watch: Watch) -> None:
    """Its rows still reach as far as that batch did."""
    runner = Runner()
    plan(runner, 3, 2, 4, 1)
    plan(runner, 3, 2)
    (violation,) = found(watch)
    assert (violation.code, violation.rows) == ("FR201", (3, 4))
    assert violation.values == ("9", "10")
    assert "nothing wrote the tail" in violation.notes[0]


def test_what_is_left_is_right_where_it_says_that_the_rows_are_empty(watch: Watch) -> None:
    runner = Runner(lambda last: last)
    plan(runner, 3, 2)
    runner.pad = None
    plan(runner, 4, 1)
    assert found(watch) == []


def test_a_row_that_is_not_written_is_reported_by_its_entry(watch: Watch) -> None:
    """The first entry is no row's: nobody has to write it, and it may be 0."""
    runner = Runner(lambda last: last)
    plan(runner, 3, 2)
    runner.skips = 1
    plan(runner, 4, 2)
    assert [(one.code, one.rows) for one in found(watch)] == [("FR203", (2,))]


def test_a_row_that_holds_no_valid_value_is_reported_by_its_entry(watch: Watch) -> None:
    plan(Runner(lambda last: last), 0, 2)
    assert [(one.code, one.rows) for one in found(watch)] == [("FR202", (1,))]


def test_an_input_of_another_length_does_not_fit_the_contract(watch: Watch) -> None:
    runner = Runner(lambda last: last)
    runner.rows = ROWS - 2
    plan(runner, 3, 2)
    (problem,) = watch.coverage().problems
    assert "`offsets`: `starts` has 7 entries for 4 rows: expected 5" in problem
    assert found(watch) == []
