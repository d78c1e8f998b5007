"""FR501 and FR502: what makes the host wait in a step, how much it launches, and what may do so.

Each step is one of a small engine of its own, whose device is the CPU: what it waits for, and what
it reads that is the host's anyway, is told from how the engine makes and names its tensors.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch._C import _len_torch_dispatch_stack as dispatch_modes_on
from torch._C import _len_torch_function_stack as function_modes_on

from fmcheck.contract import parse_contract
from fmcheck.errors import UsageError
from fmcheck.runtime.session.probes import PROBES, ProbeTarget, tried
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps import placements
from fmcheck.runtime.steps.budgets import mode_of_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from fmcheck.finding import Violation

CONTRACT = f"""
    [engine]
    name = "toy"

    [launches]
    per_step = ["{__name__}:Loop.prepare", "{__name__}:Loop.gone", "{__name__}:Loop.make"]
    host_values = ["lora_ids", "*_cpu"]
    mirrored = ["req_pool_indices"]
    fused = ["{__name__}:Loop.replay"]

    [[launches.budget]]
    functions = ["{__name__}:Loop.step"]
    syncs = 0
    waits_in = ["{__name__}:Loop.take_results"]

    [[launches.budget]]
    functions = ["{__name__}:Loop.twice"]
    syncs = 1

    [[launches.budget]]
    functions = ["{__name__}:Loop.launch"]
    launches = 2
    when = "self.counted"
