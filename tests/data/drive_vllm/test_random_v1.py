"""Random workloads of model runner V1; `$SEEDS` says which, a first one and the end."""

from __future__ import annotations

import os

import pytest
from runner_v1 import work

SEEDS = range(*map(int, os.environ.get("SEEDS", "0 10").split()))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_workload(seed: int) -> None:
    work(seed)
