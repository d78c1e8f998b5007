"""Whole, unmodified SGLang: the scheduler runs in a child that the engine spawns, and is reached.

All kinds of engines and all releases: `python -m tests.engines`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.drives import codes
from tests.engines import closing_line, healthy, spoilt, tokens
from tests.sglang_env import NoEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.drives import Drive

RELEASE = "0.5.23"
ENGINE = "sglang/srt/managers/overlap_utils.py"
ARRIVALS = "(three_at_once or rows_are_used_again)"


def ran(make: Callable[[], Drive]) -> Drive:
    try:
        return make()
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)


#: A whole engine takes 25 s; `make test` runs one of each kind, healthy or spoilt.
sweep = pytest.mark.sweep


@pytest.mark.parametrize("kind", ["overlap", pytest.param("spec", marks=sweep)])
def test_a_healthy_engine_is_checked_and_silent(kind: str) -> None:
    run = ran(lambda: healthy(RELEASE, kind, tests=ARRIVALS))
    assert run.failures == {}
    assert len(run.passed) == 2
    buffers, writes, gathers = run.counts
    assert buffers
    assert writes > 20
    assert gathers > 20
    assert re.search(r" in \d+ process", closing_line(run)), run.output


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param("dropped_stash", "FR104", marks=sweep),
        pytest.param("gathered_again", "FR102", marks=sweep),
        ("dropped_publish", "FR104"),
    ],
)
def test_a_spoilt_relay_is_reported_in_the_test_that_ran_into_it(fault: str, code: str) -> None:
    run = ran(lambda: spoilt(RELEASE, fault))
    assert set(run.failures) == {"test_spoilt"}
    report = run.failures["test_spoilt"]
    assert codes(report) == [code]
    sites = re.findall(rf"^  (?:gather|last write|last read) +\S*({ENGINE}):\d+", report, re.M)
    assert len(sites) >= 2, report
    assert "found in process" in report


@sweep
def test_a_row_of_a_request_that_is_not_in_the_batch_is_named_with_its_owner() -> None:
    run = ran(lambda: spoilt(RELEASE, "row_of_another"))
    assert set(run.failures) == {"test_spoilt"}
    report = run.failures["test_spoilt"]
    assert codes(report)[0] == "FR111"  # then what the row has lost by it
    assert "the batch that `Scheduler.run_batch` serves is one of " in report


@sweep
def test_nobody_else_notices() -> None:
    run = ran(lambda: spoilt(RELEASE, "dropped_stash", watched=False))
    before, during, after = tokens(run)
    assert run.status == 0
    assert before == after != during
