"""Functions that torch.compile made and that are handed a relay buffer: they work, and are seen."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import fmcheck.runtime
from fmcheck.contract import Buffer, Contract, Engine, Opaque, Relay, StepFunctions
from fmcheck.runtime.relay.opaque import opaque_call
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = torch.tensor([1, 2])
BACKENDS = ["eager", "aot_eager", "inductor"]
#: One backend shows a property of the plain function; `make sweep` tries the others.
EACH = [
    pytest.param(name, marks=[pytest.mark.sweep] if name != "aot_eager" else [])
    for name in BACKENDS
]


class FutureMap:
    def __init__(self) -> None:
        self.buf: Any = torch.zeros(8, dtype=torch.int64)

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        taken: torch.Tensor = self.buf[rows] * 2
        return taken


class BufferModule(torch.nn.Module):
    buf: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buf", torch.zeros(8, dtype=torch.int64))


class Stage(torch.nn.Module):
    """Holds a relay, at a depth of so many modules, and works on its buffer."""

    def __init__(self, relay: Any, work: Callable[..., torch.Tensor], depth: int) -> None:
        super().__init__()
        self.work = work
        self.path = ["inner"] * depth + ["relay"]
        holder: torch.nn.Module = self
        for _ in range(depth):
            holder.inner = torch.nn.Module()
            holder = holder.inner
        holder.relay = relay

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        held: Any = self
        for name in self.path:
            held = getattr(held, name)
        return self.work(held.buf, rows)


def step(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def watch() -> Iterator[Watch]:
    relays = tuple(
        Relay(class_=f"{__name__}:{name}", buffer=(Buffer(name="buf", valid=">= 0"),))
        for name in ("FutureMap", "BufferModule")
    )
    torch._dynamo.reset()
    steps = (StepFunctions(functions=(f"{__name__}:step",)),)
    watch = Watch(
        [Contract(engine=Engine(name="toy"), relay=relays, steps=steps)], streams="tracked"
    )
    assert __name__ in sys.modules
    watch.start()
    assert watch.coverage().problems == ()
    yield watch
    watch.stop()


@pytest.fixture
def fm() -> FutureMap:
    made = FutureMap()
    made.buf[ROWS] = 5
    return made


def codes(watch: Watch) -> list[str]:
    return [violation.code for violation in watch.drain()]


def take(buf: Any, rows: torch.Tensor) -> torch.Tensor:
    taken: torch.Tensor = buf[rows] * 2
    return taken


def take_of(holder: Any, rows: torch.Tensor) -> torch.Tensor:
    return take(holder.buf, rows)


def take_in_dict(holder: dict[str, Any], rows: torch.Tensor) -> torch.Tensor:
    return take(holder["deep"].buf, rows)


CALLS: dict[str, tuple[Callable[..., Any], Callable[[FutureMap], Any]]] = {
    "argument": (take, lambda fm: fm.buf),
    "attribute": (take_of, lambda fm: fm),
    "method": (FutureMap.take, lambda fm: fm),
    "in a dict": (take_in_dict, lambda fm: {"deep": SimpleNamespace(buf=fm.buf)}),
}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("backend", EACH)
@pytest.mark.parametrize("call", CALLS)
def test_a_compiled_gather_is_seen(
    watch: Watch, fm: FutureMap, call: str, backend: str, fullgraph: bool
) -> None:
    function, argument = CALLS[call]
    compiled: Any = torch.compile(function, backend=backend, fullgraph=fullgraph)
    assert compiled(argument(fm), ROWS).tolist() == [10, 10]
    assert codes(watch) == []
    compiled(argument(fm), ROWS)
    assert codes(watch) == ["FR102"]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}])
def test_a_decorated_function_is_seen(
    watch: Watch, fm: FutureMap, options: dict[str, Any], fullgraph: bool
) -> None:
    @torch.compile(backend="aot_eager", fullgraph=fullgraph, **options)
    def compiled(buf: Any, rows: torch.Tensor) -> torch.Tensor:
        return take(buf, rows)

    assert compiled.__name__ == "compiled"
    assert compiled(fm.buf, ROWS).tolist() == [10, 10]
    compiled(fm.buf, ROWS)
    assert codes(watch) == ["FR102"]


def test_a_bare_decorator_is_seen(watch: Watch, fm: FutureMap) -> None:
    @torch.compile
    def compiled(buf: Any, rows: torch.Tensor) -> torch.Tensor:
        return take(buf, rows)

    assert compiled(fm.buf, ROWS).tolist() == [10, 10]
    compiled(fm.buf, ROWS)
    assert codes(watch) == ["FR102"]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_module_is_seen(watch: Watch, fm: FutureMap, fullgraph: bool) -> None:
    class Taker(torch.nn.Module):
        def forward(self, buf: Any, rows: torch.Tensor) -> torch.Tensor:
            return take(buf, rows)

    compiled = torch.compile(Taker(), backend="aot_eager", fullgraph=fullgraph)
    assert compiled(fm.buf, ROWS).tolist() == [10, 10]
    compiled(fm.buf, ROWS)
    assert codes(watch) == ["FR102"]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("relay", [FutureMap, BufferModule])
@pytest.mark.parametrize("name", ["item", "slice", "index_copy_", "copy_"])
def test_a_compiled_module_that_holds_the_buffer_is_seen(
    watch: Watch, name: str, relay: Callable[[], Any], depth: int, fullgraph: bool
) -> None:
    def work(buf: Any, rows: torch.Tensor) -> torch.Tensor:
        if name == "item":
            buf[rows] = 5
        elif name == "slice":
            buf[1:3] = 5
        elif name == "index_copy_":
            buf.index_copy_(0, rows, rows * 0 + 5)
        else:
            buf[1:3].copy_(rows * 0 + 5)
        return take(buf, rows)

    holder = relay()
    compiled: Any = torch.compile(
        Stage(holder, work, depth), backend="aot_eager", fullgraph=fullgraph
    )
    assert compiled(ROWS).tolist() == [10, 10]
    assert codes(watch) == []
    take(holder.buf, ROWS)
    assert codes(watch) == ["FR102"]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_guard_is_an_invalidation(watch: Watch, fm: FutureMap, fullgraph: bool) -> None:
    @torch.compile(dynamic=True, fullgraph=fullgraph)
    def guard(values: torch.Tensor, buf: Any, rows: torch.Tensor) -> None:
        torch._assert_async((values >= 0).all())
        buf[rows] = -1

    for token in range(3):
        fm.buf[ROWS] = token
        guard(fm.buf[ROWS], fm.buf, ROWS)
    # Without a message it is an invalidation alone, which is told wherever it was compiled.
    assert codes(watch) == ([] if fullgraph else ["FR602"])
    fm.buf[ROWS]
    assert codes(watch) == ["FR102"]


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "gather": lambda b: b.index_select(0, ROWS),
    "torch.gather": lambda b: torch.gather(b, 0, ROWS),
    "take": lambda b: torch.take(b, ROWS),
    "embedding": lambda b: torch.nn.functional.embedding(ROWS, b.view(-1, 1)),
    "slice": lambda b: b[1:3][torch.tensor([0, 1])],
    "mask": lambda b: b[torch.arange(8) < 3],
}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_gather_slips_through_a_compiler(
    watch: Watch, fm: FutureMap, name: str, fullgraph: bool
) -> None:
    compiled: Any = torch.compile(OPERATIONS[name], backend="aot_eager", fullgraph=fullgraph)
    for _ in range(2):
        result = compiled(fm.buf)
        assert type(result) is torch.Tensor
    assert codes(watch) == ["FR102"]


WRITES: dict[str, Callable[[Any], Any]] = {
    "fill_": lambda b: b.fill_(3),
    "copy_": lambda b: b.copy_(torch.full((8,), 3)),
    "slice": lambda b: b[:].fill_(3),
    "out=": lambda b: torch.add(torch.full((8,), 1), 2, out=b),
    "augmented": lambda b: b.mul_(0).add_(3),
}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_no_write_slips_through_a_compiler(
    watch: Watch, fm: FutureMap, name: str, fullgraph: bool
) -> None:
    torch.compile(WRITES[name], backend="aot_eager", fullgraph=fullgraph)(fm.buf)
    every = torch.arange(1, 8)
    assert fm.buf[every].tolist() == [3] * 7
    assert (codes(watch), watch.coverage().counts.unseen_writes) == ([], 0)


def test_peeks_in_a_compiled_function_keep_working(fm: FutureMap) -> None:
    @torch.compile(backend="aot_eager")
    def look(buf: Any) -> Any:
        return buf.sum() + buf.shape[0], buf.clone(), buf + 1

    total, cloned, _ = look(fm.buf)
    assert (int(total), type(cloned)) == (10 + 8, torch.Tensor)


def test_a_function_without_relays_stays_compiled() -> None:
    traced = []

    def count(graph: torch.fx.GraphModule, inputs: object) -> Any:
        traced.append(graph)
        return graph.forward

    compiled: Any = torch.compile(take, backend=count, fullgraph=True)
    assert compiled(torch.arange(8), ROWS).tolist() == [2, 4]
    assert len(traced) == 1


def test_a_graph_break_of_the_engines_own_is_still_an_error() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        broken(torch.ones(1))


def test_our_own_code_is_not_compiled(fm: FutureMap) -> None:
    traced = []

    def count(graph: torch.fx.GraphModule, inputs: object) -> Any:
        traced.append(graph)
        return graph.forward

    compiled: Any = torch.compile(take, backend=count)
    compiled(fm.buf, ROWS)
    (graph,) = traced
    assert [node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"] == [
        "mul"
    ]


def kernel(rows: torch.Tensor, buf: torch.Tensor) -> torch.Tensor:
    return buf.index_select(0, rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_opaque_function_inside_a_compiled_one_is_seen_and_not_traced(
    watch: Watch, fm: FutureMap, backend: str, recwarn: pytest.WarningsRecorder
) -> None:
    opaque = Opaque(functions=(f"{__name__}:kernel",), rows="rows", reads=("buf",))
    watched = opaque_call(kernel, opaque, watch.tally)
    compiled = torch.compile(lambda rows, buf: watched(rows, buf) * 2, backend=backend)

    assert compiled(ROWS, fm.buf).tolist() == [10, 10]
    compiled(ROWS, fm.buf)

    assert codes(watch) == ["FR102"]
    assert [one for one in recwarn if "Dynamo" in str(one.message)] == []


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_step_in_a_compiled_function_is_counted(watch: Watch, fullgraph: bool) -> None:
    compiled = torch.compile(lambda x: step(x) + 1, backend="eager", fullgraph=fullgraph)
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert watch.tally.moments.step == 1


def test_streams_and_host_reads_in_compiled_code_are_not_traced(
    recwarn: pytest.WarningsRecorder,
) -> None:
    side, event = torch.cpu.Stream(), torch.cpu.Event()

    @torch.compile(backend="eager")
    def run(x: torch.Tensor) -> Any:
        side.wait_stream(torch.cpu.current_stream())
        with torch.cpu.stream(side):
            y = x * 2
            event.record(side)
        event.synchronize()
        return y * y.sum().item()

    assert run(torch.ones(2)).tolist() == [8, 8]
    assert [one for one in recwarn if "Dynamo" in str(one.message)] == []


def test_dynamo_skips_all_modules_of_the_run_time_but_the_probes_by_few_entries() -> None:
    rules: Any = torch._dynamo.trace_rules
    folder = os.path.dirname(fmcheck.runtime.__file__)
    modules = [one for one in pkgutil.walk_packages([folder], "fmcheck.runtime.") if not one.ispkg]
    compiled = set()
    for one in modules:
        spec = importlib.util.find_spec(one.name)
        assert spec is not None
        if not rules.SKIP_DIRS_RE.match(spec.origin):
            compiled.add(one.name)
    assert compiled == {one.name for one in modules if one.name.endswith("probes")}
    # With each entry Dynamo compiles its whole pattern again.
    assert sum(one.startswith(folder) for one in rules.SKIP_DIRS) < len(modules) / 3
