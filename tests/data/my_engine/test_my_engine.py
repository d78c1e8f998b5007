from types import SimpleNamespace

import torch
from my_engine.loop import Loop
from my_engine.pool import RowPool
from my_engine.relay import TokenRelay
from my_engine.runner import DecodeRunner


def request(rid):
    return SimpleNamespace(rid=rid, row=None)


def batch(*rows):
    return SimpleNamespace(size=len(rows), row_ids=torch.tensor(rows))


def test_healthy():
    pool, relay, runner = RowPool(), TokenRelay(), DecodeRunner()
    rows = torch.tensor(pool.alloc([request("a"), request("b")]))
    relay.stash(rows, torch.tensor([5, 6]))
    assert relay.gather(rows).tolist() == [5, 6]
    runner.replay(batch(1, 2, 3))
    runner.replay(batch(1))


def test_stale_row():
    pool, relay, first, second = RowPool(), TokenRelay(), request("a"), request("b")

    def one():
        relay.stash(torch.tensor(pool.alloc([first])), torch.tensor([5]))

    def two():
        pool.free(first)
        relay.gather(torch.tensor(pool.alloc([second])))

    Loop().step(one)
    Loop().step(two)


def test_stale_tail():
    runner = DecodeRunner()
    runner.replay(batch(1, 2, 3))
    runner.reset_rows = lambda: None
    runner.replay(batch(1))
