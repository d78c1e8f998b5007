"""SGLang's own table of slots, `ReqToTokenPool.req_to_token`, followed element by element."""

from __future__ import annotations

import random

import pytest
import torch
from relays import Request
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

ROWS, WIDTH = 6, 16


@pytest.fixture
def pool():
    return ReqToTokenPool(size=ROWS, max_context_len=WIDTH, device="cpu", enable_memory_saver=False)


def slots(count):
    return torch.arange(1, count + 1, dtype=torch.int32)


def admitted(pool, name, length):
    request = Request(name)
    (row,) = pool.alloc([request])
    pool.write((row, slice(0, length)), slots(length))
    return request, row


def test_healthy(pool):
    """Requests of several lengths, read as rectangles and by position, as each grows."""
    draw = random.Random(0)
    running = {}
    for step in range(60):
        if len(running) < ROWS - 1 and draw.random() < 0.5:
            length = draw.randint(1, 5)
            request, row = admitted(pool, f"r{step}", length)
            running[row] = [request, length]
        rows = torch.tensor(sorted(running))
        if len(rows):
            ends = torch.tensor([running[row][1] for row in rows.tolist()])
            pool.write((rows, ends), slots(len(rows)))  # one more for each
            for row in rows.tolist():
                running[row][1] += 1
            pool.req_to_token[rows, : int(ends.max()) + 1]
            pool.req_to_token[rows, ends]
            pool.req_to_token[torch.cat([rows, torch.zeros(2, dtype=torch.int64)])]
        for row in [row for row in running if running[row][1] > 10 or draw.random() < 0.1]:
            pool.free(running.pop(row)[0])


def test_a_position_that_nobody_mapped(pool):
    _, row = admitted(pool, "a", 3)
    pool.req_to_token[torch.tensor([row, row]), torch.tensor([2, 3])]


def test_positions_of_the_request_before(pool):
    first, row = admitted(pool, "a", 5)
    pool.free(first)
    second = Request("b")
    pool.free_slots.remove(row)
    pool.free_slots.append(row)
    pool.free_slots.insert(0, pool.free_slots.pop())
    while (got := pool.alloc([second]))[0] != row:
        second = Request("b")
        assert got
    pool.write((row, slice(4, 5)), slots(1))
    pool.req_to_token[torch.tensor([row]), :5]


def test_a_row_that_is_freed_twice(pool):
    request, row = admitted(pool, "a", 3)
    pool.free(request)
    request.kv.req_pool_idx = request.req_pool_idx = row
    pool.free(request)
