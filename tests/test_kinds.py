"""Functions of other kinds stay what they are: coroutines, generators, what is no function."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.runtime.core import kinds
from tests.test_relay_patches import Bench, bench, codes

if TYPE_CHECKING:
    from fmcheck.runtime.session.watch import Watch

__all__ = ["bench"]

ENGINE = """
    import asyncio
    import functools
    import torch

    class Relay:
        def __init__(self):
            self.tokens = torch.full((8,), -1)

        async def look(self, rows):
            await asyncio.sleep(0)
            found = self.tokens[rows]
            await asyncio.sleep(0)
            return found

        def looks(self, rows):
            got = yield self.tokens[rows]
            return got

        async def all_looks(self, rows):
            got = yield self.tokens[rows]
            yield got

        @staticmethod
        def look_at(relay, rows):
            return relay.tokens[rows]

        @classmethod
        def look_by_class(cls, relay, rows):
            return cls.__name__, relay.tokens[rows]

    class Pool:
        def __init__(self):
            self.free = list(range(1, 8))

        async def alloc(self, count):
            await asyncio.sleep(0)
            rows, self.free = self.free[:count], self.free[count:]
            return rows

        async def drop(self, rows):
            await asyncio.sleep(0)
            self.free += rows

        def alloc_each(self, count):
            for _ in range(count):
                yield self.free.pop(0)

        def alloc_lazily(self, count):
            return map(int, [self.free.pop(0) for _ in range(count)])

    class Callable:
        calls = 0

        def __call__(self, x):
            self.calls += 1
            return x

    class Engine:
        async def step(self, x):
            await asyncio.sleep(0)
            return x.item()

        def steps(self, x):
            yield x.item()

        async def all_steps(self, x):
            yield x.item()

        @functools.lru_cache
        def cached(self, x):
            return x

        @functools.singledispatchmethod
        def dispatched(self, x):
            return "any"

        @dispatched.register
        def _(self, x: int):
            return "int"

        partial = functools.partialmethod(lambda self, a, b: (a, b), 1)
        made = Callable()

    @functools.lru_cache
    def cached(x):
        return x
"""
CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "MODULE:Relay"
    peeks = ["look", "looks", "all_looks", "look_at", "look_by_class"]

    [[relay.buffer]]
    name = "tokens"
    valid = ">= 0"
"""
OWNERS = """
    [[owners]]
    functions = ["MODULE:Pool.alloc"]
    does = "hands out"
    rows = "return"

    [[owners]]
    functions = ["MODULE:Pool.drop"]
    does = "takes back"
    rows = "rows"
"""
EACH = """
    [[owners]]
    functions = ["MODULE:Pool.{}"]
    does = "hands out"
    rows = "return[]"
"""
STEPS = ("Engine.step", "Engine.steps", "Engine.all_steps")
CALLABLES = ("Engine.cached", "Engine.dispatched", "Engine.partial", "Engine.made", "cached")
DECLARED = "".join(
    f"""
    [[steps]]
    functions = ["MODULE:{name}"]

    [[launches.budget]]
    functions = ["MODULE:{name}"]
    syncs = 0
    """
    for name in (*STEPS, *CALLABLES)
)
ROWS = torch.tensor([1, 2])


@pytest.fixture
def engine_and_watch(bench: Bench) -> tuple[Any, Watch]:
    return bench.engine(CONTRACT + OWNERS + DECLARED, ENGINE)


def written(engine: Any) -> Any:
    relay = engine.Relay()
    relay.tokens[ROWS] = torch.tensor([5, 6])
    return relay


def test_each_kind_of_function_stays_what_it_is(engine_and_watch: tuple[Any, Watch]) -> None:
    engine, _ = engine_and_watch
    for one in (engine.Engine.step, engine.Relay.look, engine.Pool.alloc, engine.Pool.drop):
        assert inspect.iscoroutinefunction(one)
    assert inspect.isgeneratorfunction(engine.Engine.steps)
    assert inspect.isgeneratorfunction(engine.Relay.looks)
    assert inspect.isasyncgenfunction(engine.Engine.all_steps)
    assert inspect.isasyncgenfunction(engine.Relay.all_looks)