"""


DEVICE = torch.device("cpu")


class Loop:
    """What a step works on: device values, and host values by name or by how they were made."""

    counted = True

    def __init__(self) -> None:
        self.device = DEVICE
        self.seq_lens = torch.tensor([3, 5, 2], device=self.device)
        self.req_pool_indices = torch.tensor([1, 2, 3], device=self.device)
        self.seq_lens_cpu = torch.tensor([3, 5, 2])
        self.lora_ids = torch.tensor([0, 1, 0])

    def step(self, work: Callable[[Loop], Any]) -> Any:
        return work(self)

    def prepare(self, work: Callable[[Loop], Any]) -> Any:
        return work(self)

    def twice(self, work: Callable[[Loop], Any]) -> Any:
        return work(self)

    def launch(self, work: Callable[[Loop], Any]) -> Any:
        return work(self)

    def replay(self) -> None:
        for _ in range(10):
            self.seq_lens.add_(1)

    def take_results(self) -> Any:
        return self.seq_lens.tolist()

    @classmethod
    def make(cls) -> Any:
        return cls, torch.zeros(2, device=DEVICE).sum().item()


class Longer(Loop):
    pass


def now() -> tuple[Any, ...]:
    """What the watch puts something else in place of."""
    return torch.Tensor.tolist, torch.Tensor.to, torch.Tensor.cpu, torch.compile, Loop.step


BEFORE = now()


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch([parse_contract(CONTRACT, "toy.toml")])
    watch.start()
    yield watch
    watch.stop()


def found(watch: Watch) -> list[Violation]:
    return list(watch.drain())


SYNCS: dict[str, tuple[str, Callable[[Loop], Any]]] = {
    "item": ("item", lambda loop: loop.seq_lens.max().item()),
    "int": ("item", lambda loop: int(loop.seq_lens[0])),
    "float": ("item", lambda loop: float(loop.seq_lens[0])),
    "bool": ("item", lambda loop: bool((loop.seq_lens > 3).any())),
    "a test": ("item", lambda loop: 1 if loop.seq_lens.max() > 3 else 2),
    "an index": ("item", lambda loop: [7, 8, 9, 10][loop.seq_lens[2]]),
    "tolist": ("tolist", lambda loop: loop.seq_lens.tolist()),
    "cpu": ("to host", lambda loop: loop.seq_lens.cpu()),
    "to cpu": ("to host", lambda loop: loop.seq_lens.to("cpu")),
    "to cpu, by device": ("to host", lambda loop: loop.seq_lens.to(device="cpu")),
    "to cpu, another type": ("to host", lambda loop: loop.seq_lens.to("cpu", torch.int32)),
    "nonzero": ("nonzero", lambda loop: (loop.seq_lens > 3).nonzero()),
    "where": ("nonzero", lambda loop: torch.where(loop.seq_lens > 3)),
    "unique": ("unique", lambda loop: loop.seq_lens.unique()),
    "masked_select": ("masked_select", lambda loop: loop.seq_lens.masked_select(loop.seq_lens > 3)),
    "a mask that reads": ("mask", lambda loop: loop.seq_lens[loop.seq_lens > 2]),
    "a mask that writes": (
        "mask",
        lambda loop: loop.seq_lens.__setitem__(loop.seq_lens > 2, loop.seq_lens[:2] + 1),
    ),
    "repeat_interleave": (
        "repeat_interleave",
        lambda loop: loop.req_pool_indices.repeat_interleave(loop.seq_lens),
    ),
    "torch.tensor": ("upload", lambda loop: torch.tensor([1, 2], device=loop.device)),
    "torch.as_tensor": ("upload", lambda loop: torch.as_tensor([1, 2], device=loop.device)),
    "a blocking upload": ("upload", lambda loop: torch.tensor([1, 2]).to(loop.device)),
    "a blocking upload to a device by its number": (
        "upload",
        lambda loop: torch.tensor([1, 2]).to("cpu:0"),
    ),
    "a blocking upload to where another is": (
        "upload",
        lambda loop: torch.tensor([1, 2]).to(loop.seq_lens),
    ),
    "a blocking upload, copied": (
        "upload",
        lambda loop: torch.tensor([1, 2]).to(loop.device, copy=True),
    ),
    "of what was uploaded": (
        "item",
        lambda loop: torch.tensor([1]).to(loop.device, non_blocking=True).sum().item(),
    ),
    "a print": ("tolist", lambda loop: repr(loop.seq_lens)),
    "a row mirrored on the host": ("item", lambda loop: loop.req_pool_indices[0].item()),
}


@pytest.mark.parametrize("name", SYNCS)
def test_what_makes_the_host_wait_in_a_step_is_reported(watch: Watch, name: str) -> None:
    verb, work = SYNCS[name]
    Loop().step(work)
    (violation,) = found(watch)
    assert (violation.code, violation.buffer) == ("FR501", "Loop.step")
    assert violation.access.verb == verb
    assert violation.access.site.line == work.__code__.co_firstlineno
    assert violation.expected == "no host sync but in Loop.take_results"
    assert not watch.is_advice(violation)


def pulled(loop: Loop) -> Any:
    """The lengths, copied as an engine does without waiting; what waits for it is elsewhere."""
    mirror = torch.empty(3, dtype=torch.int64)
    mirror.copy_(loop.seq_lens, non_blocking=True)
    return mirror


NO_SYNCS: dict[str, Callable[[Loop], Any]] = {
    "a value with a host name": lambda loop: loop.seq_lens_cpu.max().item(),
    "a value of the contract's": lambda loop: loop.lora_ids.tolist(),
    "a value made on the host": lambda loop: torch.tensor([1, 2]).sum().item(),
    "a value made there, by name": lambda loop: torch.zeros(2, device="cpu").sum().item(),
    "numbers of NumPy": lambda loop: torch.from_numpy(np.arange(3)).tolist(),
    "an asynchronous upload": lambda loop: torch.tensor([1]).to(loop.device, non_blocking=True),
    "an asynchronous copy": lambda loop: loop.seq_lens.to("cpu", non_blocking=True),
    "the target of a copy": lambda loop: pulled(loop).tolist(),
    "a part of the target of a copy": lambda loop: int(pulled(loop)[1:][0]),
    "a mask that fills": lambda loop: loop.seq_lens.__setitem__(loop.seq_lens > 9, 0),
    "a mask that fills from a tensor": lambda loop: loop.seq_lens.__setitem__(
        loop.seq_lens > 9, torch.zeros((), dtype=torch.int64, device=loop.device)
    ),
    "a gather": lambda loop: loop.seq_lens[loop.req_pool_indices - 1],
    "another type": lambda loop: loop.seq_lens.to(torch.int32),
    "a number": lambda loop: torch.tensor(0, device=loop.device),
    "an empty list": lambda loop: torch.tensor([], device=loop.device),
    "the device it is on": lambda loop: loop.seq_lens.to(loop.device),
    # Who numbers a device has several: the host is one. Streams read such a call alike.
    "a device by its number": lambda loop: loop.seq_lens.to("cpu:0"),
    "where another tensor is": lambda loop: loop.seq_lens.to(loop.req_pool_indices),
    "repeat_interleave of a known size": lambda loop: loop.req_pool_indices.repeat_interleave(
        loop.seq_lens, output_size=10
    ),
    "its own results": lambda loop: loop.take_results(),
}


@pytest.mark.parametrize("name", NO_SYNCS)
def test_what_waits_for_nothing_is_silent(watch: Watch, name: str) -> None:
    Loop().step(NO_SYNCS[name])
    assert found(watch) == []


def test_what_is_copied_to_the_host_is_read_without_another_sync(watch: Watch) -> None:
    Loop().step(lambda loop: loop.seq_lens.cpu().tolist())
    assert [one.access.verb for one in found(watch)] == ["to host"]


def test_outside_of_a_step_the_host_may_wait(watch: Watch) -> None:
    loop = Loop()
    loop.seq_lens.max().item()
    loop.seq_lens.tolist()
    assert found(watch) == []


class Late:
    """An engine whose relay buffer is bound in a step, and is the first of its device."""

    def step(self) -> None:
        self.replay()
        _ = self.relay.max().item()

    def replay(self) -> None:
        self.relay = torch.zeros(4, dtype=torch.int64, device=DEVICE)


LATE = f"""
    [engine]
    name = "late"

    [[relay]]
    class = "{__name__}:Late"

    [[relay.buffer]]
    name = "relay"

    [launches]
    fused = ["{__name__}:Late.replay"]

    [[launches.budget]]
    functions = ["{__name__}:Late.step"]
    syncs = 0
    launches = 9
