"""Healthy programs that no check was written with: nothing is reported of them."""

from __future__ import annotations

import pytest

from tests.healthy import PROGRAMS

#: What a contract says that its program does not keep to: see `fault` in its `case.toml`.
OF_THE_CONTRACT = {
    "mstar_cuda_graph_runner": {"FR101"},
    "streamdiffusion_tensorrt_engine": {"FR203"},
}
#: Faults that a writer did not mean: a buffer in the place of its copy, in float32 alone.
FAULTS = {"swift_zigzag_ring": {"FR401"}}


@pytest.mark.parametrize("name", PROGRAMS.names())
def test_a_healthy_program_is_left_alone(name: str) -> None:
    reported = PROGRAMS.here(name, "good")
    assert {one.code for one in reported.findings} == {**OF_THE_CONTRACT, **FAULTS}.get(name, set())
    assert not reported.problems
    assert bool(PROGRAMS.case(name).fault) == (name in OF_THE_CONTRACT or name in FAULTS)


def test_each_program_was_measured_once() -> None:
    assert set(PROGRAMS.records()) == set(PROGRAMS.names())
