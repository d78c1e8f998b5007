"""Public reports about vLLM that are open."""

from __future__ import annotations

from typing import Any

import torch
from runner import async_utils
from runner_v1 import Runner

from vllm.v1.outputs import ModelRunnerOutput  # isort: skip


class FirstRank(Runner):
    """A rank of a pipeline that hands on what it computed, and for which nobody waits."""

    def launched(self, output: Any, last: torch.Tensor) -> Any:
        """Uses the inputs."""
        self.input_ids.gpu[last].sum()

    def taken(self, result: Any) -> None:
        """Takes nothing: the last rank has the results."""


def _serve(rank: FirstRank) -> None:
    rank.add("a", list(range(40)))
    for _ in range(6):
        rank.step({"a": 4})


def test_steps_of_a_pipeline_overlap_and_wait_for_no_copy() -> None:
    rank = FirstRank()
    rank.prepare_inputs_event = None  # as `__init__` leaves it without asynchronous scheduling
    _serve(rank)


def test_steps_of_a_pipeline_with_the_event_of_asynchronous_scheduling() -> None:
    _serve(FirstRank())


def test_pooled_results_are_viewed_before_the_wait_and_read_behind_it() -> None:
    main, copies = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(main):
        pooled = torch.full((2, 4), 2.0) * 3
    reported = ModelRunnerOutput(req_ids=["a", "b"], req_id_to_index={"a": 0, "b": 1})
    output = async_utils.AsyncPoolingOutput(reported, pooled, [True, True], main, copies)
    assert [float(one.sum()) for one in output.get_output().pooler_output] == [24.0, 24.0]
