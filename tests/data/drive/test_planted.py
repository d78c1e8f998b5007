"""Planted faults: each test passes without fmcheck, as the fault would go by, and fails with it."""

from __future__ import annotations

import pytest
import relays

ROWS = relays.tensor([1, 2, 5])
TOKENS = relays.tensor([3, 4, 5])
pool_only = pytest.mark.skipif(
    relays.RING, reason="the ring of this release has nothing of the kind"
)


def stashed(algorithm=relays.NONE, **options):
    made = relays.make_relay(relays.request_pool(), algorithm, **options)
    return made, made.stash(ROWS, TOKENS)


def lengths_relay(**options):
    return relays.make_relay(relays.request_pool(), relays.EAGLE, **options)


def test_double_gather():
    made, places = stashed()
    made.tokens(places)
    made.tokens(places[1:])


def test_double_gather_in_a_mixed_batch():
    made, places = stashed()
    made.tokens(places)
    made.tokens(places, relays.tensor([7, 8]))


def test_gather_before_stash():
    made = relays.make_relay(relays.request_pool())
    made.tokens(ROWS)


def test_dropped_stash():
    made, places = stashed()
    for step in range(3):
        made.tokens(places)
        if step != 1:
            places = made.stash(ROWS, TOKENS + step)


@pool_only
def test_dropped_row():
    made, places = stashed()
    made.tokens(places)
    made.stash(ROWS[:2], TOKENS[:2])
    made.tokens(places)


@pool_only
def test_stash_to_the_wrong_row():
    made, places = stashed()
    made.tokens(places)
    made.stash(relays.tensor([1, 2, 6]), TOKENS)
    made.tokens(places)


@pool_only
def test_stale_owner():
    pool = relays.request_pool()
    made = relays.make_relay(pool)
    ended = relays.Request("ended")
    pool.alloc([ended])
    made.stash(relays.rows_of([ended]), relays.tensor([7]))
    pool.free(ended)
    if relays.RELEASE < (0, 5, 19):
        pool.free_slots.sort()  # rows are taken from the front: so that the next one gets this one
    following = relays.Request("following")
    pool.alloc([following])
    made.tokens(relays.rows_of([following]))


@pytest.mark.skipif(not relays.RING, reason="this release has no ring")
def test_stale_owner_in_the_ring():
    made = relays.make_relay(relays.request_pool())
    for _ in range(made.map.future_limit // 3):
        made.stash(ROWS, TOKENS)
    made.tokens(made.map.alloc_future_indices(3).indices)


@pool_only
def test_lost_write():
    pool = relays.request_pool()
    made = relays.make_relay(pool)
    requests = [relays.Request(f"r{number}") for number in range(3)]
    pool.alloc(requests)
    rows = relays.rows_of(requests)
    made.stash(rows, TOKENS)
    made.stash(rows, TOKENS + 1)
    made.tokens(rows)


@pool_only
def test_lengths_double_gather():
    made = lengths_relay(needs_cpu_seq_lens=False)
    made.publish(ROWS, TOKENS)
    made.lengths(ROWS)
    made.map._publish_fresh = True  # else SGLang itself stops here in CI: see test_dropped_publish
    made.lengths(ROWS)


@pool_only
def test_dropped_publish():
    made = lengths_relay()
    for step in range(3):
        if step != 1:
            made.publish(ROWS, TOKENS + step)
        made.lengths(ROWS)


@pool_only
def test_lengths_that_wait_for_no_publish():
    made = lengths_relay()
    schedule, forward = relays.device.Stream(), relays.device.Stream()
    relays.device.synchronize()
    with relays.device.stream(forward):
        made.publish(ROWS, TOKENS)
    made.map.publish_ready = None
    with relays.device.stream(schedule):
        made.lengths(ROWS)


@pool_only
def test_lengths_read_before_their_copy_is_done():
    made = lengths_relay()
    made.pull_lengths()
    schedule, forward = relays.device.Stream(), relays.device.Stream()
    relays.device.synchronize()
    with relays.device.stream(forward):
        made.publish(ROWS, TOKENS)
    made.map.fwd_prepare_d2h_stream.synchronize = lambda: None
    with relays.device.stream(schedule):
        made.lengths(ROWS)


def test_extras_double_gather():
    with relays.eagle():
        made = lengths_relay()
        places = made.stash(ROWS, TOKENS, **relays.extras(3, 1))
        made.extras(places)
        made.extras(places)
