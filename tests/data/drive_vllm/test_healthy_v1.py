"""Model runner V1 at work: no access of what steps hand on, no copy and no tail is a fault."""

from __future__ import annotations

import pytest
from runner_v1 import Runner, serve, work


def test_chunked_prompts_mixed_batches_and_padding() -> None:
    assert [len(tokens) for tokens in serve().values()] == [4, 7, 3]


def test_a_request_that_was_left_out_of_a_step_comes_back() -> None:
    runner = Runner()
    runner.add("a", [5, 6, 7])
    runner.add("b", [8, 9])
    runner.step({"a": 3, "b": 2})
    runner.step({"a": 1, "b": 1})
    runner.step({"a": 1})
    runner.step({"a": 1})
    # Its tokens are on the host by now.
    runner.step({"a": 1, "b": 1})
    runner.step({"b": 1, "a": 1})
    assert [len(tokens) for tokens in runner.drain().values()] == [6, 4]


def test_requests_that_take_each_other_s_place() -> None:
    runner = Runner()
    for number, name in enumerate("abc"):
        runner.add(name, [5 + number, 6])
    runner.step({"a": 2, "b": 2, "c": 2})
    runner.step({"a": 1, "b": 1, "c": 1})
    runner.remove("a")
    runner.step({"b": 1, "c": 1})
    runner.add("d", [40])
    runner.step({"b": 1, "c": 1, "d": 1})
    runner.remove("b")
    runner.step({"c": 1, "d": 1})
    assert len(runner.drain()["c"]) == 5


@pytest.mark.parametrize("seed", range(4))
def test_a_random_workload(seed: int) -> None:
    work(seed)
