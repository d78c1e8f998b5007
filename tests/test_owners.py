"""Who holds which row, and how a session learns of it from the engine's own functions."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fmcheck.runtime.core import paths
from fmcheck.runtime.relay.owners import Owners
from fmcheck.runtime.relay.pools import Pools, pools_of
from tests import declared
from tests.test_relay_patches import CONTRACT, ENGINE, Bench, bench, codes  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = torch.tensor([1, 2])


class Follower:
    """Keeps what it was notified of."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, list[int]]] = []

    def hand_out(self, rows: Any) -> None:
        self.reported.append(("hand out", rows.tolist()))

    def spare(self, rows: Any) -> None:
        self.reported.append(("spare", rows.tolist()))


@pytest.fixture
def owners() -> Owners:
    return Owners()


@pytest.fixture
def follower(owners: Owners) -> Follower:
    made = Follower()
    owners.followers.add(made)
    return made


def test_a_row_nobody_was_given_has_no_owner(owners: Owners) -> None:
    assert (owners.owner(7), owners.generation(7), owners.name(7, 0)) == ("", 0, "")
    assert owners.held(np.array([7])).tolist() == [False]


def test_a_hand_out_begins_a_generation(owners: Owners, follower: Follower) -> None:
    owners.hand_out([3, 1], ["a", "b"])
    assert [(owners.owner(row), owners.generation(row)) for row in (3, 1)] == [("a", 1), ("b", 1)]
    assert follower.reported == [("hand out", [3, 1])]


def test_a_row_that_goes_to_its_own_owner_goes_on(owners: Owners, follower: Follower) -> None:
    owners.hand_out([3], ["a"])
    owners.hand_out([3, 4], ["a", "b"])
    assert owners.generation(3) == 1
    assert follower.reported[1:] == [("hand out", [4]), ("spare", [3])]


def test_an_owner_without_a_name_goes_on_unless_the_row_was_taken_back(
    owners: Owners, follower: Follower
) -> None:
    owners.hand_out([3], ["a"])
    owners.hand_out([3], [""])
    assert (owners.generation(3), owners.owner(3)) == (1, "a")
    owners.take_back([3])
    owners.hand_out([3], [""])
    assert (owners.generation(3), owners.owner(3)) == (2, "")
    assert [verb for verb, _ in follower.reported] == ["hand out", "spare", "spare", "hand out"]


def test_a_name_may_come_after_the_row(owners: Owners) -> None:
    owners.hand_out([3], [""])
    owners.hand_out([3], ["a"])
    assert (owners.generation(3), owners.owner(3), owners.name(3, 1)) == (1, "a", "a")


def test_another_owner_begins_a_generation_though_nobody_took_the_row_back(owners: Owners) -> None:
    owners.hand_out([3], ["a"])
    owners.hand_out([3], ["b"])
    assert (owners.generation(3), owners.owner(3), owners.name(3, 1)) == (2, "b", "a")


def test_a_row_that_was_taken_back_is_nobodys(owners: Owners, follower: Follower) -> None:
    owners.hand_out([3], ["a"])
    owners.take_back([3, 3, 5])
    owners.take_back([3])
    assert (owners.owner(3), owners.name(3, 1)) == ("", "a")
    assert follower.reported[1:] == [("spare", [3])]


def test_a_row_twice_in_one_hand_out_is_handed_out_once(owners: Owners) -> None:
    owners.hand_out([3, 3], ["a", "a"])
    assert owners.generation(3) == 1


# --- paths ---

REQUEST = SimpleNamespace(rid="r1", kv=SimpleNamespace(row=4), rows=[5, 6], gone=None)
TABLE = SimpleNamespace(row_of={"r1": 7})
FOLLOWED = {
    "return": ([3, 4], [[3, 4]]),
    "req.rid": (None, ["r1"]),
    "req.kv.row": (None, [4]),
    "reqs[].rid": (None, ["r1", "r1"]),
    "reqs[].rows[]": (None, [5, 6, 5, 6]),
    "req.gone": (None, []),
    "req.gone.row": (None, []),
    "self.row_of[req.rid]": (None, [7]),
    "self.row_of[other]": (None, []),
    "self.row_of[]": (None, ["r1"]),
}


@pytest.mark.parametrize("path", FOLLOWED)
def test_a_path_leads_through_attributes_and_sequences(path: str) -> None:
    result, expected = FOLLOWED[path]
    names = {"req": REQUEST, "reqs": [REQUEST, REQUEST], paths.RETURN: result}
    names |= {"self": TABLE, "other": "r2"}
    assert paths.follow(path, names) == expected


def test_a_path_through_a_missing_attribute_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"path `req\.slot`: there is no `slot`"):
        paths.follow("req.slot", {"req": REQUEST})


@pytest.mark.parametrize(
    "found",
    [
        *([3, 4], [[3, 4]], [torch.tensor([3, 4])], [np.array([3]), 4], [slice(3, 5)]),
        *([{3, 4}], [{3: "a", 4: "b"}], [{3: 0}.keys(), frozenset({4})]),
        [torch.tensor([0, 0, 0, 1, 1], dtype=torch.bool)],
    ],
)
def test_rows_come_in_any_shape(found: list[Any]) -> None:
    assert paths.as_rows(found).tolist() == [3, 4]


