"""FR603: a view of what a graph wrote, which is read after the next replay has gone over it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fmcheck.contract import parse_contract
from fmcheck.errors import UsageError
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.graphs.outputs import Outputs
from fmcheck.runtime.session.probes import PROBES, ProbeTarget, tried
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.finding import Violation

CONTRACT = """
    [engine]
    name = "toy"

    [graph_inputs]
    row_indices = ["rows"]

    [[graph_inputs.fill]]
    class = "toy_outputs:Runner"
    methods = ["run"]
    settled_by = ["_replay"]
    OUTPUTS
    inputs = "self"
    only = ["rows"]
    axis.rows = { raw = "raw", padded = "self.most", capacity = "self.most" }
"""
OUTPUTS = 'outputs = ["self.out"]'


class Runner:
    """Replays the sum of its rows and of how many replays there were."""

    most = 4

    def __init__(self) -> None:
        self.rows = torch.zeros(4, dtype=torch.int64)
        self.out = torch.zeros(4, dtype=torch.int64)
        self.heads = [self.out[:size] for size in range(5)]
        self.count = 0

    def run(self, raw: int) -> torch.Tensor:
        self.rows.zero_()
        self.rows[:raw] = 3
        self._replay()
        return self.out[:raw]

    def _replay(self) -> None:
        self.count += 1
        self.out.copy_(self.rows + self.count)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watch]]:
    started = []

    def begin(outputs: str = OUTPUTS, runner: type = Runner) -> Watch:
        module: Any = ModuleType("toy_outputs")
        module.Runner = runner
        monkeypatch.setitem(sys.modules, "toy_outputs", module)
        watch = Watch([parse_contract(CONTRACT.replace("OUTPUTS", outputs), "toy.toml")])
        watch.start()
        started.append(watch)
        return watch

    yield begin
    for watch in started:
        watch.stop()


@pytest.fixture
def watch(start: Callable[..., Watch]) -> Watch:
    return start()


def of(watch: Watch) -> list[Violation]:
    found = watch.drain()
    assert {one.code for one in found} <= {"FR603"}
    assert not watch.tally.broken
    return list(found)


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "operator": lambda kept: kept + 1,
    "list of tensors": lambda kept: torch.cat([kept, kept]),
    "item": lambda kept: kept[0].item(),
    "tolist": lambda kept: kept.tolist(),
    "numpy": lambda kept: kept.numpy(),
    "array": lambda kept: np.asarray(kept),
    "copy to the host": lambda kept: kept.cpu(),
    "copy to the host by name": lambda kept: kept.to("cpu"),
    "clone": lambda kept: kept.clone(),
    "view of it": lambda kept: kept[1:].view(1, -1) + 1,
}


@pytest.mark.parametrize("name", READS)
def test_a_view_that_is_read_after_the_next_replay_is_reported(watch: Watch, name: str) -> None:
    runner = Runner()
    kept = runner.run(2)
    runner.run(2)
    READS[name](kept)
    (violation,) = of(watch)
    assert violation.buffer == "Runner.out"


def test_a_report_has_the_read_the_replay_and_the_view(watch: Watch) -> None:
    runner = Runner()
    first = runner.run(2)
    second = runner.run(2)
    runner.run(2)
    second + 1
    (violation,) = of(watch)
    assert first is not second
    assert violation.last_write is not None
    functions = [one.site.function for one in (violation.access, violation.last_write)]
    assert [one.rpartition(".")[2] for one in functions] == [
        "test_a_report_has_the_read_the_replay_and_the_view",
        "run",
    ]
    (view,) = violation.passed
    assert (view.verb, view.site.function) == ("view", "Runner.run")


def test_the_replay_that_is_named_is_the_first_that_went_over_it(watch: Watch) -> None:
    runner = Runner()
    kept = runner.run(2)
    for replay in (_replayed_first, _replayed_again):
        replay(runner)
    kept + 1
    (violation,) = of(watch)
    assert violation.last_write is not None
    assert violation.last_write.site.caller is not None
    assert violation.last_write.site.caller.function == "_replayed_first"


def _replayed_first(runner: Runner) -> None:
    runner.run(2)


def _replayed_again(runner: Runner) -> None:
    runner.run(2)


def test_a_view_is_one_too_many_though_there_were_as_many_at_first(watch: Watch) -> None:
    runner = Runner()
    runner.run(2)
    del runner.heads[1:]
    runner.run(2)
    kept = runner.run(2)
    runner.run(2)
    kept + 1
    assert len(of(watch)) == 1


def test_a_view_that_the_first_replay_returned_is_reported_without_its_line(watch: Watch) -> None:
    runner = Runner()
    kept = runner.run(2)
    runner.run(2)
    kept + 1
    (violation,) = of(watch)
    assert violation.passed == ()


HEALTHY: dict[str, Callable[[Runner], object]] = {
    "read in time": lambda runner: [runner.run(2) + 1 for _ in range(4)],
    "kept and never read": lambda runner: [runner.run(2) for _ in range(4)],
    "read before the next one": lambda runner: _each(runner, lambda kept, last: kept + 1),
    "a copy is read": lambda runner: _later(runner, lambda kept: kept.clone()),
    "a copy on the host is read": lambda runner: _later(runner, lambda kept: kept.cpu()),
    "a copy on the host, by name": lambda runner: _later(runner, lambda kept: kept.to("cpu")),
    "a list is read": lambda runner: _later(runner, lambda kept: torch.tensor(kept.tolist())),
    "a view from before the first replay": lambda runner: [
        (runner.run(2), runner.heads[2] + 1) for _ in range(4)
    ],
    "the output itself": lambda runner: [(runner.run(2), runner.out + 1) for _ in range(4)],
    "it is shown": lambda runner: _each(runner, lambda kept, last: repr(last)),
    "it is read for no real": lambda runner: _each(runner, _faked),
    "another runner": lambda runner: (
        (kept := runner.run(2)),
        [Runner().run(2) for _ in range(4)],
        kept + 1,
    ),
}


def _each(runner: Runner, read: Callable[[torch.Tensor, Any], object]) -> None:
    last = None
    for _ in range(4):
        kept = runner.run(2)
        read(kept, last)
        last = kept


def _faked(kept: torch.Tensor, last: torch.Tensor | None) -> None:
    if last is not None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            last + 1


def _later(runner: Runner, keep: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Reads what is kept of each replay after the next one, where it has its own values."""
    kept: list[torch.Tensor] = []
    views = []
    for count in range(4):
        view = runner.run(2)
        views.append(view)
        kept.append(keep(view))
        if count:
            assert kept[count - 1].tolist() == [3 + count] * 2


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_read_in_time_or_copied_is_not_reported(watch: Watch, name: str) -> None:
    HEALTHY[name](Runner())
    assert of(watch) == []


