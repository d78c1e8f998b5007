"""FR601: a graph input that lies elsewhere than its graph reads it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.errors import UsageError
from fmcheck.runtime.core.site import Sites
from fmcheck.runtime.session.probes import PROBES, ProbeTarget, tried
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps import writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTRACT = """
    [engine]
    name = "toy"

    [graph_inputs]
    row_indices = ["rows"]

    [[graph_inputs.fill]]
    class = "toy_graphs:Runner"
    methods = ["run"]
    settled_by = ["_replay"]
    CAPTURED
    inputs = "self"
    axis.rows = { raw = "raw", padded = "self.most", capacity = "self.most" }
"""
CAPTURED = 'captured_by = ["capture"]'
SETTLED = 'settled_by = ["_replay"]'


class Runner:
    most = 4
    tail = 0

    def __init__(self) -> None:
        self.rows = torch.zeros(4, dtype=torch.int64)
        self.other = torch.zeros(4, dtype=torch.int64)

    def capture(self) -> None:
        pass

    def run(self, raw: int, before: Callable[[Runner], None]) -> None:
        before(self)
        self.rows.fill_(self.tail)
        self.rows[:raw] = 3
        self._replay()

    def _replay(self) -> None:
        pass


class Graphs:
    def capture(self) -> None:
        pass


def watching(monkeypatch: pytest.MonkeyPatch, captured: str) -> Watch:
    module: Any = ModuleType("toy_graphs")
    module.Runner, module.Graphs = Runner, Graphs
    monkeypatch.setitem(sys.modules, "toy_graphs", module)
    watch = Watch([parse_contract(CONTRACT.replace("CAPTURED", captured), "toy.toml")])
    watch.start()
    return watch


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    watch = watching(monkeypatch, CAPTURED)
    yield watch
    watch.stop()


def nothing(runner: Runner) -> None:
    pass


def rebind(runner: Runner) -> None:
    runner.rows = torch.zeros_like(runner.rows)


def make(runner: Runner) -> None:
    runner.rows = torch.empty(4, dtype=torch.int64)


def codes(watch: Watch) -> list[str]:
    return [violation.code for violation in watch.drain()]


def test_an_input_rebound_since_its_capture_is_reported(watch: Watch) -> None:
    runner = Runner()
    runner.capture()
    rebind(runner)
    runner.run(2, nothing)
    (violation,) = watch.drain()
    assert (violation.code, violation.buffer) == ("FR601", "Runner.rows")
    assert "captured at test_captures.py" in violation.notes[0]
    assert violation.allocated is None
    (replay,) = violation.passed
    assert (replay.verb, replay.site.function) == ("replay", "Runner._replay")
    assert replay.site.caller is not None
    assert replay.site.caller.function == "Runner.run"


@pytest.mark.parametrize("times", [1, 2])
def test_a_tensor_that_the_fill_itself_created_is_reported_with_its_line(
    watch: Watch, times: int
) -> None:
    runner = Runner()
    runner.capture()
    for _ in range(times):
        runner.run(2, rebind)
    (violation,) = watch.drain()
    assert violation.allocated is not None
    created = violation.allocated
    assert (created.verb, created.site.function) == ("create", "rebind")


def test_a_line_is_that_of_a_storage_that_lives() -> None:
    """Where one lay that is gone, another one may come to lie."""
    sites = Sites()
    trace = writes.Trace(torch.zeros(1), sites)
    writes.follow([trace])
    gone, kept = torch.zeros(2), torch.zeros(2)
    made = writes.made_here()
    writes.leave([trace])
    assert sites[writes.line_of(kept[1:], made)].path == __file__
    other = torch.zeros(2)
    made[other.untyped_storage()._cdata] = made[gone.untyped_storage()._cdata]
    assert writes.line_of(other, made) == 0
    del gone
    assert writes.line_of(other, made) == 0


def test_an_input_rebound_while_it_is_filled_is_reported(watch: Watch) -> None:
    runner = Runner()
    runner.run(2, rebind)
    (violation,) = watch.drain()
    assert violation.code == "FR601"
    assert violation.notes[0].startswith("it was bound to another tensor while it was filled")
    assert "no capture was seen" in violation.notes[0]


class Eager(Runner):
    """A runner without a graph: each step makes its input."""

    rows: Any

    def __init__(self) -> None:
        super().__init__()
        self.rows = None


def test_an_input_that_each_fill_makes_is_no_graphs(watch: Watch) -> None:
    runner = Eager()
    for size in (2, 4, 2):
        runner.run(size, make)
    assert codes(watch) == []


def test_an_input_that_each_fill_makes_is_judged_by_its_values(watch: Watch) -> None:
    runner = Eager()
    for _ in range(2):
        runner.tail = 7
        runner.run(2, make)
    (violation,) = watch.drain()
    assert (violation.code, violation.buffer, violation.rows) == ("FR201", "Eager.rows", (2, 3))


class Metadata(Runner):
    """A runner whose first fill makes what holds the inputs."""

    def __init__(self) -> None:
        self.held: SimpleNamespace | None = None

    def run(self, raw: int, before: Callable[[Runner], None]) -> None:
        rows = torch.full((4,), self.tail)
        rows[:raw] = 3
        self.held = SimpleNamespace(rows=rows)
        self._replay()


def test_inputs_whose_holder_the_first_fill_makes_are_no_graphs_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = CONTRACT.replace('inputs = "self"', 'inputs = "self.held"')
    monkeypatch.setattr(f"{__name__}.CONTRACT", held)
    monkeypatch.setattr(f"{__name__}.Runner", Metadata)
    watch = watching(monkeypatch, "")
    try:
        runner = Metadata()
        for _ in range(3):
            runner.run(2, nothing)
        assert codes(watch) == []
        runner.tail = 7
        runner.run(2, nothing)
        assert codes(watch) == ["FR201"]
        assert watch.coverage().problems == ()
    finally:
        watch.stop()


def test_an_input_that_a_fill_made_and_another_kept_may_be_a_graphs(watch: Watch) -> None:
    runner = Eager()
    for before in (make, nothing, rebind):
        runner.run(2, before)
    assert codes(watch) == ["FR601"]


def test_an_input_that_a_fill_made_before_a_capture_is_its_graphs(watch: Watch) -> None:
    runner = Eager()
    runner.run(2, make)
    runner.capture()
    runner.run(2, make)
    assert codes(watch) == ["FR601"]


def test_a_new_capture_reads_the_new_tensor(watch: Watch) -> None:
    runner = Runner()
    runner.capture()
    rebind(runner)
    runner.capture()
    runner.run(2, nothing)
    assert codes(watch) == []


def test_another_name_for_the_same_memory_is_the_same_input(watch: Watch) -> None:
    runner = Runner()
    runner.capture()
    runner.rows = runner.rows.view(4)
    runner.run(2, nothing)
    assert codes(watch) == []


def test_an_input_cut_to_the_batch_is_reported(watch: Watch) -> None:
    runner = Runner()
    runner.capture()
    runner.rows = runner.rows[:2]
    runner.run(2, nothing)
    assert codes(watch) == ["FR601"]


def test_what_the_contract_does_not_name_may_move(watch: Watch) -> None:
    runner = Runner()
    runner.capture()
    runner.other = torch.zeros_like(runner.other)
    runner.run(2, nothing)
    assert codes(watch) == []


def test_a_full_batch_is_looked_at_too(watch: Watch) -> None:
    runner = Runner()
    runner.capture()
    rebind(runner)
    runner.run(4, nothing)
    assert codes(watch) == ["FR601"]


def test_runners_are_told_apart(watch: Watch) -> None:
    first, second = Runner(), Runner()
    first.capture()
    second.capture()
    second.run(2, nothing)
    first.run(2, nothing)
    assert codes(watch) == []


class Weighted(Runner):
    """A runner whose graph reads weights as well, in all the ways that an engine keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(3)
        self.bias: torch.Tensor | None = None
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        self.caches = [torch.zeros(3), {"key": torch.zeros(3)}]
        self.metadata = SimpleNamespace(
            splits=torch.zeros(3), runner=SimpleNamespace(other=torch.zeros(3)), count=3
        )