def test_a_tensor_of_rows_may_be_resized_later() -> None:
    rows = torch.tensor([3, 4])
    assert paths.as_rows([rows]).tolist() == [3, 4]
    assert rows.untyped_storage().resizable()


def test_nothing_is_no_row() -> None:
    assert paths.as_rows([]).tolist() == []


# --- from the engine ---

POOL = (
    ENGINE
    + """
    class Pool:
        def __init__(self):
            self.free_rows = [2, 1]

        def alloc(self, reqs):
            if len(reqs) > len(self.free_rows):
                return None
            for req in reqs:
                if req.row is None:
                    req.row = self.free_rows.pop()
            return [req.row for req in reqs]

        def free(self, req):
            if req.row is None:
                raise RuntimeError("freed twice")
            self.free_rows.append(req.row)
            req.row = None

    def loop():
        pass
"""
)
OWNERS = CONTRACT + declared.pool("reqs[].rid", "req.row") + declared.steps("loop")


def request(rid: str) -> Any:
    return SimpleNamespace(rid=rid, row=None)


def test_the_engines_own_functions_tell_of_owners_and_steps(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS, POOL)
    fm, pool = engine.FutureMap(), engine.Pool()
    first, second = request("first"), request("second")
    engine.loop()
    assert pool.alloc([first]) == [1]
    fm.stash(torch.tensor([1]), 5)
    pool.free(first)
    engine.loop()
    pool.alloc([second])
    fm.tokens_buf[torch.tensor([1])]
    (violation,) = watch.drain()
    assert (violation.code, violation.owner, violation.previous_owner) == (
        *("FR104", "second", "first"),
    )
    assert violation.last_write is not None
    assert (violation.last_write.step, violation.access.step) == (1, 2)
    assert watch.coverage().problems == ()


def test_a_chunk_of_the_same_prompt_loses_nothing(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS, POOL)
    fm, pool, req = engine.FutureMap(), engine.Pool(), request("long")
    for _ in range(3):
        rows = torch.tensor(pool.alloc([req]))
        fm.stash(rows, 5)
    assert codes(watch) == []
    fm.stash(rows, 5)
    assert codes(watch) == ["FR103"]


def begun_with(fill: str) -> Callable[[str], str]:
    """The pool's rows get a first value before they are returned."""
    said = "            return [req.row for req in reqs]"
    return lambda source: source.replace(said, f"            {fill}\n{said}")


FIRST_VALUES = {
    "by a slice": "self.fm.tokens_buf[reqs[0].row : reqs[0].row + 1] = 7",
    "by an index": "self.fm.stash(torch.tensor([reqs[0].row]), torch.tensor([7]))",
}


@pytest.mark.parametrize("is_coroutine", [False, True])
@pytest.mark.parametrize("fill", FIRST_VALUES.values(), ids=FIRST_VALUES)
def test_what_a_hand_out_writes_is_the_new_owners(
    bench: Bench,  # noqa: F811
    fill: str,
    is_coroutine: bool,
) -> None:
    source = begun_with(fill)(POOL)
    if is_coroutine:
        source = source.replace("def alloc(", "async def alloc(")
    engine, watch = bench.engine(OWNERS, source)
    fm, pool, first, second = engine.FutureMap(), engine.Pool(), request("a"), request("b")
    pool.fm = fm

    def alloc(one: Any) -> list[int]:
        made = pool.alloc([one])
        return asyncio.run(made) if is_coroutine else made

    for _ in range(3):
        engine.loop()
    rows = torch.tensor(alloc(first))
    assert fm.tokens_buf[rows].tolist() == [7]
    pool.free(first)
    for _ in range(3):
        engine.loop()
    # The same row: nothing of the owner before is in it, and it may be overwritten unread.
    assert fm.tokens_buf[torch.tensor(alloc(second))].tolist() == [7]
    pool.free(second)
    fm.stash(torch.tensor(alloc(request("c"))), 5)
    assert codes(watch) == []
    fm.tokens_buf[rows]
    fm.tokens_buf[rows]
    assert codes(watch) == ["FR102"]


@pytest.mark.parametrize("late", [False, True])
def test_a_take_back_may_reset_its_rows_for_the_next_owner(
    bench: Bench,  # noqa: F811
    late: bool,
) -> None:
    said = "            self.free_rows.append(req.row)"
    fill = "            self.fm.stash(torch.tensor([req.row]), torch.tensor([0]))\n"
    engine, watch = bench.engine(OWNERS, POOL.replace(said, fill + said))
    fm, pool, first = engine.FutureMap(), engine.Pool(), request("a")
    pool.fm = fm
    rows = torch.tensor(pool.alloc([first]))
    fm.stash(rows, torch.tensor([7]))
    fm.tokens_buf[rows]
    pool.free(first)
    if late:
        fm.stash(rows, torch.tensor([8]))  # by a step in flight
    assert pool.alloc([request("b")]) == rows.tolist()
    assert fm.tokens_buf[rows].tolist() == [8 if late else 0]
    assert codes(watch) == (["FR104"] if late else [])


