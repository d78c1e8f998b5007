"""Model runner V2 with one fault each, of which vLLM itself says nothing."""

from __future__ import annotations

from typing import Any

import torch
from runner import Runner, runner_module, serve, speculate
from serving import broken

POST = "postprocess_sampled" if hasattr(Runner, "postprocess_sampled") else "postprocess"


def test_dropped_post_update() -> None:
    serve(broken(Runner(), POST, 4, lambda *_, **__: None))


def test_dropped_row_of_the_post_update(monkeypatch: Any) -> None:
    real, calls = runner_module.post_update, [0]

    def one_row_less(rows: torch.Tensor, *rest: Any) -> Any:
        calls[0] += 1
        return real(rows[1:] if calls[0] == 4 else rows, *_moved(rest, calls[0] == 4))

    monkeypatch.setattr(runner_module, "post_update", one_row_less)
    serve()


def _moved(rest: Any, moved: bool) -> Any:
    if not moved:
        return rest
    computed, last, bins, sampled, counts, rejected, starts, *more = rest
    return (computed, last, bins, sampled[1:], counts[1:], rejected[1:], starts[1:], *more)


def test_token_of_another_row(monkeypatch: Any) -> None:
    real, calls = runner_module.post_update, [0]

    def to_a_wrong_row(rows: torch.Tensor, *rest: Any) -> Any:
        calls[0] += 1
        return real(torch.full_like(rows, 1) if calls[0] == 4 else rows, *rest)

    monkeypatch.setattr(runner_module, "post_update", to_a_wrong_row)
    serve()


def test_second_prepare() -> None:
    runner = Runner()
    broken(runner, "prepared", 4, lambda real, *rest: (real(*rest), real(*rest))[1])
    serve(runner)


def test_dropped_drafts() -> None:
    runner = Runner(speculates=2)
    propose = runner.speculator.propose

    def nothing(*arguments: Any, **named: Any) -> Any:
        drafts = propose(*arguments, **named)
        if runner.speculator.calls == 7:
            rows = arguments[0].idx_mapping
            arguments[0].idx_mapping = rows[:0]
            return drafts[:0]
        return drafts

    runner.speculator.propose = nothing
    speculate(runner)


def test_first_token_of_a_new_owner() -> None:
    runner = Runner()
    runner.add("a", [5, 6])
    runner.step({"a": 2})
    runner.step({"a": 1})
    runner.remove("a")
    runner.add("b", [7, 8])
    # The prompt is taken for computed, and the first step for a decode.
    row = runner.req_states.req_id_to_index["b"]
    runner.req_states.num_computed_tokens.gpu[row] = 2
    runner.req_states.num_computed_prefill_tokens[row] = 2
    runner.step({"b": 1})


def test_result_that_is_read_before_its_copy_is_done() -> None:
    copied = []

    def early(real: Any, output: Any) -> Any:
        output.copy_event = torch.cpu.Event()
        copied.extend((output.sampler_output, output.num_sampled_tokens))
        return real(output)

    serve(broken(Runner(), "taken", 4, early))
    torch.cpu.synchronize()  # before the memory goes
