"""The healthy engine's fences are enough, however late its streams run; the device is true."""

import functools
from dataclasses import replace

import pytest
import torch

from fixtures.engine.faults.late import LAZY, POLICIES, late_device
from fixtures.engine.serve import Engine
from fixtures.engine.settings import Algorithm, Settings
from fixtures.engine.workload import Run, differing, random_asks, run, run_on

SMALL = Settings(pool_rows=4, pages=16, chunk=12)
MODES = [
    SMALL,
    replace(SMALL, cpu_runner=True),
    replace(SMALL, mixed=True),
    replace(SMALL, graphs=False),
    *(replace(SMALL, algorithm=algorithm) for algorithm in Algorithm if algorithm.speculative),
]


@functools.cache
def right_answers(settings: Settings, seed: int) -> Run:
    """Returns what the plain loop answers, whatever its streams do."""
    return run(settings, random_asks(seed, 8), overlap=False)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "+".join(sorted(policy)) or "lazy")
@pytest.mark.parametrize("settings", MODES, ids=range(len(MODES)))
def test_late_streams_change_no_token(
    settings: Settings, policy: frozenset[str], seed: int
) -> None:
    asks = random_asks(seed, 8)
    with late_device(policy) as device:
        engine = Engine.build(settings, overlap=True)
        device.name_streams(engine)
        assert not differing(right_answers(settings, seed), run_on(engine, asks))


def test_a_launch_waits_until_someone_waits_for_it() -> None:
    with late_device(LAZY) as device:
        one, other = device.Stream(), device.Stream()
        value = torch.zeros(1)
        with device.stream(one):
            value.add_(1)
            event = device.Event()
            event.record()
            value.add_(1)
        with device.stream(other):
            event.wait()
            seen = value + 0
        assert value.tolist() == seen.tolist() == [0]
        other.run_to(other.issued)
        assert value.tolist() == seen.tolist() == [1]
        device.synchronize()
        assert value.tolist() == [2]


def test_a_wait_is_for_the_record_of_its_time() -> None:
    with late_device(LAZY) as device:
        one, other = device.Stream(), device.Stream()
        value = torch.zeros(1)
        event = device.Event()
        with device.stream(one):
            event.record()
        with device.stream(other):
            event.wait()
        with device.stream(one):
            value.add_(1)
            event.record()
        other.run_to(other.issued)
        assert value.tolist() == [0]
        event.synchronize()
        assert value.tolist() == [1]
