"""Random workloads of both model runners in turn; `$SEEDS` says which, a first one and the end."""

from __future__ import annotations

import os

import pytest
import runner
import runner_v1

SEEDS = range(*map(int, os.environ.get("SEEDS", "0 10").split()))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_workload(seed: int) -> None:
    if seed % 2:
        runner_v1.work(seed)
    else:
        runner.work(seed, speculates=seed % 3)
