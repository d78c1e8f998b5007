"""FR402 to FR405: memory that a stream still works with, and events that order nothing any more.

Each program is written as an engine's code is: streams of the CPU, host buffers without a device.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.errors import UsageError
from fmcheck.runtime.order import virtual
from fmcheck.runtime.session import probes
from fmcheck.runtime.session.watch import Watch
from tests.lines import line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from fmcheck.finding import Violation

DEVICE = torch.device("cpu")
CONTRACT = f"""
    [engine]
    name = "toy"

    [[steps]]
    functions = ["{__name__}:step"]

    [streams]
    consumed_once = ["publish_ready"]

    [[streams.lend]]
    functions = ["{__name__}:lend"]

    [launches]
    host_values = ["*_cpu"]
"""


def step(work: Callable[[], Any]) -> Any:
    return work()


def lend(tensor: torch.Tensor, stream: Any) -> None:
    """On an accelerator this would call `record_stream`."""


@pytest.fixture(params=[False, True], ids=["", "with FR701"])
def watch(request: pytest.FixtureRequest) -> Iterator[Watch]:
    contracts = [parse_contract(CONTRACT, "toy.toml")]
    watch = Watch(contracts, streams="tracked", uninitialized=request.param)
    watch.start()
    yield watch
    watch.stop()


class Engine:
    """Two streams, something on the device, and buffers on the host."""

    def __init__(self) -> None:
        self.forward = torch.cpu.Stream()
        self.copy = torch.cpu.Stream()
        with torch.cpu.stream(self.forward):
            self.tokens = torch.arange(4, device=DEVICE)
        self.staging = torch.zeros(4, dtype=torch.int64)
        self.tokens_cpu = torch.zeros(4, dtype=torch.int64)

    def pull(self) -> Any:
        """Copies the tokens to the host, and says when they are there."""
        self.copy.wait_stream(self.forward)
        with torch.cpu.stream(self.copy):
            self.tokens_cpu.copy_(self.tokens, non_blocking=True)
            return self.copy.record_event()

    def push(self) -> Any:
        """Copies the staged values to the device, and says when they were read."""
        with torch.cpu.stream(self.copy):
            self.sent = self.staging.to(DEVICE, non_blocking=True)
            return self.copy.record_event()


def followed_streams() -> tuple[Any, Any]:
    """Two streams, one of which was entered: this thread is followed from here on."""
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(one):
        pass
    return one, two


def found(watch: Watch) -> list[Violation]:
    return list(watch.drain())


def codes(watch: Watch) -> list[str]:
    return sorted({violation.code for violation in found(watch)})


# --- FR404 ---


def test_a_host_read_before_the_copy_s_event_is_early(watch: Watch) -> None:
    engine = Engine()
    engine.pull()
    engine.tokens_cpu.tolist()
    (violation,) = found(watch)
    assert (violation.code, violation.access.verb) == ("FR404", "tolist")
    assert violation.access.site.function.endswith(
        "test_a_host_read_before_the_copy_s_event_is_early"
    )
    assert violation.last_write is not None
    assert violation.last_write.site.line == line_of(Engine.pull, "self.tokens_cpu.copy_")
    assert violation.last_write.stream == "copy"
    assert "on stream `copy`" in violation.missing
    assert [one.ordered for one in violation.history if not one.ordered] == [False]


WAITS: dict[str, Callable[[Engine, Any], Any]] = {
    "its event": lambda engine, done: done.synchronize(),
    "its stream": lambda engine, done: engine.copy.synchronize(),
    "the device": lambda engine, done: torch.cpu.synchronize(),
    "a query that said true": lambda engine, done: done.query(),
    "a later event of another stream": lambda engine, done: (
        engine.forward.wait_event(done),
        engine.forward.record_event().synchronize(),
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_host_read_after_a_wait_is_fine(watch: Watch, name: str) -> None:
    engine = Engine()
    WAITS[name](engine, engine.pull())
    engine.tokens_cpu.tolist()
    assert found(watch) == []


@pytest.mark.parametrize("read", [int, bool, float, torch.Tensor.item])
def test_every_way_of_reading_a_value_is_a_read(watch: Watch, read: Callable[..., Any]) -> None:
    engine = Engine()
    engine.pull()
    read(engine.tokens_cpu[0])
    assert codes(watch) == ["FR404"]


SAVES: dict[str, Callable[[Any], Any]] = {
    "torch's": lambda kept: torch.save(kept, io.BytesIO()),
    "Python's": lambda kept: pickle.dumps(kept),
    "in a state": lambda kept: torch.save({"step": 3, "tokens": [kept]}, io.BytesIO()),
}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("save", SAVES)
def test_what_is_saved_is_read(watch: Watch, save: str, waits: bool) -> None:
    engine = Engine()
    done = engine.pull()
    if waits:
        done.synchronize()
    SAVES[save](engine.tokens_cpu)
    assert [(one.code, one.access.verb) for one in found(watch)] == (
        [] if waits else [("FR404", "pickle")]
    )


def test_a_shallow_copy_reads_no_value(watch: Watch) -> None:
    engine = Engine()
    done = engine.pull()
    shared = copy.copy(engine.tokens_cpu)
    done.synchronize()
    assert shared.data_ptr() == engine.tokens_cpu.data_ptr()
    assert found(watch) == []


def test_a_copy_from_the_host_to_the_host_is_made_at_once(watch: Watch) -> None:
    engine = Engine()
    staged_cpu = torch.ones(4, dtype=torch.int64)
    with torch.cpu.stream(engine.copy):
        engine.tokens_cpu.copy_(staged_cpu, non_blocking=True)
    assert engine.tokens_cpu.tolist() == staged_cpu.tolist()
    assert found(watch) == []


def test_numpy_reads_as_well(watch: Watch) -> None:
    engine = Engine()
    engine.pull()
    engine.tokens_cpu.numpy()
    assert codes(watch) == ["FR404"]


def test_an_array_may_be_made_before_the_event_and_read_after_it(watch: Watch) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        tokens = engine.tokens.to("cpu", non_blocking=True).numpy()
        done = engine.forward.record_event()
    done.synchronize()
    assert tokens.tolist() == [0, 1, 2, 3]
    del tokens
    assert found(watch) == []


@pytest.mark.parametrize("view", [lambda tensor: tensor.numpy(), np.asarray])
def test_an_array_that_goes_before_the_event_was_read_too_early(
    watch: Watch, view: Callable[..., Any]
) -> None:
    engine = Engine()
    engine.pull()
    tokens = view(engine.tokens_cpu)[1:]
    assert found(watch) == []
    assert tokens.tolist() == [1, 2, 3]
    del tokens
    (violation,) = found(watch)
    assert violation.code == "FR404"
    assert "the array over the target of an asynchronous copy is gone" in violation.notes[0]


def test_an_array_of_other_numbers_is_a_copy_that_reads_at_once(watch: Watch) -> None:
    engine = Engine()
    done = engine.pull()
    tokens = np.asarray(engine.tokens_cpu, dtype=np.float32)
    done.synchronize()
    assert tokens.tolist() == [0, 1, 2, 3]
    assert codes(watch) == ["FR404"]


def test_an_array_over_the_host_s_memory_makes_nobody_wait(watch: Watch) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        pulled = engine.tokens.to("cpu", non_blocking=True)
        kept = pulled.numpy()
    pulled.tolist()
    assert codes(watch) == ["FR404"]
    assert kept.tolist() == [0, 1, 2, 3]


def test_the_copy_s_own_stream_does_not_make_the_host_wait(watch: Watch) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        pulled = engine.tokens.to("cpu", non_blocking=True)
        pulled.tolist()
    assert codes(watch) == ["FR404"]


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "an index": lambda tokens_cpu: tokens_cpu[torch.tensor([1, 2])],
    "arithmetic": lambda tokens_cpu: tokens_cpu + 1,
    "a clone": lambda tokens_cpu: tokens_cpu.clone(),
    "a view's sum": lambda tokens_cpu: tokens_cpu[1:].sum(),
}


@pytest.mark.parametrize("name", READS)
def test_an_operator_on_host_memory_reads_it_at_once(watch: Watch, name: str) -> None:
    engine = Engine()
    done = engine.pull()
    READS[name](engine.tokens_cpu)
    (violation,) = found(watch)
    assert violation.code == "FR404"
    assert violation.access.site.function.endswith("<lambda>")
    assert violation.last_write is not None
    assert violation.last_write.site.line == line_of(Engine.pull, "self.tokens_cpu.copy_")
    done.synchronize()
    READS[name](engine.tokens_cpu)
    assert found(watch) == []


def test_an_operator_on_what_was_pulled_reads_it_at_once(watch: Watch) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        _ = engine.tokens.to("cpu", non_blocking=True) + 1
    assert codes(watch) == ["FR404"]


def test_a_copy_on_a_stream_behind_the_pull_reads_in_order(watch: Watch) -> None:
    engine = Engine()
    done = engine.pull()
    with torch.cpu.stream(engine.forward):
        engine.forward.wait_event(done)
        engine.tokens.copy_(engine.tokens_cpu)
    assert found(watch) == []


def test_a_blocking_copy_beside_the_pull_is_early(watch: Watch) -> None:
    engine = Engine()
    engine.pull()
    with torch.cpu.stream(engine.forward):
        engine.tokens.copy_(engine.tokens_cpu)
    assert "FR404" in codes(watch)


def test_an_operator_on_memory_that_nothing_calls_the_host_s_is_no_host_read(watch: Watch) -> None:
    engine = Engine()
    with torch.device("cpu"):
        inputs = torch.zeros(4, dtype=torch.int64)  # a graph's inputs
    with torch.cpu.stream(engine.forward):
        inputs.copy_(engine.tokens, non_blocking=True)
        _ = inputs + 1
    assert found(watch) == []


def test_a_read_of_device_memory_waits_for_the_current_stream(watch: Watch) -> None:
    engine = Engine()
    engine.push()
    with torch.cpu.stream(engine.copy):
        engine.sent.tolist()
    assert found(watch) == []


def test_another_step_s_copy_into_a_shared_buffer_is_met_too(watch: Watch) -> None:
    engine = Engine()
    first = engine.pull()
    engine.pull()
    first.synchronize()
    engine.tokens_cpu.tolist()
    assert codes(watch) == ["FR404"]


def test_a_part_that_no_copy_fills_may_be_read(watch: Watch) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.copy):
        engine.copy.wait_stream(engine.forward)
        engine.tokens_cpu[:2].copy_(engine.tokens[:2], non_blocking=True)
    engine.tokens_cpu[2:].tolist()
    assert found(watch) == []


def test_a_blocking_copy_is_waited_for(watch: Watch) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        engine.tokens_cpu.copy_(engine.tokens)
    engine.forward.synchronize()
    engine.tokens_cpu.tolist()
    assert found(watch) == []


@pytest.mark.parametrize(("read", "expected"), [("tokens_cpu", ["FR403"]), ("tokens", [])])
def test_the_host_waits_for_nothing_to_read_what_is_its_own(
    watch: Watch, read: str, expected: list[str]
) -> None:
    engine = Engine()
    engine.pull().synchronize()
    engine.copy.wait_stream(engine.forward)
    with torch.cpu.stream(engine.copy):
        engine.push()
        getattr(engine, read).tolist()
        engine.staging.fill_(7)
    assert codes(watch) == expected


def test_what_the_host_wrote_within_a_stream_s_context_it_may_read(watch: Watch) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        engine.tokens_cpu[:2] = torch.tensor([5, 6])
    with torch.cpu.stream(engine.copy):
        assert engine.tokens_cpu.tolist() == [5, 6, 0, 0]
    assert codes(watch) == []


# --- FR403 ---


def test_a_host_write_before_the_copy_s_event_overwrites_its_source(watch: Watch) -> None:
    engine = Engine()
    engine.push()
    engine.staging.fill_(1)
    (violation,) = found(watch)
    assert (violation.code, violation.access.verb) == ("FR403", "fill")
    assert violation.last_read is not None
    assert violation.last_read.site.line == line_of(Engine.push, "self.staging.to")
    assert "a fresh buffer" in violation.missing


def test_a_host_write_after_the_event_is_fine(watch: Watch) -> None:
    engine = Engine()
    engine.push().synchronize()
    engine.staging.fill_(1)
    assert found(watch) == []


def test_the_event_of_an_earlier_copy_is_not_enough(watch: Watch) -> None:
    engine = Engine()
    first = engine.push()
    engine.push()
    first.synchronize()
    engine.staging.fill_(1)
    assert codes(watch) == ["FR403"]


def test_two_buffers_that_alternate_are_fine(watch: Watch) -> None:
    engine = Engine()
    buffers, done = [engine.staging, engine.staging.clone()], []
    for number in range(4):
        if len(done) > 1:
            done[-2].synchronize()
        buffers[number % 2].fill_(number)
        engine.staging = buffers[number % 2]
        done.append(engine.push())
    assert found(watch) == []


def test_a_source_named_as_the_host_s_is_the_host_s(watch: Watch) -> None:
    lens_cpu = torch.tensor([3, 4])
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        lens = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        lens.copy_(lens_cpu, non_blocking=True)
    lens_cpu.fill_(1)
    assert codes(watch) == ["FR403"]


def test_what_numpy_wrote_is_seen_at_the_next_copy(watch: Watch) -> None:
    engine = Engine()
    shared = engine.staging.numpy()
    engine.push()
    shared[:] = 7
    engine.push()
    (violation,) = found(watch)
    assert (violation.code, violation.access.verb) == ("FR403", "write seen")


def test_what_numpy_wrote_is_seen_at_the_copy_s_event(watch: Watch) -> None:
    engine = Engine()
    shared = engine.staging.numpy()
    done = engine.push()
    shared[:] = 7
    done.synchronize()
    assert codes(watch) == ["FR403"]


def test_what_numpy_wrote_is_seen_when_the_tensor_over_it_is_gone(watch: Watch) -> None:
    engine, lens = Engine(), np.zeros(4, np.int64)

    def upload() -> None:
        lens_cpu = torch.from_numpy(lens[:2])
        with torch.cpu.stream(engine.forward):
            engine.tokens[:2].copy_(lens_cpu, non_blocking=True)

    upload()
    lens[:] = 7
    engine.forward.synchronize()
    assert codes(watch) == ["FR403"]


def test_what_numpy_wrote_to_a_copy_s_target_is_seen_at_its_event(watch: Watch) -> None:
    """As vLLM's rows of accepted tokens that were moved too early (vllm-project/vllm#53919)."""
    engine = Engine()
    shared = engine.tokens_cpu.numpy()
    done = engine.pull()
    shared[:2] = shared[2:]
    done.synchronize()
    (violation,) = found(watch)
    assert (violation.code, violation.access.verb) == ("FR403", "write seen")
    assert violation.last_write is not None
    assert violation.last_write.site.line == line_of(Engine.pull, "self.tokens_cpu.copy_")
    assert "the host writes the target of an asynchronous copy" in violation.notes[0]


