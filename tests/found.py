"""Faults found in released engines, shown on a CPU by running the engine's own code: docs/found.md.

`python -m tests.found` lists them, `python -m tests.found NAME` fetches the engine and shows one:
what a user gets in the order that its author had in mind, and in another that its fences allow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from tests import sglang_env, vllm_env
from tests.clones import commit_source
from tests.corpus import CorpusError, wheel_source
from tests.sglang_env import REPOSITORY, STUBS, NoEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DRIVES = REPOSITORY / "fixtures" / "found" / "drives"
TRANSFORMERS = "5.23.0"


class Found(NamedTuple):
    """A fault: the engine and its version, where its source is, and a python with what it needs.

    That of an engine without a package `needs_clone`, which somebody has put into the cache.
    """

    engine: str
    version: str
    source: Callable[[], Path]
    python: Callable[[], Path]
    needs_clone: bool = False


def of_commit(repository: str, commit: str, folder: str = "") -> Callable[[], Path]:
    return lambda: commit_source(repository, commit) / folder


FOUND = {
    "atom_logprobs": Found(
        "ATOM",
        "ffdf3bb5ddf8",
        of_commit("ROCm/ATOM", "ffdf3bb5ddf8"),
        vllm_env.vllm_python,
        needs_clone=True,
    ),
    "deepspeed_put": Found(
        "DeepSpeed",
        "edaa72212672",
        of_commit("deepspeedai/DeepSpeed", "edaa72212672"),
        vllm_env.vllm_python,
        needs_clone=True,
    ),
    "gllm_tokens": Found(
        "gLLM",
        "bc91d98d512d",
        of_commit("gty111/gLLM", "bc91d98d512d"),
        sglang_env.sglang_python,
        needs_clone=True,
    ),
    "lightx2v_flux2": Found(
        "LightX2V",
        "f8aee98b5462",
        of_commit("ModelTC/LightX2V", "f8aee98b5462"),
        vllm_env.vllm_python,
        needs_clone=True,
    ),
    "mini_sglang_row": Found(
        "mini-sglang",
        "20fcd7f3c6a1",
        of_commit("sgl-project/mini-sglang", "20fcd7f3c6a1", "python"),
        sglang_env.sglang_python,
        needs_clone=True,
    ),
    "mstar_offload": Found(
        "M*",
        "6666c623ca0a",
        of_commit("mstar-project/mstar", "6666c623ca0a"),
        sglang_env.sglang_python,
        needs_clone=True,
    ),
    "mstar_sampling": Found(
        "M*",
        "6666c623ca0a",
        of_commit("mstar-project/mstar", "6666c623ca0a"),
        sglang_env.sglang_python,
        needs_clone=True,
    ),
    "sglang_lora": Found(
        "SGLang", "0.5.23", lambda: sglang_env.release_folder("0.5.23"), sglang_env.sglang_python
    ),
    "transformers_batching": Found(
        "transformers",
        TRANSFORMERS,
        lambda: wheel_source("transformers", TRANSFORMERS),
        vllm_env.vllm_python,
    ),
    "transformers_offload": Found(
        "transformers",
        TRANSFORMERS,
        lambda: wheel_source("transformers", TRANSFORMERS),
        vllm_env.vllm_python,
    ),
    "vllm_ascend_seed": Found(
        "vllm-ascend",
        "0.23.0",
        lambda: wheel_source("vllm-ascend", "0.23.0"),
        vllm_env.vllm_python,
    ),
    "vllm_fast_prefill": Found(
        "vLLM", "0.33.0", lambda: vllm_env.release_folder("0.33.0"), vllm_env.vllm_python
    ),
    "vllm_gcu_index": Found(
        "vllm-gcu",
        "7b5aaca941dd",
        of_commit("EnflameTechnology/vllm-gcu", "7b5aaca941dd"),
        vllm_env.vllm_python,
        needs_clone=True,
    ),
    "vllm_weights": Found(
        "vLLM", "0.33.0", lambda: vllm_env.release_folder("0.33.0"), vllm_env.vllm_python
    ),
}


def shown(name: str) -> subprocess.CompletedProcess[str]:
    """Returns what showing a fault printed; its status is 1 if nothing was wrong.

    Raises:
        NoEnvironment: if the engine or what it needs cannot be had.
    """
    found = FOUND[name]
    try:
        source = found.source()
    except CorpusError as err:
        raise NoEnvironment(str(err)) from err
    path = os.pathsep.join(map(str, (source, REPOSITORY, STUBS)))
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    environment["VLLM_LOGGING_LEVEL"] = "ERROR"
    command = [str(found.python()), str(DRIVES / f"{name}.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def main() -> int:
    """Lists the faults, or shows one."""
    parser = argparse.ArgumentParser(prog="python -m tests.found", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(FOUND), metavar="NAME")
    name = parser.parse_args().name
    if name is None:
        for each, found in sorted(FOUND.items()):
            print(f"{each:<20} {found.engine} {found.version}")
        return 0
    done = shown(name)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NoEnvironment as err:
        sys.exit(str(err))
