"""FR201: what a fill leaves in the tails of graph inputs, on the host and by the device's code."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.graphs import open_fill
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.session.probes import PROBES, ProbeTarget, tried
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps import writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.finding import Violation

MOST, PADDED, RAW = 8, 6, 2
OLD = 5

CONTRACT = """
    [engine]
    name = "toy"

    [graph_inputs]
    row_indices = ["rows"]
    index_like = ["positions", "mask", "wide", "ids", "hidden"]
    tail_is_discarded = ["hidden"]
    tail_may_stay = ["ids"]
    batch_dim = { wide = 1 }
    holds = { fixed = 9, odds = 0 }
    valid = { lens = "> 0" }

    [[graph_inputs.fill]]
    class = "toy_engine:Runner"
    methods = ["run"]
    settled_by = ["_replay", "toy_engine:Graph.replay"]
    inputs = "self.inputs"
    axis.rows = { raw = "batch.size", padded = "self.size", capacity = "self.most" }
    holds = { lens = "self.fill_value" }
    unless = "batch.staged"
    source = "batch"
    copies_source = true
    mapping = "self.mapping"

    [[graph_inputs.fill]]
    class = "toy_engine:Slots"
    methods = ["fill"]
    inputs = "self.slots"
    slot_buffer = "buffer"
    slot_axis = "axis"
    axis.bs = { raw = "raw", padded = "padded", capacity = "self.most" }
    axis.tokens = { raw = "raw_tokens", padded = "padded_tokens", capacity = "self.most" }
    holds = { lens = "slot.value" }
