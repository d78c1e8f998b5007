"""A row of model runner V2 that goes to another request with what the one before left there."""

from __future__ import annotations

from runner import Runner


def test_the_first_step_of_a_request_that_was_computed_elsewhere() -> None:
    """vllm#39833: its first step is a decode."""
    runner = Runner()
    runner.add("a", [5, 6])
    runner.step({"a": 2})
    runner.step({"a": 1})
    runner.remove("a")
    runner.add("b", [7, 8, 9], computed=3)
    runner.step({"b": 1})
    assert [len(one) for one in runner.tokens.values()] == [2, 1]
