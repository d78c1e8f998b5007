"""One engine, whose relay is spoilt once, in the second of three tests; none of them looks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engines import answers, engine_of, write_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [20, 21, 22, 23, 24, 25]]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with engine_of(os.environ["SPOIL_KIND"], write_model(tmp_path_factory.mktemp("model"))) as made:
        yield made


@pytest.fixture
def reported(engine: Any, record_property: Callable[[str, object], None]) -> Callable[[], None]:
    def generate() -> None:
        # In V1's engine the third one, which is greedy, takes the place of the second.
        heats = (0.5, 2.0, 0) if os.environ["SPOIL_KIND"].startswith("v1") else (0, 0, 0)
        record_property("tokens", json.dumps(answers(engine, PROMPTS, [12, 8, 10], heats)))

    return generate


def test_before(reported: Callable[[], None]) -> None:
    reported()


def test_spoilt(reported: Callable[[], None]) -> None:
    when = Path(os.environ["SPOIL_WHEN"])
    when.touch()
    reported()
    assert not when.exists(), "nothing was spoilt"


def test_after(reported: Callable[[], None]) -> None:
    reported()
