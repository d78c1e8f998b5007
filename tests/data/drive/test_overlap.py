"""The example of README.md: a batch is put back after its inputs were resolved, and tried again."""

from __future__ import annotations

import relays
import torch


def test_retry_resolves_the_batch_again():
    pool = relays.request_pool()
    made = relays.make_relay(pool)
    requests = [relays.Request(f"request-{number}") for number in range(3)]
    pool.alloc(requests)
    rows = relays.rows_of(requests)

    made.stash(rows, torch.tensor([3, 4, 5]))
    made.tokens(rows)
    made.tokens(rows[1:])