"""


@pytest.mark.parametrize("options", [{}, {"streams": "tracked"}, {"uninitialized": True}])
@pytest.mark.parametrize("is_beside_a_stream", [False, True])
def test_a_buffer_that_is_bound_in_a_step_has_its_detectors_tried_apart_from_that(
    options: dict[str, Any], is_beside_a_stream: bool
) -> None:
    watch = Watch([parse_contract(LATE, "late.toml")], **options)
    watch.start()
    try:
        side = torch.cpu.Stream() if is_beside_a_stream else torch.cpu.current_stream()
        with torch.cpu.stream(side):
            Late().step()
        assert list(watch.dead) == []
        (violation,) = found(watch)
        assert (violation.code, violation.buffer) == ("FR501", "Late.step")
        assert (violation.access.verb, violation.count) == ("item", 1)
        assert mode_of_thread() is None
    finally:
        watch.stop()
    assert (dispatch_modes_on(), function_modes_on()) == (0, 0)


def test_another_thread_s_syncs_are_not_the_step_s(watch: Watch) -> None:
    loop = Loop()
    other = threading.Thread(target=loop.seq_lens.tolist)

    def work(_: Loop) -> None:
        other.start()
        other.join()

    loop.step(work)
    assert found(watch) == []


def test_a_budget_is_spent_before_a_sync_is_reported(watch: Watch) -> None:
    loop = Loop()
    for _ in range(2):
        loop.twice(lambda loop: loop.seq_lens.tolist())
    assert found(watch) == []
    loop.twice(lambda loop: (loop.seq_lens.tolist(), loop.seq_lens.max().item()))
    (violation,) = found(watch)
    assert violation.access.verb == "item"
    assert violation.expected == "at most 1 host syncs a call"


def test_a_function_without_a_budget_may_wait(watch: Watch) -> None:
    Loop().prepare(lambda loop: loop.seq_lens.tolist())
    assert found(watch) == []
    assert watch.coverage().problems == ()


def test_a_function_without_a_budget_may_not_where_the_settings_say_so() -> None:
    watch = Watch([parse_contract(CONTRACT, "toy.toml")], fail_on=["FR501"], streams="off")
    watch.start()
    try:
        Loop().prepare(lambda loop: loop.seq_lens.tolist())
        class_, value = Longer.make()
    finally:
        watch.stop()
    assert (class_, value) == (Longer, 0.0)
    first, second = found(watch)
    assert (first.buffer, second.buffer) == ("Loop.prepare", "Loop.make")
    assert "no budget" in first.notes[0]
    assert not watch.is_advice(first)


def test_the_budget_around_a_function_without_one_counts(watch: Watch) -> None:
    Loop().step(lambda loop: loop.prepare(lambda inner: inner.seq_lens.tolist()))
    (violation,) = found(watch)
    assert violation.buffer == "Loop.step"


def test_a_synchronize_in_a_step_is_a_sync_where_streams_are_followed() -> None:
    watch = Watch([parse_contract(CONTRACT, "toy.toml")], streams="tracked")
    watch.start()
    try:
        stream = torch.cpu.Stream()
        event = stream.record_event()
        for wait in (stream.synchronize, event.synchronize, torch.cpu.synchronize):
            Loop().step(lambda loop, wait=wait: wait())
            (violation,) = found(watch)
            assert (violation.code, violation.access.verb) == ("FR501", "synchronize")
        Loop().step(lambda loop: stream.wait_event(event))
        for asks in (stream.query, event.query):
            Loop().step(lambda loop, asks=asks: asks())
        event.synchronize()
        assert found(watch) == []
    finally:
        watch.stop()


def test_memory_that_gets_a_host_s_name_in_a_later_step_is_the_host_s(watch: Watch) -> None:
    loop, staged = Loop(), torch.tensor([1, 2])

    def takes(loop: Loop) -> None:
        loop.seq_lens_cpu = staged
        loop.seq_lens_cpu.sum().item()
        loop.seq_lens_cpu.tolist()

    for work in (lambda _: staged + 1, takes):
        loop.step(work)
    assert found(watch) == []


def test_names_are_not_looked_for_at_each_operator(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, names_of = [], placements.names_of
    monkeypatch.setattr(
        placements, "names_of", lambda tensor, *rest: looked.append(1) or names_of(tensor, *rest)
    )
    loop, weight = Loop(), torch.ones(2)
    for _ in range(5):
        loop.step(lambda _: [weight + 1 for _ in range(5)])
    assert len(looked) == 1


@pytest.fixture
def followed() -> Iterator[Watch]:
    watch = Watch([parse_contract(CONTRACT, "toy.toml")], streams="tracked")
    watch.start()
    with torch.cpu.stream(torch.cpu.Stream()):
        pass
    yield watch
    watch.stop()


@pytest.mark.parametrize("is_sent", [True, False])
def test_memory_of_a_module_that_was_sent_to_the_device_is_there(
    followed: Watch, is_sent: bool
) -> None:
    """On a CPU it is the same memory as before, that of the host."""
    loop, layer = Loop(), torch.nn.BatchNorm1d(2)
    if is_sent:
        layer.to(loop.device)
    found_on_device = torch.ones(2, device=loop.device)
    loop.step(lambda _: layer.running_mean.copy_(found_on_device))
    assert [one.code for one in found(followed)] == ([] if is_sent else ["FR501"])


@pytest.mark.parametrize("name", SYNCS)
def test_what_makes_the_host_wait_is_reported_where_streams_are_followed_too(
    followed: Watch, name: str
) -> None:
    verb, work = SYNCS[name]
    Loop().step(work)
    (violation,) = [one for one in found(followed) if one.code == "FR501"]
    assert violation.access.verb == verb


def test_a_step_and_the_streams_share_their_modes(followed: Watch) -> None:
    on: list[int] = []
    Loop().step(lambda _: on.extend((dispatch_modes_on(), function_modes_on())))
    assert on == [1, 1]
    assert function_modes_on() == 1


def test_a_step_in_which_the_streams_are_let_go_goes_on(followed: Watch) -> None:
    def work(loop: Loop) -> None:
        assert followed.services.streams is not None
        followed.services.streams.ops.stop()
        loop.seq_lens.max().item()

    Loop().step(work)
    assert [one.code for one in found(followed)] == ["FR501"]
    assert (dispatch_modes_on(), function_modes_on()) == (0, 0)


def stream_between(x: torch.Tensor) -> torch.Tensor:
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    one.wait_stream(two)
    return x * 2


def read_between(x: torch.Tensor) -> torch.Tensor:
    return x + x.sum().item()


def freed_between(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    torch._dynamo.graph_break()
    y = y * 2
    torch._dynamo.graph_break()
    return y + x


@pytest.mark.parametrize("broken", [stream_between, read_between, freed_between])
@pytest.mark.parametrize("following", ["watch", "followed"])
def test_dynamo_leaves_the_code_that_sees_operators_alone(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    following: str,
    broken: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Between two graphs Dynamo listens, and would trace what fmcheck does there."""
    traced: set[str] = set()
    convert_frame = torch._dynamo.convert_frame
    trace = convert_frame._compile

    def noted(code: CodeType, *args: Any, **kwargs: Any) -> Any:
        traced.add(code.co_filename)
        return trace(code, *args, **kwargs)

    monkeypatch.setattr(convert_frame, "_compile", noted)
    request.getfixturevalue(following)
    torch._dynamo.reset()
    Loop().step(lambda loop: torch.compile(broken, backend="eager")(loop.seq_lens))
    assert traced == {__file__}


