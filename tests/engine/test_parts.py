"""Pools, slots, graphs, settings, requests, contract: each alone."""

from pathlib import Path

import pytest
import torch

import fixtures.engine
from fixtures.engine.faults.registry import replaced
from fixtures.engine.future_map import FutureMap
from fixtures.engine.graph import capture
from fixtures.engine.loops import OverlapLoop
from fixtures.engine.pool import PagePool, RequestPool
from fixtures.engine.request import Request
from fixtures.engine.serve import Engine, serve
from fixtures.engine.settings import (
    GUARD_VARIABLE,
    Algorithm,
    Gather,
    Guard,
    Settings,
    guard_from_environment,
)
from fixtures.engine.slots import Padding, Slot, SlotRegistry
from fixtures.engine.worker import Worker
from fixtures.engine.workload import differing, random_asks, requests_for, run
from fmcheck.contract import load_contract

CPU = torch.device("cpu")


def test_a_row_handed_out_again_is_of_another_generation() -> None:
    pool = RequestPool(2, 8, CPU)
    row = pool.hand_out()
    pool.take_back(row)
    assert pool.hand_out() == row
    assert pool.generation[row] == 2


def test_the_sink_row_is_never_handed_out_and_stays_zero() -> None:
    engine = Engine.build(Settings(pool_rows=4, algorithm=Algorithm.EAGLE), overlap=True)
    serve(engine, requests_for(random_asks(1, 12)))
    assert engine.scheduler.pool.generation[0] == 0
    assert sum(engine.scheduler.pool.generation) == 12
    assert not engine.worker.mapping[0].any()


def test_all_rows_and_pages_come_back() -> None:
    settings = Settings(pool_rows=4, pages=20, algorithm=Algorithm.EAGLE)
    engine = Engine.build(settings, overlap=True)
    serve(engine, requests_for(random_asks(2, 12)))
    assert engine.scheduler.pool.free == 4
    assert sorted(engine.scheduler.pages._free) == list(range(1, 21))


def test_pages_never_hold_the_sink_slot() -> None:
    pages = PagePool(3, 4)
    taken = pages.hand_out(3)
    assert sorted(taken) == [1, 2, 3]
    assert {pages.slot(taken, position) for position in range(12)} == set(range(4, 16))


def test_a_request_that_can_never_run_is_refused_with_its_needs() -> None:
    engine = Engine.build(Settings(pages=4), overlap=False)
    with pytest.raises(
        ValueError, match="r1: 23 positions needed; the context is 96 and the cache 16"
    ):
        engine.scheduler.submit(Request("r1", (1,) * 10, 10))


@pytest.mark.parametrize(
    ("padding", "tail"), [(Padding.ZERO, 0), (Padding.FILL, 7), (Padding.COPY_HEAD, 5)]
)
def test_a_slot_keeps_its_policy(padding: Padding, tail: int) -> None:
    registry = SlotRegistry([Slot("x", padding=padding, per_row=2, fill=7)], 4, CPU)
    registry.fill({"x": torch.full((8,), 5)}, 4, 4)
    registry.fill({"x": torch.full((2,), 6)}, 1, 4)
    assert registry.views(4)["x"].tolist() == [6, 6] + [tail] * 6


def test_a_replay_reads_the_static_input_and_overwrites_the_static_output() -> None:
    static = torch.zeros(3)
    graph = capture(lambda: (static + 1,), CPU)
    first = graph.outputs[0]
    static.copy_(torch.tensor([4.0, 5.0, 6.0]))
    graph.replay()
    assert graph.outputs[0] is first
    assert first.tolist() == [5.0, 6.0, 7.0]


@pytest.mark.parametrize("guard", Guard)
def test_the_environment_picks_the_guard(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GUARD_VARIABLE, guard.value)
    assert guard_from_environment() is guard


def test_the_guard_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GUARD_VARIABLE, raising=False)
    assert guard_from_environment() is Guard.OFF


def test_an_unknown_guard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GUARD_VARIABLE, "yes")
    with pytest.raises(ValueError, match="FMCHECK_ENGINE_GUARD='yes': expected one of off"):
        guard_from_environment()


@pytest.mark.parametrize("algorithm", Algorithm)
def test_compiled_guard_and_fused_gather_serve_the_same_tokens(algorithm: Algorithm) -> None:
    compiled = Settings(algorithm=algorithm, guard=Guard.COMPILED, gather=Gather.FUSED, pool_rows=4)
    asks = random_asks(3, 8)
    bare = run(Settings(algorithm=algorithm, pool_rows=4), asks, overlap=False)
    assert not differing(bare, run(compiled, asks, overlap=True))


@pytest.mark.parametrize("algorithm", [a for a in Algorithm if a.speculative])
def test_lengths_are_published_between_verify_and_draft_extend(algorithm: Algorithm) -> None:
    engine = Engine.build(Settings(algorithm=algorithm), overlap=True)
    order: list[str] = []

    def noting(word: str, owner: type, name: str):
        def make(original):
            def note(self, *args):
                order.append(word)
                return original(self, *args)

            return note

        return replaced(owner, name, make)

    with (
        noting("verify", Worker, "_target_verify"),
        noting("publish", FutureMap, "publish"),
        noting("extend", type(engine.worker.speculator), "after_verify"),
        noting("stash", FutureMap, "stash"),
    ):
        serve(engine, requests_for(random_asks(0, 1)))
    verifies = "".join(f"{word} " for word in order).split("stash ")[1:-1]
    assert verifies
    assert set(verifies) == {"verify publish extend "}


def test_a_step_is_launched_before_the_one_before_it_is_read() -> None:
    engine = Engine.build(Settings(), overlap=True)
    assert isinstance(engine.loop, OverlapLoop)
    depths = []

    def make(process):
        def note(self):
            depths.append(len(self.in_flight))
            process(self)

        return note

    with replaced(OverlapLoop, "process_oldest", make):
        serve(engine, requests_for(random_asks(0, 4)))
    assert depths.count(2) > len(depths) * 0.7


def test_the_contract_names_what_the_engine_has() -> None:
    contract = load_contract(Path(fixtures.engine.__file__).parent / "fmcheck.toml")
    (relay,) = contract.relay
    assert (relay.module, relay.qualname) == (FutureMap.__module__, FutureMap.__qualname__)
    settings = Settings(algorithm=Algorithm.EAGLE)
    engine = Engine.build(settings, overlap=True)
    future_map = engine.loop.future_map
    for buffer in relay.expected_after_init(None):
        assert isinstance(getattr(future_map, buffer.name), torch.Tensor)
    serve(engine, requests_for(random_asks(0, 3)))
    tensors = {
        name
        for name, value in vars(future_map).items()
        if isinstance(value, torch.Tensor) and name.endswith("_buf")
    }
    assert tensors == {buffer.name for buffer in relay.buffer}
    for runner in engine.worker.runners:
        assert set(contract.graph_inputs.row_indices) <= set(runner.views(1))
