"""Hypothesis strategies: requests, and the settings of an engine that serves them."""

from dataclasses import dataclass

from hypothesis import strategies as st

from fixtures.engine.settings import Algorithm, Gather, Guard, Settings
from fixtures.engine.workload import VOCAB, Ask

ALL = tuple(Algorithm)
SPECULATIVE = tuple(algorithm for algorithm in Algorithm if algorithm.speculative)


@dataclass(frozen=True)
class Workload:
    settings: Settings
    asks: tuple[Ask, ...]


asks = st.builds(
    Ask,
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24).map(tuple),
    max_new=st.integers(1, 14),
    stop=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
    arrives=st.integers(0, 12),
    aborts=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 20)),
)


@st.composite
def settings(draw: st.DrawFn, algorithms: tuple[Algorithm, ...] = ALL) -> Settings:
    algorithm = draw(st.sampled_from(algorithms))
    plain = algorithm is Algorithm.NONE
    # 14 pages of 4 hold one request of the largest size and no second: retraction is common.
    return Settings(
        algorithm=algorithm,
        graphs=draw(st.booleans()),
        cpu_runner=plain and draw(st.booleans()),
        capture_sizes=draw(st.sampled_from([(1, 2, 4, 8), (4,), (3, 6), (2, 8)])),
        pool_rows=draw(st.integers(1, 7)),
        pages=draw(st.sampled_from([14, 20, 64])),
        chunk=draw(st.integers(3, 24)),
        mixed=plain and draw(st.booleans()),
        steps=draw(st.integers(2, 4)),
        guard=draw(st.sampled_from([Guard.OFF, Guard.EAGER])),
        gather=Gather.SINGLE,
        host_pull=draw(st.sampled_from(["stream", "direct"])),
    )


@st.composite
def workloads(draw: st.DrawFn, algorithms: tuple[Algorithm, ...] = ALL) -> Workload:
    chosen = draw(settings(algorithms))
    return Workload(chosen, tuple(draw(st.lists(asks, min_size=1, max_size=7))))