MOVES: dict[str, Callable[[Any], object]] = {
    "Weighted.scale": lambda it: setattr(it, "scale", it.scale.clone()),
    "Weighted.model.1.weight": lambda it: setattr(it.model[1].weight, "data", torch.empty(2, 2)),
    "Weighted.caches[1][key]": lambda it: it.caches[1].update(key=torch.zeros(3)),
    "Weighted.metadata.splits": lambda it: setattr(it.metadata, "splits", torch.zeros(3)),
}


@pytest.fixture
def weighted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    paths = ("scale", "bias", "model", "caches", "metadata")
    also = ", ".join(f'"self.{path}"' for path in paths)
    watch = watching(monkeypatch, f"{CAPTURED}\n    captured = [{also}]")
    yield watch
    watch.stop()


@pytest.mark.parametrize("what", MOVES)
def test_what_a_graph_reads_besides_its_inputs_must_stay_too(weighted: Watch, what: str) -> None:
    runner = Weighted()
    runner.capture()
    runner.run(2, nothing)
    assert codes(weighted) == []
    MOVES[what](runner)
    runner.run(2, nothing)
    (violation,) = weighted.drain()
    assert (violation.code, violation.buffer) == ("FR601", what)


class Absorbed(torch.nn.Module):
    """A layer with tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.derived = torch.ones(2)
        self.of_prefill = torch.ones(2)
        self.of_step = torch.ones(2)
        self.unused: torch.Tensor | None = None

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.of_step = given * 2
        return self.of_step + self.derived[:1]


class Absorbing(Weighted):
    """A runner of a layer that is deep in its model, and how it is captured."""

    fills_first = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = Absorbed()
        self.model = torch.nn.Sequential(torch.nn.Sequential(self.layer))

    def capture_all(self) -> None:
        if self.fills_first:
            self.run(2, nothing)
        self.layer(torch.ones(2))


@pytest.fixture
def absorbing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr(Runner, "capture", Absorbing.capture_all)
    watch = watching(monkeypatch, f'{CAPTURED}\n    captured = ["self.model"]')
    yield watch
    watch.stop()


MOVED = {"derived": ["Absorbing.model.0.0.derived"], "of_prefill": [], "of_step": []}


@pytest.mark.parametrize("fills_first", [False, True])
@pytest.mark.parametrize("attribute", MOVED)
def test_of_a_modules_plain_attributes_what_the_capture_read_must_stay(
    absorbing: Watch, attribute: str, fills_first: bool
) -> None:
    runner = Absorbing()
    runner.fills_first = fills_first
    runner.capture()
    runner.run(2, nothing)
    assert codes(absorbing) == []
    setattr(runner.layer, attribute, torch.ones(2))
    runner.layer.unused = torch.ones(2)
    runner.run(2, nothing)
    assert [one.buffer for one in absorbing.drain()] == MOVED[attribute]


def test_a_plain_attribute_that_is_captured_again_is_read_there(absorbing: Watch) -> None:
    runner = Absorbing()
    runner.capture()
    runner.layer.derived = torch.zeros(2)
    runner.capture()
    runner.run(2, nothing)
    assert codes(absorbing) == []


def test_what_has_moved_for_one_reason_is_one_report(weighted: Watch) -> None:
    runner = Weighted()
    runner.capture()
    for _ in range(2):
        runner.model[0].weight.data = torch.empty(2, 2)
        runner.model[1].weight.data = torch.empty(2, 2)
        runner.run(2, nothing)
    runner.scale = torch.ones(3)
    runner.run(2, nothing)
    weights, scale = weighted.drain()
    assert (weights.buffer, weights.count) == ("Weighted.model.0.weight", 3)
    assert weights.notes[1:] == ("moved as well: `Weighted.model.1.weight`",)
    assert (scale.buffer, scale.count, len(scale.notes)) == ("Weighted.scale", 1, 1)


def test_of_what_has_moved_what_is_suppressed_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, weighted: Watch
) -> None:
    class OfScale:
        taken = 0

        def take(self, violation: Any) -> bool:
            self.taken += violation.buffer == "Weighted.scale"
            return bool(violation.buffer == "Weighted.scale")

    suppressions = OfScale()
    monkeypatch.setattr(weighted.tally, "suppressions", suppressions)
    runner = Weighted()
    runner.capture()
    runner.scale = torch.ones(3)
    runner.caches[0] = torch.zeros(3)
    runner.run(2, nothing)
    (violation,) = weighted.drain()
    assert (violation.buffer, len(violation.notes)) == ("Weighted.caches[0]", 1)
    assert suppressions.taken == 1


def test_a_fill_that_has_created_what_moved_says_so_of_that_alone(weighted: Watch) -> None:
    def both(runner: Any) -> None:
        rebind(runner)
        runner.scale = runner.outside

    runner: Any = Weighted()
    runner.outside = torch.ones(3)
    runner.capture()
    runner.run(2, both)
    created = {one.buffer: one.allocated is not None for one in weighted.drain()}
    assert created == {"Weighted.rows": True, "Weighted.scale": False}


def test_what_an_object_leads_to_from_there_is_not_what_the_graph_reads(weighted: Watch) -> None:
    runner = Weighted()
    runner.capture()
    runner.metadata.runner.other = torch.zeros(3)
    runner.run(2, nothing)
    assert codes(weighted) == []
    assert weighted.coverage().problems == ()


def test_an_object_without_tensors_is_a_slip_in_the_contract(weighted: Watch) -> None:
    runner = Weighted()
    runner.metadata = SimpleNamespace(count=3)
    for _ in range(2):
        runner.capture()
    (problem,) = weighted.coverage().problems
    assert "`self.metadata` leads to `SimpleNamespace`, which holds no tensor" in problem


def test_weights_that_are_loaded_into_their_place_are_read(weighted: Watch) -> None:
    runner = Weighted()
    runner.capture()
    runner.scale.copy_(torch.zeros(3))
    runner.model[1].weight.data.zero_()
    runner.run(2, nothing)
    runner.model[1].weight.data = torch.empty(2, 2)
    runner.capture()
    runner.run(2, nothing)
    assert codes(weighted) == []


def test_containers_that_hold_themselves_are_read_once(weighted: Watch) -> None:
    runner = Weighted()
    last = runner.caches[1]
    last["itself"], last["all"] = last, runner.caches
    runner.capture()
    runner.run(2, nothing)
    assert codes(weighted) == []
    last["key"] = torch.zeros(3)
    runner.run(2, nothing)
    (violation,) = weighted.drain()
    assert (violation.code, violation.buffer) == ("FR601", "Weighted.caches[1][key]")
    assert not weighted.tally.broken


@pytest.mark.parametrize(
    ("captured", "message"),
    [
        ('captured = ["self.scale"]', "expected `captured_by` beside it"),
        (
            f'{CAPTURED}\n    captured = ["model"]',
            "expected a path from `self`, or from a module like `package.module:name`, got `model`",
        ),
        (f'{CAPTURED}\n    captured = ["self.a b"]', "expected a path like `self.buffers`"),
        *(
            (
                f'{CAPTURED}\n    captured = ["{path}"]',
                r"fill\[0\]\.captured`: expected a path from a module like "
                f"`package.module:name.attribute`, got `{re.escape(path)}`",
            )
            for path in ("a b:c", ":c", "a:", "a:b:c", "a..b:c", "a:b c", "a:[0]")
        ),
        (
            f'{CAPTURED}\n    outputs = ["a b:c"]',
            r"fill\[0\]\.outputs`: expected a path from a module like",
        ),
        ('inputs = "toy_arena:held"', "expected a path like `self.buffers`"),
    ],
)
def test_what_else_a_graph_reads_is_named_by_a_path(captured: str, message: str) -> None:
    text = CONTRACT.replace("CAPTURED", captured)
    if captured.startswith("inputs"):
        text = CONTRACT.replace("CAPTURED", "").replace('inputs = "self"', captured)
    with pytest.raises(UsageError, match=message):
        parse_contract(text, "toy.toml")


@dataclass
class Workspace:
    rows: int
    packed: torch.Tensor


class Experts:
    buffers: dict[int, torch.Tensor]
    later: torch.Tensor

    @classmethod
    def make(cls) -> None:
        cls.late = torch.zeros(3)  # type: ignore[attr-defined]


class Manager:
    def __init__(self) -> None:
        self.current: list[torch.Tensor | None] = [torch.zeros(3), None]


class Proxy:
    """Stands for an object of a library that is not to be asked for anything yet."""

    def __call__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def make_global() -> None:
    global _made
    _made = torch.zeros(3)


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with workspaces that no object of the engine holds."""
    module: Any = ModuleType("toy_lib.arena")
    module._CACHE = {(4, 8): Workspace(4, torch.zeros(3)), "plain": torch.zeros(3)}
    module._manager = Manager()
    module.Experts = type("Experts", (Experts,), {"buffers": {2: torch.zeros(3)}})
    module.make_global = make_global
    module._unused, module.proxy = None, Proxy()
    monkeypatch.setitem(sys.modules, "toy_lib.arena", module)
    return module


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watch]]:
    """Watches a runner whose graph also reads what some paths lead to."""
    started = []

    def begin(*read: str) -> Watch:
        also = ", ".join(f'"{path}"' for path in read)
        started.append(watching(monkeypatch, f"{CAPTURED}\n    captured = [{also}]"))
        return started[-1]

    yield begin
    for watch in started:
        watch.stop()