# --- launches ---


def test_launches_over_the_budget_are_reported_with_their_places(watch: Watch) -> None:
    Loop().launch(lambda loop: loop.seq_lens.add_(1).mul_(2).sub_(1))
    (violation,) = found(watch)
    assert (violation.code, violation.buffer) == ("FR502", "Loop.launch")
    assert violation.expected == "at most 2 launches a call, got 3"
    assert "`aten.sub_.Tensor` at test_syncs_runtime.py" in violation.notes[0]


NO_LAUNCHES: dict[str, Callable[[Loop], Any]] = {
    "within the budget": lambda loop: loop.seq_lens.add_(1).mul_(2),
    "views": lambda loop: loop.seq_lens[1:].view(1, -1).T.reshape(-1).detach()[0],
    "views in place": lambda loop: loop.seq_lens.clone().unsqueeze_(0).t_().squeeze_(1),
    "memory": lambda loop: [torch.empty(2, device=loop.device) for _ in range(3)],
    "one fused function": lambda loop: loop.replay(),
}


@pytest.mark.parametrize("name", NO_LAUNCHES)
def test_what_launches_little_is_silent(watch: Watch, name: str) -> None:
    Loop().launch(NO_LAUNCHES[name])
    assert found(watch) == []


def test_a_compiled_function_is_one_launch(watch: Watch) -> None:
    made = torch.compile(lambda value: value.add(1).mul(2).sub(3), backend="aot_eager")
    loop = Loop()
    loop.launch(lambda loop: made(loop.seq_lens))
    assert found(watch) == []
    loop.launch(lambda loop: [made(loop.seq_lens) for _ in range(3)])
    (violation,) = found(watch)
    assert violation.expected == "at most 2 launches a call, got 3"


