"""Each planted fault does what it says, and the healthy engine does none of it."""

import re
from contextlib import contextmanager

import pytest

from fixtures.engine.faults import FAULTS, Changes, Proof, fault, proof
from fixtures.engine.faults.proof import SEEDS, changed, prove

#: Workloads of every run of the tests; `make sweep` takes them all.
FEW = SEEDS[:2]
QUIET = [f for f in FAULTS.values() if f.changes is Changes.NO and f.proof is not Proof.STOPS]
BY_TOKENS = [f.name for f in FAULTS.values() if f.proof is Proof.TOKENS]
#: Proofs that look at something else for each fault.
OWN = (Proof.TAIL, Proof.COST, Proof.LEAK)
#: What is looked at, and how, with a fault of each: a healthy engine is the same for all of them.
SCENARIOS = {
    (f.proof, f.settings, f.fence, f.name if f.proof in OWN else ""): f.name
    for f in FAULTS.values()
}


@pytest.fixture(scope="module")
def _runs():
    return {}


@pytest.fixture
def shared(_runs, monkeypatch):
    """Has the plain loop, and the healthy engine on late streams, run a workload once.

    The overlapped loop is run each time that it is asked: proofs look into it as it runs.
    """
    run, plant, late_answers, planted = proof.run, proof.fault, proof.late_answers, []

    @contextmanager
    def planting(name):
        planted.append(name)
        with plant(name) as chosen:
            yield chosen
        planted.pop()

    def once(settings, asks, *, overlap):
        if planted or overlap:
            return run(settings, asks, overlap=overlap)
        key = settings, repr(asks)
        if key not in _runs:
            _runs[key] = run(settings, asks, overlap=overlap)
        return _runs[key]

    def late_once(one, policy, *, planted):
        if planted:
            return late_answers(one, policy, planted=True)
        key = one.settings, policy
        if key not in _runs:
            _runs[key] = late_answers(one, policy, planted=False)
        return _runs[key]

    monkeypatch.setattr(proof, "fault", planting)
    monkeypatch.setattr(proof, "run", once)
    monkeypatch.setattr(proof, "late_answers", late_once)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shows(name: str) -> None:
    planted = FAULTS[name]
    if planted.proof is not Proof.TOKENS:
        evidence = prove(planted)
        assert evidence.shown, evidence
    elif planted.changes is Changes.ALWAYS:
        assert all(changed(planted, seed) for seed in FEW)
    else:
        assert any(changed(planted, seed) for seed in SEEDS)


@pytest.mark.sweep
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", BY_TOKENS)
def test_a_planted_fault_shows_in_all_workloads(name: str) -> None:
    evidence = prove(FAULTS[name])
    assert evidence.shown, evidence


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", SCENARIOS.values())
def test_a_healthy_engine_shows_nothing(name: str) -> None:
    evidence = prove(FAULTS[name], planted=False)
    assert not evidence.shown, evidence


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[pytest.mark.sweep] if seed not in FEW else []) for seed in SEEDS],
)
@pytest.mark.parametrize("name", [f.name for f in QUIET])
def test_a_fault_that_changes_no_tokens_changes_none(name: str, seed: int) -> None:
    assert changed(FAULTS[name], seed) == 0


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_names_a_check_and_a_public_change(name: str) -> None:
    planted = FAULTS[name]
    assert planted.check or planted.lint
    assert all(
        re.fullmatch(r"FR[1-6][01]\d", check) for check in (planted.check or "FR101", *planted.also)
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