OF_MODULES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "arena._CACHE[(4, 8)].packed": (
        "_CACHE",
        lambda it: it._CACHE.update({(4, 8): Workspace(8, torch.zeros(6))}),
    ),
    "arena._CACHE[plain]": ("_CACHE", lambda it: it._CACHE.update(plain=torch.zeros(3))),
    "arena._manager.current[0]": (
        "_manager.current",
        lambda it: it._manager.current.__setitem__(0, torch.zeros(3)),
    ),
    "arena.Experts.buffers[2]": (
        "Experts.buffers",
        lambda it: it.Experts.buffers.update({2: torch.zeros(3)}),
    ),
}


@pytest.mark.parametrize("what", OF_MODULES)
def test_what_a_graph_reads_of_a_module_must_stay_too(
    arena: Any, reading: Callable[..., Watch], what: str
) -> None:
    path, move = OF_MODULES[what]
    watch = reading("self.other", f"toy_lib.arena:{path}")
    runner = Runner()
    runner.capture()
    runner.run(2, nothing)
    assert codes(watch) == []
    move(arena)
    runner.run(2, nothing)
    (violation,) = watch.drain()
    assert (violation.code, violation.buffer) == ("FR601", what)
    assert watch.coverage().problems == ()


def test_what_an_object_holds_is_named_by_it_beside_a_module(
    arena: Any, reading: Callable[..., Watch]
) -> None:
    watch = reading("self.by_device", "toy_lib.arena:_CACHE")
    runner: Any = Runner()
    runner.by_device = {"cuda:0": torch.zeros(3)}
    runner.capture()
    runner.by_device["cuda:0"] = torch.zeros(3)
    runner.run(2, nothing)
    assert [one.buffer for one in watch.drain()] == ["Runner.by_device[cuda:0]"]


