"""The tokens do not depend on how the engine is run: over random workloads, 60 of each kind."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from fixtures.engine.model import ModelConfig, Transformer, greedy_reference
from fixtures.engine.settings import Algorithm
from fixtures.engine.workload import Ask, differing, run
from tests.engine.strategies import SPECULATIVE, Workload, workloads

# Nothing here depends on the clock; derandomised, so that a red run is red again.
steady = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def assert_same(workload: Workload, one, other) -> None:
    wrong = differing(one, other)
    assert not wrong, [(one.outcomes[i], other.outcomes[i]) for i in wrong]


def overlapped_equals_plain(workload: Workload) -> None:
    overlapped = run(workload.settings, workload.asks, overlap=True)
    assert_same(workload, overlapped, run(workload.settings, workload.asks, overlap=False))


def speculative_equals_greedy(workload: Workload) -> None:
    drafted = run(workload.settings, workload.asks, overlap=True)
    greedy = replace(workload.settings, algorithm=Algorithm.NONE, graphs=False)
    assert_same(workload, drafted, run(greedy, workload.asks, overlap=False))


def padded_equals_unpadded(workload: Workload) -> None:
    padded = replace(workload.settings, graphs=True, capture_sizes=(8,))
    exact = replace(workload.settings, graphs=True, capture_sizes=tuple(range(1, 9)))
    assert_same(
        workload,
        run(padded, workload.asks, overlap=True),
        run(exact, workload.asks, overlap=True),
    )


LAWS = {
    "overlapped equals plain": (overlapped_equals_plain, workloads()),
    "speculative equals greedy": (speculative_equals_greedy, workloads(SPECULATIVE)),
    "padded equals unpadded": (padded_equals_unpadded, workloads()),
}


@pytest.mark.parametrize("examples", [60, pytest.param(200, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("law", LAWS)
def test_the_tokens_are_the_same(law: str, examples: int) -> None:
    holds, strategy = LAWS[law]
    settings(steady, max_examples=examples)(given(strategy)(holds))()


@steady
@given(workloads((Algorithm.NONE,)))
def test_plain_loop_equals_recomputation_without_a_cache(workload: Workload) -> None:
    model = Transformer(ModelConfig(), torch.device("cpu"))
    asks = [Ask(ask.prompt, ask.max_new) for ask in workload.asks[:3]]
    served = run(workload.settings, asks, overlap=False)
    for ask, outcome in zip(asks, served.outcomes, strict=True):
        assert list(outcome.tokens) == greedy_reference(model, list(ask.prompt), ask.max_new)
