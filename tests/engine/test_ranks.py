"""Data-parallel ranks: one without work runs empty, padded batches beside one that has some."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from fixtures.engine.batch import Kind
from fixtures.engine.faults.registry import replaced
from fixtures.engine.request import Request
from fixtures.engine.serve import Engine, serve_ranks
from fixtures.engine.settings import Algorithm, Settings
from fixtures.engine.worker import Worker
from fixtures.engine.workload import Outcome, Run, differing, random_asks, requests_for, run
from tests.engine.strategies import Workload, workloads
from tests.engine.test_equality import steady


def served(requests: list[Request]) -> Run:
    return Run(tuple(Outcome(tuple(r.outputs), r.finish) for r in requests), 0, 0)


@settings(steady, max_examples=60)
@given(workloads(), workloads())
def test_ranks_answer_as_if_alone(workload: Workload, other: Workload) -> None:
    shares = [workload.asks, other.asks, ()]
    engines = [Engine.build(workload.settings, overlap=True) for _ in shares]
    requests = [requests_for(share) for share in shares]
    serve_ranks(engines, requests)
    for share, answered in zip(shares, requests, strict=True):
        alone = run(replace(workload.settings, algorithm=Algorithm.NONE), share, overlap=False)
        assert not differing(alone, served(answered))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_rank_without_work_replays_padded_graphs(algorithm: Algorithm, overlap: bool) -> None:
    kinds: list[Kind] = []

    def make(forward):
        def noting(self, batch, on_publish):
            if self is engines[1].worker:
                kinds.append(batch.kind)
            return forward(self, batch, on_publish)

        return noting

    engines = [Engine.build(Settings(algorithm=algorithm), overlap=overlap) for _ in range(2)]
    with replaced(Worker, "forward", make):
        serve_ranks(engines, [requests_for(random_asks(0, 6)), []])
    assert kinds == [Kind.IDLE] * len(kinds)
    assert len(kinds) > 10
    mapping = engines[1].worker.mapping
    assert not mapping.any()
