"""`python -m tests.gpu`: all that only a GPU shows, within eight minutes, into `gpu.json`.

Needs a Python with a CUDA torch from 2.11, triton, pytest, numpy, msgspec and wrapt, and no
network. Ends with 0 if every part reached its goals, 1 if one did not, 2 if there was nothing to
run on.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
from pathlib import Path

from tests.gpu.parts import PARTS

NEEDED = ("torch", "triton", "pytest", "numpy", "msgspec", "wrapt")
TORCH = (2, 11)


def missing() -> list[str]:
    """Returns the packages that cannot be found."""
    needed = NEEDED if sys.version_info >= (3, 11) else (*NEEDED, "tomli")
    return [name for name in needed if importlib.util.find_spec(name) is None]


def why_not() -> str:
    """Returns why nothing can be run here, in a line; "" if it can."""
    lacking = missing()
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    import torch

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < TORCH:
        return f"torch {torch.__version__} is too old: expected 2.11 or newer"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return ""


def machine(device: str) -> dict[str, str]:
    """Returns what the figures were taken with."""
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    if importlib.util.find_spec("triton"):
        import triton

        found["triton"] = triton.__version__
    is_cuda = device.startswith("cuda")
    return {**found, "device": torch.cuda.get_device_name() if is_cuda else f"no GPU: {device}"}


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    names = [part.name for part in PARTS]
    options.add_argument("--output", type=Path, default=Path("gpu.json"), help="the report")
    options.add_argument("--log", type=Path, default=Path("gpu.log"), help="all that was printed")
    options.add_argument("--seconds", type=float, default=480, help="for all parts together")
    options.add_argument("--part", action="append", choices=names, help="only this one")
    # What a CPU can show of the parts themselves: for their tests, and no result of a GPU.
    options.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Runs the parts and returns the exit status."""
    asked = parser().parse_args(arguments)
    reason = why_not() if asked.device == "cuda" else ""
    if reason:
        print(f"tests.gpu: {reason}", file=sys.stderr)
        return 2
    from tests.gpu.harness import Harness, Report

    report = Report(asked.device, machine(asked.device), asked.seconds)
    parts = [part for part in PARTS if asked.part is None or part.name in asked.part]
    with asked.log.open("w") as log:
        status = Harness(report, asked.output, log).run(parts)
    reached = sum(one.state == "reached" for one in report.parts)
    print(
        f"\n{reached} of {len(parts)} parts reached their goals, {report.seconds:.0f} s; ", end=""
    )
    print(f"{asked.output}, {asked.log}")
    return status


if __name__ == "__main__":
    sys.exit(main())