def test_a_coroutine_peeks_while_it_runs_and_no_other_does(
    engine_and_watch: tuple[Any, Watch],
) -> None:
    engine, watch = engine_and_watch
    relay = written(engine)

    async def look_and_take() -> list[Any]:
        looking = [asyncio.ensure_future(relay.look(ROWS)) for _ in range(3)]
        await asyncio.sleep(0)
        taken = relay.tokens[ROWS]
        return [taken, *[await one for one in looking]]

    assert [one.tolist() for one in asyncio.run(look_and_take())] == [[5, 6]] * 4
    found = watch.drain()
    # Those that come after the gather see that it was made.
    assert {one.code for one in found} == {"FR102"}
    assert {one.access.site.function for one in found} == {"Relay.look"}


def test_a_generator_peeks_and_is_sent_and_thrown_what_it_was(
    engine_and_watch: tuple[Any, Watch],
) -> None:
    engine, watch = engine_and_watch
    relay = written(engine)
    looks = relay.looks(ROWS)
    assert next(looks).tolist() == [5, 6]
    with pytest.raises(StopIteration) as end:
        looks.send("sent")
    assert end.value.value == "sent"
    looks = relay.looks(ROWS)
    next(looks)
    with pytest.raises(KeyError, match="thrown"):
        looks.throw(KeyError("thrown"))
    relay.looks(ROWS).close()
    _ = relay.tokens[ROWS]
    assert codes(watch) == []


def test_an_asynchronous_generator_is_sent_what_it_was(
    engine_and_watch: tuple[Any, Watch],
) -> None:
    engine, watch = engine_and_watch
    relay = written(engine)

    async def look() -> Any:
        looks = relay.all_looks(ROWS)
        first = await looks.__anext__()
        second = await looks.asend("sent")
        with pytest.raises(StopAsyncIteration):
            await looks.__anext__()
        closed = relay.all_looks(ROWS)
        await closed.__anext__()
        await closed.aclose()
        thrown = relay.all_looks(ROWS)
        await thrown.__anext__()
        with pytest.raises(KeyError):
            await thrown.athrow(KeyError("thrown"))
        return first.tolist(), second

    assert asyncio.run(look()) == ([5, 6], "sent")
    assert codes(watch) == []


def test_static_methods_and_class_methods_peek(engine_and_watch: tuple[Any, Watch]) -> None:
    engine, watch = engine_and_watch
    relay = written(engine)
    assert relay.look_at(relay, ROWS).tolist() == [5, 6]
    assert engine.Relay.look_by_class(relay, ROWS)[0] == "Relay"
    _ = relay.tokens[ROWS]
    assert codes(watch) == []


def test_a_coroutine_hands_rows_out_and_takes_them_back(
    engine_and_watch: tuple[Any, Watch],
) -> None:
    engine, watch = engine_and_watch
    relay, pool = engine.Relay(), engine.Pool()

    async def serve() -> None:
        rows, others = await asyncio.gather(pool.alloc(2), pool.alloc(1))
        relay.tokens[torch.tensor(rows)] = torch.tensor([5, 6])
        await asyncio.gather(pool.drop(rows), pool.drop(others))
        await pool.drop(others)

    asyncio.run(serve())
    assert [(one.code, one.rows) for one in watch.drain()] == [("FR108", (3,))]
    assert not watch.coverage().problems


@pytest.mark.parametrize(
    ("name", "said"), [("alloc_each", "is a generator"), ("alloc_lazily", "an iterator, which")]
)
def test_what_an_iterator_hands_out_is_left_to_the_engine(
    bench: Bench, name: str, said: str
) -> None:
    engine, watch = bench.engine(CONTRACT + EACH.format(name), ENGINE)
    assert list(getattr(engine.Pool(), name)(3)) == [1, 2, 3]
    (problem,) = watch.coverage().problems
    assert said in problem


def test_the_budget_of_a_step_holds_for_each_kind(engine_and_watch: tuple[Any, Watch]) -> None:
    engine, watch = engine_and_watch
    runner, x = engine.Engine(), torch.ones(1)

    async def collect() -> list[Any]:
        return [one async for one in runner.all_steps(x)]

    assert asyncio.run(runner.step(x)) == 1
    x.item()
    assert list(runner.steps(x)) == asyncio.run(collect()) == [1]
    found = [(one.code, one.buffer) for one in watch.drain()]
    assert found == [("FR501", name) for name in STEPS]


