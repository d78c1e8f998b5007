"""Two faults of model runner V2 that 0.20 repaired, each met as its users meet it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from runner import Runner
from serving import serve_three


def test_a_row_is_gathered_with_the_last_owners_token() -> None:
    """vllm#39833: the prompt was computed elsewhere, so that the first step is a decode."""
    runner = Runner()
    runner.add("a", [5, 6])
    runner.step({"a": 2})
    runner.step({"a": 1})
    runner.remove("a")
    runner.add("b", [7, 8, 9], computed=3)
    runner.step({"b": 1})


class OneAhead(Runner):
    """Takes the result of a step when the next one was launched."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight: list[Any] = []

    def taken(self, output: Any) -> Any:
        """Takes the result before this one, if there is one."""
        self.in_flight.append(output)
        if len(self.in_flight) > 1:
            return super().taken(self.in_flight.pop(0))
        return SimpleNamespace(req_ids=[], sampled_token_ids=[])


def test_an_event_is_recorded_again_before_it_was_waited_for() -> None:
    """vllm#39115: all outputs share one event."""
    runner = OneAhead()
    serve_three(runner)
    runner.in_flight.pop().get_output()