"""


class Graph:
    def replay(self) -> None:
        pass


def inputs() -> dict[str, torch.Tensor]:
    """Inputs as a batch of eight has left them."""
    return {
        "rows": torch.full((MOST,), OLD),
        "positions": torch.full((MOST * 2,), OLD, dtype=torch.int32),
        "mask": torch.ones(MOST, dtype=torch.bool),
        "wide": torch.full((3, MOST), OLD),
        "hidden": torch.full((MOST, 2), 0.5),
        "ids": torch.full((MOST,), OLD),
        "fixed": torch.full((MOST,), OLD),
        "odds": torch.full((MOST, 2), 0.5),
        "lens": torch.full((MOST,), OLD),
        "unknown": torch.full((MOST,), OLD),
    }


@dataclass(slots=True)
class Held:
    """Inputs in slots, without a `__dict__`."""

    rows: torch.Tensor
    positions: torch.Tensor

    def __init__(self, named: dict[str, torch.Tensor]) -> None:
        self.rows, self.positions = named["rows"], named["positions"]


RIGHT = {"rows": 0, "positions": 3, "mask": False, "wide": 0, "fixed": 9, "odds": 0.0, "lens": 1}


@dataclass
class Step:
    """A batch, and what the fill does to the tails: names and values."""

    size: int = RAW
    padded: int = PADDED
    tails: dict[str, Any] = field(default_factory=lambda: dict(RIGHT))
    staged: bool = False
    replayed: bool = True
    also: Callable[[Any], None] = lambda runner: None
    rows: torch.Tensor | None = None
    skipped: tuple[str, ...] = ()
    named: dict[str, torch.Tensor] | None = None


def tail_of(name: str, tensor: torch.Tensor, raw: int, padded: int) -> torch.Tensor:
    per_row = 2 if name == "positions" else 1
    tail = slice(raw * per_row, padded * per_row)
    return tensor[:, tail] if name == "wide" else tensor[tail]


class Runner:
    most = MOST
    fill_value = 1

    def __init__(self) -> None:
        self.inputs = inputs()
        self.mapping = torch.zeros(3, 4, dtype=torch.int32)
        self.size = 0
        self.read: dict[str, torch.Tensor] = {}

    def run(self, batch: Step) -> None:
        held = self.inputs if batch.named is None else batch.named
        for name, value in batch.tails.items():
            tail_of(name, held[name], batch.size, batch.padded)[...] = value
        for name, tensor in held.items():
            if name not in batch.skipped:
                head, real = tail_of(name, tensor, 0, batch.size), 1 if name != "rows" else 4
                head[...] = real  # the last write
        batch.also(self)
        if batch.replayed:
            self.size = batch.padded
            self._replay(held)

    def _replay(self, held: dict[str, torch.Tensor]) -> None:
        self.read = {name: tensor.clone() for name, tensor in held.items()}


@dataclass
class Slot:
    buffer: torch.Tensor | None
    axis: str
    value: int | None = None


class Slots:
    most = MOST

    def __init__(self) -> None:
        self.slots = {
            "rows": Slot(torch.full((MOST,), OLD), "bs"),
            "positions": Slot(torch.full((MOST,), OLD), "tokens"),
            "lens": Slot(torch.full((MOST,), OLD), "bs", 1),
            "fixed": Slot(None, "bs"),
            "odds": Slot(torch.ones(1), "none"),
        }

    def fill(self, raw: int, padded: int, raw_tokens: int, padded_tokens: int) -> None:
        self.slots["rows"].buffer[:raw] = 4
        self.slots["rows"].buffer[raw:padded] = 0
        self.slots["positions"].buffer[:raw_tokens] = 4
        self.slots["lens"].buffer[:raw] = 4
        self.slots["lens"].buffer[raw:padded] = 1


@pytest.fixture(params=["host", "device"])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    module: Any = ModuleType("toy_engine")
    for kind in (Runner, Slots, Graph):
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "toy_engine", module)
    watch = Watch([parse_contract(CONTRACT, "toy.toml")])
    monkeypatch.setattr(open_fill, "compares_on_device", request.param == "device")
    watch.start()
    yield watch
    watch.stop()


def found(watch: Watch) -> dict[str, Violation]:
    assert watch.coverage().problems == ()
    assert watch.tally.broken == {}
    violations = {violation.buffer: violation for violation in watch.drain()}
    assert {violation.code for violation in violations.values()} <= {"FR201"}
    return violations


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in RIGHT.items() if name not in names}


def test_a_fill_that_resets_all_it_must_is_never_accused(watch: Watch) -> None:
    runner = Runner()
    for size, padded in [(2, 6), (6, 6), (1, 8), (8, 8), (3, 4), (0, 2)]:
        runner.run(Step(size, padded))
    assert found(watch) == {}
    assert watch.coverage().counts.tails == 7 * 4


@pytest.mark.parametrize("name", RIGHT)
def test_a_tail_that_is_not_reset_is_reported(watch: Watch, name: str) -> None:
    runner = Runner()
    runner.run(Step(tails=without(name)))
    reported = found(watch)
    assert set(reported) == {f"Runner.{name}"}
    violation = reported[f"Runner.{name}"]
    first, count = (4, 8) if name == "positions" else (2, 4)
    assert violation.rows == tuple(range(first, first + count))
    assert violation.row_count == count
    assert set(violation.values) == {str(tail_of(name, inputs()[name], 0, 1).flatten()[0].item())}
    assert violation.access.verb == "fill"
    assert violation.access.site.function == "Runner.run"
    assert violation.access.site.path == __file__
    assert violation.last_write is not None
    assert violation.last_write.site.line == line_of("# the last write")
    assert "nothing wrote the tail" in violation.notes[0]


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(mark))


@pytest.mark.parametrize("name", RIGHT)
def test_the_replay_reads_what_it_would_have_read_without_the_watch(
    watch: Watch, name: str
) -> None:
    runner = Runner()
    runner.run(Step(tails=without(name)))
    for other, tensor in runner.read.items():
        tail, beyond = tail_of(other, tensor, RAW, PADDED), tail_of(other, tensor, PADDED, MOST)
        old = tail_of(other, inputs()[other], RAW, PADDED)
        right = old if other not in without(name) else torch.full_like(old, RIGHT[other])
        assert torch.equal(tail, right), other
        assert torch.equal(beyond, tail_of(other, inputs()[other], PADDED, MOST)), other


def test_what_a_tail_holds_is_what_the_fill_has_set(watch: Watch) -> None:
    """The number that a path of `holds` leads to is that of the moment before the replay."""

    def set_number(runner: Any) -> None:
        runner.fill_value = int(runner.inputs["lens"][RAW])

    runner = Runner()
    for number in (7, 3):
        runner.run(Step(tails={**RIGHT, "lens": number}, also=set_number))
    assert found(watch) == {}
    runner.run(Step(tails={**RIGHT, "lens": 3}, also=lambda it: setattr(it, "fill_value", 4)))
    (violation,) = found(watch).values()
    assert (violation.buffer, violation.values[:1]) == ("Runner.lens", ("3",))
    assert violation.expected.endswith(" in every entry of the tail, which must be > 0")
    assert violation.expected.startswith(("4 in", "what `self.fill_value` leads to in"))


def test_what_the_replay_sets_is_not_what_the_tail_held(watch: Watch) -> None:
    class Counting(Runner):
        def _replay(self, held: dict[str, torch.Tensor]) -> None:
            Graph().replay()
            self.fill_value += 1

    runner = Counting()
    for number in (1, 2):
        runner.run(Step(tails={**RIGHT, "lens": number}))
    assert found(watch) == {}


def test_a_tail_of_which_a_path_says_nothing_may_hold_anything(watch: Watch) -> None:
    runner: Any = Runner()
    runner.fill_value = None
    runner.run(Step(tails={**RIGHT, "lens": 77}))
    assert found(watch) == {}


def test_a_tail_that_was_reset_to_the_wrong_value_is_reported_with_it(watch: Watch) -> None:
    Runner().run(Step(tails={**RIGHT, "rows": 3}))
    violation = found(watch)["Runner.rows"]
    assert violation.values == ("3",) * 4
    assert violation.expected == "0 in every entry of the tail"
    assert "this fill wrote the tail" in violation.notes[0]
    assert "graph_inputs.row_indices" in violation.notes[1]


def test_a_reset_that_stops_short_is_reported_for_the_rest(watch: Watch) -> None:
    def forget(runner: Runner) -> None:
        runner.inputs["positions"][4:7] = 3

    Runner().run(Step(tails=without("positions"), also=forget))
    assert found(watch)["Runner.positions"].rows == (7, 8, 9, 10, 11)


def test_what_the_fill_holds_must_be_valid_besides(watch: Watch) -> None:
    runner = Runner()
    runner.fill_value = 0
    runner.run(Step(tails={**RIGHT, "lens": 0}))
    violation = found(watch)["Runner.lens"]
    assert violation.expected == "0 in every entry of the tail, which must be > 0"


def test_a_batch_that_needs_no_padding_is_not_looked_at(watch: Watch) -> None:
    Runner().run(Step(PADDED, PADDED, tails={}))
    assert found(watch) == {}
    assert watch.coverage().counts.tails == 0


def test_an_input_that_the_fill_does_not_write_at_all_is_not_its_business(watch: Watch) -> None:
    Runner().run(Step(tails=without("positions"), skipped=("positions",)))
    assert found(watch) == {}


def test_a_write_out_of_sight_leaves_the_tail_to_its_values_alone(watch: Watch) -> None:
    def kernel(runner: Runner) -> None:
        runner.inputs["positions"].numpy()[: 2 * RAW] = 11
        runner.inputs["fixed"].numpy()[:RAW] = 11

    named = ("positions", "fixed")
    Runner().run(Step(tails=without(*named), skipped=named, also=kernel))
    # NumPy may have written what the positions held before: only a wrong value is sure.
    violation = found(watch)["Runner.fixed"]
    assert "it is unknown here whether this fill wrote them" in violation.notes[0]
    assert set(found(watch)) == set()
    assert set(watch.tally.untracked) == {("tails", writes.NUMPY)}


def test_row_indices_are_judged_whether_or_not_they_were_seen_to_be_filled(watch: Watch) -> None:
    Runner().run(Step(tails=without("rows"), skipped=("rows",)))
    assert set(found(watch)) == {"Runner.rows"}


def test_an_input_that_is_bound_anew_is_no_stale_tail(watch: Watch) -> None:
    def rebind(runner: Runner) -> None:
        runner.inputs["rows"] = torch.zeros(MOST, dtype=torch.int64)

    runner = Runner()
    runner.run(Step(tails=without("rows"), also=rebind))
    assert [(one.code, one.buffer) for one in watch.drain()] == [("FR601", "Runner.rows")]
    runner.run(Step(tails=without("rows")))
    assert set(found(watch)) == {"Runner.rows"}


def test_a_fill_that_raises_leaves_the_inputs_as_they_were(watch: Watch) -> None:
    def fail(runner: Runner) -> None:
        raise ValueError("no memory")

    runner = Runner()
    with pytest.raises(ValueError, match="no memory"):
        runner.run(Step(tails={}, also=fail))
    assert found(watch) == {}
    for name, tensor in runner.inputs.items():
        old = tail_of(name, inputs()[name], RAW, MOST)
        assert torch.equal(tail_of(name, tensor, RAW, MOST), old), name


def test_a_fill_that_nothing_was_replayed_after_is_not_judged(watch: Watch) -> None:
    runner = Runner()
    runner.run(Step())
    runner.run(Step(1, tails={}, replayed=False))
    assert found(watch) == {}
    assert runner.inputs["rows"][1:PADDED].tolist() == [4, 0, 0, 0, 0]


def test_a_call_that_the_contract_excepts_is_passed_over(watch: Watch) -> None:
    Runner().run(Step(tails={}, staged=True))
    assert found(watch) == {}


def test_a_head_that_was_overwritten_is_reported(watch: Watch) -> None:
    def reset_too_late(runner: Runner) -> None:
        runner.inputs["rows"].zero_()

    Runner().run(Step(rows=torch.tensor([4, 4]), also=reset_too_late))
    violation = found(watch)["Runner.rows"]
    assert violation.rows == (0, 1)
    assert violation.values == ("0", "0")
    assert violation.expected.startswith("the batch's values")


def test_a_head_that_is_what_the_batch_brought_is_right(watch: Watch) -> None:
    Runner().run(Step(rows=torch.tensor([4, 4], dtype=torch.int32)))
    assert found(watch) == {}


def test_a_head_is_held_against_the_values_of_a_lazily_negated_source(watch: Watch) -> None:
    Runner().run(Step(rows=torch._neg_view(torch.tensor([-4, -4]))))
    assert found(watch) == {}
    assert watch.coverage().incomplete == ()


def test_the_mapping_of_the_sink_row_must_stay_zero(watch: Watch) -> None:
    runner = Runner()
    runner.mapping[0, 2] = 13
    runner.run(Step())
    violation = found(watch)["Runner.mapping"]
    assert violation.rows == (0,)
    assert violation.values == ("13",)
    runner.run(Step(PADDED, PADDED))
    assert found(watch) == {}


def test_a_source_that_lies_in_the_tail_is_no_measure_of_the_head(watch: Watch) -> None:
    runner = Runner()
    rows = runner.inputs["rows"]
    rows.copy_(torch.arange(MOST))
    taken = rows[3:5]

    def copy(it: Any) -> None:
        it.inputs["rows"][:RAW] = taken

    runner.run(Step(tails=without("rows"), rows=taken, also=copy))
    assert runner.inputs["rows"][:RAW].tolist() == [3, 4]
    violation = found(watch)["Runner.rows"]
    assert violation.rows == (2, 3, 4, 5)
    assert violation.values == ("2", "3", "4", "5")


def test_inputs_of_inference_mode_are_judged_too(watch: Watch) -> None:
    with torch.inference_mode():
        runner = Runner()
        runner.run(Step(tails=without("positions", "rows")))
        runner.run(Step(3))
    assert set(found(watch)) == {"Runner.positions", "Runner.rows"}


def test_slots_have_axes_of_their_own(watch: Watch) -> None:
    slots = Slots()
    slots.fill(2, 4, raw_tokens=3, padded_tokens=8)
    reported = found(watch)
    assert set(reported) == {"Slots.positions"}
    assert reported["Slots.positions"].rows == (3, 4, 5, 6, 7)
    assert slots.slots["positions"].buffer.tolist() == [4] * 3 + [OLD] * 5
    slots.fill(2, 2, raw_tokens=3, padded_tokens=3)
    assert found(watch) == {}


def test_the_same_find_is_reported_once_with_a_count(watch: Watch) -> None:
    runner = Runner()
    for _ in range(3):
        runner.run(Step(tails=without("rows")))
    assert found(watch)["Runner.rows"].count == 3


def test_a_fill_inside_of_a_fill_is_part_of_it(watch: Watch) -> None:
    class Derived(Runner):
        def run(self, batch: Step) -> None:
            super().run(batch)

    runner = Derived()
    runner.run(Step(tails=without("rows"), also=lambda it: Runner().run(Step())))
    assert runner.inputs["rows"][RAW:PADDED].tolist() == [OLD] * 4
    assert set(found(watch)) == {"Derived.rows"}


def test_a_fill_that_calls_itself_never_sees_its_own_poison(watch: Watch) -> None:
    runner, read = Runner(), []

    def again(it: Any) -> None:
        it.run(Step(tails=without("rows")))
        read.extend(it.read["rows"][RAW:PADDED].tolist())

    runner.run(Step(tails=without("rows"), also=again))
    assert read == [OLD] * 4
    assert set(found(watch)) == {"Runner.rows"}


def test_a_mask_must_choose_no_padded_row(watch: Watch) -> None:
    Runner().run(Step(tails=without("mask")))
    assert found(watch)["Runner.mask"].expected == "0 in every entry of the tail"


def test_after_the_watch_nothing_is_touched(watch: Watch) -> None:
    watch.stop()
    Runner().run(Step(tails={}))
    assert watch.drain() == ()
    assert not hasattr(Runner.run, "__wrapped__")
    assert not hasattr(Graph.replay, "__wrapped__")


@contextlib.contextmanager
def watching(text: str, **module: Any) -> Iterator[Watch]:
    made: Any = ModuleType("toy_engine")
    for name, value in {"Runner": Runner, "Slots": Slots, "Graph": Graph, **module}.items():
        setattr(made, name, value)
    sys.modules["toy_engine"] = made
    watch = Watch([parse_contract(text, "toy.toml")])
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
        del sys.modules["toy_engine"]


def problems_of(text: str, **module: Any) -> tuple[str, ...]:
    with watching(text, **module) as watch:
        Runner().run(Step())
        return watch.coverage().problems


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "toy_engine:Runner",
            "toy_engine:Runer",
            "the module has no class `Runer`; did you mean `Runner`?",
        ),
        ('["run"]', '["runn"]', "there is no method `runn`; did you mean `run`?"),
        (
            "Graph.replay",
            "Graph.replays",
            "settled_by: module `toy_engine` has no function `Graph.replays`; did you mean `Graph",
        ),
        (
            "toy_engine:Graph.replay",
            "toy_engine:Graph",
            "settled_by: module `toy_engine` has no function `Graph`; did you mean `Graph.replay`?",
        ),
        (
            '["_replay", "toy_engine:Graph.replay"]',
            '["_repaly"]',
            "settled_by: there is no method `_repaly`; did you mean `_replay`?",
        ),
        ("self.inputs", "self.imputs", "path `self.imputs`: there is no `imputs`"),
        ("batch.size", "batch.sise", "path `batch.sise`: there is no `sise`"),
        ("self.size", "self.padded", "path `self.padded`: there is no `padded`"),
        ("self.mapping", "self.maping", "path `self.maping`: there is no `maping`"),
        ("self.fill_value", "self.filling", "path `self.filling`: there is no `filling`"),
    ],
)
def test_a_contract_that_does_not_fit_is_a_problem_and_no_end(
    old: str, new: str, problem: str
) -> None:
    (said,) = problems_of(CONTRACT.replace(old, new))
    assert said.startswith("contract `toy`, fill `toy_engine:Run")
    assert problem in said


@pytest.mark.parametrize("hold", [lambda it: SimpleNamespace(**it), Held])
def test_an_object_holds_inputs_as_a_mapping_does(watch: Watch, hold: Callable[..., Any]) -> None:
    class Object(Runner):
        def run(self, batch: Step) -> None:
            named, self.inputs = self.inputs, hold(self.inputs)
            super().run(dataclasses.replace(batch, named=named))

    Object().run(Step(tails=without("rows")))
    assert set(found(watch)) == {"Object.rows"}


def test_the_check_sees_its_own_fault() -> None:
    assert probe("FR201") == ""


def test_a_check_that_sees_nothing_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from fmcheck.runtime.graphs import tails

    monkeypatch.setattr(tails.HostTail, "judge", lambda self, count: None)
    assert probe("FR201") != ""


def probe(code: str) -> str:
    """What the probe of a check says is wrong with its detector."""
    (one,) = [probe for probe in PROBES if probe.code == code]
    return tried(one, ProbeTarget("cpu"))


def test_a_tail_written_with_any_value_is_left_as_it_was_written(watch: Watch) -> None:
    for value in (0, 1, 2, 3, 10):
        runner = Runner()
        runner.run(Step(tails={**RIGHT, "positions": value, "wide": value}))
        assert found(watch) == {}
        assert set(runner.read["positions"][2 * RAW : 2 * PADDED].tolist()) == {value}
        assert set(runner.read["wide"][:, RAW:PADDED].flatten().tolist()) == {value}


def test_a_fill_reads_from_a_tail_what_it_would_read_unwatched(watch: Watch) -> None:
    seen: list[Any] = []

    def read(runner: Runner) -> None:
        rows, wide = runner.inputs["rows"], runner.inputs["wide"]
        seen.append(rows.tolist())
        seen.append(rows.numpy().tolist())
        wide[:, :PADDED] = wide[:, :PADDED] + 1

    Runner().run(Step(tails=without("rows", "wide"), also=read))
    assert seen == [[4] * RAW + [OLD] * (MOST - RAW)] * 2
    assert set(found(watch)) == {"Runner.rows"}


def test_who_is_handed_an_address_may_have_written_what_was_there(watch: Watch) -> None:
    def kernel(runner: Runner) -> None:
        ctypes.memset(runner.inputs["positions"].data_ptr() + 4 * 2 * RAW, 5, 0)

    Runner().run(Step(tails=without("positions"), also=kernel))
    assert found(watch) == {}
    assert set(watch.tally.untracked) == {("tails", writes.KERNEL)}


def test_an_operator_of_somebody_elses_may_have_written_what_was_there(watch: Watch) -> None:
    with torch.library._scoped_library("fmcheck_toy", "FRAGMENT") as library:
        library.define("pad(Tensor x) -> ()")  # as careless extensions declare it
        library.impl("pad", lambda x: None, "CPU")
        pad = torch.ops.fmcheck_toy.pad
        Runner().run(Step(tails=without("positions"), also=lambda it: pad(it.inputs["positions"])))
    assert found(watch) == {}
    assert set(watch.tally.untracked) == {("tails", writes.KERNEL)}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_code_that_resets_a_tail_is_believed(backend: str) -> None:
    torch.compiler.reset()

    @torch.compile(backend=backend, dynamic=False)
    def reset(x: torch.Tensor) -> None:
        x[2 * RAW :] = OLD

    step = Step(tails=without("positions"), also=lambda it: reset(it.inputs["positions"]))
    with watching(CONTRACT) as watch:
        for _ in range(2):
            Runner().run(step)
        assert found(watch) == {}


def test_an_input_that_was_once_written_out_of_sight_is_never_sure_again(watch: Watch) -> None:
    runner = Runner()
    address = runner.inputs["positions"].data_ptr()

    def kernel(value: int) -> Callable[[Any], None]:
        tail = (ctypes.c_int32 * (2 * (MOST - RAW))).from_address(address + 4 * 2 * RAW)

        def write(_: Any) -> None:
            tail[:] = [value] * len(tail)

        return write

    runner.run(Step(tails=without("positions"), also=kernel(3)))
    runner.run(Step(tails=without("positions"), also=kernel(3)))
    assert found(watch) == {}


def test_a_tensor_may_be_resized_after_the_watch_has_looked_at_it(watch: Watch) -> None:
    runner = Runner()
    runner.run(Step())
    for tensor in runner.inputs.values():
        tensor.resize_(100)


def test_memory_that_is_given_up_in_the_fill_is_not_looked_at(watch: Watch) -> None:
    def resize(runner: Runner) -> None:
        runner.inputs["positions"].resize_(1 << 20)

    Runner().run(Step(tails=without("positions"), also=resize))
    assert {one.code for one in watch.drain()} <= {"FR601"}
    assert watch.tally.broken == {}


def test_an_error_of_our_own_code_is_not_the_engines(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(writes, "_noted", fail)
    runner = Runner()
    runner.run(Step(tails=without("rows", "positions")))
    assert runner.read["rows"][:RAW].tolist() == [4] * RAW
    assert set(watch.tally.broken) == {"FR201"}
    # A value that is wrong is wrong, whoever wrote it.
    assert [one.buffer for one in watch.drain()] == ["Runner.rows"]


@pytest.mark.parametrize("place", ["begin", "settle", "leave", "judge_mapping"])
def test_an_error_at_any_step_of_a_fill_is_not_the_engines(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    from fmcheck.runtime.graphs.open_fill import OpenFill

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(OpenFill, place, fail)
    runner = Runner()
    runner.run(Step())
    assert runner.read["rows"].tolist() == [4, 4, 0, 0, 0, 0, OLD, OLD]
    assert set(watch.tally.broken) == {"FR201"}
    assert torch._C._len_torch_dispatch_stack() == (place == "leave")
    writes.leave(list(writes._here.traces))


def test_a_fill_is_judged_by_a_replay_that_follows_its_return(watch: Watch) -> None:
    runner = Runner()
    runner.run(Step(tails=without("rows"), replayed=False))
    runner.size = PADDED
    assert found(watch) == {}
    Graph().replay()
    assert set(found(watch)) == {"Runner.rows"}
    Graph().replay()
    assert found(watch) == {}


def test_a_replay_of_another_test_judges_no_fill_of_this_one(watch: Watch) -> None:
    watch.enter("one")
    runner = Runner()
    runner.run(Step(tails=without("rows"), replayed=False))
    watch.enter("other")
    Graph().replay()
    assert found(watch) == {}


def test_an_object_that_captured_nothing_is_not_judged_when_its_fill_returns() -> None:
    text = CONTRACT.replace('methods = ["fill"]', 'methods = ["fill"]\ncaptured_by = ["capture"]')

    class Captured(Slots):
        def capture(self) -> None:
            pass

    with watching(text, Slots=Captured) as watch:
        Captured().fill(2, 4, raw_tokens=3, padded_tokens=8)
        assert found(watch) == {}
        ((what, reason),) = watch.tally.untracked
        assert (what, reason) == ("fills", "no graph was captured that would read them")
        slots = Captured()
        slots.capture()
        slots.fill(2, 4, raw_tokens=3, padded_tokens=8)
        assert set(found(watch)) == {"Captured.positions"}


class Built(Slots):
    def __init__(self) -> None:
        super().__init__()
        self.max_bs = MOST


def test_an_object_that_lacks_a_path_is_not_judged() -> None:
    with watching(CONTRACT.replace("self.most", "self.max_bs"), Slots=Built) as watch:
        half = object.__new__(Built)
        half.slots = Slots().slots
        half.fill(2, 4, raw_tokens=3, padded_tokens=8)
        assert found(watch) == {}
        ((what, reason),) = watch.tally.untracked
        assert (what, reason) == ("fills", "their object has no `self.max_bs` (toy_engine:Slots)")
        Built().fill(2, 4, raw_tokens=3, padded_tokens=8)
        assert set(found(watch)) == {"Built.positions"}


def test_a_path_that_only_one_object_was_given_is_no_slip() -> None:
    with watching(CONTRACT.replace("self.most", "self.max_bs")) as watch:
        slots = Slots()
        slots.fill(2, 4, raw_tokens=3, padded_tokens=8)
        (problem,) = watch.coverage().problems
        assert "path `self.max_bs`: there is no `max_bs`" in problem
        vars(slots)["max_bs"] = MOST
        slots.fill(2, 4, raw_tokens=3, padded_tokens=8)
        assert set(found(watch)) == {"Slots.positions"}


# --- the entries of real rows ---

WITH_HEADS = CONTRACT.replace(
    '    valid = { lens = "> 0" }\n',
    '    valid = { lens = "> 0" }\n'
    '    head = { ids = ">= 0", lens = "> 0", hidden = "> 0" }\n'
    '    rewritten = ["ids", "positions"]\n',
).replace("copies_source = true", "copies_source = false")


@pytest.fixture(params=["host", "device", "streams"])
def heads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    module: Any = ModuleType("toy_engine")
    for kind in (Runner, Slots, Graph):
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "toy_engine", module)
    streams = "tracked" if request.param == "streams" else "off"
    watch = Watch([parse_contract(WITH_HEADS, "toy.toml")], streams=streams)
    monkeypatch.setattr(open_fill, "compares_on_device", request.param == "device")
    watch.start()
    yield watch
    watch.stop()


def of_heads(watch: Watch) -> set[tuple[str, str, tuple[int, ...], tuple[str, ...]]]:
    assert watch.coverage().problems == ()
    assert watch.tally.broken == {}
    return {(one.code, one.buffer, one.rows, one.values) for one in watch.drain()}


@pytest.mark.parametrize("padded", [PADDED, RAW])
def test_heads_that_were_filled_are_right(heads: Watch, padded: int) -> None:
    runner = Runner()
    for size in (RAW, 1):
        runner.run(Step(size, padded))
    assert of_heads(heads) == set()


@pytest.mark.parametrize("padded", [PADDED, RAW])
def test_a_placeholder_in_a_real_row_is_reported(heads: Watch, padded: int) -> None:
    def leave(runner: Any) -> None:
        runner.inputs["ids"][1] = -1
        runner.inputs["hidden"][0, 1] = -0.5

    Runner().run(Step(padded=padded, also=leave))
    assert of_heads(heads) == {
        ("FR202", "Runner.ids", (1,), ("-1",)),
        ("FR202", "Runner.hidden", (0,), ("-0.5",)),
    }


def test_a_placeholder_in_the_tail_is_the_tails_affair(heads: Watch) -> None:
    Runner().run(Step(also=lambda runner: runner.inputs["ids"][RAW:].fill_(-1)))
    assert of_heads(heads) == set()


@pytest.mark.parametrize("padded", [PADDED, RAW])
def test_an_input_that_a_fill_leaves_out_is_reported(heads: Watch, padded: int) -> None:
    Runner().run(Step(padded=padded, skipped=("ids",)))
    assert of_heads(heads) == {("FR203", "Runner.ids", (0, 1), ("5", "5"))}


def test_a_fill_that_reads_a_head_has_not_written_it(heads: Watch) -> None:
    """Where streams are followed, what an operator reads is located: no kernel's doing."""
    Runner().run(Step(skipped=("ids",), also=lambda runner: runner.inputs["ids"].sum()))
    assert of_heads(heads) == {("FR203", "Runner.ids", (0, 1), ("5", "5"))}
    assert not [what for what, _ in heads.tally.untracked if what == "heads"]


