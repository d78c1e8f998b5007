"""Healthy drives of what few engines switch on: mixed speculative batches, index seeds.

Each skips where the release has nothing of the kind.
"""

from __future__ import annotations

import pytest
import relays
import torch

ROWS = relays.tensor([1, 2, 5])
TOKENS = relays.tensor([3, 4, 5])
STEPS = 4


def made_with(algorithm=relays.EAGLE, has=None, **options):
    """Returns a relay, or skips where its map has no attribute `has`."""
    if relays.RING or (has is not None and not hasattr(relays.relay.FutureMap, has)):
        pytest.skip("this release has nothing of the kind")
    return relays.make_relay(relays.request_pool(), algorithm, **options)


class Streams:
    """A forward stream behind a schedule stream, as `run_batch` has them."""

    def __init__(self):
        self.schedule, self.forward = relays.device.Stream(), relays.device.Stream()
        relays.device.synchronize()

    def launched(self):
        self.forward.wait_stream(self.schedule)
        return relays.device.stream(self.forward)

    def planning(self):
        return relays.device.stream(self.schedule)


@pytest.mark.parametrize("pulls", [False, True])
def test_a_mixed_batch_peeks_behind_the_publish(pulls):
    made = made_with(has="resolve_mixed_spec_tails")
    streams = Streams()
    if pulls:
        made.pull_lengths()
    for step in range(STEPS):
        lengths = (TOKENS + step).tolist()
        with streams.launched():
            made.publish(ROWS, TOKENS + step)
        with streams.planning():
            mixed = relays.mixed_batch(ROWS)
            made.map.resolve_mixed_spec_tails(mixed)
            assert mixed.seq_lens_cpu.tolist() == [8, *(length + 1 for length in lengths)]
            assert mixed.prefix_lens == [0, *lengths]
            assert made.resolve_lengths(ROWS).seq_lens_cpu.tolist() == lengths
    relays.device.synchronize()


def test_bonus_tokens_by_themselves():
    made = made_with(has="stash_bonus_tokens")
    streams = Streams()
    with relays.eagle():
        for step in range(STEPS):
            with streams.launched():
                if step:
                    tokens = made.extras(ROWS).bonus_tokens
                made.map.stash_bonus_tokens(ROWS, TOKENS + step)
            if step:
                relays.device.synchronize()
                assert tokens.tolist() == (TOKENS + step - 1).tolist()


@pytest.mark.parametrize("topk", [True, False])
def test_hidden_states_and_index_seeds(topk):
    # Each buffer is made when it is first needed, only where the release does so.
    made = made_with(has="_maybe_init_dsa_topk_indices_buf" if topk else "_maybe_init_forward_bufs")
    streams = Streams()
    with relays.eagle():
        for step in range(STEPS):
            with streams.launched():
                if step:
                    draft = made.extras(ROWS, future_dsa_topk_indices_available=True)
                more = relays.extras(3, step)
                if not topk:
                    del more["topk_p"], more["topk_index"]
                seeds = torch.full((3, 4), step, dtype=torch.int32, device=relays.DEVICE)
                made.stash(ROWS, TOKENS + step, dsa_topk_indices=seeds, **more)
            if step:
                relays.device.synchronize()
                assert draft.bonus_tokens.tolist() == (TOKENS + step - 1).tolist()
                assert draft.hidden_states[:, 0].tolist() == [step - 1] * 3
                assert draft.dsa_topk_indices.tolist() == [[step - 1] * 4] * 3
