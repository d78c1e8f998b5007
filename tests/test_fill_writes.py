"""Random fills, run bare and watched: the same inputs at the replay, and only true findings.

What each step of a fill writes is told by a model of its own, in NumPy, that asks torch nothing.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime.graphs import open_fill
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

MOST = 8
CONTRACT = """
    [engine]
    name = "toy"

    [graph_inputs]
    row_indices = ["rows"]
    index_like = ["slots"]
    holds = { fixed = 1 }

    [[graph_inputs.fill]]
    class = "toy_fuzz:Runner"
    methods = ["run"]
    settled_by = ["replay"]
    inputs = "self.inputs"
    axis.rows = { raw = "raw", padded = "padded", capacity = "self.most" }
"""
DTYPES = (
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
)
EXPECTED = {"rows": 0, "slots": None, "fixed": 1}


@dataclass
class Step:
    """One statement of a fill: what it does to an input, and which elements it writes.

    Where `is_hidden`, nobody who asks torch can know of the write.
    """

    name: str
    run: Callable[[Runner, torch.Tensor], object]
    written: Any = field(default_factory=lambda: slice(0))
    is_hidden: bool = False


@dataclass(eq=False)
class Runner:
    inputs: dict[str, torch.Tensor]
    most: int = MOST
    kept: list[Any] = field(default_factory=list)
    read: dict[str, list[Any]] = field(default_factory=dict)

    def run(self, steps: list[tuple[str, Step]], raw: int, padded: int) -> None:
        for name, step in steps:
            self.kept.append(step.run(self, self.inputs[name]))
        self.replay()

    def replay(self) -> None:
        self.read = {name: one.tolist() for name, one in self.inputs.items()}


def steps_of(draw: random.Random, size: int, dtype: torch.dtype) -> Iterator[Step]:
    """Yields one of each kind of step, with places and values of its own."""
    first, last = sorted((draw.randrange(size + 1), draw.randrange(size + 1)))
    part = slice(first, last)
    count = last - first
    value = draw.choice((0, 1, 1, 2, 3))
    source = torch.tensor([draw.choice((0, 1, 2)) for _ in range(count)]).to(dtype)
    places = torch.tensor(sorted(draw.sample(range(size), draw.randrange(size))), dtype=torch.long)
    picked = torch.tensor([draw.random() < 0.5 for _ in range(size)])
    bits, few = slice(part.start, part.stop, 2), source[: len(places)]
    few = torch.zeros(len(places)).to(dtype) if len(few) < len(places) else few
    yield Step("fill", lambda _, x: x[part].fill_(value), part)
    yield Step("assign", lambda _, x: x.__setitem__(part, source), part)
    yield Step("every other", lambda _, x: x[bits].fill_(value), bits)
    yield Step("by index", lambda _, x: x.__setitem__(places, value), places)
    yield Step("by mask", lambda _, x: x.__setitem__(picked, value), picked)
    yield Step("masked fill", lambda _, x: x.masked_fill_(picked, value), picked)
    yield Step("scatter", lambda _, x: x.scatter_(0, places, few), places)
    yield Step("index fill", lambda _, x: x.index_fill_(0, places, value), places)
    yield Step("index copy", lambda _, x: x.index_copy_(0, places, few), places)
    yield Step("put", lambda _, x: x.put_(places, few), places)
    yield Step("foreach", lambda _, x: torch._foreach_copy_([x[part]], [source]), part)
    yield Step("foreach zero", lambda _, x: torch._foreach_zero_([x[part]]), part)
    yield Step("data", lambda _, x: x.data[part].fill_(value), part)
    yield Step("bytes", lambda _, x: x.view(torch.uint8).zero_(), slice(None))
    yield Step("own tail", lambda _, x: x[: size // 2].copy_(x[size // 2 :]), slice(size // 2))
    yield Step("keep", lambda _, x: x.tolist())
    yield Step("nothing", lambda _, x: x[part].clone())
    yield Step(
        "branch", lambda _, x: x.__setitem__(0, 1) if x[-1] else x.__setitem__(0, 0), slice(0, 1)
    )
    if dtype is not torch.bool:
        yield Step("add to itself", lambda _, x: x.__setitem__(part, x[part] + 1), part)
        yield Step("out", lambda _, x: torch.add(source, value, out=x[part]), part)
    if dtype is not torch.bfloat16:
        yield Step("numpy", lambda _, x: x.numpy().__setitem__(part, value), part, is_hidden=True)
        yield Step("numpy reads", lambda _, x: int(x.numpy().sum()), is_hidden=True)
    if dtype not in (torch.bfloat16, torch.bool):
        yield Step("dlpack", dlpack(part, value), part, is_hidden=True)


def dlpack(part: slice, value: int) -> Callable[[Runner, torch.Tensor], object]:
    def write(_: Runner, x: torch.Tensor) -> None:
        torch.from_dlpack(x)[part].fill_(value)

    return write


@dataclass
class Program:
    inputs: dict[str, torch.Tensor]
    steps: list[tuple[str, Step]]
    raw: int
    padded: int


def drawn(seed: int, hidden: bool) -> Program:
    draw = random.Random(seed)
    inputs, steps = {}, []
    for name in EXPECTED:
        dtype, size = draw.choice(DTYPES), MOST * draw.choice((1, 1, 2))
        inputs[name] = torch.tensor([draw.choice((0, 1, 1, 2)) for _ in range(size)]).to(dtype)
        known = [one for one in steps_of(draw, size, dtype) if hidden or not one.is_hidden]
        steps += [(name, draw.choice(known)) for _ in range(draw.randrange(6))]
    draw.shuffle(steps)
    raw = draw.randrange(MOST)
    return Program(inputs, steps, raw, draw.randrange(raw, MOST + 1))


def run(program: Program) -> Runner:
    runner = Runner({name: one.clone() for name, one in program.inputs.items()})
    runner.run(program.steps, program.raw, program.padded)
    return runner


def expected_rows(program: Program, name: str, after: torch.Tensor, sure: bool) -> set[int]:
    """The entries of an input that must be reported, by the model of its writes."""
    per_row = len(after) // MOST
    written: npt.NDArray[np.bool_] = np.zeros(len(after), bool)
    own = [step for one, step in program.steps if one == name]
    for step in own:
        written[place_of(step)] = True
    expected = EXPECTED[name]
    if name == "slots" and after.dtype is torch.bool:
        expected = 0
    wrong = np.zeros(len(after), bool)
    if expected is not None:
        wrong = (after != torch.tensor(expected).to(after.dtype)).numpy()
    bad = wrong | ~written if sure else wrong
    # By an index, even by an empty one, an input is filled: a device does not say how empty it is.
    if name != "rows" and not written.any() and not any(torch.is_tensor(s.written) for s in own):
        return set()
    tail = range(program.raw * per_row, program.padded * per_row)
    return {place for place in tail if bad[place]}


def place_of(step: Step) -> Any:
    """What a step writes, as an index of NumPy's."""
    return step.written.numpy() if torch.is_tensor(step.written) else step.written


