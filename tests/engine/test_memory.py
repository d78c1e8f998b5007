"""The engine's memory under fmcheck's watch: what is freed, overwritten or read too soon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fixtures.engine
from fixtures.engine.faults import FAULTS, Fault, fault
from fixtures.engine.workload import random_asks, run
from fmcheck.contract import load_contract
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Violation

CONTRACT = load_contract(Path(fixtures.engine.__file__).parent / "fmcheck.toml")
CHECKS = {"FR402", "FR403", "FR404", "FR405", "FR501"}
PLANTED = [one.name for one in FAULTS.values() if one.check in CHECKS]
# The lines that a report has to name: of the access at fault, and of the one before it.
PAIRS = {
    "result_read_early": ("Result.outputs", "OverlapLoop._to_host"),
    "pull_read_early": ("FutureMap._pull", "FutureMap._pull"),
    "result_buffer_shared": (
        "Result.outputs",
        "result_buffer_shared.<locals>.make.<locals>.broken",
    ),
    "staging_buffer_shared": (
        "staging_buffer_shared.<locals>.make.<locals>.broken",
        "upload",
    ),
    "inputs_freed_in_flight": (
        "inputs_freed_in_flight.<locals>.make_launch.<locals>.broken",
        "Worker._extend",
    ),
}


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch([CONTRACT], streams="tracked")
    watch.start()
    yield watch
    watch.stop()


def served(planted: Fault) -> None:
    run(planted.settings, random_asks(seed=0, count=5), overlap=True)


def found(watch: Watch) -> list[Violation]:
    return list(watch.drain())


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_reported_and_its_healthy_twin_is_not(watch: Watch, name: str) -> None:
    planted = FAULTS[name]
    served(planted)
    assert found(watch) == []
    with fault(name):
        served(planted)
    spoken = found(watch)
    codes = {one.code for one in spoken}
    assert planted.check in codes
    assert codes <= {planted.check, *planted.also}
    assert not any(watch.is_advice(one) for one in spoken)


@pytest.mark.parametrize("name", PAIRS)
def test_a_report_names_both_accesses(watch: Watch, name: str) -> None:
    planted = FAULTS[name]
    with fault(name):
        served(planted)
    violation = next(one for one in found(watch) if one.code == planted.check)
    before = violation.last_write or violation.last_read
    assert before is not None
    late, early = PAIRS[name]
    assert violation.access.site.function.startswith(late)
    assert before.site.function == early
    assert before.stream not in ("", violation.access.stream)


def test_what_went_before_is_reported_of_both_streams(watch: Watch) -> None:
    with fault("result_read_early") as planted:
        served(planted)
    violation = found(watch)[0]
    assert {one.stream for one in violation.history} == {"copy", "host"}
    assert not violation.history[-1].ordered
