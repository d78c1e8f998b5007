"""Views of a row that are kept: who uses one after the row has gone to another request (FR111)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.test_owners import OWNERS, POOL, request
from tests.test_relay_patches import Bench, bench, codes  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = (
    POOL
    + """
    class Table:
        def __init__(self):
            self.pages = torch.zeros(8, 4)
"""
)
TABLE = """
    [[relay]]
    class = "MODULE:Table"

    [[relay.buffer]]
    name = "pages"
    reads = "many"
    overwrite = "always"
"""
USES: dict[str, Callable[[Any], Any]] = {
    "a write of one element": lambda view: view.__setitem__(0, 5),
    "a write of all": lambda view: view.fill_(5),
    "a write of a part of it": lambda view: view[1:3].copy_(torch.ones(2)),
    "a write of another view of it": lambda view: view.view(2, 2).narrow(0, 0, 1).fill_(5),
    "a read of all": lambda view: view.clone(),
    "a read of an element": lambda view: float(view[0]),
}


class Engine:
    """A table of pages, and two requests of which the second gets the first one's row."""

    def __init__(self, bench: Bench, text: str = OWNERS + TABLE) -> None:  # noqa: F811
        self.module: Any
        self.module, self.watch = bench.engine(text, SOURCE)
        self.pool, self.pages = self.module.Pool(), self.module.Table().pages
        self.first, self.second = request("a"), request("b")

    def hand_over(self) -> None:
        self.pool.free(self.first)
        self.pool.alloc([self.second])


@pytest.fixture
def engine(bench: Bench) -> Engine:  # noqa: F811
    return Engine(bench)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_view_that_outlives_its_owner_is_named_with_the_line_that_took_it(
    engine: Engine, use: Callable[[Any], Any]
) -> None:
    (row,) = engine.pool.alloc([engine.first])
    view = engine.pages[row]
    view.fill_(1)
    use(view)
    engine.pool.free(engine.first)
    use(view)
    assert codes(engine.watch) == []
    engine.pool.alloc([engine.second])
    engine.pages[row].fill_(2)
    assert codes(engine.watch) == []
    use(view)
    (wrong,) = engine.watch.drain()
    assert (wrong.code, wrong.rows, wrong.owner) == ("FR111", (row,), "b")
    assert wrong.previous_owner == "a"
    (taken,) = wrong.notes
    assert taken.startswith("a view of the row was taken at ")
    assert taken.endswith(" when a had it")
    assert "test_kept_views.py" in taken


@pytest.mark.parametrize(
    "take",
    [
        lambda pages, row: pages[row : row + 1],
        lambda pages, row: pages[:, 1],
        lambda pages, row: pages[torch.tensor([row])],
    ],
    ids=["a stretch of rows", "a column", "a copy"],
)
def test_what_is_no_view_of_one_row_is_nobodys(
    engine: Engine, take: Callable[[Any, int], Any]
) -> None:
    (row,) = engine.pool.alloc([engine.first])
    engine.pages.fill_(1)
    view = take(engine.pages, row)
    engine.hand_over()
    engine.pages.fill_(1)
    view.clone()
    assert codes(engine.watch) == []


def test_a_view_that_was_taken_before_anybody_had_the_row_is_the_engines(engine: Engine) -> None:
    views = [engine.pages[row] for row in range(8)]
    (row,) = engine.pool.alloc([engine.first])
    views[row].fill_(1)
    engine.hand_over()
    views[row].fill_(2)
    assert codes(engine.watch) == []


def test_the_next_chunk_of_the_same_request_goes_on_with_its_view(engine: Engine) -> None:
    (row,) = engine.pool.alloc([engine.first])
    view = engine.pages[row]
    engine.pool.alloc([engine.first])
    view.fill_(1)
    engine.pool.free(engine.first)
    engine.pool.alloc([engine.first])
    view.fill_(1)
    assert codes(engine.watch) == []


def test_owners_without_a_name_are_told_apart_by_their_hand_outs(bench: Bench) -> None:  # noqa: F811
    engine = Engine(bench, OWNERS.replace('owner = "reqs[].rid"', "") + TABLE)
    (row,) = engine.pool.alloc([engine.first])
    view = engine.pages[row]
    view.fill_(1)
    engine.hand_over()
    view.fill_(2)
    (wrong,) = engine.watch.drain()
    assert wrong.code == "FR111"
    assert wrong.notes[0].endswith(" when its former owner had it")
