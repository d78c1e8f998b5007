"""Engine tests run on one thread: the models are tiny, and other runs share the machine."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
