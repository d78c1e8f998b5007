"""`python -m tests.benchmarks`: every ratio in one table, and in a file with `--output FILE`.

A part is a module of this folder with a function `ratios`. `--part NAME` measures one alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tests.benchmarks
from tests.benchmarks.ratio import HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


def parts() -> dict[str, ModuleType]:
    """Returns the modules that measure ratios, by name."""
    found = {}
    for info in pkgutil.iter_modules(tests.benchmarks.__path__):
        if info.name != "__main__":
            module = importlib.import_module(f"tests.benchmarks.{info.name}")
            if hasattr(module, "ratios"):
                found[info.name] = module
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, a line as soon as it is measured; 1 if a part could not be measured."""
    known = parts()
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the table as JSON too")
    parser.add_argument("--part", action="append", choices=sorted(known), default=[])
    asked = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    print(HEADER)
    for name in asked.part or known:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                for one in known[name].ratios(Path(scratch)):
                    print(one, flush=True)
                    measured = {"ratio": one.ours / one.other, "ours": one.ours, "other": one.other}
                    rows.append({"part": name, "what": one.name, **measured})
            except Exception as err:  # the other parts are worth measuring all the same
                failed[name] = f"{type(err).__name__}: {err}"
                print(f"{name} could not be measured: {failed[name]}", file=sys.stderr)
    if asked.output is not None:
        machine = {"machine": platform.machine(), "cpus": os.cpu_count()}
        table = {"python": platform.python_version(), **machine, "failed": failed, "ratios": rows}
        asked.output.write_text(json.dumps(table, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
