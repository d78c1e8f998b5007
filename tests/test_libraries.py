"""Released code of other libraries: nothing is reported of it, and it does the same watched."""

from __future__ import annotations

import pytest

from tests.libraries import PROGRAMS
from tests.sglang_env import NoEnvironment

#: Faults of a library: see `fault` in the `case.toml`.
FAULTS = {
    "megatron_activation_offload": {"FR401"},
    "transformers_offloaded_cache": {"FR401", "FR402"},
}
#: What is reported falsely: inputs on the host and on the device are objects of one class there,
#: all made on `torch.device("cpu")`, and no contract can tell them apart.
FALSE = {"transformers_async_batching": {"FR401"}}


@pytest.mark.release
@pytest.mark.sweep
@pytest.mark.parametrize("name", PROGRAMS.names())
def test_a_library_is_left_alone(name: str) -> None:
    try:
        reported = PROGRAMS.apart(name, "good")
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)
    assert {one.code for one in reported.findings} == {**FAULTS, **FALSE}.get(name, set())
    assert not reported.problems
    assert not reported.stopped


@pytest.mark.pure
def test_each_drive_was_measured_once() -> None:
    assert set(PROGRAMS.records()) == set(PROGRAMS.names())


@pytest.mark.pure
@pytest.mark.parametrize("name", PROGRAMS.names())
def test_a_fault_of_a_library_is_reported(name: str) -> None:
    assert bool(PROGRAMS.case(name).fault) == (name in FAULTS)
