"""The guard of buffers on devices: its kernels are run by Triton's interpreter, without a GPU.

Triton takes a gigabyte, which only SGLang's environment has.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.sglang_env import HERE, STUBS, NoEnvironment, sglang_python


@pytest.mark.parametrize(
    ("steps", "programs", "chosen"),
    [
        ("600", "12", ()),
        pytest.param("1500", "25", ("-k", "random_programs or any_order"), marks=pytest.mark.sweep),
    ],
    ids=["all", "random programs"],
)
def test_kernels_agree_with_the_model_and_with_their_promises(
    steps: str, programs: str, chosen: tuple[str, ...]
) -> None:
    try:
        python = sglang_python()
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA"]
    command += [str(HERE / "data" / "guard"), "-c", "/dev/null", "--rootdir=/", *chosen]
    path = os.pathsep.join([str(HERE.parent), str(STUBS)])
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment = {**kept, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    environment |= {"FMCHECK_GUARD_STEPS": steps, "FMCHECK_CLOCK_PROGRAMS": programs}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout
    assert "skipped" not in done.stdout