class Sized(Runner):
    """Two graphs, of which each writes its own half of one buffer; another one writes it all."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = {2: self.out[:2], 3: self.out[2:], 4: self.out}

    def run(self, raw: int) -> torch.Tensor:
        self.rows.fill_(0)
        self.bs = raw
        self._replay()
        return self.outputs[raw][:2]

    def _replay(self) -> None:
        self.outputs[self.bs].fill_(1)


def test_a_replay_goes_over_what_it_writes_and_no_more(start: Callable[..., Watch]) -> None:
    watch = start('outputs = ["self.outputs[self.bs]"]', Sized)
    runner = Sized()
    first = runner.run(2)
    second = runner.run(3)
    first + 1
    second + 1
    assert of(watch) == []
    runner.run(4)
    first + 1
    (violation,) = of(watch)
    assert violation.buffer == "Sized.outputs[self.bs]"


class Separate(Sized):
    """Graphs with outputs of their own, by size."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = {self.key(size): torch.zeros(4, dtype=torch.int64) for size in (2, 3)}

    def key(self, size: int) -> Any:
        return size

    def run(self, raw: int) -> torch.Tensor:
        self.rows.fill_(0)
        self.most = self.bs = raw
        self._replay()
        return self.outputs[self.key(raw)][:2]

    def _replay(self) -> None:
        self.outputs[self.key(self.bs)].fill_(1)


