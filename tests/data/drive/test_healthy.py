"""Healthy drives: whatever an overlapped engine does in its daily life. Nothing may be found."""

from __future__ import annotations

import pytest
import relays
import torch
from scheduler import Options, Scheduler

ROWS = relays.tensor([1, 2, 5])
TOKENS = relays.tensor([3, 4, 5])
SEEDS = range(3)

PLAIN = {
    "plain": Options(),
    "chunked": Options(chunked=True),
    "mixed": Options(mixed=True),
    "mixed, chunked": Options(mixed=True, chunked=True),
    "padded": Options(padded=True),
    "idle ranks": Options(idle=0.3),
    "aborts": Options(abort=0.3),
    "retraction": Options(retract=0.3),
    "everything": Options(True, True, False, 0.2, 0.2, 0.2),
    "everything, two streams": Options(True, True, False, 0.2, 0.2, 0.2, streams=True),
    "padded, two streams": Options(padded=True, streams=True),
}
SPECULATIVE = {
    "speculative": Options(speculative=True),
    "speculative, no mirror": Options(speculative=True, mirror=False),
    "speculative, chunked": Options(speculative=True, chunked=True),
    "speculative, disturbed": Options(
        speculative=True, chunked=True, idle=0.2, abort=0.2, retract=0.2
    ),
    "speculative, two streams": Options(
        speculative=True, chunked=True, idle=0.2, abort=0.2, retract=0.2, streams=True
    ),
    "speculative, two streams, no mirror": Options(speculative=True, mirror=False, streams=True),
}
pool_only = pytest.mark.skipif(
    relays.RING, reason="the ring of this release has nothing of the kind"
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
def test_plain_schedule(options, seed):
    Scheduler(options, seed).run()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", SPECULATIVE.values(), ids=SPECULATIVE)
def test_speculative_schedule(options, seed):
    with relays.eagle():
        Scheduler(options, seed).run()


@pool_only
@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_are_pulled_on_a_stream_of_their_own(seed):
    options = Options(speculative=True, abort=0.2, retract=0.2, streams=True, pulls=True)
    with relays.eagle():
        Scheduler(options, seed).run()


def stashed(algorithm=relays.NONE, **options):
    made = relays.make_relay(relays.request_pool(), algorithm, **options)
    return made, made.stash(ROWS, TOKENS)


def test_tokens_are_plain_tensors():
    made, places = stashed()
    assert type(made.tokens(places)) is torch.Tensor


def test_rows_may_be_gathered_one_by_one():
    made, places = stashed()
    assert [made.tokens(place.reshape(1)).item() for place in places] == TOKENS.tolist()


def test_values_never_read_are_nobodys_loss():
    made, _ = stashed()
    places = made.stash(relays.tensor([7, 8]), relays.tensor([1, 2]))
    assert made.tokens(places).tolist() == [1, 2]


def test_two_relays_are_two():
    (one, places), (other, others) = stashed(), stashed()
    assert one.tokens(places).tolist() == other.tokens(others).tolist() == TOKENS.tolist()


def test_a_row_goes_from_request_to_request():
    pool = relays.request_pool()
    made = relays.make_relay(pool)
    for number in range(5):
        request = relays.Request(f"r{number}")
        pool.alloc([request])
        rows = relays.rows_of([request])
        for step in range(3):
            places = made.stash(rows, relays.tensor([100 * number + step]))
            assert made.tokens(places).tolist() == [100 * number + step]
        made.stash(rows, relays.tensor([9]))  # in flight when the request ended: never read
        pool.free(request)


def test_two_pools_hand_out_rows_of_their_own():
    pool, other = relays.request_pool(), relays.request_pool()
    made = relays.make_relay(pool)
    requests = [relays.Request(f"r{number}") for number in range(3)]
    pool.alloc(requests)
    places = made.stash(relays.rows_of(requests), TOKENS)
    other.alloc([relays.Request(f"s{number}") for number in range(6)])
    assert made.tokens(places).tolist() == TOKENS.tolist()


@pool_only
def test_the_sink_may_hold_anything():
    made, _ = stashed()
    padded = relays.tensor([1, 2, 5, 0, 0])
    assert made.tokens(padded).tolist()[:3] == TOKENS.tolist()
    made.map.output_tokens_buf[0] = 0
    assert made.tokens(relays.tensor([0, 0])).tolist() == [0, 0]


@pool_only
def test_copying_a_whole_buffer_is_a_peek():
    made, places = stashed()
    mirror = torch.empty_like(made.map.new_seq_lens_buf)
    for step in range(4):
        made.publish(ROWS, TOKENS + step)
        mirror.copy_(made.map.new_seq_lens_buf, non_blocking=True)
        assert mirror[ROWS].tolist() == (TOKENS + step).tolist()
    assert made.tokens(places).tolist() == TOKENS.tolist()


@pool_only
def test_printing_a_buffer_is_a_peek():
    made, places = stashed()
    assert "3" in repr(made.map.output_tokens_buf)
    assert int((made.map.output_tokens_buf == 4).sum()) >= 1
    assert made.tokens(places).tolist() == TOKENS.tolist()


@pool_only
def test_a_slice_of_a_buffer_is_a_peek():
    made, places = stashed()
    assert made.map.output_tokens_buf[1:3].tolist() == [3, 4]
    assert made.tokens(places).tolist() == TOKENS.tolist()


@pool_only
def test_plain_steps_publish_lengths_that_nobody_reads():
    made, places = stashed()
    for step in range(4):
        assert made.tokens(places).tolist() == (TOKENS + step).tolist()
        made.publish(ROWS, TOKENS + step)
        made.stash(ROWS, TOKENS + step + 1)


@pool_only
@pytest.mark.parametrize("mirror", [True, False])
def test_lengths_by_themselves(mirror):
    made = relays.make_relay(relays.request_pool(), relays.EAGLE, needs_cpu_seq_lens=mirror)
    for step in range(6):
        made.publish(ROWS, TOKENS + step)
        assert made.lengths(ROWS).tolist() == (TOKENS + step).tolist()


@pool_only
def test_a_mixed_batch_peeks_at_the_lengths():
    made = relays.make_relay(relays.request_pool(), relays.EAGLE)
    if not hasattr(made.map, "resolve_mixed_spec_tails"):
        pytest.skip("this release has no such peek")
    made.publish(ROWS, TOKENS)
    batch = relays.mixed_batch(ROWS)
    made.map.resolve_mixed_spec_tails(batch)
    assert batch.seq_lens.tolist() == [8, 4, 5, 6]
    assert made.lengths(ROWS).tolist() == TOKENS.tolist()


@pytest.mark.skipif(relays.RELEASE < (0, 5, 23), reason="this release has no relay of the kind")
def test_buffers_that_a_graph_filled_are_adopted():
    offered = relays.relay.FutureRelayBuffers(req_pool_size=relays.POOL, device=relays.DEVICE)
    relays.relay.offer_future_relay_buffers(offered)
    try:
        made = relays.make_relay(relays.request_pool(relays.POOL - 1))
    finally:
        relays.relay._offered_relay = None
    assert offered.adopted
    offered.output_tokens[ROWS] = TOKENS
    assert made.tokens(ROWS).tolist() == TOKENS.tolist()