def test_an_arena_may_grow_beside_what_a_graph_reads(
    arena: Any, reading: Callable[..., Watch]
) -> None:
    watch = reading("toy_lib.arena:_CACHE", "toy_lib.arena:_manager.current")
    runner = Runner()
    runner.capture()
    arena._manager.current[1] = arena._CACHE["more"] = torch.zeros(3)
    runner.run(2, nothing)
    arena._manager.current[0] = None
    del arena._CACHE["plain"]
    arena._CACHE["more"] = torch.zeros(6)
    runner.run(2, nothing)
    assert codes(watch) == []
    assert watch.coverage().problems == ()
    assert watch.coverage().untracked == ()


class Growing(str):
    """A key of a cache that another thread fills while it is read."""

    cache: dict[str, torch.Tensor]

    def __format__(self, _: str) -> str:
        self.cache[f"{len(self.cache)}"] = torch.zeros(3)
        return str(self)


def test_an_arena_may_grow_while_it_is_looked_at(arena: Any, reading: Callable[..., Watch]) -> None:
    watch = reading("toy_lib.arena:_CACHE")
    Growing.cache = arena._CACHE
    arena._CACHE[Growing("key")] = torch.zeros(3)
    runner = Runner()
    runner.capture()
    runner.run(2, nothing)
    assert codes(watch) == []
    assert not watch.tally.broken