def test_what_torch_writes_to_a_copy_s_target_is_seen_at_once(watch: Watch) -> None:
    engine = Engine()
    engine.pull()
    engine.tokens_cpu.fill_(3)
    (violation,) = found(watch)
    assert (violation.code, violation.access.verb) == ("FR403", "fill")


def _in_another_part(engine: Engine) -> None:
    engine.tokens_cpu = torch.zeros(8, dtype=torch.int64)
    whole, engine.tokens_cpu = engine.tokens_cpu, engine.tokens_cpu[:4]
    done = engine.pull()
    whole[4:].numpy().fill(3)
    done.synchronize()


def _by_the_next_copy(engine: Engine) -> None:
    engine.pull()
    with torch.cpu.stream(engine.forward):
        engine.tokens = torch.arange(4, device=DEVICE) + 9
    engine.pull().synchronize()


def _after_the_event(engine: Engine) -> None:
    shared = engine.tokens_cpu.numpy()
    engine.pull().synchronize()
    shared[:] = 3
    torch.cpu.synchronize()


TARGETS = {
    "in another part": _in_another_part,
    "by the next copy": _by_the_next_copy,
    "after the event": _after_the_event,
}


@pytest.mark.parametrize("written", TARGETS)
def test_a_copy_s_target_may_be_written(watch: Watch, written: str) -> None:
    TARGETS[written](Engine())
    assert found(watch) == []


