"""Engine tests run on one thread: the models are tiny, and other runs share the machine."""

import sys
from pathlib import Path

import pytest
import torch

# `fixtures` and `tests` are no part of the distribution: they are imported from the checkout.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
