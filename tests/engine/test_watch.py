"""The engine under fmcheck's watch: faults of the relay are reported, healthy runs are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fixtures.engine
from fixtures.engine.faults import FAULTS, Fault, Proof
from fixtures.engine.faults.proof import SEEDS, changed, prove
from fixtures.engine.settings import Algorithm, Settings
from fixtures.engine.workload import random_asks, run
from fmcheck.contract import load_contract
from fmcheck.runtime.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTRACT = load_contract(Path(fixtures.engine.__file__).parent / "fmcheck.toml")
CHECKS = {"FR101", "FR102", "FR105", "FR201", "FR301"}


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch([CONTRACT])
    watch.start()
    yield watch
    watch.stop()


def codes(watch: Watch, planted: Fault) -> set[str]:
    """The checks that speak while the fault's scenario runs."""
    if planted.proof is Proof.STOPS:
        prove(planted)
    else:
        for seed in SEEDS:
            changed(planted, seed)
    return {violation.code for violation in watch.drain()}


@pytest.mark.parametrize("name", [f.name for f in FAULTS.values() if f.check in CHECKS])
def test_a_fault_is_reported_under_its_own_code(watch: Watch, name: str) -> None:
    planted = FAULTS[name]
    spoken = codes(watch, planted)
    assert planted.check in spoken
    assert spoken <= {planted.check, *planted.also}


@pytest.mark.parametrize("name", [f.name for f in FAULTS.values() if f.check not in CHECKS])
def test_any_other_fault_is_reported_only_as_it_says(watch: Watch, name: str) -> None:
    assert codes(watch, FAULTS[name]) <= set(FAULTS[name].also)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_the_healthy_engine_is_never_accused(watch: Watch, algorithm: Algorithm) -> None:
    settings = Settings(algorithm=algorithm, pool_rows=4, chunk=12, capture_sizes=(2, 4))
    for seed in range(25):
        run(settings, random_asks(seed=seed, count=6), overlap=True)
    coverage = watch.coverage()
    assert watch.drain() == ()
    assert coverage.problems == ()
    assert coverage.counts.gathers > 200
    assert coverage.counts.unseen_writes == 0
    assert coverage.counts.tails > 200