@pytest.mark.parametrize("mode", ["delayed", "random"])
def test_a_copy_that_is_made_again_writes_its_target_itself(mode: str) -> None:
    watch = Watch([parse_contract(CONTRACT, "toy.toml")], streams=mode)
    watch.start()
    try:
        engine = Engine()
        done = engine.pull()
        with torch.cpu.stream(engine.forward):
            engine.tokens.fill_(7)
        done.synchronize()
        assert "FR403" not in codes(watch)
    finally:
        watch.stop()


def test_what_a_copy_wrote_in_its_turn_is_no_write_of_the_host_s(watch: Watch) -> None:
    one, two = followed_streams()
    weight, out_cpu, in_cpu = torch.ones(4), torch.zeros(4), torch.full((4,), 2.0)
    one.wait_stream(torch.cpu.current_stream())
    with torch.cpu.stream(one):
        out_cpu.copy_(weight, non_blocking=True)
    two.wait_stream(one)
    with torch.cpu.stream(two):
        weight.copy_(in_cpu, non_blocking=True)
    two.synchronize()
    assert found(watch) == []


@pytest.mark.parametrize("is_same_stream", [True, False])
def test_a_blocking_copy_from_the_device_writes_in_its_stream_s_order(
    watch: Watch, is_same_stream: bool
) -> None:
    one, two = followed_streams()
    inputs = torch.zeros(4, device=DEVICE)
    mirror_cpu = torch.zeros(4)
    with torch.cpu.stream(one):
        inputs.copy_(mirror_cpu, non_blocking=True)
        inputs += 1
    with torch.cpu.stream(one if is_same_stream else two):
        mirror_cpu.copy_(inputs)
    torch.cpu.synchronize()
    assert ("FR403" in codes(watch)) == (not is_same_stream)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_buffer_without_a_device_is_the_host_s_where_others_have_one(
    watch: Watch, is_named: bool
) -> None:
    pack, copy = followed_streams()
    with torch.cpu.stream(pack):
        staged, kept = torch.zeros(4), torch.zeros(4, device=str(DEVICE))
        if is_named:
            torch.zeros(1, device=DEVICE)
    copy.wait_stream(pack)
    with torch.cpu.stream(copy):
        kept.copy_(staged, non_blocking=True)
    pack.wait_stream(copy)
    with torch.cpu.stream(pack):
        staged.fill_(2)  # by the device, in its turn; by the host, at once
    torch.cpu.synchronize()
    assert codes(watch) == ["FR403"] * is_named


SURE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "beside memory of a device": lambda tensor: torch.zeros(1, device=DEVICE) + tensor,
    "by its name": lambda tensor: tensor,
    "not at all": lambda tensor: tensor,
}


@pytest.mark.parametrize("how", SURE)
@pytest.mark.parametrize("code", ["FR403", "FR404"])
def test_what_rests_on_a_guess_of_whose_memory_it_is_fails_nothing(
    watch: Watch, code: str, how: str
) -> None:
    pack, copy = followed_streams()
    ours = torch.zeros(4)
    SURE[how](ours)
    if how == "by its name":
        ours_cpu = ours
    with torch.cpu.stream(copy):
        other = torch.zeros(4, device=str(DEVICE))
        if code == "FR403":
            other.copy_(ours, non_blocking=True)
        else:
            ours.copy_(other, non_blocking=True)
    with torch.cpu.stream(pack):
        ours.fill_(2) if code == "FR403" else ours.tolist()
    if how == "by its name":
        del ours_cpu
    (violation,) = found(watch)
    assert violation.code == code
    assert bool(violation.confidence) == (how == "not at all")
    assert any("host_values" in note for note in violation.notes) == (how == "not at all")
    assert watch.is_advice(violation) == (how == "not at all")


