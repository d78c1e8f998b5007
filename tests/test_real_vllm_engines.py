"""Whole, unmodified vLLM with the shipped contract alone: silent, and a spoilt relay is reported.

All kinds of engines: `python -m tests.vllm_engines`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.drives import codes
from tests.engines import tokens
from tests.sglang_env import NoEnvironment
from tests.vllm_engines import healthy, spoilt

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.drives import Drive

pytestmark = pytest.mark.sweep
RUNNER = "vllm/v1/worker/gpu/model_runner.py"


def ran(make: Callable[[], Drive]) -> Drive:
    try:
        return make()
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)


@pytest.mark.parametrize("kind", ["v2-async", "v2-async-chunked", "v2-async-tight"])
def test_a_healthy_engine_is_checked_and_silent(kind: str) -> None:
    run = ran(lambda: healthy(kind))
    assert run.failures == {}, run.output
    assert len(run.passed) == 4
    _, writes, gathers = run.counts
    assert writes > 60
    assert gathers > 60
    assert "fmcheck error" not in run.output


def test_a_healthy_engine_of_model_runner_v1_is_checked_and_silent() -> None:
    run = ran(lambda: healthy("v1-async"))
    assert run.failures == {}, run.output
    assert len(run.passed) == 4
    assert run.counts[2] > 60
    assert int(re.findall(r"(\d+) padded tails", run.output)[-1]) > 60
    assert "fmcheck error" not in run.output


def test_tokens_are_the_same_under_the_watch() -> None:
    bare, watched = (
        ran(lambda: healthy("v2-async", watched=False)),
        ran(lambda: healthy("v2-async")),
    )
    assert bare.properties == watched.properties
    assert len(bare.properties) == 4


def test_an_engine_in_children_is_checked_and_silent() -> None:
    run = ran(lambda: healthy("v2-async-children", tests="four_at_once"))
    assert run.failures == {}, run.output
    assert run.counts[1] > 20
    assert re.search(r" in \d+ process", run.output)


@pytest.mark.parametrize(
    ("fault", "kind", "found"),
    [
        ("dropped_update", "v2-async", ["FR102"]),
        ("dropped_row", "v2-async", ["FR102"]),
        ("wrong_row", "v2-async", ["FR109", "FR102"]),  # the row that it writes has no owner
        ("second_prepare", "v2-async", ["FR102"]),
        ("dropped_update", "v2-async-children", ["FR102"]),
        ("dropped_update", "v2-async-draft", ["FR102"]),
    ],
)
def test_a_spoilt_relay_is_reported_in_the_test_that_ran_into_it(
    fault: str, kind: str, found: list[str]
) -> None:
    run = ran(lambda: spoilt(fault, kind))
    assert set(run.failures) == {"test_spoilt"}, run.output
    report = run.failures["test_spoilt"]
    assert codes(report) == found
    assert re.search(rf"gather +\S*{re.escape(RUNNER)}:\d+ in \S*prepare_inputs", report), report


def test_a_table_that_is_not_moved_with_its_request_is_reported() -> None:
    bare, watched = (
        ran(lambda: spoilt("heat_left", watched=False)),
        ran(lambda: spoilt("heat_left")),
    )
    before, during, after = tokens(bare)
    assert bare.failures == {}
    assert before == after != during
    assert set(watched.failures) == {"test_spoilt"}, watched.output
    report = watched.failures["test_spoilt"]
    assert codes(report) == ["FR104"]
    assert "stale-owner in InputBatch.temperature_cpu_tensor row 1" in report


def test_vllm_itself_says_nothing_of_a_dropped_update() -> None:
    run = ran(lambda: spoilt("dropped_update", watched=False))
    before, during, after = tokens(run)
    assert run.failures == {}
    assert before == after != during
