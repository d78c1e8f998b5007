"""Parts of `make gpu` whose kernels Triton's interpreter can run: run by test_guard.py."""

from __future__ import annotations

import pytest

from fmcheck.runtime.device import clock_kernels
from fmcheck.runtime.relay import relay_tensor
from tests.gpu import clocks


@pytest.fixture(autouse=True)
def guarded(monkeypatch):
    monkeypatch.setattr(relay_tensor, "wants_guard", lambda _: True)


def test_the_clocks_on_a_device_are_held_against_brute_force():
    facts = {fact.what: fact for fact in clocks.run("cpu", programs=4)}
    assert facts["programs judged"].value == 4
    assert facts["seeds of programs judged otherwise than by brute force"].ok


def test_a_kernel_that_does_nothing_misses_the_goal(monkeypatch):
    class Nothing:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: None

    monkeypatch.setattr(clock_kernels, "touch_rows", Nothing())
    facts = list(clocks.run("cpu", programs=4))
    assert facts[-1].ok is False