BLOCKING: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "to the device, by `to`": lambda host, _: host.to(DEVICE, copy=True),
    "to the device, by `copy_`": lambda host, device: device.copy_(host),
    "to the host, by `copy_`": lambda host, device: host.copy_(device),
}


@pytest.mark.parametrize("how", BLOCKING)
def test_the_host_waits_for_a_copy_that_says_nothing_of_blocking(watch: Watch, how: str) -> None:
    side, main = followed_streams()
    with torch.cpu.stream(side):
        made = torch.ones(4, device=DEVICE)
        staged_cpu = torch.zeros(4)
        made = made * 2
        BLOCKING[how](staged_cpu, made)
    with torch.cpu.stream(main):
        _ = made + 1
    assert found(watch) == []


def test_the_host_itself_computes_what_it_has_beside_what_it_pulled(watch: Watch) -> None:
    side, main = followed_streams()
    with torch.cpu.stream(main):
        rows = torch.arange(2, device=DEVICE) + 1
        weight_cpu = torch.arange(8.0).view(4, 2)
        picked = weight_cpu.index_select(0, rows.cpu())
    with torch.cpu.stream(side):
        _ = picked.to(DEVICE, non_blocking=True)  # of the host's: no stream wrote it
    assert found(watch) == []
    with torch.cpu.stream(main):
        picked = torch.full((4, 2), 2.0, device=DEVICE).index_select(0, rows)
    with torch.cpu.stream(side):
        _ = picked + 1
    assert codes(watch) == ["FR401"]


def test_the_other_end_of_a_copy_to_the_host_is_the_device_s(watch: Watch) -> None:
    main, copy = followed_streams()
    with torch.cpu.stream(main):
        weight = torch.arange(4.0)  # made as the host's would be
    copy.wait_stream(main)
    with torch.cpu.stream(copy):
        stash_cpu = torch.empty(4)
        stash_cpu.copy_(weight, non_blocking=True)
    main.wait_stream(copy)
    with torch.cpu.stream(main):
        weight.add_(1)  # by the device, in its turn
    assert found(watch) == []


def test_what_was_sent_to_the_device_may_be_there(watch: Watch) -> None:
    pack, copy = followed_streams()
    with torch.cpu.stream(pack):
        torch.zeros(1, device=DEVICE)
        weight, kept = torch.nn.Linear(2, 2).to(DEVICE).weight.data, torch.zeros(2, 2, device="cpu")
    copy.wait_stream(pack)
    with torch.cpu.stream(copy):
        kept.copy_(weight, non_blocking=True)
    pack.wait_stream(copy)
    with torch.cpu.stream(pack):
        weight.add_(1)
    assert found(watch) == []


def test_streams_may_share_a_buffer_of_the_host_s_that_torch_did_not_make(watch: Watch) -> None:
    engine = Engine()
    shared_cpu = torch.frombuffer(bytearray(32), dtype=torch.int64)
    for stream in (engine.forward, engine.copy, engine.forward):
        with torch.cpu.stream(stream):
            shared_cpu.copy_(engine.staging)
    assert found(watch) == []


@pytest.mark.parametrize("default", [True, False])
def test_what_one_stream_made_without_a_device_another_may_read(
    watch: Watch, default: bool
) -> None:
    engine = Engine()
    with torch.device("cpu") if default else nullcontext(), torch.cpu.stream(engine.forward):
        batch = torch.full((4,), 1)
    with torch.cpu.stream(engine.copy):
        batch.clone()
    assert codes(watch) == ["FR401"] * default


def test_numpy_may_write_after_the_event(watch: Watch) -> None:
    engine = Engine()
    shared = engine.staging.numpy()
    engine.push().synchronize()
    shared[:] = 7
    engine.push().synchronize()
    assert found(watch) == []


@pytest.mark.parametrize("wait", ["item", "tolist", "cpu"])
def test_numpy_may_write_after_the_host_has_read_what_came_later(watch: Watch, wait: str) -> None:
    engine = Engine()
    shared = engine.staging.numpy()
    engine.push()
    with torch.cpu.stream(engine.copy):
        getattr((torch.ones(2, device=DEVICE) * 2).sum(), wait)()
    shared[:] = 7
    torch.cpu.synchronize()
    engine.push().synchronize()
    assert found(watch) == []


def test_what_numpy_wrote_before_the_host_read_is_seen_then(watch: Watch) -> None:
    engine = Engine()
    shared = engine.staging.numpy()
    engine.push()
    with torch.cpu.stream(engine.copy):
        made = torch.ones(2, device=DEVICE) * 2
        shared[:] = 7
        made.sum().item()
    assert codes(watch) == ["FR403"]


def test_device_memory_is_written_in_the_order_of_its_stream(watch: Watch) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        torch.zeros(4, dtype=torch.int64, device=DEVICE).copy_(engine.tokens, non_blocking=True)
        engine.tokens.fill_(2)
    assert found(watch) == []


# --- FR402 ---


def use_elsewhere(engine: Engine) -> torch.Tensor:
    """A tensor of the forward stream that the copy stream reads, ordered as it must be."""
    with torch.cpu.stream(engine.forward):
        made = engine.tokens + 1
    engine.copy.wait_stream(engine.forward)
    with torch.cpu.stream(engine.copy):
        engine.read = made * 2
    return made


def allocate(stream: Any) -> None:
    """Takes memory of a stream: what was freed on it may be what comes."""
    with torch.cpu.stream(stream):
        torch.zeros(1, device=DEVICE)


def test_memory_that_another_stream_uses_is_freed_too_soon(watch: Watch) -> None:
    engine = Engine()
    engine.tokens.record_stream(engine.forward)
    made = use_elsewhere(engine)
    del made
    assert found(watch) == []
    allocate(engine.forward)
    (violation,) = found(watch)
    assert (violation.code, violation.access.verb) == ("FR402", "free")
    assert violation.buffer.endswith("in use_elsewhere")
    assert violation.last_read is not None
    assert violation.last_read.site.line == line_of(use_elsewhere, "made * 2")
    assert "record_stream(copy)" in violation.missing
    assert not watch.is_advice(violation)


def test_an_engine_that_never_lends_is_only_reported(watch: Watch) -> None:
    engine = Engine()
    made = use_elsewhere(engine)
    del made
    assert found(watch) == []
    allocate(engine.forward)
    (violation,) = found(watch)
    assert watch.is_advice(violation)
    assert any("record_stream" in note for note in violation.notes)


SAFE: dict[str, Callable[[Engine, torch.Tensor], Any]] = {
    "record_stream": lambda engine, made: made.record_stream(engine.copy),
    "the engine's own word for it": lambda engine, made: lend(made, engine.copy),
    "a join": lambda engine, made: engine.forward.wait_stream(engine.copy),
    "a wait of the host": lambda engine, made: engine.copy.synchronize(),
}


