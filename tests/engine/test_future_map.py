"""The relay: what is written, when it may be read, and what the guard says otherwise."""

from dataclasses import replace

import pytest
import torch

from fixtures.engine.batch import Batch, Kind
from fixtures.engine.faults.recorder import recorded
from fixtures.engine.future_map import FutureMap, RelayPayload
from fixtures.engine.gather import compile_gather, gather_single
from fixtures.engine.settings import Algorithm, Gather, Guard, Settings

PLAIN = Settings(guard=Guard.EAGER)
SPECULATIVE = replace(PLAIN, algorithm=Algorithm.EAGLE)
CPU = torch.device("cpu")
GUARDS = [
    (Guard.EAGER, "unused"),
    (Guard.COMPILED, "aot_eager"),
    (Guard.COMPILED, "inductor"),
]


def decode(rows: list[int], *, speculative: bool = False) -> Batch:
    index = torch.tensor(rows, dtype=torch.int64)
    return Batch(Kind.DECODE, [], rows, index, speculative, relay_rows=index)


def extras(rows: torch.Tensor, width: int = 4) -> RelayPayload:
    odds = rows[:, None].double().repeat(1, 2)
    hidden = rows[:, None].double().repeat(1, width)
    return RelayPayload(rows + 100, odds, rows[:, None].repeat(1, 2) + 10, hidden)


def made(settings: Settings) -> FutureMap:
    return FutureMap(6, CPU, settings)


def test_buffers_start_poisoned() -> None:
    future_map = made(PLAIN)
    assert future_map.output_tokens_buf.tolist() == [-1] * 6
    assert future_map.new_seq_lens_buf.tolist() == [-1] * 6


def test_stashed_tokens_are_resolved_and_the_rows_poisoned_again() -> None:
    future_map = made(PLAIN)
    future_map.stash(torch.tensor([2, 5]), RelayPayload(torch.tensor([7, 0])))
    batch = decode([5, 2])
    future_map.resolve(batch)
    assert batch.input_ids.tolist() == [0, 7]
    assert future_map.output_tokens_buf.tolist() == [-1] * 6


def test_without_a_guard_rows_keep_their_token() -> None:
    future_map = made(replace(PLAIN, guard=Guard.OFF))
    future_map.stash(torch.tensor([2]), RelayPayload(torch.tensor([7])))
    future_map.resolve(decode([2]))
    assert future_map.output_tokens_buf.tolist() == [-1, -1, 7, -1, -1, -1]


@pytest.mark.parametrize(("guard", "backend"), GUARDS)
def test_the_guard_stops_a_second_gather(guard: Guard, backend: str) -> None:
    future_map = made(replace(PLAIN, guard=guard, compile_backend=backend))
    future_map.stash(torch.tensor([2, 3]), RelayPayload(torch.tensor([7, 8])))
    future_map.resolve(decode([2, 3]))
    with pytest.raises(RuntimeError, match="gathered before it was stashed"):
        future_map.resolve(decode([2, 3]))


@pytest.mark.parametrize(("guard", "backend"), GUARDS)
@pytest.mark.parametrize("length", [-1, 0])
def test_the_guard_stops_a_length_that_is_not_positive(
    guard: Guard, backend: str, length: int
) -> None:
    future_map = made(replace(SPECULATIVE, guard=guard, compile_backend=backend))
    future_map.publish(torch.tensor([1, 2]), torch.tensor([5, length]))
    with pytest.raises(RuntimeError, match="gathered before it was published"):
        future_map.resolve_seq_lens_cpu(decode([1, 2], speculative=True))


@pytest.mark.parametrize("pull", ["stream", "direct"])
def test_published_lengths_reach_device_and_host(pull: str) -> None:
    future_map = made(replace(SPECULATIVE, host_pull=pull))
    future_map.publish(torch.tensor([1, 4]), torch.tensor([5, 9]))
    batch = decode([4, 1], speculative=True)
    future_map.resolve_seq_lens_cpu(batch)
    assert batch.seq_lens is not None
    assert batch.seq_lens.tolist() == batch.seq_lens_cpu == [9, 5]
    assert future_map.new_seq_lens_buf.tolist() == [-1] * 6