def test_a_budget_holds_only_when_its_path_says_so(watch: Watch) -> None:
    loop = Loop()
    loop.counted = False
    loop.launch(lambda loop: loop.seq_lens.add_(1).mul_(2).sub_(1))
    assert found(watch) == []


# --- the watch ---


def test_what_the_watch_put_in_place_is_taken_away(watch: Watch) -> None:
    assert now() != BEFORE
    watch.stop()
    assert now() == BEFORE


@pytest.mark.parametrize("code", ["FR501", "FR502"])
def test_the_probe_fires(code: str) -> None:
    (probe,) = [one for one in PROBES if one.code == code]
    assert tried(probe, ProbeTarget("cpu")) == ""


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ('functions = ["toy:f"]', "expected `syncs` or `launches`, got neither"),
        ('functions = ["toy:f"]\nsyncs = -1', "expected 0 or more, got -1"),
        ('functions = ["toy"]\nsyncs = 0', "module:Class.method"),
        ('functions = ["toy:f"]\nsyncs = 0\nwaits_in = ["f"]', "module:Class.method"),
        ('functions = ["toy:f"]\nlaunches = 1\nwhen = "a b"', "expected a path"),
        ("functions = []\nsyncs = 0", "expected at least one"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(line: str, reported: str) -> None:
    with pytest.raises(UsageError, match=reported):
        parse_contract(f'[engine]\nname = "x"\n[[launches.budget]]\n{line}', "toy.toml")


def test_a_budget_for_a_function_that_is_not_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = ModuleType("toy_other")
    monkeypatch.setitem(sys.modules, "toy_other", module)
    text = '[engine]\nname = "x"\n[[launches.budget]]\nfunctions = ["toy_other:step"]\nsyncs = 0'
    watch = Watch([parse_contract(text, "toy.toml")])
    watch.start()
    try:
        (problem,) = watch.coverage().problems
    finally:
        watch.stop()
    assert "found none of its functions" in problem


@pytest.mark.parametrize(("read", "expected"), [("seq_lens_cpu", []), ("seq_lens", ["FR501"])])
def test_a_mirror_that_was_pulled_before_the_steps_goes_by_its_name(
    read: str, expected: list[str]
) -> None:
    watch = Watch([parse_contract(CONTRACT, "toy.toml")], streams="tracked")

    def step(loop: Loop) -> None:
        getattr(loop, read).tolist()
        loop.seq_lens, loop.seq_lens_cpu = loop.seq_lens + 1, loop.seq_lens_cpu + 1

    watch.start()
    try:
        with torch.cpu.stream(torch.cpu.Stream()):
            loop = Loop()
            loop.seq_lens_cpu = loop.seq_lens.cpu()
            for _ in range(3):
                loop.step(step)
        assert [violation.code for violation in watch.drain()] == expected
    finally:
        watch.stop()