@pytest.mark.parametrize("name", SAFE)
def test_memory_that_is_lent_or_joined_may_be_freed(watch: Watch, name: str) -> None:
    engine = Engine()
    made = use_elsewhere(engine)
    SAFE[name](engine, made)
    del made
    allocate(engine.forward)
    assert found(watch) == []


@pytest.mark.parametrize("name", ["a join", "a wait of the host"])
def test_a_wait_between_the_end_of_memory_and_the_next_allocation_is_in_time(
    watch: Watch, name: str
) -> None:
    engine = Engine()
    engine.tokens.record_stream(engine.forward)
    made = use_elsewhere(engine)
    del made
    SAFE[name](engine, engine.tokens)
    allocate(engine.forward)
    assert found(watch) == []


def test_what_another_stream_allocates_is_no_memory_of_this_one(watch: Watch) -> None:
    engine = Engine()
    made = use_elsewhere(engine)
    del made
    allocate(engine.copy)
    assert found(watch) == []
    allocate(engine.forward)
    assert codes(watch) == ["FR402"]


def test_memory_that_is_freed_in_one_test_is_not_held_against_the_next(watch: Watch) -> None:
    engine = Engine()
    made = use_elsewhere(engine)
    del made
    watch.begin_test()
    allocate(engine.forward)
    assert found(watch) == []


def test_the_host_runs_operators_on_its_own_memory_whatever_stream_is_current(
    watch: Watch,
) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.copy):
        lengths_cpu = torch.zeros(2, dtype=torch.int64)
    with torch.cpu.stream(engine.forward):
        lengths_cpu.add_(1)
    del lengths_cpu
    allocate(engine.copy)
    assert found(watch) == []


@pytest.mark.parametrize("how", ["not at all", "lent", "waited for"])
def test_a_storage_that_is_emptied_gives_its_memory_back(watch: Watch, how: str) -> None:
    main, copy = followed_streams()
    with torch.cpu.stream(main):
        weight = torch.ones(4, device=DEVICE) * 2
    copy.wait_stream(main)
    with torch.cpu.stream(copy):
        stash_cpu = torch.empty(4)
        stash_cpu.copy_(weight, non_blocking=True)
        if how == "lent":
            lend(weight, copy)
        elif how == "waited for":
            main.wait_stream(copy)
        weight.untyped_storage().resize_(0)
    with torch.cpu.stream(main):
        weight.untyped_storage().resize_(16)
        weight.fill_(3)
    assert codes(watch) == (["FR402"] if how == "not at all" else [])


def test_other_memory_of_a_storage_has_no_past(watch: Watch) -> None:
    main, side = followed_streams()
    with torch.cpu.stream(side):
        weight = torch.ones(4, device=DEVICE) * 2
        weight.untyped_storage().resize_(0)
    with torch.cpu.stream(main):
        weight.untyped_storage().resize_(16)
        weight.fill_(3)  # what the other stream wrote was written elsewhere
        _ = weight + 1
    assert found(watch) == []


def test_an_owner_keeps_memory_until_it_is_done_with(watch: Watch) -> None:
    engine = Engine()
    kept = [use_elsewhere(engine)]
    engine.copy.record_event().synchronize()
    kept.clear()
    allocate(engine.forward)
    assert found(watch) == []


def test_a_view_keeps_memory_alive(watch: Watch) -> None:
    engine = Engine()
    made = use_elsewhere(engine)
    view = made[1:]
    del made
    assert found(watch) == []
    del view
    allocate(engine.forward)
    assert codes(watch) == ["FR402"]


def test_a_lend_to_one_stream_says_nothing_of_another(watch: Watch) -> None:
    engine = Engine()
    made = use_elsewhere(engine)
    made.record_stream(engine.forward)
    del made
    allocate(engine.forward)
    assert codes(watch) == ["FR402"]


def test_host_memory_that_a_kernel_reads_is_freed_too_soon(watch: Watch) -> None:
    engine = Engine()
    rows = torch.zeros(2, dtype=torch.int64)
    lend(rows, engine.forward)
    with torch.cpu.stream(engine.copy):
        rows = torch.zeros(2, dtype=torch.int64)
    engine.forward.wait_stream(engine.copy)
    with torch.cpu.stream(engine.forward):
        engine.tokens.index_select(0, rows)
    del rows
    allocate(engine.copy)
    assert codes(watch) == ["FR402"]


def test_one_line_that_frees_many_is_one_report(watch: Watch) -> None:
    engine = Engine()
    engine.tokens.record_stream(engine.forward)
    batch = [use_elsewhere(engine) for _ in range(3)]
    batch.clear()
    allocate(engine.forward)
    (violation,) = found(watch)
    assert violation.count == 3


def test_memory_that_another_stream_takes_before_it_waits_for_its_own_may_still_be_in_use(
    watch: Watch,
) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        engine.tokens.add(1)
        result = torch.empty(4, dtype=torch.int64, device=DEVICE)
    with torch.cpu.stream(engine.copy):
        torch.arange(4, out=result)
    (violation,) = found(watch)
    assert (violation.code, violation.access.verb) == ("FR402", "arange")
    assert violation.last_read is not None
    assert violation.last_read.verb == "allocation"
    assert violation.missing.startswith("a wait of stream `copy` for stream `forward` after")
    assert watch.is_advice(violation)


def test_memory_that_another_stream_takes_was_nobody_s_before_if_nothing_was_freed(
    watch: Watch,
) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        kept = engine.tokens.add(1)
        result = torch.empty(4, dtype=torch.int64, device=DEVICE)
    with torch.cpu.stream(engine.copy):
        torch.arange(4, out=result)
    assert found(watch) == []
    del kept


def test_memory_of_a_source_that_the_host_waited_for_is_free(watch: Watch) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        engine.tokens_cpu.copy_(engine.tokens.add(1))
        result = torch.empty(4, dtype=torch.int64, device=DEVICE)
    with torch.cpu.stream(engine.copy):
        torch.arange(4, out=result)
    assert found(watch) == []


@pytest.mark.parametrize("waits", [True, False])
def test_memory_that_is_lent_to_who_comes_last_waits_for_all_before(
    watch: Watch, waits: bool
) -> None:
    engine, third = Engine(), torch.cpu.Stream()
    with torch.cpu.stream(engine.forward):
        batch = torch.arange(4, device=DEVICE)
    lend(batch, engine.copy)
    third.wait_stream(engine.forward)
    with torch.cpu.stream(third):
        batch.add(1)
    if waits:
        engine.copy.wait_stream(third)
    del batch
    allocate(engine.forward)
    assert codes(watch) == ([] if waits else ["FR402"])


@pytest.mark.parametrize("waits", ["a stream", "the host"])
def test_memory_that_another_stream_takes_after_a_wait_is_its_own(watch: Watch, waits: str) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        engine.tokens.add(1)
        result = torch.empty(4, dtype=torch.int64, device=DEVICE)
    if waits == "the host":
        engine.forward.synchronize()
    else:
        engine.copy.wait_stream(engine.forward)
    with torch.cpu.stream(engine.copy):
        torch.arange(4, out=result)
    assert found(watch) == []


