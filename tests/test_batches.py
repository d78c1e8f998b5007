"""Whose batch a function serves: rows of other requests are not accessed for it (FR111)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from tests import declared
from tests.test_owners import OWNERS, POOL, request
from tests.test_relay_patches import Bench, bench, codes  # noqa: F401

SOURCE = (
    POOL
    + """
    def run(batch, work):
        return work()

    def idle(work):
        return work()

    async def stream(batch, work):
        work()
        await batch.pause()
        work()
"""
)
SERVES = """
    [[owners]]
    functions = ["MODULE:run", "MODULE:stream"]
    does = "serves"
    owner = "batch[].rid"

    [[owners]]
    functions = ["MODULE:idle"]
    does = "serves"
"""


class Engine:
    """Two requests with a row each, and what is written for them."""

    def __init__(self, bench: Bench, text: str = SERVES) -> None:  # noqa: F811
        self.module: Any
        self.module, self.watch = bench.engine(OWNERS + text, SOURCE)
        self.map, self.pool = self.module.FutureMap(), self.module.Pool()
        self.first, self.second = request("a"), request("b")
        self.pool.alloc([self.first, self.second])

    def write(self, *rows: int) -> Any:
        return lambda: self.map.stash(torch.tensor(rows), torch.arange(len(rows)))

    def read(self, *rows: int) -> Any:
        return lambda: self.map.tokens_buf[torch.tensor(rows)]


@pytest.fixture
def engine(bench: Bench) -> Engine:  # noqa: F811
    return Engine(bench)


def test_a_write_to_a_row_of_another_request_is_named_with_both(engine: Engine) -> None:
    engine.module.run([engine.first], engine.write(1, 0))
    engine.module.run([engine.first, engine.second], engine.write(1, 2))
    engine.write(2)()
    assert codes(engine.watch) == ["FR103"]
    engine.module.run([engine.first], engine.write(1, 2))
    wrong, _ = engine.watch.drain()
    assert (wrong.code, wrong.rows, wrong.owner) == ("FR111", (2,), "b")
    assert (wrong.access.verb, wrong.access.site.function) == ("write", "FutureMap.stash")
    assert wrong.notes == ("the batch that `run` serves is one of a",)
    assert engine.watch.coverage().problems == ()


def test_a_gather_of_a_row_of_another_request_takes_its_value(engine: Engine) -> None:
    engine.write(1, 2)()
    engine.module.run([engine.second], engine.read(2))
    assert codes(engine.watch) == []
    engine.module.run([engine.second], engine.read(1))
    (wrong,) = engine.watch.drain()
    assert (wrong.code, wrong.rows, wrong.access.verb) == ("FR111", (1,), "gather")


def test_a_batch_of_nobody_writes_no_requests_row(engine: Engine) -> None:
    engine.module.idle(engine.write(0))
    assert codes(engine.watch) == []
    engine.module.idle(engine.write(1))
    (wrong,) = engine.watch.drain()
    assert wrong.notes == ("the batch that `idle` serves is one of no request",)


def test_a_row_that_was_freed_is_its_last_owners_until_it_goes_to_another(engine: Engine) -> None:
    engine.pool.free(engine.first)
    engine.module.run([engine.first], engine.write(1))
    assert codes(engine.watch) == []
    engine.module.idle(engine.write(1))
    (wrong,) = engine.watch.drain()
    assert wrong.notes[0] == "the row has no owner: it was freed"


def test_a_function_may_say_that_it_uses_rows_as_well(bench: Bench) -> None:  # noqa: F811
    uses = """
    [[owners]]
    functions = ["MODULE:run"]
    does = "uses"
    rows = "batch[].row"
    owner = "batch[].rid"
