"""The engine under fmcheck's watch: faults of the relay are reported, healthy runs are not."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fixtures.engine
from fixtures.engine.faults import FAULTS, Fault, Proof, fault
from fixtures.engine.faults.proof import SEEDS, prove, scenario
from fixtures.engine.serve import Engine, serve_ranks
from fixtures.engine.settings import Algorithm, Guard, Settings
from fixtures.engine.workload import random_asks, requests_for, run, run_on
from fmcheck.contract import load_contract
from fmcheck.runtime.session.watch import Watch
from tests.stream_modes import WITH_OUTPUTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONTRACT = load_contract(Path(fixtures.engine.__file__).parent / "fmcheck.toml")
CHECKS = {
    *("FR101", "FR102", "FR103", "FR104", "FR105", "FR201", "FR301"),
    *("FR202", "FR203"),
    *("FR106", "FR107", "FR108", "FR109", "FR110", "FR111"),
    *("FR501", "FR502", "FR601", "FR602"),
}


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch([CONTRACT])
    watch.start()
    yield watch
    watch.stop()


def codes(watch: Watch, planted: Fault, seeds: Iterable[int]) -> set[str]:
    """The checks that speak in workloads, up to the one that the fault is reported in."""
    if planted.proof is Proof.STOPS:
        prove(planted)
        return {violation.code for violation in watch.drain()}
    spoken: set[str] = set()
    for seed in seeds:
        with fault(planted.name):
            run(planted.settings, scenario(seed), overlap=True)
        spoken |= {violation.code for violation in watch.drain()}
        if planted.check in spoken:
            break
    return spoken


REPORTED = [f.name for f in FAULTS.values() if f.check in CHECKS]


@pytest.mark.parametrize("name", REPORTED)
def test_a_fault_is_reported_under_its_own_code(watch: Watch, name: str) -> None:
    planted = FAULTS[name]
    spoken = codes(watch, planted, SEEDS)
    assert planted.check in spoken
    assert spoken <= {planted.check, *planted.also}


@pytest.mark.parametrize("name", [f.name for f in FAULTS.values() if f.check not in CHECKS])
def test_any_other_fault_is_reported_only_as_it_says(watch: Watch, name: str) -> None:
    assert codes(watch, FAULTS[name], SEEDS[:2]) <= set(FAULTS[name].also)


def test_a_head_of_an_output_that_is_kept_over_a_replay_is_reported() -> None:
    planted = FAULTS["drafts_kept_over_a_replay"]
    watch = Watch([WITH_OUTPUTS])
    watch.start()
    try:
        assert codes(watch, planted, SEEDS) == {"FR603"}
    finally:
        watch.stop()


@pytest.mark.parametrize("algorithm", Algorithm)
def test_outputs_that_are_read_before_the_next_replay_are_not_reported(
    algorithm: Algorithm,
) -> None:
    watch = Watch([WITH_OUTPUTS])
    watch.start()
    try:
        run(Settings(algorithm=algorithm, pool_rows=4, chunk=12), scenario(0), overlap=True)
        assert watch.drain() == ()
        assert not watch.coverage().problems
    finally:
        watch.stop()


@pytest.mark.sweep
@pytest.mark.parametrize("seed", SEEDS[1:3])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported_only_as_it_says_in_each_workload(
    watch: Watch, name: str, seed: int
) -> None:
    own = {FAULTS[name].check} if name in REPORTED else set()
    assert codes(watch, FAULTS[name], [seed]) <= {*own, *FAULTS[name].also}


@pytest.mark.parametrize("settings", {f.settings: None for f in FAULTS.values()}, ids=str)
def test_the_plain_loop_is_never_accused(watch: Watch, settings: Settings) -> None:
    run(settings, scenario(0), overlap=False)
    assert watch.drain() == ()


def test_a_stale_row_names_both_its_owners(watch: Watch) -> None:
    run_planted(watch, "old_owner_answers")
    (violation,) = [one for one in watch.drain() if one.buffer.endswith("output_tokens_buf")]
    assert violation.owner.startswith("r")
    assert violation.previous_owner.startswith("r")
    assert violation.owner != violation.previous_owner
    assert violation.last_write is not None
    assert violation.last_write.owner == violation.previous_owner
    assert (violation.access.step or 0) > (violation.last_write.step or 0) > 0
    assert {one.owner for one in violation.neighbours if one.state == "live"} - {""}


def run_planted(watch: Watch, name: str) -> None:
    with fault(name) as planted:
        run(planted.settings, random_asks(seed=0, count=12), overlap=True)


def modes() -> dict[str, Settings]:
    """The engine's modes, small: rows and pages run short, so that requests are retracted."""
    found = {}
    for algorithm in Algorithm:
        small = Settings(algorithm=algorithm, graphs=False, pool_rows=4, pages=16, chunk=6, steps=2)
        name = algorithm.value
        found[name] = small
        found[f"{name}, graphs"] = replace(small, graphs=True, capture_sizes=(2, 4))
        if algorithm.speculative:
            found[f"{name}, direct pull"] = replace(small, host_pull="direct")
            found[f"{name}, guard"] = replace(small, guard=Guard.EAGER)
        else:
            found[f"{name}, mixed"] = replace(small, mixed=True, chunk=12, pages=8)
            found[f"{name}, cpu runner"] = replace(small, cpu_runner=True, graphs=True)
    return found


MODES = modes()
#: Over all modes together, in `make test` and in `make sweep`.
WORKLOADS = (112, 500)


@pytest.mark.parametrize(
    "workloads", [WORKLOADS[0], pytest.param(WORKLOADS[1], marks=pytest.mark.sweep)]
)
@pytest.mark.parametrize("name", MODES)
def test_healthy_random_workloads_are_never_accused(
    watch: Watch, name: str, workloads: int
) -> None:
    """Chunks, retraction, aborts, rows that go from hand to hand."""
    settings = MODES[name]
    engine = Engine.build(settings, overlap=True)
    retractions = 0
    each = -(-workloads // len(MODES))
    for seed in range(each):
        draw = random.Random(seed)
        asks = [
            replace(ask, aborts=draw.choice((None, None, None, draw.randrange(20))))
            for ask in random_asks(seed, 5, prompt=10, new=14)
        ]
        retractions += run_on(engine, asks).retractions
    coverage = watch.coverage()
    assert watch.drain() == ()
    assert (coverage.problems, coverage.notes) == ((), ())
    assert coverage.counts.gathers > 8 * each
    assert coverage.counts.unseen_writes == 0
    assert retractions > 0


def test_idle_ranks_are_never_accused(watch: Watch) -> None:
    settings = Settings(algorithm=Algorithm.EAGLE, graphs=False, pool_rows=4, steps=2)
    engines = [Engine.build(settings, overlap=True) for _ in range(2)]
    for seed in range(5):
        serve_ranks(engines, [requests_for(random_asks(seed, 4)), []])
    assert watch.drain() == ()
    assert watch.coverage().counts.gathers > 50


@pytest.mark.parametrize("workloads", [6, pytest.param(25, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_the_healthy_engine_is_never_accused(
    watch: Watch, algorithm: Algorithm, workloads: int
) -> None:
    settings = Settings(algorithm=algorithm, pool_rows=4, chunk=12, capture_sizes=(2, 4))
    for seed in range(workloads):
        run(settings, random_asks(seed=seed, count=6), overlap=True)
    coverage = watch.coverage()
    assert watch.drain() == ()
    assert coverage.problems == ()
    assert coverage.counts.gathers > 8 * workloads
    assert coverage.counts.unseen_writes == 0
    assert coverage.counts.tails > 8 * workloads