@pytest.mark.parametrize("device", [None, "cpu"])
def test_memory_of_the_host_may_be_taken_by_any_stream(watch: Watch, device: str | None) -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        target = torch.empty(4, dtype=torch.int64, device=device)
    engine.copy.wait_event(torch.cpu.Event())
    with torch.cpu.stream(engine.copy):
        source = torch.arange(4, device=DEVICE)
        target.copy_(source, non_blocking=True)
    assert found(watch) == []


# --- FR405 ---


class Publisher:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.publish_ready = torch.cpu.Event()
        self.other = torch.cpu.Event()

    def publish(self) -> None:
        self.publish_ready.record(self.engine.forward)

    def resolve(self) -> None:
        self.publish_ready.wait(self.engine.copy)

    def pull(self) -> None:
        self.engine.copy.wait_event(self.publish_ready)


def test_a_wait_for_a_record_of_an_earlier_step_is_stale(watch: Watch) -> None:
    relay = Publisher(Engine())
    relay.publish()
    step(relay.resolve)
    step(relay.resolve)
    (violation,) = found(watch)
    assert (violation.code, violation.buffer) == ("FR405", "publish_ready")
    assert violation.access.site.line == line_of(Publisher.resolve, "publish_ready.wait")
    assert (violation.access.step, violation.access.stream) == (2, "copy")
    assert f"test_lifetimes.py:{line_of(Publisher.publish, 'record')}" in violation.notes[0]
    assert "in step 1" in violation.notes[0]


def test_each_record_may_be_waited_for_in_one_step(watch: Watch) -> None:
    relay = Publisher(Engine())
    for _ in range(3):
        relay.publish()
        step(lambda: (relay.resolve(), relay.pull()))
    assert found(watch) == []


def test_an_event_of_another_name_may_be_waited_for_again(watch: Watch) -> None:
    relay = Publisher(Engine())
    relay.other.record(relay.engine.forward)
    for _ in range(3):
        step(lambda: relay.other.wait(relay.engine.copy))
    assert found(watch) == []


def test_without_steps_a_stream_waits_for_a_record_once() -> None:
    text = CONTRACT[: CONTRACT.index("[[steps]]")] + '[streams]\nconsumed_once = ["publish_ready"]'
    watch = Watch([parse_contract(text, "toy.toml")], streams="tracked")
    watch.start()
    try:
        relay = Publisher(Engine())
        relay.publish()
        relay.resolve()
        assert found(watch) == []
        relay.resolve()
        assert codes(watch) == ["FR405"]
    finally:
        watch.stop()


@pytest.mark.parametrize(
    "line",
    ['[streams]\nconsumed_once = ["a.b"]', '[[streams.lend]]\nfunctions = ["lend"]'],
)
def test_a_contract_that_means_nothing_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="streams"):
        parse_contract(f'[engine]\nname = "x"\n{line}', "toy.toml")


def test_probes_leave_the_lanes_of_the_session_alone(watch: Watch) -> None:
    stream = torch.cpu.Stream()
    outside = virtual.current_lane()
    with torch.cpu.stream(stream):
        inside = virtual.current_lane()
        probes.prove(watch.tally, "cpu", of_streams=True)
        assert virtual.current_lane() is inside
    assert virtual.current_lane() is outside
    assert watch.dead == ()


@pytest.mark.parametrize("between", ["", "a wait", "an own event", "a fence"])
def test_a_record_that_another_stream_takes_the_place_of_is_lost(between: str) -> None:
    watch = Watch([parse_contract(CONTRACT, "toy.toml")], streams="tracked")
    watch.start()
    try:
        first = torch.cpu.Stream()
        second, reader = torch.cpu.Stream(), torch.cpu.Stream()
        publish_ready = torch.cpu.Event()
        publish_ready.record(first)
        if between == "a wait":
            reader.wait_event(publish_ready)
        if between == "a fence":
            second.wait_stream(first)
        own = torch.cpu.Event() if between == "an own event" else publish_ready
        own.record(second)
        reader.wait_event(publish_ready)
        found = watch.drain()
        assert [one.code for one in found] == ([] if between else ["FR405"])
        for one in found:
            assert one.access.site.path == __file__
            assert "on stream `first` came before it, and nobody waited for it" in one.notes[0]
    finally:
        watch.stop()


def test_where_nobody_watches_a_move_returns_the_tensor_itself(watch: Watch) -> None:
    staging_cpu = torch.zeros(4)
    assert staging_cpu.to(DEVICE, non_blocking=True) is staging_cpu


def test_a_move_is_a_copy_only_between_host_and_device_and_without_a_wait(watch: Watch) -> None:
    unknown = torch.zeros(4)
    engine = Engine()
    host, tokens, either = torch.zeros(4), engine.tokens, torch.zeros(4, device=str(DEVICE))
    assert host.to(DEVICE, non_blocking=True) is not host
    assert host.to(torch.ones(2, device=DEVICE), non_blocking=True) is not host
    assert tokens.to("cpu", non_blocking=True) is not tokens
    assert host.to(DEVICE) is host
    assert tokens.to(DEVICE, non_blocking=True) is tokens
    assert host.to("cpu", non_blocking=True) is host
    assert unknown.to(DEVICE, non_blocking=True).data_ptr() == unknown.data_ptr()
    assert either.to(DEVICE, non_blocking=True).data_ptr() == either.data_ptr()
    assert host.to(DEVICE, non_blocking=True, copy=False) is host


def test_what_a_stream_uploads_must_be_waited_for_by_the_stream_that_uses_it(watch: Watch) -> None:
    staged_cpu = torch.ones(4)
    engine = Engine()
    for fenced in (False, True):
        with torch.cpu.stream(engine.copy):
            sent = staged_cpu.to(DEVICE, non_blocking=True)
        if fenced:
            engine.forward.wait_stream(engine.copy)
        with torch.cpu.stream(engine.forward):
            _ = sent + 1
            engine.forward.synchronize()
        assert [one.code for one in watch.drain()] == ([] if fenced else ["FR401"])


@pytest.mark.parametrize("put", [lambda one: [one], lambda one: {"a": one}, lambda one: (one,)])
def test_the_name_of_a_container_says_whose_memory_it_holds(watch: Watch, put: Any) -> None:
    weight = torch.zeros(4)
    staged_cpu = put(weight)
    copy = torch.cpu.Stream()
    with torch.cpu.stream(copy):
        torch.zeros(4, device=DEVICE).copy_(weight, non_blocking=True)
    weight.fill_(1)
    assert [one.code for one in watch.drain()] == ["FR403"]
    del staged_cpu


