"""Tails of the engine's graph inputs: judged on the device too, and without a change of tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fixtures.engine
from fixtures.engine.faults import FAULTS, fault
from fixtures.engine.settings import Algorithm, Settings
from fixtures.engine.workload import differing, random_asks, run
from fmcheck.contract import load_contract
from fmcheck.runtime.graphs import open_fill
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTRACT = load_contract(Path(fixtures.engine.__file__).parent / "fmcheck.toml")
STALE = [name for name, planted in FAULTS.items() if planted.check == "FR201"]
SETTINGS = Settings(pool_rows=5, chunk=12, capture_sizes=(3, 8))


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch([CONTRACT])
    watch.start()
    yield watch
    watch.stop()


def test_the_faults_of_padding_are_many() -> None:
    assert len(STALE) == 41


@pytest.mark.parametrize("name", STALE)
def test_a_stale_tail_is_found_by_the_code_for_devices(
    watch: Watch, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_fill, "compares_on_device", True)
    with fault(name) as planted:
        run(planted.settings, random_asks(seed=0, count=4), overlap=True)
    assert {violation.code for violation in watch.drain()} == {"FR201"}
    assert watch.coverage().problems == ()


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_healthy_engine_has_no_stale_tail_by_the_code_for_devices(
    watch: Watch, algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_fill, "compares_on_device", True)
    for seed in range(3):
        run(replace(SETTINGS, algorithm=algorithm), random_asks(seed, 6), overlap=True)
    assert watch.drain() == ()
    assert watch.coverage().problems == ()
    assert watch.coverage().counts.tails > 200


@pytest.mark.parametrize("name", [n for n in STALE if FAULTS[n].changes.value == "can"])
def test_a_stale_tail_does_what_it_would_have_done_unwatched(name: str) -> None:
    asks = random_asks(seed=1, count=8)
    with fault(name) as planted:
        bare = run(planted.settings, asks, overlap=True)
        watch = Watch([CONTRACT])
        watch.start()
        try:
            watched = run(planted.settings, asks, overlap=True)
        finally:
            watch.stop()
    assert watch.drain()
    assert not differing(bare, watched)


def test_the_report_names_runner_input_rows_and_rule(watch: Watch) -> None:
    with fault("stale_tail.decode.req_pool_indices") as planted:
        run(planted.settings, random_asks(seed=0, count=4), overlap=True)
    (violation,) = watch.drain()
    assert violation.buffer == "DecodeRunner.req_pool_indices"
    assert violation.access.site.function == "GraphRunner.run"
    assert violation.expected == "0 in every entry of the tail"
    assert violation.rows[-1] == 7
    assert violation.count > 1