def test_what_is_no_plain_function_keeps_what_else_it_has(
    engine_and_watch: tuple[Any, Watch],
) -> None:
    engine, watch = engine_and_watch
    runner = engine.Engine()
    assert [runner.cached(1), runner.cached(1)] == [1, 1]
    assert engine.Engine.cached.cache_info().hits == 1
    engine.Engine.cached.cache_clear()
    assert pickle.loads(pickle.dumps(engine.cached)) is engine.cached
    assert (runner.dispatched("x"), runner.dispatched(3)) == ("any", "int")
    engine.Engine.dispatched.register(float, lambda self, x: "float")
    assert runner.dispatched(2.0) == "float"
    assert runner.partial(2) == (1, 2)
    assert (runner.made(3), engine.Engine.made.calls) == (3, 1)
    assert not watch.coverage().problems
    watch.stop()
    assert engine.cached.__class__.__name__ == "_lru_cache_wrapper"


class Reported(kinds.AroundCall):
    """Notes what is done around a call."""

    def __init__(self, reported: list[Any]) -> None:
        self.reported = reported

    def enter(self) -> None:
        self.reported.append("enter")

    def leave(self) -> None:
        self.reported.append("leave")

    def returned(self, result: Any) -> None:
        self.reported.append(("returned", result))

    def over(self) -> None:
        self.reported.append("over")


def of_each_kind(reported: list[Any]) -> dict[str, tuple[Any, Any]]:
    """Functions that note their body's stretches, each with what runs one to its end."""

    def plain(fails: bool) -> int:
        reported.append("body")
        return 1 // (not fails)

    def generator(fails: bool) -> Any:
        reported.append("body")
        yield
        reported.append("body")
        return 1 // (not fails)

    async def coroutine(fails: bool) -> int:
        reported.append("body")
        await asyncio.sleep(0)
        reported.append("body")
        return 1 // (not fails)

    async def stream(fails: bool) -> Any:
        reported.append("body")
        yield
        reported.append("body")
        assert not fails

    async def all_of(made: Any) -> None:
        async for _ in made:
            pass

    return {
        "plain": (plain, lambda _: None),
        "generator": (generator, list),
        "coroutine": (coroutine, asyncio.run),
        "stream": (stream, lambda made: asyncio.run(all_of(made))),
    }


@pytest.mark.parametrize("kind", ["plain", "generator", "coroutine", "stream"])
def test_a_call_is_reported_of_each_stretch_of_its_body(kind: str) -> None:
    reported: list[Any] = []
    function, run = of_each_kind(reported)[kind]
    wrapped = kinds.around(function, lambda *_: Reported(reported))
    run(wrapped(False))
    stretch = ["enter", "body", "leave"]
    begun = stretch if kind == "plain" else stretch * 2
    assert reported == [*begun, ("returned", None if kind == "stream" else 1), "over"]
    reported.clear()
    with pytest.raises((ZeroDivisionError, AssertionError)):
        run(wrapped(True))
    assert reported == [*begun, "over"]


@pytest.mark.parametrize("kind", ["plain", "generator", "coroutine", "stream"])
def test_what_goes_before_and_after_a_body_goes_there(kind: str) -> None:
    reported: list[Any] = []
    function, run = of_each_kind(reported)[kind]
    wrapped = kinds.before_body(function, lambda: reported.append("begin"))
    run(kinds.after_body(wrapped, lambda *end: reported.append(end))(False))
    body = ["body"] if kind == "plain" else ["body"] * 2
    assert reported == ["begin", *body, ((False,), {}, None if kind == "stream" else 1)]


FILLS = """
    import asyncio
    import torch

    class Runner:
        def __init__(self):
            self.size = 8
            self.inputs = {"ids": torch.zeros(8, dtype=torch.int64)}

        async def fill(self, values, count):
            await asyncio.sleep(0)
            self.inputs["ids"][:count].copy_(values)
            await asyncio.sleep(0)
"""
FILLED = """
    [engine]
    name = "toy"

    [[graph_inputs.fill]]
    class = "MODULE:Runner"
    methods = ["fill"]
    inputs = "self.inputs"
    axis.rows = { raw = "count", padded = "self.size", capacity = "self.size" }
    holds = { ids = 0 }
"""


def test_a_coroutine_fills_while_its_body_runs(bench: Bench) -> None:
    engine, watch = bench.engine(FILLED, FILLS)
    runner = engine.Runner()

    asyncio.run(runner.fill(torch.arange(8), 8))
    assert codes(watch) == []
    asyncio.run(runner.fill(torch.tensor([3, 4]), 2))
    assert [(one.code, one.rows) for one in watch.drain()] == [("FR201", (2, 3, 4, 5, 6, 7))]