def test_a_hand_out_that_writes_to_a_row_of_nobodys_is_reported(
    bench: Bench,  # noqa: F811
) -> None:
    fill = "if self.others: self.fm.stash(torch.tensor(self.others), torch.tensor([7]))"
    engine, watch = bench.engine(OWNERS, begun_with(fill)(POOL))
    pool, first = engine.Pool(), request("a")
    pool.fm, pool.others = engine.FutureMap(), []
    assert pool.alloc([first]) == [1]
    pool.free(first)
    for _ in range(3):
        engine.loop()
    pool.free_rows, pool.others = [4], [1]
    assert pool.alloc([request("b")]) == [4]
    assert codes(watch) == ["FR109"]


def test_a_hand_out_of_none_hands_out_nothing(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS, POOL)
    assert engine.Pool().alloc([request("a"), request("b"), request("c")]) is None
    assert watch.coverage().problems == ()


def test_a_take_back_that_fails_takes_nothing_back(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS, POOL)
    fm, pool, req = engine.FutureMap(), engine.Pool(), request("a")
    rows = torch.tensor(pool.alloc([req]))
    pool.free_rows = None
    with pytest.raises(AttributeError):
        pool.free(req)
    fm.stash(rows, 5)
    fm.stash(rows, 6)
    assert codes(watch) == ["FR103"]


def test_a_wrong_call_of_a_take_back_says_so_itself(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS, POOL)
    pool = engine.Pool()
    for wrong in ((), ("no request",)):
        with pytest.raises((TypeError, AttributeError)):
            pool.free(*wrong)
    assert watch.coverage().problems == ()


def test_rows_that_cannot_be_read_are_a_problem_and_the_engine_runs_on(
    bench: Bench,  # noqa: F811
) -> None:
    engine, watch = bench.engine(OWNERS.replace("reqs[].rid", "reqs[].name"), POOL)
    assert engine.Pool().alloc([request("a")]) == [1]
    (problem,) = watch.coverage().problems
    assert "Pool.alloc`: the rows or owners of a call could not be read" in problem
    assert "path `reqs[].name`: there is no `name`" in problem


def renamed(old: str, new: str) -> Callable[[str], str]:
    return lambda source: source.replace(old, new)