@pytest.fixture(params=["host", "device"])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    module: Any = ModuleType("toy_fuzz")
    module.Runner = Runner
    monkeypatch.setitem(sys.modules, "toy_fuzz", module)
    watch = Watch([parse_contract(CONTRACT, "toy.toml")])
    monkeypatch.setattr(open_fill, "compares_on_device", request.param == "device")
    yield watch
    watch.stop()


def compared(watch: Watch, seed: int, hidden: bool) -> None:
    """Runs a program bare and watched, and sets what was found beside the model."""
    program = drawn(seed, hidden)
    watch.tally.active = False
    bare = run(program)
    watch.tally.active = True
    watched = run(program)
    assert repr(watched.read) == repr(bare.read), seed
    assert repr(watched.kept) == repr(bare.kept), seed
    after = {name: one.tolist() for name, one in watched.inputs.items()}
    assert repr(after) == repr({name: one.tolist() for name, one in bare.inputs.items()}), seed
    assert watch.tally.broken == {}
    assert watch.coverage().problems == ()
    found = {one.buffer.partition(".")[2]: one for one in watch.drain()}
    for name, tensor in watched.inputs.items():
        sure = expected_rows(program, name, tensor, sure=True)
        reported = set(found[name].rows) if name in found else set()
        shown = set(sorted(sure)[:8])
        steps = [step.name for one, step in program.steps if one == name]
        if any(step.is_hidden for one, step in program.steps if one == name):
            assert reported <= sure, (seed, name, steps)
        else:
            assert reported == shown, (seed, name, steps, program.raw, program.padded)


@pytest.mark.parametrize("hidden", [False, True])
def test_random_fills_do_what_they_do_unwatched_and_are_reported_for_what_they_leave(
    watch: Watch, hidden: bool
) -> None:
    watch.start()
    for seed in range(150):
        compared(watch, seed, hidden)
