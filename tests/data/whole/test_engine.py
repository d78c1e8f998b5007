"""What an engine's own suite asks of it: answers of the right length, the same ones each time.

`-k KIND-` picks a kind of engine.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from engines import answers, engine_of, kinds, sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [20, 21, 22, 23, 24, 25]]


@pytest.fixture(scope="module", params=list(kinds()), ids=lambda kind: f"{kind}-")
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    with engine_of(request.param) as made:
        yield made


def lengths_of(engine: Any, prompts: list[list[int]], lengths: list[int]) -> list[int]:
    return [len(tokens) for tokens in answers(engine, prompts, lengths)]


def test_three_at_once(engine: Any) -> None:
    assert lengths_of(engine, PROMPTS, [12, 5, 20]) == [12, 5, 20]


def test_one_token_each(engine: Any) -> None:
    assert lengths_of(engine, PROMPTS, [1, 1, 1]) == [1, 1, 1]


def test_rows_are_used_again(engine: Any) -> None:
    lengths = [2 + (index * 5) % 11 for index in range(14)]
    prompts = [[3 + index, 4 + index, 5 + index] for index in range(14)]
    assert lengths_of(engine, prompts, lengths) == lengths


def test_the_same_prompt_has_the_same_answer(engine: Any) -> None:
    together = answers(engine, [PROMPTS[0]] * 4, [10] * 4)
    alone = answers(engine, [PROMPTS[0]], [10])
    assert together == alone * 4


def test_long_prompts(engine: Any) -> None:
    prompts = [list(range(3, 63)), list(range(30, 70)), [4, 5]]
    assert lengths_of(engine, prompts, [6, 6, 12]) == [6, 6, 12]


def test_little_room(engine: Any) -> None:
    """Four answers of 40 tokens in 96 slots: requests are taken back and run again."""
    prompts = [[7, 8, 9], [17, 18, 19], [27, 28, 29], [37, 38, 39]]
    assert lengths_of(engine, prompts, [40] * 4) == [40] * 4


def test_a_stop_token_ends_early(engine: Any) -> None:
    first = answers(engine, [PROMPTS[0]], [10])[0]
    stopped = sampling(30, stop_token_ids=[first[1]]) | {"ignore_eos": False}
    reported = engine.generate(input_ids=PROMPTS[:2], sampling_params=[stopped, sampling(15)])
    assert len(reported[0]["output_ids"]) <= 3
    assert len(reported[1]["output_ids"]) == 15


def test_requests_come_while_others_decode(engine: Any) -> None:
    async def one(index: int) -> int:
        await asyncio.sleep(0.01 * index)
        reported = await engine.async_generate(
            input_ids=[3 + index, 4, 5], sampling_params=sampling(8 + index)
        )
        return len(reported["output_ids"])

    async def every() -> list[int]:
        return await asyncio.gather(*(one(index) for index in range(8)))

    assert engine.loop.run_until_complete(every()) == [8 + index for index in range(8)]


def test_abort(engine: Any) -> None:
    if "tight_kv" in engine.kind:
        pytest.skip("300 tokens do not fit")

    async def aborted() -> None:
        asked = engine.async_generate(input_ids=[5, 6, 7], sampling_params=sampling(300))
        waiting = asyncio.ensure_future(asked)
        await asyncio.sleep(0.05)
        engine.tokenizer_manager.abort_request(abort_all=True)
        await asyncio.wait([waiting], timeout=60)

    engine.loop.run_until_complete(aborted())
    assert lengths_of(engine, [PROMPTS[0]], [10]) == [10]


def test_log_probabilities(engine: Any) -> None:
    if engine.kind.startswith("spec"):
        pytest.skip("TOY's worker has none")
    reported = engine.generate(input_ids=PROMPTS, sampling_params=sampling(6), return_logprob=True)
    assert all(len(one["meta_info"]["output_token_logprobs"]) == 6 for one in reported)