def test_lengths_seeded_without_an_event_are_pulled_directly() -> None:
    future_map = made(SPECULATIVE)
    future_map.new_seq_lens_buf[3] = 11
    with recorded() as recorder:
        batch = decode([3], speculative=True)
        future_map.resolve_seq_lens_cpu(batch)
        assert not recorder._said
    assert batch.seq_lens_cpu == [11]


def test_lengths_are_not_resolved_twice_after_one_publish() -> None:
    future_map = made(SPECULATIVE)
    future_map.publish(torch.tensor([1]), torch.tensor([5]))
    future_map.resolve_seq_lens_cpu(decode([1], speculative=True))
    with pytest.raises(RuntimeError, match="a publish went missing"):
        future_map.resolve_seq_lens_cpu(decode([1], speculative=True))


def test_there_is_nothing_to_resolve_without_speculation_or_rows() -> None:
    future_map = made(SPECULATIVE)
    for batch in (decode([1]), decode([], speculative=True)):
        future_map.resolve_seq_lens_cpu(batch)
        assert batch.seq_lens is None
    future_map.resolve(decode([], speculative=True))


def test_an_idle_rank_leaves_no_trace() -> None:
    future_map = made(SPECULATIVE)
    none = torch.tensor([], dtype=torch.int64)
    future_map.publish(none, none)
    future_map.stash(none, extras(none))
    assert future_map.publish_ready is None
    assert future_map.topk_p_buf is None


def test_extras_are_made_by_the_first_payload_that_has_them() -> None:
    future_map = made(SPECULATIVE)
    future_map.stash(torch.tensor([1]), RelayPayload(torch.tensor([3])))
    assert future_map.topk_p_buf is None
    future_map.stash(torch.tensor([2]), extras(torch.tensor([2])))
    assert future_map.topk_p_buf is not None
    assert future_map.topk_index_buf is not None
    assert future_map.hidden_states_buf is not None
    assert future_map.topk_p_buf.isnan().sum() == 10
    assert (future_map.topk_index_buf == -1).sum() == 10
    assert future_map.hidden_states_buf.isnan().sum() == 20


def test_hidden_states_are_optional() -> None:
    future_map = made(SPECULATIVE)
    future_map.stash(torch.tensor([2]), replace(extras(torch.tensor([2])), hidden_states=None))
    batch = decode([2], speculative=True)
    future_map.resolve(batch)
    assert batch.extras is not None
    assert batch.extras.hidden_states is None
    assert future_map.hidden_states_buf is None


@pytest.mark.parametrize("gather", Gather)
def test_resolved_extras_are_those_of_their_rows(gather: Gather) -> None:
    future_map = made(replace(SPECULATIVE, gather=gather))
    rows = torch.tensor([1, 2, 3, 4])
    future_map.stash(rows, extras(rows))
    for asked in ([3], [4, 2], [1]):
        batch = decode(asked, speculative=True)
        future_map.resolve(batch)
        assert batch.extras is not None
        assert batch.extras.bonus_tokens.tolist() == [row + 100 for row in asked]
        assert batch.extras.topk_index.tolist() == [[row + 10] * 2 for row in asked]
        assert batch.extras.topk_p.tolist() == [[float(row)] * 2 for row in asked]
        assert batch.extras.hidden_states is not None
        assert batch.extras.hidden_states.tolist() == [[float(row)] * 4 for row in asked]


def test_the_fused_gather_is_compiled_once_for_all_batch_sizes() -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    fused = compile_gather(gather_single, "aot_eager")
    buffers = torch.rand(9, 2), torch.ones(9, 2, dtype=torch.int64), torch.arange(9)
    # A first batch as large as top-k is taken to be tied to it, and costs one more.
    for size in range(3, 9):
        rows = torch.arange(size)
        for one, other in zip(
            fused(rows, *buffers, None), gather_single(rows, *buffers, None), strict=True
        ):
            assert one is other or torch.equal(one, other)
    assert counters["unique_graphs"] - before == 1


def test_the_publish_event_is_the_device_modules() -> None:
    with recorded() as recorder:
        future_map = made(SPECULATIVE)
        assert future_map.publish_ready is None
        future_map.publish(torch.tensor([1]), torch.tensor([5]))
        assert future_map.publish_ready.recorder is recorder
