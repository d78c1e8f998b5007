"""Rows that move between requests: a function after which a table tells who has each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fmcheck.runtime.core import paths
from tests.test_relay_patches import Bench, bench, codes  # noqa: F401

#: A batch that stays: requests have the first rows, and the last ones move where one has left.
SOURCE = """
    import types

    import torch

    class Batch:
        def __init__(self):
            self.req_ids = []
            self.row_of = {}
            self.lengths_cpu = torch.zeros(6, dtype=torch.int64)
            self.lengths = self.lengths_cpu.numpy()
            self.masks = torch.zeros(6, 4, dtype=torch.int64)
            self.moves_lengths = self.resets_masks = self.swaps_masks = True

        @property
        def reqs(self):
            return [rid and types.SimpleNamespace(rid=rid) for rid in self.req_ids]

        def add(self, rid, length, mask=None):
            row = self.req_ids.index(None) if None in self.req_ids else len(self.req_ids)
            self.req_ids[row:row + 1] = [rid]
            self.row_of[rid] = row
            self.lengths[row] = length
            if mask is not None:
                self.masks[row] = mask
            return row

        def remove(self, rid):
            row = self.row_of.pop(rid)
            self.req_ids[row] = None
            if self.resets_masks:
                self.masks[row] = 0

        def condense(self):
            while None in self.req_ids:
                last = len(self.req_ids) - 1
                if self.req_ids[last] is not None:
                    hole = self.req_ids.index(None)
                    self.req_ids[hole] = self.req_ids[last]
                    self.row_of[self.req_ids[last]] = hole
                    if self.moves_lengths:
                        self.lengths[hole] = self.lengths[last]
                    self.masks[hole] = self.masks[last]
                    if self.resets_masks:
                        self.masks[last] = 0
                self.req_ids.pop()

        def swap(self, one, other):
            ids = self.req_ids
            ids[one], ids[other] = ids[other], ids[one]
            self.row_of[ids[one]], self.row_of[ids[other]] = one, other
            self.lengths[one], self.lengths[other] = self.lengths[other], self.lengths[one]
            if self.swaps_masks:
                self.masks[[one, other]] = self.masks[[other, one]]

        def prepare(self):
            count = len(self.req_ids)
            rows = torch.arange(count)
            return self.lengths_cpu[rows].tolist(), self.masks[rows].sum(1).tolist()

    def step(batch):
        return batch.prepare()
"""
CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "MODULE:Batch"
    sink_rows = []
    pool = ["self"]

    [[relay.buffer]]
    name = "lengths"
    reads = "many"
    overwrite = "always"

    [[relay.buffer]]
    name = "lengths_cpu"
    reads = "many"
    overwrite = "always"

    [[relay.buffer]]
    name = "masks"
    reads = "many"
    overwrite = "always"

    [[owners]]
    functions = [
        "MODULE:Batch.add",
        "MODULE:Batch.remove",
        "MODULE:Batch.condense",
        "MODULE:Batch.swap",
    ]
    does = "assigns"
    pool = "self"
    owner = "self.req_ids[]"

    [[steps]]
    functions = ["MODULE:step"]
"""


class Engine:
    def __init__(self, bench: Bench, text: str = CONTRACT) -> None:  # noqa: F811
        self.module: Any
        self.module, self.watch = bench.engine(text, SOURCE)
        self.batch = self.module.Batch()

    def step(self) -> Any:
        return self.module.step(self.batch)

    def fill(self) -> None:
        for number, rid in enumerate("abcd"):
            self.batch.add(rid, 10 + number, number)


@pytest.fixture
def engine(bench: Bench) -> Engine:  # noqa: F811
    return Engine(bench)


def test_a_request_takes_its_rows_along(engine: Engine) -> None:
    engine.fill()
    engine.batch.swap(0, 3)
    assert engine.step() == ([13, 11, 12, 10], [12, 4, 8, 0])
    engine.batch.remove("b")
    engine.batch.condense()
    assert engine.step() == ([13, 10, 12], [12, 0, 8])
    engine.batch.add("e", 7)
    assert engine.step() == ([13, 10, 12, 7], [12, 0, 8, 0])
    assert codes(engine.watch) == []
    coverage = engine.watch.coverage()
    assert (coverage.problems, coverage.notes, coverage.untracked) == ((), (), ())


@pytest.mark.parametrize("table", ["self.req_ids", "self.row_of", "self.reqs[].rid"])
def test_the_table_is_a_list_or_a_mapping(bench: Bench, table: str) -> None:  # noqa: F811
    engine = Engine(bench, CONTRACT.replace("self.req_ids[]", table))
    test_a_request_takes_its_rows_along(engine)
    engine.batch.moves_lengths = False
    engine.batch.remove("d")
    engine.batch.condense()
    engine.step()
    assert codes(engine.watch) == ["FR104"]