# --- what `to` sends to the device, where a CPU makes no copy ---

TABLE = torch.arange(32.0).view(8, 4)  # made where nobody watches: the host's, or the device's
LIKE = torch.zeros(1, device=DEVICE)
MADE: dict[str, Callable[[int], torch.Tensor]] = {
    "a sum": lambda at: TABLE[at] + 1,
    "a gather": lambda at: TABLE[torch.tensor([at, at + 1])],
    "a batch of a loader": lambda at: torch.utils.data.default_collate([TABLE[at], TABLE[at + 1]]),
    "rows that were padded": lambda at: torch.nn.utils.rnn.pad_sequence([TABLE[at], TABLE[at, :2]]),
    "NumPy's": lambda at: torch.from_numpy(np.arange(4.0) + at),
    "made without a device": lambda at: torch.full((4,), float(at)),
    "made on `cpu`": lambda at: torch.full((4,), float(at), device="cpu"),
    "a view": lambda at: (TABLE + at)[1:3].t(),
}
SENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to": lambda one: one.to(DEVICE, non_blocking=True),
    "to, by name": lambda one: one.to(device=DEVICE, non_blocking=True),
    "to another's": lambda one: one.to(LIKE, non_blocking=True),
    "to another type": lambda one: one.to(DEVICE, torch.float64, non_blocking=True),
    "to the same type": lambda one: one.to(DEVICE, one.dtype, True),
    "a view of it": lambda one: one.to(DEVICE, non_blocking=True)[1:],
    "twice": lambda one: one.to(DEVICE, non_blocking=True).to(DEVICE, non_blocking=True),
}


def sent_and_used(
    mode: str,
    make: Callable[[int], torch.Tensor],
    send: Callable[[torch.Tensor], torch.Tensor],
    fenced: bool,
) -> tuple[list[float], list[Violation]]:
    """The sums of three batches that one stream sends and another one uses, and what was found."""
    watch = Watch([parse_contract(CONTRACT, "toy.toml")], streams=mode)
    watch.start()
    try:
        copy, forward = torch.cpu.Stream(), torch.cpu.Stream()
        sums = []
        for at in range(3):
            batch = make(at)
            with torch.cpu.stream(copy):
                sent = send(batch)
            if fenced:
                forward.wait_stream(copy)
            with torch.cpu.stream(forward):
                total = sent.sum()
            torch.cpu.synchronize()
            sums.append(float(total))
        return sums, found(watch)
    finally:
        watch.stop()


@pytest.mark.parametrize("mode", ["tracked", "delayed", "random"])
@pytest.mark.parametrize("make", MADE)
def test_what_may_be_the_host_s_is_sent_without_a_wait_for_who_made_it(
    mode: str, make: str
) -> None:
    healthy = [float(MADE[make](at).sum()) for at in range(3)]
    assert sent_and_used(mode, MADE[make], SENT["to"], fenced=True) == (healthy, [])


@pytest.mark.parametrize("send", SENT)
def test_no_way_to_send_what_may_be_the_host_s_waits_for_who_made_it(send: str) -> None:
    healthy = [float(SENT[send](MADE["a sum"](at)).sum()) for at in range(3)]
    assert sent_and_used("delayed", MADE["a sum"], SENT[send], fenced=True) == (healthy, [])


@pytest.mark.parametrize("make", MADE)
def test_whatever_was_sent_must_be_waited_for(make: str) -> None:
    _, (violation,) = sent_and_used("tracked", MADE[make], SENT["to"], fenced=False)
    assert violation.code == "FR401"
    assert violation.access.site.line == line_of(sent_and_used, "sent.sum()")
    assert violation.last_write is not None
    assert violation.last_write.stream == "copy"
    assert violation.last_write.site.function == "<lambda>"


@pytest.mark.parametrize("send", SENT)
def test_however_it_was_sent_it_must_be_waited_for(send: str) -> None:
    _, (violation,) = sent_and_used("tracked", MADE["a sum"], SENT[send], fenced=False)
    assert (violation.code, violation.access.stream) == ("FR401", "forward")
    assert violation.last_write is not None
    assert (violation.last_write.stream, violation.last_write.site.function) == ("copy", "<lambda>")


def test_the_host_waits_for_what_it_sends_and_not_for_what_comes_then(watch: Watch) -> None:
    side, main = followed_streams()
    batch, other = MADE["a sum"](1), MADE["a sum"](2)
    with torch.cpu.stream(side):
        sent = batch.to(DEVICE)
        other = torch.as_tensor(other, device=DEVICE)
    with torch.cpu.stream(main):
        _ = sent + other
    assert found(watch) == []
    with torch.cpu.stream(side):
        sent.add_(1)
    assert codes(watch) == ["FR401"]  # before the other's read was done


def test_each_stream_that_sends_has_a_copy_of_its_own(watch: Watch) -> None:
    side, main = followed_streams()
    batch = MADE["a sum"](1)
    with torch.cpu.stream(side):
        first = batch.to(DEVICE, non_blocking=True)
    with torch.cpu.stream(main):
        second = batch.to(DEVICE, non_blocking=True) * 2
    with torch.cpu.stream(side):
        _ = first + 1
    main.wait_stream(side)
    with torch.cpu.stream(main):
        _ = second + first
    torch.cpu.synchronize()
    assert found(watch) == []


def test_who_made_it_may_still_read_what_was_sent(watch: Watch) -> None:
    side, main = followed_streams()
    lengths = MADE["a sum"](1)
    with torch.cpu.stream(side):
        sent = lengths.to(DEVICE, non_blocking=True)
    _ = lengths.max() + 1
    assert found(watch) == []
    with torch.cpu.stream(main):
        _ = sent + 1
    assert codes(watch) == ["FR401"]


def test_a_staging_buffer_may_be_filled_again_once_the_host_has_waited(watch: Watch) -> None:
    side, _ = followed_streams()
    staging = torch.zeros(4)
    for at in range(3):
        staging.fill_(at)
        with torch.cpu.stream(side):
            _ = staging.to(DEVICE) * 2
    assert found(watch) == []


@pytest.mark.parametrize("waits", [True, False])
def test_what_a_stream_made_of_what_it_was_sent_is_the_device_s(watch: Watch, waits: bool) -> None:
    side, main = followed_streams()
    batch = MADE["a sum"](1)
    with torch.cpu.stream(side):
        doubled = batch.to(DEVICE, non_blocking=True) * 2
    if waits:
        main.wait_stream(side)
    with torch.cpu.stream(main):
        _ = doubled.to(DEVICE) + 1
    assert codes(watch) == ([] if waits else ["FR401"])


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_made_on_the_device_is_not_sent_there(watch: Watch, waits: bool) -> None:
    side, _ = followed_streams()
    table = torch.arange(8.0, device=DEVICE)
    for at in range(2):
        batch = table + at
        if waits:
            side.wait_stream(torch.cpu.current_stream())
        with torch.cpu.stream(side):
            _ = batch.to(DEVICE, non_blocking=True) * 2
        torch.cpu.synchronize()
    assert codes(watch) == ([] if waits else ["FR401"])