def test_an_input_that_picks_rows_of_a_relay_is_not_in_doubt_for_that(heads: Watch) -> None:
    relay = relay_tensor(torch.arange(MOST), "Map.buf", "m:Map", Tally())

    def pick(runner: Any) -> None:
        relay[runner.inputs["ids"]] = 1
        relay[runner.inputs["ids"]]

    Runner().run(Step(skipped=("ids",), also=pick))
    assert of_heads(heads) == {("FR203", "Runner.ids", (0, 1), ("5", "5"))}


@pytest.mark.parametrize("by", ["nobody", "itself", "another"])
def test_what_a_fill_leaves_out_was_written_by_an_earlier_one(heads: Watch, by: str) -> None:
    runner, other = Runner(), Runner()
    if by != "nobody":
        (runner if by == "itself" else other).run(Step())
    runner.run(Step(skipped=("ids",)))
    (violation,) = [one for one in heads.drain() if one.buffer == "Runner.ids"]
    last = violation.last_write
    expected = line_of("# the last write") if by == "itself" else None
    assert (None if last is None else last.site.line) == expected


def test_a_row_that_a_fill_leaves_out_is_reported(heads: Watch) -> None:
    def some(runner: Any) -> None:
        runner.inputs["positions"][:3] = 4

    Runner().run(Step(skipped=("positions",), also=some))
    assert of_heads(heads) == {("FR203", "Runner.positions", (3,), ("5",))}