class Keyed(Separate):
    def key(self, size: int) -> Any:
        return (size, "draft")


class Alike(Separate):
    """Its keys have a number in common, which is a size: neither is surely this graph's."""

    def key(self, size: int) -> Any:
        return (2, 3, size)


@pytest.mark.parametrize(
    ("kind", "later", "reported"),
    [
        (Separate, 3, []),
        (Separate, 2, ["Separate.outputs[2]"]),
        (Keyed, 3, []),
        (Keyed, 2, ["Keyed.outputs[(2, 'draft')]"]),
        (Alike, 2, []),
    ],
)
def test_of_a_mapping_by_size_a_replay_goes_over_its_own_output(
    start: Callable[..., Watch], kind: type[Separate], later: int, reported: list[str]
) -> None:
    watch = start('outputs = ["self.outputs"]', kind)
    runner = kind()
    runner.run(3)
    kept = runner.run(2)
    runner.run(later)
    kept + 1
    assert [one.buffer for one in of(watch)] == reported
    lost = [one for one in watch.coverage().untracked if one[0] == "outputs"]
    assert bool(lost) == (kind is Alike)


def test_an_output_that_a_later_capture_made_is_no_view(start: Callable[..., Watch]) -> None:
    watch = start('outputs = ["self.outputs[self.bs]"]', Sized)
    runner = Sized()
    runner.run(2)
    runner.outputs[3] = runner.out[1:3]
    kept = [runner.run(size) for size in (3, 2, 2)]
    for _ in range(2):
        runner.run(3)
        runner.outputs[3] + 1
    assert of(watch) == []
    assert len(kept) == 3


class Warming(Runner):
    """Its capture runs the step twice, and looks at what the first one made."""

    def capture(self) -> None:
        first = self.run(2)
        kept = [self.run(2) for _ in range(2)]
        first + kept[0]


def test_what_a_capture_runs_is_no_replay(start: Callable[..., Watch]) -> None:
    watch = start(f'{OUTPUTS}\n    captured_by = ["capture"]', Warming)
    Warming().capture()
    assert of(watch) == []