UNFIT = {
    "function": (renamed("def alloc(", "def allocate("), "Pool.alloc`; did you mean `Pool.allo"),
    "parameter": (renamed("alloc(self, reqs)", "alloc(self, req)"), "has no parameter `reqs`; did"),
    "step": (renamed("def loop", "def looop"), "loop`; did you mean `looop`?"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_function_that_does_not_fit_is_a_problem_that_names_the_nearest(
    bench: Bench,  # noqa: F811
    name: str,
) -> None:
    change, reported = UNFIT[name]
    _, watch = bench.engine(OWNERS, change(POOL))
    (problem,) = watch.coverage().problems
    assert reported in problem


def test_one_alternative_is_enough(bench: Bench) -> None:  # noqa: F811
    several = '"MODULE:Pool.alloc", "MODULE:Pool.alloc_rows", "MODULE_none:Pool.alloc"'
    text = OWNERS.replace('"MODULE:Pool.alloc"', several)
    engine, watch = bench.engine(text, POOL)
    engine.Pool().alloc([request("a")])
    assert watch.coverage().problems == ()


def test_other_relays_do_not_follow_the_owners(bench: Bench) -> None:  # noqa: F811
    other = CONTRACT + OWNERS.removeprefix(CONTRACT).replace(
        'does = "', 'relays = ["MODULE:Ring"]\n    does = "'
    )
    ring = '\n    [[relay]]\n    class = "MODULE:Ring"\n    buffer = [{ name = "ring_buf" }]\n'
    engine, watch = bench.engine(
        other + ring, POOL + "\n    class Ring:\n        ring_buf = None\n"
    )
    fm, pool = engine.FutureMap(), engine.Pool()
    rows = torch.tensor(pool.alloc([request("a")]))
    fm.stash(rows, 5)
    fm.stash(rows, 6)
    assert codes(watch) == []


def test_rows_of_one_relay_are_none_of_another_s(bench: Bench) -> None:  # noqa: F811
    mine = CONTRACT + OWNERS.removeprefix(CONTRACT).replace(
        'does = "', 'relays = ["MODULE:FutureMap"]\n    does = "'
    )
    ring = (
        '\n    [[relay]]\n    class = "MODULE:Ring"\n    buffer = [{ name = "ring_buf" }]\n'
        '    [[owners]]\n    functions = ["MODULE:Ring.take"]\n    does = "hands out"\n'
        '    rows = "return"\n    relays = ["MODULE:Ring"]\n    renews = true\n'
    )
    class_ = "\n    class Ring:\n        def take(self, rows):\n            return rows\n"
    engine, watch = bench.engine(mine + ring, POOL + class_)
    fm, pool = engine.FutureMap(), engine.Pool()
    rows = pool.alloc([request("a")])
    fm.stash(torch.tensor(rows), 5)
    engine.Ring().take([0, *rows])  # 0 is a sink of the other relay
    assert fm.tokens_buf[torch.tensor(rows)].tolist() == [5]
    assert codes(watch) == []


@pytest.mark.parametrize(
    ("covered", "together"),
    [
        ([["a"], ["b"]], [{"a"}, {"b"}, {"c"}]),
        ([["a", "b"], ["b", "c"]], [{"a", "b", "c"}]),
        ([["a"], []], [{"a", "b", "c"}]),
        ([], [{"a"}, {"b"}, {"c"}]),
    ],
)
def test_relays_share_pools_where_one_function_hands_out_the_rows_of_both(
    covered: list[list[str]], together: list[set[str]]
) -> None:
    pools = pools_of("abc", covered)
    found = [{one for one in pools if pools[one] is mine} for mine in pools.values()]
    assert sorted(map(sorted, found)) == sorted(sorted(one) for one in together for _ in one)


def test_nothing_is_wrapped_after_the_session(bench: Bench) -> None:  # noqa: F811
    bench.write(POOL)
    import importlib

    engine = importlib.import_module(bench.name)
    alloc, loop = engine.Pool.alloc, engine.loop
    watch = bench.watch(OWNERS)
    assert engine.Pool.alloc is not alloc
    assert engine.loop is not loop
    watch.stop()
    assert engine.Pool.alloc is alloc
    assert engine.loop is loop


# --- which pool ---

OWN_POOL = OWNERS.replace(
    'consumes_at_return = ["take_late", "take_and_stash"]',
    'consumes_at_return = ["take_late", "take_and_stash"]\n    pool = ["pool", "self"]',
).replace("[[owners]]", '[[owners]]\n    pool = "self"')
WITH_POOL = POOL.replace("def __init__(self, size=8):", "def __init__(self, pool, size=8):")


def test_a_relay_follows_its_own_pool(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWN_POOL, WITH_POOL)
    pool, other = engine.Pool(), engine.Pool()
    fm = engine.FutureMap(pool)
    pool.alloc([request("mine")])
    fm.stash(torch.tensor([1]), 5)
    other.alloc([request("others")])
    assert fm.tokens_buf[torch.tensor([1])].tolist() == [5]
    assert codes(watch) == []
    fm.stash(torch.tensor([1]), 5)
    fm.stash(torch.tensor([1]), 6)
    assert codes(watch) == ["FR103"]


def test_without_a_pool_of_its_own_a_relay_follows_all(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS, POOL)
    fm = engine.FutureMap()
    engine.Pool().alloc([request("mine")])
    fm.stash(torch.tensor([1]), 5)
    engine.Pool().alloc([request("others")])
    fm.tokens_buf[torch.tensor([1])]
    assert codes(watch) == ["FR107", "FR104"]


def test_a_pool_that_is_not_there_is_a_problem(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWN_POOL.replace('["pool", "self"]', '["pol"]'), WITH_POOL)
    engine.FutureMap(engine.Pool())
    (problem,) = watch.coverage().problems
    assert problem.endswith("pool: `__init__` has none of pol; did you mean `pool`?")


def test_the_owners_of_a_pool_go_with_it() -> None:
    class Pool:
        pass

    pools, pool = Pools(), Pool()
    pools.of(pool).hand_out([1], ["a"])
    assert pools.of(pool).owner(1) == "a"
    assert pools.of(None) is pools.of(None)
    del pool
    gc.collect()
    assert not pools._by_id


def test_a_hand_out_of_a_ring_begins_a_generation_each_time(
    owners: Owners, follower: Follower
) -> None:
    for _ in range(2):
        owners.hand_out([3], [""], renews=True)
    assert owners.generation(3) == 2
    assert follower.reported == [("hand out", [3]), ("hand out", [3])]


# --- what is wrong with a hand-out, a take-back, a write ---


def checks(faults: Any) -> list[tuple[int, int, str, str]]:
    return [(one.check, one.row, one.owner, one.before) for one in faults]


def test_a_sink_that_is_handed_out_is_a_fault(owners: Owners) -> None:
    owners.sinks.add(0)
    owners.declared_sinks.add(0)
    assert checks(owners.hand_out([0, 1], ["a", "b"])) == [(106, 0, "a", "")]
    assert owners.sinks == {0}


def test_a_row_that_somebody_else_holds_is_a_fault_to_hand_out(owners: Owners) -> None:
    assert checks(owners.hand_out([3], ["a"])) == []
    assert checks(owners.hand_out([3], ["b"])) == [(107, 3, "b", "a")]
    owners.take_back([3])
    assert checks(owners.hand_out([3], ["c"])) == []


def test_one_hand_out_gives_a_row_to_one_owner(owners: Owners) -> None:
    assert checks(owners.hand_out([3, 3], ["a", "b"])) == [(107, 3, "b", "a")]


def test_a_row_of_a_ring_may_go_to_the_next_one_at_any_time(owners: Owners) -> None:
    owners.hand_out([3], ["a"], renews=True)
    assert checks(owners.hand_out([3], ["b"], renews=True)) == []


def test_a_row_that_is_given_back_twice_is_a_fault(owners: Owners) -> None:
    owners.hand_out([3], ["a"])
    assert checks(owners.take_back([3])) == []
    assert checks(owners.take_back([3])) == [(108, 3, "", "a")]
    assert checks(owners.take_back([7])) == []  # it may have been handed out before the watch


def test_one_take_back_names_a_row_once(owners: Owners) -> None:
    owners.hand_out([3], ["a"])
    assert checks(owners.take_back([3, 3])) == [(108, 3, "", "a")]


def test_what_another_function_took_back_in_the_meantime_is_no_fault(owners: Owners) -> None:
    owners.hand_out([3], ["a"])
    before = owners.allocations([3])
    owners.take_back([3])
    assert checks(owners.take_back([3], before)) == []


def test_rows_that_a_test_leaves_behind_are_the_next_ones_to_take(owners: Owners) -> None:
    owners.hand_out([3], ["a"])
    owners.begin_test()
    assert checks(owners.hand_out([3], ["b"])) == []
    assert checks(owners.hand_out([3], ["c"])) == [(107, 3, "c", "b")]


def test_a_step_in_flight_may_write_for_an_owner_that_has_just_gone(owners: Owners) -> None:
    owners.hand_out([3], ["a"])
    owners.take_back([3], step=5)
    nobodys = [owners.unowned(np.array([3]), step).tolist() for step in (None, 5, 6, 7)]
    assert nobodys == [[False], [False], [False], [True]]
    assert owners.unowned(np.array([4]), None).tolist() == [True]


def test_a_row_is_used_for_who_has_it(owners: Owners) -> None:
    owners.hand_out([3, 4], ["a", ""])
    assert checks(owners.use([3, 3, 4, 4, 5], ["a", "", "b", "", "c"], 0)) == []
    assert checks(owners.use([3], ["b"], 0)) == [(111, 3, "b", "a")]


@pytest.mark.parametrize("name", ["a", ""])
def test_a_step_in_flight_may_use_a_row_for_the_owner_that_has_just_gone(
    owners: Owners, name: str
) -> None:
    owners.hand_out([3], ["a"])
    owners.take_back([3], step=5)
    found = [checks(owners.use([3], [name], step)) for step in (None, 5, 6, 7)]
    assert found == [[], [], [], [(111, 3, name, "a")]]
    assert checks(owners.use([3], ["b"], 5)) == [(111, 3, "b", "a")]


@pytest.mark.parametrize("freed", [False, True])
def test_what_an_earlier_test_has_left_of_a_row_is_no_fault_to_use(
    owners: Owners, freed: bool
) -> None:
    owners.hand_out([3], ["a"])
    if freed:
        owners.take_back([3])
    owners.begin_test()
    assert checks(owners.use([3], ["b"], 9)) == []
    owners.hand_out([3], ["b"])
    assert checks(owners.use([3], ["a"], 9)) == [(111, 3, "a", "b")]


USES = """
    [[owners]]
    functions = ["MODULE:run"]
    does = "uses"
    rows = "rows"
    owner = "names"
"""
USED = POOL.replace(
    "    def loop", "    def run(rows, names=''):\n        return rows\n\n    def loop"
)


def test_a_row_that_is_used_for_its_former_owner_is_named_with_both(
    bench: Bench,  # noqa: F811
) -> None:
    engine, watch = bench.engine(OWNERS + USES.replace('"names"', '"names[]"'), USED)
    pool, first = engine.Pool(), request("a")
    (kept,) = pool.alloc([first])
    engine.run([kept, -1], ["a", "b"])
    pool.free(first)
    pool.alloc([request("b")])
    assert codes(watch) == []
    engine.run([kept], ["a"])
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR111", (1,))
    assert (violation.owner, violation.previous_owner) == ("b", "a")
    assert (violation.access.verb, violation.access.site.path) == ("use", __file__)
    (called,) = violation.passed
    assert (called.verb, called.site.function) == ("call", "run")
    held, used = violation.notes
    assert held.startswith("row 1 was allocated to b at test_owners.py:")
    assert used == "it is used for a"
    assert watch.coverage().problems == ()


def test_a_row_that_is_used_long_after_it_was_freed_has_no_owner(
    bench: Bench,  # noqa: F811
) -> None:
    engine, watch = bench.engine(OWNERS + USES, USED)
    pool, req = engine.Pool(), request("a")
    rows = torch.tensor(pool.alloc([req]))
    pool.free(req)
    engine.loop()
    engine.run(rows)
    assert codes(watch) == []
    engine.loop()
    engine.run(rows)
    (violation,) = watch.drain()
    assert (violation.code, violation.owner, violation.previous_owner) == ("FR111", "", "a")
    (freed,) = violation.notes
    assert freed.startswith("row 1, last held by a, was freed at test_owners.py:")


def test_rows_that_a_function_returns_are_looked_up_after_it(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS + USES.replace('"rows"', '"return"'), USED)
    pool = engine.Pool()
    rows = pool.alloc([request("a")])
    assert engine.run(rows, "a") == engine.run(rows=rows) == [1]
    assert codes(watch) == []
    assert engine.run(rows, names="b") == [1]
    assert codes(watch) == ["FR111"]


def test_a_use_that_is_called_wrongly_fails_as_it_does_without_a_watch(
    bench: Bench,  # noqa: F811
) -> None:
    engine, watch = bench.engine(OWNERS + USES, USED)
    with pytest.raises(TypeError, match="unexpected keyword"):
        engine.run([1], nmes="a")
    assert watch.coverage().problems == ()


def test_a_row_that_two_pools_have_out_is_nobodys_to_judge(bench: Bench) -> None:  # noqa: F811
    source = UNNAMED + "\n    def run(rows, names):\n        pass\n"
    engine, watch = bench.engine(OF_UNNAMED + USES, source)
    first, second = engine.Pool(), engine.Pool()
    row = first.alloc("a")
    engine.run([row], "a")
    second.spare = [row]
    second.alloc("b")
    engine.run([row], "b")
    assert codes(watch) == []


def test_a_freed_row_is_named_with_the_lines_that_freed_it(bench: Bench) -> None:  # noqa: F811
    source = POOL.replace("            req.row = None\n", "            pass\n")
    engine, watch = bench.engine(OWNERS, source)
    pool, req = engine.Pool(), request("a")
    pool.alloc([req])
    pool.free(req)
    pool.free(req)
    (violation,) = watch.drain()
    assert (violation.code, violation.buffer, violation.rows) == ("FR108", "Pool", (1,))
    assert (violation.access.verb, violation.previous_owner) == ("take-back", "a")
    assert violation.access.site.path == __file__
    assert violation.notes[0].startswith("row 1, last held by a, was freed at test_owners.py:")


def test_a_take_back_that_may_be_repeated_is_no_fault(bench: Bench) -> None:  # noqa: F811
    source = POOL.replace("            req.row = None\n", "            pass\n")
    text = OWNERS.replace('does = "takes back"', 'does = "takes back"\n    idempotent = true')
    engine, watch = bench.engine(text, source)
    pool, req = engine.Pool(), request("a")
    pool.alloc([req])
    pool.free(req)
    pool.free(req)
    assert codes(watch) == []


def test_a_row_that_stays_free_is_named_with_both_owners(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS, POOL.replace("free_rows.pop()", "free_rows[-1]"))
    pool = engine.Pool()
    pool.alloc([request("a")])
    pool.alloc([request("b")])
    (violation,) = watch.drain()
    assert (violation.code, violation.owner, violation.previous_owner) == ("FR107", "b", "a")
    assert violation.notes[0].startswith("row 1 was allocated to a at test_owners.py:")


def test_without_a_take_back_nobody_knows_who_still_holds_a_row(
    bench: Bench,  # noqa: F811
) -> None:
    without = OWNERS[: OWNERS.rindex("[[owners]]")] + OWNERS[OWNERS.rindex("[[steps]]") :]
    engine, watch = bench.engine(without, POOL.replace("free_rows.pop()", "free_rows[-1]"))
    pool = engine.Pool()
    pool.alloc([request("a")])
    pool.alloc([request("b")])
    assert codes(watch) == []


def test_a_pool_that_is_emptied_takes_all_rows_back(bench: Bench) -> None:  # noqa: F811
    more = """
    [[owners]]
    functions = ["MODULE:Pool.clear"]
    does = "takes back"
    rows = "*"
"""
    source = POOL.replace(
        "    def loop",
        "        def clear(self):\n            self.free_rows = [2, 1]\n\n    def loop",
    )
    engine, watch = bench.engine(OWNERS + more, source)
    pool = engine.Pool()
    pool.alloc([request("a")])
    pool.clear()
    pool.alloc([request("b")])
    assert (codes(watch), watch.coverage().problems) == ([], ())


IN_FLIGHT = {"": True, "drained = false": False}


@pytest.mark.parametrize("said", IN_FLIGHT)
@pytest.mark.parametrize("waits", [True, False])
def test_a_contract_that_does_not_say_drained_hears_whether_it_matters(
    bench: Bench,  # noqa: F811
    said: str,
    waits: bool,
) -> None:
    from fmcheck.runtime.session.watch import Watch

    bench.write(POOL)
    text = OWNERS.replace('does = "hands out"', f'does = "hands out"\n    {said}')
    watch = Watch([bench.contract(text)], streams="tracked")
    bench.watches.append(watch)
    watch.start()
    import importlib

    engine = importlib.import_module(bench.name)
    fm, pool, first = engine.FutureMap(), engine.Pool(), request("first")
    forward = torch.cpu.Stream()
    rows = torch.tensor(pool.alloc([first]))
    with torch.cpu.stream(forward):
        fm.stash(rows, torch.tensor([5]))
    pool.free(first)
    if waits:
        forward.synchronize()
    pool.alloc([request("second")])
    notes = [one for one in watch.coverage().notes if "drained = true" in one]
    assert len(notes) == (IN_FLIGHT[said] and not waits)
    assert codes(watch) == []


@pytest.mark.parametrize("begins", [True, False])
def test_a_row_that_nobody_had_before_is_in_use_by_no_last_owner(
    bench: Bench,  # noqa: F811
    begins: bool,
) -> None:
    fill = "self.fm.stash(torch.tensor([reqs[0].row]), torch.tensor([7]))"
    source = begun_with(fill)(POOL) if begins else POOL
    engine, watch = bench.engine(OWNERS, source, "tracked")
    pool, first = engine.Pool(), request("a")
    pool.fm = engine.FutureMap()
    if not begins:
        pool.fm.stash(torch.tensor([1]), torch.tensor([5]))
    pool.alloc([first])
    if begins:
        pool.free(first)
        torch.cpu.synchronize()
        pool.alloc([request("b")])
    assert watch.coverage().notes == ()


READS_IN_FLIGHT = {
    "fm.tokens_buf.clone()": [],
    "fm.tokens_buf[:]  + 0": [],
    "fm.tokens_buf[rows]": ["FR401"],
    "fm.tokens_buf[1:2] + 0": ["FR401"],
    # One line that reads all of it, and then a part.
    "[fm.tokens_buf[:end] + 0 for end in (None, 2)]": ["FR401"],
}


@pytest.mark.parametrize("read", READS_IN_FLIGHT)
def test_a_copy_of_the_whole_buffer_is_no_use_by_the_last_owner(
    bench: Bench,  # noqa: F811
    read: str,
) -> None:
    from fmcheck.runtime.session.watch import Watch

    bench.write(POOL)
    text = OWNERS.replace('does = "hands out"', 'does = "hands out"\n    drained = true')
    watch = Watch([bench.contract(text)], streams="tracked")
    bench.watches.append(watch)
    watch.start()
    import importlib

    engine = importlib.import_module(bench.name)
    fm, pool, first = engine.FutureMap(), engine.Pool(), request("first")
    forward = torch.cpu.Stream()
    rows = torch.tensor(pool.alloc([first]))
    with torch.cpu.stream(forward):
        fm.stash(rows, torch.tensor([5]))
        forward.record_event().synchronize()
        eval(read, {"fm": fm, "rows": rows})
    pool.free(first)
    pool.alloc([request("second")])
    assert codes(watch) == READS_IN_FLIGHT[read]


@pytest.mark.parametrize(("sink", "row"), [("0", 0), ("-1", 7), ('"self.pad"', 3)])
def test_a_pool_that_gives_the_sink_away_is_a_fault(
    bench: Bench,  # noqa: F811
    sink: str,
    row: int,
) -> None:
    said = f"sink_rows = [{sink}]\n\n    [[relay.buffer]]"
    declared = OWNERS.replace("[[relay.buffer]]", said, 1)
    source = POOL.replace("[2, 1]", f"[1, {row}]")
    sets = "def __init__(self, size=8):"
    source = source.replace(sets, f"{sets}\n            self.pad = 3", 1)
    engine, watch = bench.engine(declared, source)
    engine.FutureMap()
    engine.Pool().alloc([request("a")])
    (violation,) = watch.drain()
    assert (violation.code, violation.rows, violation.owner) == ("FR106", (row,), "a")


SLOTS = """
    class Slots:
        def __init__(self):
            self.free_slots = [3, 2, 1]

        def alloc(self, count):
            return [self.free_slots.pop() for _ in range(count)]

        def free(self, rows):
            self.free_slots.extend(rows)
    """
OF_SLOTS = """
    [[owners]]
    functions = ["MODULE:Slots.alloc"]
    does = "hands out"
    rows = "return"

    [[owners]]
    functions = ["MODULE:Slots.free"]
    does = "takes back"
    rows = "rows"
    """


@pytest.mark.parametrize(
    ("freed", "count", "expected"),
    [
        ([3, -1], 2, [("FR106", (-1,))]),
        ([3], 2, []),
        ([3, -1], 1, []),  # alone it may say that there is no row
    ],
)
def test_a_number_of_no_row_that_was_freed_is_not_handed_out_beside_rows(
    bench: Bench,  # noqa: F811
    freed: list[int],
    count: int,
    expected: list[Any],
) -> None:
    engine, watch = bench.engine(CONTRACT + OF_SLOTS, ENGINE + SLOTS)
    slots = engine.Slots()
    slots.alloc(1)
    slots.alloc(2)
    slots.free([2])
    slots.free(freed)
    assert codes(watch) == []
    slots.alloc(count)
    found = watch.drain()
    assert [(one.code, one.rows) for one in found] == expected
    assert all("-1 is the number of no row: it was freed at" in one.notes[0] for one in found)


def test_row_0_is_no_sink_any_more_where_nobody_says_so_and_it_is_given_away(
    bench: Bench,  # noqa: F811
) -> None:
    engine, watch = bench.engine(OWNERS, POOL.replace("[2, 1]", "[1, 0]"))
    fm, pool, row = engine.FutureMap(), engine.Pool(), torch.tensor([0])
    fm.tokens_buf[row]  # as a padded entry does
    assert codes(watch) == []
    pool.alloc([request("a")])
    assert codes(watch) == []
    fm.tokens_buf[row]
    assert codes(watch) == ["FR101"]
    fm.stash(row, torch.tensor([7]))
    fm.tokens_buf[row]
    assert codes(watch) == []
    fm.tokens_buf[row]
    assert codes(watch) == ["FR102"]
    later = engine.FutureMap()  # by then it is known to be a request's
    later.tokens_buf[row]
    assert codes(watch) == ["FR101"]


def test_a_write_to_a_row_that_nobody_was_given_is_a_fault(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS, POOL)
    fm = engine.FutureMap()
    fm.stash(torch.tensor([5]), torch.tensor([7]))  # nobody was given anything so far
    engine.Pool().alloc([request("a")])
    assert codes(watch) == []
    fm.stash(torch.tensor([1, 0]), torch.tensor([7, 8]))  # its own row, and the sink
    fm.stash(torch.tensor([5]), -1)  # a mark is no value
    fm.tokens_buf[4:6] = torch.tensor([7, 7])  # a stretch is nobody's in particular
    assert codes(watch) == []
    fm.stash(torch.tensor([1, 3]), torch.tensor([7, 8]))
    found = {one.code: one for one in watch.drain()}
    assert sorted(found) == ["FR103", "FR109"]
    assert found["FR109"].rows == (3,)


def test_a_row_that_was_taken_back_steps_ago_is_nobodys(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OWNERS, POOL)
    fm, pool, req = engine.FutureMap(), engine.Pool(), request("a")
    rows = torch.tensor(pool.alloc([req]))
    pool.free(req)
    for step in range(2):
        assert codes(watch) == [], step
        engine.loop()
        fm.stash(rows, torch.tensor([7 + step]))
    (violation,) = watch.drain()
    assert (violation.code, violation.rows, violation.owner) == ("FR109", (1,), "")
    assert violation.access.step == 2


TWICE = {
    "subscript": lambda b, rows, values: b.__setitem__(rows, values),
    "index_copy_": lambda b, rows, values: b.index_copy_(0, rows, values),
    "index_put_": lambda b, rows, values: b.index_put_((rows,), values),
}


@pytest.mark.parametrize("how", TWICE)
def test_a_write_that_gives_a_row_two_values_is_a_fault(bench: Bench, how: str) -> None:  # noqa: F811
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    rows = torch.tensor([1, 0, 2, 0, 1])
    TWICE[how](fm.tokens_buf, rows, torch.tensor([5, 6, 7, 8, 5]))  # the sink, and the same again
    assert codes(watch) == []
    TWICE[how](fm.tokens_buf, rows, torch.tensor([5, 6, 7, 8, 9]))
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR110", (1,))
    assert violation.access.site.path == __file__


def test_values_that_are_added_up_may_name_a_row_twice(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    rows, values = torch.tensor([1, 1]), torch.tensor([5, 6])
    fm.stash(rows[:1], 1)
    fm.tokens_buf.index_add_(0, rows, values)
    fm.tokens_buf.index_put_((rows,), values, accumulate=True)
    assert codes(watch) == []


# --- two pools that the contract does not tell apart ---

OF_UNNAMED = CONTRACT + declared.pool()
UNNAMED = (
    ENGINE
    + """
    class Pool:
        def __init__(self):
            self.spare = [1, 2, 3]

        def alloc(self, rid):
            return self.spare.pop(0)

        def free(self, row):
            self.spare.append(row)
"""
)


def test_two_pools_that_nothing_tells_apart_are_one_message(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OF_UNNAMED, UNNAMED)
    pools, relays = [engine.Pool(), engine.Pool()], [engine.FutureMap(), engine.FutureMap()]
    for _ in range(2):
        for pool, relay, rid in zip(pools, relays, "ab", strict=True):
            row = torch.tensor([pool.alloc(rid)])
            relay.stash(row, 5)
        for pool, relay in zip(pools, relays, strict=True):
            assert relay.tokens_buf[row].tolist() == [5]
            pool.free(int(row))
    assert codes(watch) == []
    (problem,) = watch.coverage().problems
    assert (
        "two `Pool` objects have the same row out: say by `pool`, here and in `[[relay]]`"
        in problem
    )


def test_a_pool_beside_another_is_judged_by_its_own_rows(bench: Bench) -> None:  # noqa: F811
    engine, watch = bench.engine(OF_UNNAMED, UNNAMED)
    beside, pool = engine.Pool(), engine.Pool()
    beside.spare = [7]
    beside.alloc("z")
    pool.spare = [1, 1]
    pool.alloc("a")
    pool.alloc("b")
    assert codes(watch) == ["FR107"]
    pool.free(1)
    pool.free(1)
    assert codes(watch) == ["FR108"]
    assert watch.coverage().problems == ()


def test_a_row_that_another_kind_of_object_frees_is_free(bench: Bench) -> None:  # noqa: F811
    source = (
        UNNAMED
        + """
    class Scheduler:
        def finish(self, row):
            pass
"""
    )
    text = OF_UNNAMED.replace('"MODULE:Pool.free"', '"MODULE:Pool.free", "MODULE:Scheduler.finish"')
    engine, watch = bench.engine(text, source)
    pools = [engine.Pool(), engine.Pool()]
    for pool in pools:
        engine.Scheduler().finish(pool.alloc("a"))
    assert codes(watch) == []
    assert watch.coverage().problems == ()


def test_a_request_that_takes_a_row_itself_is_no_pool(bench: Bench) -> None:  # noqa: F811
    source = (
        UNNAMED
        + """
    class Request:
        def __init__(self, rid):
            self.rid = rid
        def take(self, row):
            self.row = row
"""
    )
    text = OF_UNNAMED.replace("Pool.alloc", "Request.take")
    text = text.replace('rows = "return"', 'rows = "self.row"').replace('"rid"', '"self.rid"')
    engine, watch = bench.engine(text, source)
    first, second = engine.Request("a"), engine.Request("b")
    first.take(1)
    second.take(1)
    assert codes(watch) == ["FR107"]
    assert watch.coverage().problems == ()
