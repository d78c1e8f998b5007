"""`python -m tests.prove engine|sglang|vllm`: the score of this repository's own drives.

`engine` is the engine in `fixtures/`, `sglang` what of SGLang 0.5.23 can be driven on a CPU: the
relay and the graph runners; `vllm` the relays and the input preparation of vLLM 0.33.0, of both
model runners. Further arguments go to `fmcheck prove`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests import vllm_env
from tests.sglang_env import NoEnvironment, environment_of, release_folder, sglang_python

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
RELEASE = "0.5.23"
FILES = (
    "managers/overlap_utils.py",
    "model_executor/cuda_graph_buffer_registry.py",
    "model_executor/cpu_graph_runner.py",
    "speculative/eagle_draft_cuda_graph_runner.py",
    "speculative/eagle_draft_extend_cuda_graph_runner.py",
    "speculative/frozen_kv_mtp_cuda_graph_runner.py",
    "speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py",
)
VLLM_RELEASE = "0.33.0"
VLLM_FILES = (
    "gpu/states.py",
    "gpu/input_batch.py",
    "gpu/block_table.py",
    "gpu/async_utils.py",
    "gpu/model_runner.py",
    "gpu_model_runner.py",
    "gpu_input_batch.py",
    "block_table.py",
)
#: Of the engine, what plants faults itself or only shows it.
NOT_THE_ENGINE = ("faults", "show.py", "check.py", "fixtures/engine/__main__.py")


def main(arguments: Sequence[str]) -> int:
    """Runs `fmcheck prove` and returns its exit status."""
    ways = {"engine": engine, "sglang": sglang, "vllm": vllm}
    if not arguments or arguments[0] not in ways:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        return ways[arguments[0]](arguments[1:])
    except NoEnvironment as err:
        print(err, file=sys.stderr)
        return 2


def engine(more: Sequence[str]) -> int:
    """Tries the engine in `fixtures/`."""
    folder = ROOT / "fixtures" / "engine"
    excluded = [f"--exclude={one}" for one in NOT_THE_ENGINE]
    known = ("--known", str(folder / "prove.toml"))
    tests = (sys.executable, "-m", "pytest", str(folder / "tests" / "test_drives.py"))
    tests += (str(ROOT / "tests" / "engine" / "test_device_graph.py"),)
    tests += (f"--rootdir={folder}", "-c", str(folder / "pyproject.toml"))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    command = ("fixtures/engine", *excluded, *known, *more, "--", *tests)
    return _prove(command, ROOT, {**os.environ, "PYTHONPATH": path})


def sglang(more: Sequence[str]) -> int:
    """Tries the real SGLang, with the drives of `tests/data/drive`."""
    package = release_folder(RELEASE) / "sglang" / "srt"
    known = ("--known", str(DATA / "prove" / "sglang-known.toml"))
    tests = (str(sglang_python()), "-m", "pytest", "test_healthy.py", "test_rarer.py")
    tests += ("test_tails.py",)
    tests += ("-c", os.devnull, "--rootdir=.")
    tests += ("--fmcheck-config", str(DATA / "prove" / "sglang.toml"))
    files = [str(package / one) for one in FILES]
    environment = environment_of(RELEASE, SGLANG_IS_IN_CI="false")
    return _prove((*files, *known, *more, "--", *tests), DATA / "drive", environment)


def vllm(more: Sequence[str]) -> int:
    """Tries the real vLLM, with the drives of `tests/data/drive_vllm`."""
    package = vllm_env.release_folder(VLLM_RELEASE) / "vllm" / "v1" / "worker"
    tests = (str(vllm_env.vllm_python()), "-m", "pytest", "test_healthy.py", "test_healthy_v1.py")
    # Random workloads run the lines that the others run, and take three times as long.
    tests += ("-k", "not random", "-c", os.devnull, "--rootdir=.")
    files = [str(package / one) for one in VLLM_FILES]
    known = ("--known", str(DATA / "prove" / "vllm-known.toml"))
    environment = vllm_env.environment_of(VLLM_RELEASE)
    return _prove((*files, *known, *more, "--", *tests), DATA / "drive_vllm", environment)


def _prove(words: Sequence[str], folder: Path, environment: dict[str, str]) -> int:
    start = "import sys; sys.path.insert(0, sys.argv.pop(1)); from fmcheck.__main__ import main; "
    command = [sys.executable, "-c", f"{start}sys.exit(main())", str(ROOT), "prove", *words]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
