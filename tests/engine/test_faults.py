"""Each planted fault does what it says, and the healthy engine does none of it."""

import re

import pytest

from fixtures.engine.faults import FAULTS, Changes, Proof, fault
from fixtures.engine.faults.proof import SEEDS, changed, prove

QUIET = [f for f in FAULTS.values() if f.changes is Changes.NO and f.proof is not Proof.STOPS]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shows(name: str) -> None:
    evidence = prove(FAULTS[name])
    assert evidence.shown, evidence.told


@pytest.mark.parametrize("name", FAULTS)
def test_a_healthy_engine_shows_nothing(name: str) -> None:
    evidence = prove(FAULTS[name], planted=False)
    assert not evidence.shown, evidence.told


@pytest.mark.parametrize("name", [f.name for f in QUIET])
def test_a_fault_that_changes_no_tokens_changes_none(name: str) -> None:
    assert [changed(FAULTS[name], seed) for seed in SEEDS] == [0] * len(SEEDS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_names_a_check_and_a_public_change(name: str) -> None:
    planted = FAULTS[name]
    assert planted.check or planted.lint
    assert all(
        re.fullmatch(r"FR[1-6]0\d", check) for check in (planted.check or "FR101", *planted.also)
    )
    assert re.fullmatch(r"(FM[1-6]0\d)?", planted.lint)
    assert re.fullmatch(r"https://github.com/[\w.-]+/[\w.-]+/pull/\d+", planted.link)
    assert planted.story.endswith(".")


def test_there_are_faults_of_all_classes() -> None:
    assert {planted.family for planted in FAULTS.values()} == set("ABCDEF")
    assert len(FAULTS) >= 30


def test_a_fault_is_gone_after_its_block() -> None:
    planted = FAULTS["prefill_forgets_stash"]
    with fault(planted.name):
        assert changed(planted, 0, planted=False)
    assert not changed(planted, 0, planted=False)
