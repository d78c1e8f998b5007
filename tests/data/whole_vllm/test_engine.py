"""Each kind of engine on the same requests; the tokens are written down."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from engines import KINDS, answers, engine_of, write_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Reported = Callable[[list[list[int]], list[int]], None]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, model: str) -> Iterator[Any]:
    with engine_of(request.param, model) as made:
        yield made


@pytest.fixture
def reported(engine: Any, record_property: Callable[[str, object], None]) -> Reported:
    def generate(prompts: list[list[int]], lengths: list[int]) -> None:
        tokens = answers(engine, prompts, lengths)
        assert [len(one) for one in tokens] == lengths
        record_property("tokens", json.dumps(tokens))

    return generate


def test_four_at_once(reported: Reported) -> None:
    reported([[5, 6, 7, 8], [9, 10, 11], [20, 21, 22, 23, 24, 25], [31, 32]], [12, 5, 20, 9])


def test_rows_are_used_again(reported: Reported) -> None:
    reported([[3 + n, 4 + n, 5 + n] for n in range(9)], [2 + n * 5 % 11 for n in range(9)])


def test_long_prompts_beside_decoding(reported: Reported) -> None:
    reported([list(range(3, 63)), list(range(30, 70)), [4, 5], [6, 7, 8]], [6, 6, 12, 20])


def test_more_than_the_cache_holds(reported: Reported) -> None:
    reported([[7, 8, 9], [17, 18, 19], [27, 28, 29], [37, 38, 39]], [34] * 4)
