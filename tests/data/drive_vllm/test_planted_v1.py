"""Model runner V1 with one fault each, of which vLLM itself says nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from runner_v1 import Runner, serve
from serving import broken


def test_ids_are_prepared_twice() -> None:
    serve(broken(Runner(), "_prepare_input_ids", 4, lambda real, *one: (real(*one), real(*one))))


def test_tokens_of_the_step_before_the_last() -> None:
    runner, kept = Runner(), {}
    real = runner._bookkeeping_sync

    def late(*arguments: Any, **named: Any) -> Any:
        if len(kept) == 4:
            runner.input_batch.prev_sampled_token_ids = kept[3]
        reported = real(*arguments, **named)
        kept[len(kept)] = runner.input_batch.prev_sampled_token_ids
        return reported

    runner._bookkeeping_sync = late
    serve(runner)


def test_request_that_is_left_out_of_the_mapping() -> None:
    runner = Runner()

    def forget(real: Any, *arguments: Any) -> Any:
        reported = real(*arguments)
        runner.input_batch.prev_req_id_to_index.pop("b")
        return reported

    serve(broken(runner, "_bookkeeping_sync", 4, forget))


def test_result_that_is_read_before_its_copy_is_done() -> None:
    runner = Runner()

    def early(real: Any, result: Any) -> Any:
        result.async_copy_ready_event = torch.cpu.Event()
        return real(result)

    serve(broken(runner, "taken", 3, early))


def test_inputs_that_are_filled_while_they_are_copied() -> None:
    runner = Runner()
    runner.synchronize_input_prep = contextlib.nullcontext
    serve(runner)