def test_a_head_that_nobody_was_seen_to_write_is_counted(heads: Watch) -> None:
    def past_torch(runner: Any) -> None:
        runner.inputs["ids"].numpy()[:RAW] = OLD

    Runner().run(Step(skipped=("ids",), also=past_torch))
    assert of_heads(heads) == set()
    untracked = {what for what, _, _ in heads.coverage().untracked}
    assert "heads" in untracked


def test_a_wrong_condition_of_a_head_is_named() -> None:
    from fmcheck.errors import UsageError

    text = WITH_HEADS.replace('ids = ">= 0"', 'ids = "!= -1"')
    with pytest.raises(UsageError) as caught:
        parse_contract(text, "toy.toml")
    assert "key `graph_inputs.head.ids`: expected `>= N` or `> N`, got `!= -1`" in str(caught.value)


NESTED = """
    [engine]
    name = "toy"

    [graph_inputs]
    row_indices = ["rows"]
    index_like = ["positions"]

    [[graph_inputs.fill]]
    class = "toy_engine:Nested"
    methods = ["fill"]
    only = ["rows"]
    inputs = "self"
    axis.rows = { raw = "raw", padded = "self.size", capacity = "self.most" }

    [[graph_inputs.fill]]
    class = "toy_engine:Nested"
    methods = ["prepare"]
    only = ["positions"]
    inputs = "self"
    axis.rows = { raw = "raw", padded = "self.size", capacity = "self.most" }
"""


class Nested:
    size, most = PADDED, MOST

    def __init__(self) -> None:
        self.rows, self.positions = torch.full((MOST,), OLD), torch.full((MOST,), OLD)

    def fill(self, raw: int, left_out: str = "") -> None:
        self.rows[:raw] = 4
        self.prepare(raw, left_out)
        if left_out != "rows":
            self.rows[raw:PADDED] = 0

    def prepare(self, raw: int, left_out: str) -> None:
        self.positions[:raw] = 4
        if left_out != "positions":
            self.positions[raw:PADDED] = 0


@pytest.mark.parametrize("left_out", ["", "rows", "positions"])
def test_a_fill_inside_of_another_declared_one_is_judged_by_itself(
    left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("toy_engine")
    module.Nested = Nested
    monkeypatch.setitem(sys.modules, "toy_engine", module)
    watch = Watch([parse_contract(NESTED, "toy.toml")])
    watch.start()
    try:
        Nested().fill(RAW, left_out)
        found = [(one.code, one.buffer) for one in watch.drain()]
        assert found == [("FR201", f"Nested.{left_out}")] * bool(left_out)
        assert watch.reached().counts.tails == 2
    finally:
        watch.stop()