@pytest.mark.parametrize(
    "path",
    ["toy_lib.unimported:_CACHE", "toy_lib.arena:_unused", "toy_lib.arena:_unused.current"],
)
def test_what_a_module_does_not_have_yet_is_read_by_no_graph(
    arena: Any, reading: Callable[..., Watch], path: str
) -> None:
    watch = reading(path)
    runner = Runner()
    runner.capture()
    runner.tail = 7
    runner.run(2, nothing)
    assert codes(watch) == ["FR201"]  # the call is judged, and all else that it reads
    rebind(runner)
    runner.run(4, nothing)
    assert codes(watch) == ["FR601"]
    assert watch.coverage().problems == ()
    assert watch.coverage().untracked == ()


def test_a_module_that_is_imported_late_is_looked_at_from_then_on(
    arena: Any, reading: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "toy_lib.arena")
    watch = reading("toy_lib.arena:_CACHE", "toy_lib.arena:_CACH")
    runner = Runner()
    runner.capture()
    assert watch.coverage().problems == ()
    monkeypatch.setitem(sys.modules, "toy_lib.arena", arena)
    runner.capture()
    assert len(watch.coverage().problems) == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("_CACH", "there is no `_CACH` in module `toy_lib.arena`; did you mean `_CACHE`?"),
        ("Experts.buffer", "there is no `buffer`; did you mean `buffers`?"),
    ],
)
def test_a_name_that_a_module_lacks_is_a_slip_in_the_contract(
    arena: Any, reading: Callable[..., Watch], path: str, said: str
) -> None:
    watch = reading(f"toy_lib.arena:{path}")
    runner = Runner()
    for _ in range(2):
        runner.capture()
        runner.run(2, nothing)
    fill = "contract `toy`, fill `toy_graphs:Runner`: "
    assert watch.coverage().problems == (f"{fill}path `toy_lib.arena:{path}`: {said}",)
    (untracked, *_) = watch.coverage().untracked
    assert f"there is no `toy_lib.arena:{path}`" in untracked[1]