def test_what_is_sent_and_may_be_the_device_s_is_counted(watch: Watch) -> None:
    side, _ = followed_streams()
    batch = MADE["a sum"](1)
    with torch.cpu.stream(side):
        batch.to(DEVICE)
    assert any("which no stream waits for" in why for _, why in watch.tally.untracked)


def test_a_module_is_sent_as_it_is(watch: Watch) -> None:
    side, _ = followed_streams()
    for _ in range(2):
        module = torch.nn.Linear(2, 2)
        weight = module.weight
        with torch.cpu.stream(side):
            module.to(DEVICE)(torch.ones(1, 2, device=DEVICE))
        assert module.weight is weight
    assert found(watch) == []


@pytest.mark.parametrize("mode", ["tracked", "delayed", "random"])
@pytest.mark.parametrize("is_async", [True, False])
def test_the_host_s_own_values_are_what_a_copy_to_the_device_brings(
    mode: str, is_async: bool
) -> None:
    watch = Watch([], streams=mode)
    watch.start()
    try:
        side, _ = followed_streams()
        kept = torch.zeros(4, device=DEVICE)
        torch.cpu.synchronize()
        batch = torch.ones(4) * 3
        with torch.cpu.stream(side):
            kept.copy_(batch, non_blocking=is_async)
        torch.cpu.synchronize()
        assert kept.tolist() == [3.0] * 4
        assert codes(watch) == []
    finally:
        watch.stop()


# --- memory of unknown origin that a stream sends ---


def prefetched(mode: str, use: Callable[[Any, Any, torch.Tensor], object]) -> list[Violation]:
    """What is found of three batches from before the watch, sent on a side stream and then used."""
    batches = [torch.full((4,), float(at)) for at in range(3)]
    watch = Watch([], streams=mode)
    watch.start()
    try:
        side, main = torch.cpu.Stream(), torch.cpu.current_stream()
        for batch in batches:
            use(side, main, batch)
            torch.cpu.synchronize()
        return found(watch)
    finally:
        watch.stop()


def prefetch(side: Any, batch: torch.Tensor) -> torch.Tensor:
    with torch.cpu.stream(side):
        return batch.to(DEVICE, non_blocking=True)


def uses(side: Any, main: Any, batch: torch.Tensor) -> None:
    _ = prefetch(side, batch) + 1


def uses_a_view(side: Any, main: Any, batch: torch.Tensor) -> None:
    _ = prefetch(side, batch).view(2, 2)[1:].detach() + 1


def writes(side: Any, main: Any, batch: torch.Tensor) -> None:
    prefetch(side, batch).mul_(2)


def uses_it_elsewhere(side: Any, main: Any, batch: torch.Tensor) -> None:
    with torch.cpu.stream(torch.cpu.Stream()):
        _ = prefetch(side, batch) + 1


def uses_the_later(side: Any, main: Any, batch: torch.Tensor) -> None:
    prefetch(side, batch)
    main.wait_stream(side)
    _ = prefetch(side, batch) + 1


FAULTY = (uses, uses_a_view, writes, uses_it_elsewhere, uses_the_later)


def waits(side: Any, main: Any, batch: torch.Tensor) -> None:
    sent = prefetch(side, batch)
    main.wait_stream(side)
    assert (sent.view(2, 2) + 1).sum() == 4 * float(batch[0]) + 4
    sent.mul_(2)


def stays(side: Any, main: Any, batch: torch.Tensor) -> None:
    sent = prefetch(side, batch)
    with torch.cpu.stream(side):
        assert (sent * 2 + sent[1]).sum() == 12 * float(batch[0])


def keeps(side: Any, main: Any, batch: torch.Tensor) -> None:
    sent = prefetch(side, batch)
    assert batch.sum() + batch[1:].max() == 5 * float(batch[0])
    with torch.cpu.stream(side):
        _ = sent * 2


def keeps_in_a_stream(side: Any, main: Any, batch: torch.Tensor) -> None:
    prefetch(side, batch)
    with torch.cpu.stream(torch.cpu.Stream()):
        _ = batch.max() + 1


def fills_again(side: Any, main: Any, batch: torch.Tensor) -> None:
    sent = prefetch(side, batch)
    side.record_event().synchronize()
    with torch.cpu.stream(side):
        _ = sent * 2
    batch.fill_(1)


def sends_again(side: Any, main: Any, batch: torch.Tensor) -> None:
    sent = prefetch(side, batch)
    main.wait_stream(side)
    later = prefetch(side, batch)
    _ = sent + 1
    main.wait_stream(side)
    _ = sent + later


def had_it_all_along(side: Any, main: Any, batch: torch.Tensor) -> None:
    prefetch(side, batch)
    batch.add_(1)


HEALTHY = (waits, stays, keeps, keeps_in_a_stream, fills_again, sends_again, had_it_all_along)


@pytest.mark.parametrize("use", FAULTY)
def test_what_a_side_stream_sent_must_be_waited_for_wherever_it_is_from(use: Any) -> None:
    violations = prefetched("tracked", use)
    assert {one.code for one in violations} == {"FR401"}
    assert {one.access.site.function for one in violations} == {use.__name__}
    assert {one.last_write.site.function for one in violations} == {"prefetch"}
    assert not any(one.confidence for one in violations)


@pytest.mark.parametrize("mode", ["tracked", "delayed", "random"])
@pytest.mark.parametrize("use", HEALTHY)
def test_what_is_of_unknown_origin_is_used_as_before(use: Any, mode: str) -> None:
    assert prefetched(mode, use) == []


def test_what_is_sent_without_a_wait_is_another_tensor_over_the_same_memory(watch: Watch) -> None:
    batch = torch.zeros(4)
    side, _ = followed_streams()
    sent = prefetch(side, batch)
    assert sent is not batch
    assert sent.data_ptr() == batch.data_ptr()
    assert sent.detach_() is sent
    assert prefetch(side, sent) is sent
    assert batch.to(DEVICE) is batch
    assert batch.to(DEVICE, non_blocking=True, copy=False) is batch
    weight = torch.nn.Parameter(torch.zeros(4))
    assert prefetch(side, weight) is weight


@pytest.mark.usefixtures("watch")
def test_the_end_of_memory_runs_no_function_that_would_lose_the_error_of_a_signal() -> None:
    engine = Engine()
    with torch.cpu.stream(engine.forward):
        made = torch.empty(4, device=DEVICE)
        result = engine.tokens + made
    ran: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            ran.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    del made, result
    sys.setprofile(None)
    assert ran == []