class Nested(Runner):
    """The outputs lie in an object, with one that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.result = SimpleNamespace(logits=self.out, hidden=None)

    def _replay(self) -> None:
        self.result.logits.fill_(1)


def test_outputs_in_an_object_are_found(start: Callable[..., Watch]) -> None:
    watch = start('outputs = ["self.result", "self.result.hidden"]', Nested)
    runner = Nested()
    kept = runner.run(2)
    runner.run(2)
    kept + 1
    (violation,) = of(watch)
    assert violation.buffer == "Nested.result.logits"
    assert watch.coverage().problems == ()


class Given(Runner):
    """Its outputs are where the caller wants them."""

    def run(self, raw: int, out: Any = None) -> torch.Tensor:
        return super().run(raw)


def test_outputs_that_a_call_is_given_are_found(start: Callable[..., Watch]) -> None:
    watch = start('outputs = ["out"]', Given)
    runner = Given()
    kept = runner.run(2, runner.out)
    runner.run(2, runner.out)
    kept + 1
    (violation,) = of(watch)
    assert violation.buffer == "Given.out"


def test_outputs_of_a_module_are_found(
    start: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("toy_lib.pool")
    monkeypatch.setitem(sys.modules, "toy_lib.pool", module)
    watch = start('outputs = ["toy_lib.pool:_outs", "toy_lib.unimported:_outs"]')
    runner = Runner()
    module._outs = {4: runner.out}
    kept = runner.run(2)
    runner.run(2)
    kept + 1
    (violation,) = of(watch)
    assert violation.buffer == "pool._outs[4]"
    assert watch.coverage().problems == ()


class Feeding(Runner):
    """What the last replay wrote is an input of the next, and is copied in as that begins."""

    last: torch.Tensor | None = None

    def run(self, raw: int) -> torch.Tensor:
        self.last = super().run(raw)
        return self.last

    def _replay(self) -> None:
        if self.last is not None:
            self.rows[: len(self.last)].copy_(self.last)
        super()._replay()


def test_what_a_replay_reads_itself_is_not_overwritten_yet(start: Callable[..., Watch]) -> None:
    watch = start(runner=Feeding)
    runner = Feeding()
    for _ in range(4):
        runner.run(2)
    assert of(watch) == []


class Failing(Runner):
    """Its replay may fail before it has written anything."""

    fails = False

    def _replay(self) -> None:
        if self.fails:
            raise RuntimeError("no graph")
        super()._replay()


def test_a_replay_that_fails_goes_over_nothing(start: Callable[..., Watch]) -> None:
    watch = start(runner=Failing)
    runner = Failing()
    kept = [runner.run(2) for _ in range(2)][-1]
    runner.fails = True
    with pytest.raises(RuntimeError, match="no graph"):
        runner.run(2)
    kept + 1
    assert of(watch) == []


def test_what_one_test_keeps_is_not_held_against_the_next(watch: Watch) -> None:
    runner = Runner()
    kept = [runner.run(2) for _ in range(3)]
    watch.begin_test()
    kept[0] + 1
    kept[0].tolist()
    assert of(watch) == []


def test_without_the_key_nothing_is_followed(start: Callable[..., Watch]) -> None:
    watch = start("")
    runner = Runner()
    kept = [runner.run(2) for _ in range(3)]
    kept[0] + 1
    assert kept[0].cpu() is kept[0]
    assert of(watch) == []


def test_a_path_that_leads_nowhere_is_a_slip_in_the_contract(start: Callable[..., Watch]) -> None:
    watch = start('outputs = ["self.outs", "self.count"]')
    runner = Runner()
    runner.run(2)
    problems = " ".join(watch.coverage().problems)
    assert "there is no `outs`" in problems
    assert "`outputs`: `self.count` leads to `int`, which holds no tensor" in problems


@pytest.mark.parametrize(
    ("settled", "outputs", "message"),
    [
        ("", OUTPUTS, "`graph_inputs.fill[0].outputs`: expected `settled_by` beside it"),
        ('settled_by = ["_replay"]', 'outputs = ["self.out()"]', "expected a path"),
    ],
)
def test_a_slip_in_the_key_is_an_error(settled: str, outputs: str, message: str) -> None:
    text = CONTRACT.replace('settled_by = ["_replay"]', settled).replace("OUTPUTS", outputs)
    with pytest.raises(UsageError) as caught:
        parse_contract(text, "toy.toml")
    assert message in str(caught.value)


def test_the_detector_is_tried() -> None:
    (probe,) = [one for one in PROBES if one.code == "FR603"]
    assert tried(probe, ProbeTarget("cpu")) == ""


def test_memory_that_an_output_had_is_none_of_its_once_it_is_gone() -> None:
    """Where a storage lay, another one may come to lie."""
    outputs = Outputs(Tally())
    gone, other = torch.zeros(4), torch.zeros(4)
    outputs.replaying({"out": gone})
    (known,) = outputs._of_storage.values()
    outputs._of_storage = {other.untyped_storage()._cdata: known}
    assert outputs.is_output((other,))
    del gone
    assert not outputs.is_output((other,))
    head = other[:2]
    outputs.replaying({"out": other})
    assert outputs.is_output((head,))
    assert outputs._here.mode is None
