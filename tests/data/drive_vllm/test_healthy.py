"""Model runner V2 at work: no access of the relay and no tail is a fault."""

from __future__ import annotations

import pytest
from runner import Runner, serve, speculate, work


def test_chunked_prompts_mixed_batches_and_padding() -> None:
    assert [len(tokens) for tokens in serve().values()] == [5, 7, 3]


def test_speculation() -> None:
    tokens = speculate()
    assert all(len(made) >= 2 for made in tokens.values())
    assert len(tokens["a"]) > 10


def test_a_preempted_request_begins_anew() -> None:
    runner = Runner()
    runner.add("a", [5, 6, 7])
    runner.add("b", [8, 9])
    runner.step({"a": 3, "b": 2})
    runner.step({"a": 1, "b": 1})
    runner.remove("b")
    runner.step({"a": 1})
    # What it has sampled so far is its prompt now.
    runner.add("b", [8, 9, *runner.tokens["b"]])
    runner.step({"a": 1, "b": 4})
    runner.step({"a": 1, "b": 1})
    assert len(runner.tokens["b"]) == 4


def test_a_request_that_is_removed_twice_has_no_row_the_second_time() -> None:
    runner = Runner()
    runner.add("a", [5, 6])
    runner.remove("a")
    runner.remove("a")
    runner.add("b", [7])
    runner.step({"b": 1})


@pytest.mark.parametrize("speculates", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_random_workload(seed: int, speculates: int) -> None:
    work(seed, speculates)