"""
    engine = Engine(bench, uses + SERVES)
    engine.module.run([engine.first], engine.write(1))
    assert codes(engine.watch) == []
    engine.first.row = 2
    engine.module.run([engine.first], engine.write(2))
    assert [one.access.verb for one in engine.watch.drain()] == ["use", "write"]


def test_the_innermost_batch_counts(engine: Engine) -> None:
    both = [engine.first, engine.second]
    run = engine.module.run
    run([engine.first], lambda: run(both, engine.write(2)))
    assert codes(engine.watch) == []
    run(both, lambda: run([engine.first], engine.write(2)))
    assert codes(engine.watch) == ["FR111", "FR103"]


def test_a_request_that_joins_the_batch_in_the_call_is_served(engine: Engine) -> None:
    batch = [engine.first]

    def work() -> None:
        batch.append(engine.second)
        engine.write(1, 2)()

    engine.module.run(batch, work)
    assert codes(engine.watch) == []


def test_what_runs_while_a_coroutine_waits_is_not_for_its_batch(engine: Engine) -> None:
    class Batch(list[Any]):
        async def pause(self) -> None:
            await asyncio.sleep(0)

    async def both() -> None:
        async def beside() -> None:
            engine.write(2)()

        served = engine.module.stream(Batch([engine.first]), engine.write(1))
        await asyncio.gather(served, beside())

    asyncio.run(both())
    assert "FR111" not in codes(engine.watch)


def test_relays_that_are_not_meant_are_left_alone(bench: Bench) -> None:  # noqa: F811
    other = '\n    [[relay]]\n    class = "MODULE:Other"\n    optional = true\n'
    other += '\n    [[relay.buffer]]\n    name = "rows_buf"\n'
    named = SERVES.replace('"serves"', '"serves"\n    relays = ["MODULE:Other"]')
    engine = Engine(bench, other + named)
    engine.module.idle(engine.write(1))
    assert codes(engine.watch) == []


def test_a_batch_joins_no_pools_whose_rows_are_numbered_alike(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OF_TWO_POOLS, TWO_POOLS)
    rows, blocks = engine.Rows(), engine.Blocks()
    engine.alloc_row("a")
    engine.alloc_block("b")  # 1 as well
    engine.run("a", lambda: rows.tokens.__setitem__(torch.tensor([1]), torch.tensor([5])))
    assert codes(watch) == []
    engine.run("a", lambda: blocks.slots.__setitem__(torch.tensor([1]), torch.tensor([5])))
    assert codes(watch) == ["FR111"]


def test_a_batch_that_cannot_be_read_is_one_problem_and_judges_nothing(
    bench: Bench,  # noqa: F811
) -> None:
    engine = Engine(bench, SERVES.replace("batch[].rid", "batch[].name"))
    for _ in range(2):
        engine.module.run([engine.first], engine.write(2))
    assert "FR111" not in codes(engine.watch)
    (problem,) = engine.watch.coverage().problems
    assert "path `batch[].name`: there is no `name`" in problem


def test_a_call_that_is_wrong_fails_as_it_does_without_a_watch(engine: Engine) -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        engine.module.run([engine.first], wrok=1)
    assert engine.watch.coverage().problems == ()


TWO_POOLS = """
    import torch

    class Rows:
        def __init__(self):
            self.tokens = torch.zeros(4, dtype=torch.int64)

    class Blocks:
        def __init__(self):
            self.slots = torch.zeros(4, dtype=torch.int64)

    def alloc_row(rid):
        return 1

    def alloc_block(rid):
        return 1

    def run(rid, work):
        return work()
"""
OF_TWO_POOLS = """
    [engine]
    name = "toy"

    [[relay]]
    class = "MODULE:Rows"
    buffer = [{ name = "tokens" }]

    [[relay]]
    class = "MODULE:Blocks"
    buffer = [{ name = "slots" }]

    [[owners]]
    functions = ["MODULE:alloc_row"]
    does = "hands out"
    rows = "return"
    owner = "rid"
    relays = ["MODULE:Rows"]

    [[owners]]
    functions = ["MODULE:alloc_block"]
    does = "hands out"
    rows = "return"
    owner = "rid"
    relays = ["MODULE:Blocks"]

    [[owners]]
    functions = ["MODULE:run"]
    does = "serves"
    owner = "rid"
"""

LAYERS = """
    import torch

    class Layers:
        def __init__(self):
            self.states = torch.zeros(3, 6, 2)

    class Pool:
        def alloc(self, rid):
            return 1

    def idle(work):
        return work()
"""
OF_LAYERS = """
    [engine]
    name = "toy"

    [[relay]]
    class = "MODULE:Layers"

    [[relay.buffer]]
    name = "states"
    row_dim = 1
    overwrite = "always"

    [[owners]]
    functions = ["MODULE:Pool.alloc"]
    does = "hands out"
    rows = "return"
    owner = "rid"

    [[owners]]
    functions = ["MODULE:idle"]
    does = "serves"
""" + declared.steps("idle")


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ((slice(None), torch.tensor([1])), ["FR111"]),
        ((slice(None), 1), ["FR111"]),
        ((..., torch.tensor([1]), slice(None)), ["FR111"]),
        ((torch.tensor([0, 2]), torch.tensor([1, 1])), ["FR111"]),
        ((slice(None), torch.tensor([4])), ["FR109"]),
        (torch.tensor([0, 2]), []),  # layers, all of their rows
        ((torch.tensor([0, 2]), slice(0, 3)), []),
        ((0, slice(1, 2)), []),
    ],
)
def test_rows_are_picked_along_the_dimension_that_counts_them(
    bench: Bench,  # noqa: F811
    index: Any,
    expected: list[str],
) -> None:
    engine, watch = bench.engine(OF_LAYERS, LAYERS)
    layers = engine.Layers()
    engine.Pool().alloc("a")

    values = torch.ones(torch.zeros(3, 6, 2)[index].shape)
    engine.idle(lambda: layers.states.__setitem__(index, values))
    assert codes(watch) == expected