def test_a_buffer_that_is_not_moved_is_stale_for_whoever_came(engine: Engine) -> None:
    engine.fill()
    engine.batch.moves_lengths = False
    engine.batch.remove("b")
    engine.batch.condense()
    engine.step()
    (wrong,) = engine.watch.drain()
    assert (wrong.code, wrong.buffer, wrong.rows) == ("FR104", "Batch.lengths_cpu", (1,))
    assert (wrong.owner, wrong.previous_owner) == ("d", "b")
    assert wrong.last_write.site.function == "Batch.add"


def test_a_buffer_that_is_not_swapped_is_stale_for_both(engine: Engine) -> None:
    engine.fill()
    engine.batch.swaps_masks = False
    engine.batch.swap(0, 3)
    engine.step()
    (wrong,) = engine.watch.drain()
    assert (wrong.code, wrong.buffer, wrong.rows) == ("FR104", "Batch.masks", (0, 3))


@pytest.mark.parametrize("leaves", ["condense", "remove"])
def test_what_a_request_leaves_behind_is_stale_for_the_next(engine: Engine, leaves: str) -> None:
    engine.fill()
    engine.batch.resets_masks = False
    engine.batch.remove("b" if leaves == "condense" else "d")
    engine.batch.condense()
    engine.batch.add("e", 7)
    engine.step()
    (wrong,) = engine.watch.drain()
    assert (wrong.code, wrong.buffer, wrong.rows) == ("FR104", "Batch.masks", (3,))
    assert (wrong.owner, wrong.previous_owner) == ("e", "d")


def test_a_reset_that_a_late_step_writes_over_is_stale(engine: Engine) -> None:
    engine.fill()
    engine.batch.remove("d")
    engine.batch.masks[3] = 1
    engine.batch.condense()
    engine.batch.add("e", 7)
    engine.step()
    (wrong,) = engine.watch.drain()
    assert (wrong.code, wrong.buffer, wrong.rows) == ("FR104", "Batch.masks", (3,))


def test_a_row_that_nobody_has_is_written_by_no_step(engine: Engine) -> None:
    engine.fill()
    engine.batch.remove("d")
    engine.batch.condense()
    rows, values = torch.tensor([3]), torch.ones(1, 4, dtype=torch.int64)
    engine.step()
    engine.batch.masks[rows] = values
    assert codes(engine.watch) == []
    engine.step()
    engine.batch.masks[rows] = values
    assert codes(engine.watch) == ["FR109"]


def test_a_sink_row_is_nobodys(bench: Bench) -> None:  # noqa: F811
    engine = Engine(bench, CONTRACT.replace("sink_rows = []", "sink_rows = [1]"))
    engine.batch.add("a", 1, 0)
    assert codes(engine.watch) == []
    engine.batch.add("b", 1, 0)
    assert codes(engine.watch) == ["FR106"]


def test_each_batch_has_rows_of_its_own(engine: Engine) -> None:
    other = engine.module.Batch()
    engine.fill()
    other.add("x", 1, 2)
    engine.batch.swap(0, 1)
    assert engine.step() == ([11, 10, 12, 13], [4, 0, 8, 12])
    assert other.prepare() == ([1], [8])
    assert codes(engine.watch) == []


def test_two_batches_that_nothing_tells_apart_are_an_error(bench: Bench) -> None:  # noqa: F811
    engine = Engine(bench, CONTRACT.replace('pool = "self"', "").replace('pool = ["self"]', ""))
    engine.fill()
    assert engine.watch.coverage().problems == ()
    engine.module.Batch().add("x", 1, 2)
    (problem,) = engine.watch.coverage().problems
    assert "two `Batch` objects have the same row out: say by `pool`" in problem
    assert engine.step() == ([10, 11, 12, 13], [0, 4, 8, 12])
    assert codes(engine.watch) == []


WRONG = {
    "self.moves_lengths": "expected a list by row, or a mapping from names to rows, got `bool`",
    "self.rows_of": "there is no `rows_of`; did you mean `row_of`?",
    "self.req_ids[].rid": "path `self.req_ids[].rid`: there is no `rid`",
}


@pytest.mark.parametrize("table", WRONG)
def test_a_path_to_anything_else_is_an_error(bench: Bench, table: str) -> None:  # noqa: F811
    engine = Engine(bench, CONTRACT.replace("self.req_ids[]", table))
    engine.batch.add("a", 1, 0)
    assert WRONG[table] in engine.watch.coverage().problems[0]


def test_numbers_may_be_names_and_negative_ones_nobody() -> None:
    names = {
        "table": [7, -1, None, "", 0],
        "array": np.array([7, -1]),
        "held": torch.tensor([-1, 5]),
    }
    assert paths.by_row("table[]", names) == {0: "7", 4: "0"}
    assert paths.by_row("array", names) == {0: "7"}
    assert paths.by_row("held", names) == {1: "5"}


def test_a_mapping_leads_to_one_row_or_several() -> None:
    names = {"table": {"a": 3, "b": [1, 2], "c": -1}, "none": None}
    assert paths.by_row("table", names) == {3: "a", 1: "b", 2: "b"}
    assert paths.by_row("none", names) == {}
    assert paths.by_row("table", {"table": {2: "a", 0: "b", 1: None, 3: ""}}) == {2: "a", 0: "b"}
