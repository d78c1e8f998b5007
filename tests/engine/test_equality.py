"""The tokens do not depend on how the engine is run: over 500 random workloads."""

from dataclasses import replace

import torch
from hypothesis import HealthCheck, given, settings

from fixtures.engine.model import ModelConfig, Transformer, greedy_reference
from fixtures.engine.settings import Algorithm
from fixtures.engine.workload import Ask, differing, run
from tests.engine.strategies import SPECULATIVE, Workload, workloads

# Nothing here depends on the clock; derandomised, so that a red run is red again.
steady = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def assert_same(workload: Workload, one, other) -> None:
    wrong = differing(one, other)
    assert not wrong, [(one.outcomes[i], other.outcomes[i]) for i in wrong]


@steady
@given(workloads())
def test_overlapped_equals_plain(workload: Workload) -> None:
    overlapped = run(workload.settings, workload.asks, overlap=True)
    assert_same(workload, overlapped, run(workload.settings, workload.asks, overlap=False))


@steady
@given(workloads(SPECULATIVE))
def test_speculative_equals_greedy(workload: Workload) -> None:
    drafted = run(workload.settings, workload.asks, overlap=True)
    greedy = replace(workload.settings, algorithm=Algorithm.NONE, graphs=False)
    assert_same(workload, drafted, run(greedy, workload.asks, overlap=False))


@steady
@given(workloads())
def test_padded_equals_unpadded(workload: Workload) -> None:
    padded = replace(workload.settings, graphs=True, capture_sizes=(8,))
    exact = replace(workload.settings, graphs=True, capture_sizes=tuple(range(1, 9)))
    assert_same(
        workload,
        run(padded, workload.asks, overlap=True),
        run(exact, workload.asks, overlap=True),
    )


@settings(steady, max_examples=60)
@given(workloads((Algorithm.NONE,)))
def test_plain_loop_equals_recomputation_without_a_cache(workload: Workload) -> None:
    model = Transformer(ModelConfig(), torch.device("cpu"))
    asks = [Ask(ask.prompt, ask.max_new) for ask in workload.asks[:3]]
    served = run(workload.settings, asks, overlap=False)
    for ask, outcome in zip(asks, served.outcomes, strict=True):
        assert list(outcome.tokens) == greedy_reference(model, list(ask.prompt), ask.max_new)