@pytest.mark.parametrize("path", ["_made", "Experts.late", "Experts.later"])
def test_a_name_that_is_bound_later_is_no_slip(
    arena: Any, reading: Callable[..., Watch], path: str
) -> None:
    watch = reading(f"toy_lib.arena:{path}")
    Runner().capture()
    assert watch.coverage().problems == ()


def test_a_module_is_not_asked_for_what_it_would_import(
    arena: Any, reading: Callable[..., Watch]
) -> None:
    asked = []
    arena.__getattr__ = asked.append
    watch = reading("toy_lib.arena:lazy")
    Runner().capture()
    assert asked == []
    assert "there is no `lazy` in module" in watch.coverage().problems[0]


def test_modules_of_one_last_name_are_told_apart(
    arena: Any, reading: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    other: Any = ModuleType("toy_more.arena")
    other._CACHE = {"plain": torch.zeros(3)}
    monkeypatch.setitem(sys.modules, "toy_more.arena", other)
    watch = reading("toy_lib.arena:_CACHE", "toy_more.arena:_CACHE")
    runner = Runner()
    runner.capture()
    arena._CACHE["plain"] = torch.zeros(3)
    runner.run(2, nothing)
    assert [one.buffer for one in watch.drain()] == ["arena._CACHE[plain]"]


def test_a_method_that_another_class_captures_by_may_not_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = watching(monkeypatch, 'captured_by = ["toy_graphs:Graphs.capture_all"]')
    watch.stop()
    assert "has no function `Graphs.capture_all`" in watch.coverage().problems[0]


def test_the_probe_fires() -> None:
    (probe,) = [one for one in PROBES if one.code == "FR601"]
    assert tried(probe, ProbeTarget("cpu")) == ""


def test_what_captures_is_named_by_class_and_method() -> None:
    text = CONTRACT.replace("CAPTURED", 'captured_by = ["toy graphs:x"]')
    with pytest.raises(UsageError, match=r"captured_by.*module:Class\.method"):
        parse_contract(text, "toy.toml")


class Sized(Runner):
    """A runner with a graph of its own, and tensors of its own, for each size."""

    def __init__(self) -> None:
        super().__init__()
        self.of_size = {size: torch.zeros(4, dtype=torch.int64) for size in (2, 4)}

    def bind(self, size: int) -> None:
        self.rows = self.of_size[size]
        self.most = size

    def capture_one(self, size: int) -> None:
        self.bind(size)
        self.capture()


def captured_in_two_sizes() -> Sized:
    runner = Sized()
    for size in (4, 2):
        runner.capture_one(size)
    return runner


def test_each_size_has_a_graph_with_its_own_inputs(watch: Watch) -> None:
    runner = captured_in_two_sizes()
    for size in (4, 2, 4):
        runner.bind(size)
        runner.run(1, nothing)
    assert codes(watch) == []


def test_the_inputs_of_another_size_are_reported(watch: Watch) -> None:
    runner = captured_in_two_sizes()
    runner.bind(4)
    runner.rows = runner.of_size[2]
    runner.run(1, nothing)
    assert codes(watch) == ["FR601"]


def test_inputs_that_no_graph_was_captured_with_are_reported(watch: Watch) -> None:
    runner = captured_in_two_sizes()
    runner.bind(2)
    rebind(runner)
    runner.run(1, nothing)
    assert codes(watch) == ["FR601"]


def test_the_size_may_be_what_the_capture_is_called_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "capture_one", Sized.capture_one, raising=False)
    monkeypatch.setattr(Runner, "bind", Sized.bind, raising=False)
    watch = watching(monkeypatch, 'captured_by = ["capture_one"]')
    try:
        monkeypatch.delattr(Sized, "capture_one")
        test_each_size_has_a_graph_with_its_own_inputs(watch)
        test_the_inputs_of_another_size_are_reported(watch)
    finally:
        watch.stop()


@dataclass(frozen=True)
class Descriptor:
    """What an engine tells its graphs apart by, beside their size."""

    rows: int
    blocks: int
    drafts: bool = False


KEYS: dict[str, list[Any]] = {
    "tuples": [(2, 8), (2, 16)],
    "data classes": [Descriptor(2, 8), Descriptor(2, 16), Descriptor(2, 16, drafts=True)],
    "flags": [True, False],
    "names": ["draft", "target"],
    "in a tuple": [(2, Descriptor(2, 8)), (2, Descriptor(2, 16))],
}


class Keyed(Runner):
    """A runner with a graph, and inputs, for each key; each is of the same size."""

    def __init__(self) -> None:
        super().__init__()
        self.of_key: dict[Any, torch.Tensor] = {}

    def capture_one(self, key: Any) -> None:
        self.of_key[key] = self.rows = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize("kind", KEYS)
def test_graphs_of_one_size_are_told_apart_by_their_keys(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(Runner, "capture_one", Keyed.capture_one, raising=False)
    watch = watching(monkeypatch, 'captured_by = ["capture_one"]')
    try:
        monkeypatch.delattr(Keyed, "capture_one")
        runner: Any = Keyed()
        for key in KEYS[kind]:
            runner.capture_one(key)
        for key in KEYS[kind]:
            runner.rows = runner.of_key[key]
            runner.run(2, nothing)
        assert codes(watch) == []
        rebind(runner)
        runner.run(2, nothing)
        assert codes(watch) == ["FR601"]
    finally:
        watch.stop()


class Renamed(Runner):
    """Its graphs are captured by another name of the key than they are filled by."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[int, SimpleNamespace] = {}

    def capture_one(self, size: int) -> None:
        self.of[size] = SimpleNamespace(rows=torch.zeros(4, dtype=torch.int64))

    def run_one(self, raw: int) -> None:
        self.of[raw].rows.fill_(self.tail)
        self._replay()


def test_a_key_may_have_another_name_where_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("capture_one", "run_one"):
        monkeypatch.setattr(Runner, name, getattr(Renamed, name), raising=False)
    text = CONTRACT.replace('"run"', '"run_one"').replace('"self"', '"self.of[raw]"')
    monkeypatch.setattr(sys.modules[__name__], "CONTRACT", text)
    watch = watching(monkeypatch, 'captured_by = ["capture_one"]')
    for name in ("capture_one", "run_one"):
        monkeypatch.delattr(Renamed, name)
    try:
        runner: Any = Renamed()
        runner.capture_one(2)
        runner.run_one(2)
        assert codes(watch) == []
        coverage = watch.coverage()
        assert coverage.problems == ()
        assert ("captures", "`Renamed.capture_one` has no parameter `raw`", 1) in coverage.untracked
    finally:
        watch.stop()


class Entries(Runner):
    """A runner that hands each graph's own inputs to the fill, in a capture as well."""

    def capture_one(self, key: Any) -> SimpleNamespace:
        entry = SimpleNamespace(rows=torch.zeros(4, dtype=torch.int64))
        self.load(entry)
        return entry

    def load(self, entry: SimpleNamespace) -> None:
        entry.rows.fill_(self.tail)
        self._replay()


def test_what_fills_in_a_capture_is_told_apart_by_the_key_of_the_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("capture_one", "load"):
        monkeypatch.setattr(Runner, name, getattr(Entries, name), raising=False)
    text = CONTRACT.replace('"run"', '"load"').replace('"self"', '"entry"')
    monkeypatch.setattr(sys.modules[__name__], "CONTRACT", text.replace('"raw"', '"self.tail"'))
    watch = watching(monkeypatch, 'captured_by = ["capture_one"]')
    for name in ("capture_one", "load"):
        monkeypatch.delattr(Entries, name)
    try:
        runner: Any = Entries()
        entries = [runner.capture_one((4, blocks)) for blocks in (8, 16)]
        for entry in entries:
            runner.load(entry)
        assert codes(watch) == []
        runner.load(SimpleNamespace(rows=torch.zeros(4, dtype=torch.int64)))
        assert codes(watch) == ["FR601"]
    finally:
        watch.stop()


class Looped(Runner):
    """Fills for each size within one capture, and before each replay: a head of one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(4, dtype=torch.int64)

    def fill(self, size: int, of: torch.Tensor | None = None) -> None:
        self.rows = (self.buffer if of is None else of)[:size]
        self.most = size
        self.run(1, nothing)

    def capture(self) -> None:
        for size in (4, 2):
            self.fill(size)


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the class that the contract names capture and fill so."""
    monkeypatch.setattr(Runner, "capture", Looped.capture)
    monkeypatch.delattr(Looped, "capture")
    monkeypatch.setattr(Runner, "fill", Looped.fill, raising=False)


@pytest.mark.usefixtures("looped")
def test_one_capture_of_several_sizes_has_a_graph_for_each_that_it_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = watching(monkeypatch, CAPTURED)
    try:
        runner = Looped()
        runner.capture()
        for size in (4, 2, 4):
            runner.fill(size)
        assert codes(watch) == []
        runner.fill(4, torch.zeros(4, dtype=torch.int64))
        assert codes(watch) == ["FR601"]
    finally:
        watch.stop()


@pytest.mark.usefixtures("looped")
def test_what_a_capture_fills_is_judged_by_no_graph_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Runner, "tail", 9)
    monkeypatch.setattr(sys.modules[__name__], "CONTRACT", CONTRACT.replace(SETTLED, ""))
    watch = watching(monkeypatch, CAPTURED)
    try:
        runner = Looped()
        runner.capture()
        assert codes(watch) == []
        runner.fill(4)
        assert codes(watch) == ["FR201"]
    finally:
        watch.stop()


def test_a_capture_may_take_whatever_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(*_: Any) -> None:
        pass

    monkeypatch.setattr(Runner, "capture", capture)
    watch = watching(monkeypatch, CAPTURED)
    try:
        runner: Any = Runner()
        runner.capture(1)
        rebind(runner)
        runner.run(1, nothing)
        assert codes(watch) == ["FR601"]
    finally:
        watch.stop()


def test_of_several_graphs_the_one_that_is_most_like_is_held_against(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def capture_one(runner: Runner, size: int) -> None:
        runner.rows = of_size[size]

    of_size = {size: torch.zeros(4, dtype=torch.int64) for size in (2, 4)}
    monkeypatch.setattr(Runner, "capture_one", capture_one, raising=False)
    captured = 'captured_by = ["capture_one"]\n    captured = ["self.other"]'
    watch = watching(monkeypatch, captured)
    try:
        runner: Any = Runner()
        for size in (4, 2):
            runner.capture_one(size)
        runner.rows, runner.other = of_size[4], torch.zeros(4, dtype=torch.int64)
        runner.run(1, nothing)
        assert [one.buffer for one in watch.drain()] == ["Runner.other"]
    finally:
        watch.stop()
