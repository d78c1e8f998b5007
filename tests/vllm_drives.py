"""Runs the drives of `tests/data/drive_vllm` on a release of vLLM, with and without fmcheck.

`python -m tests.vllm_drives` prints, release by release, what was watched and which planted fault
is reported by fmcheck, and which makes vLLM itself fail.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from typing import TYPE_CHECKING

from tests.corpus import cache_folder
from tests.drives import checkout_digest, kept_drive, show, under_pytest
from tests.sglang_env import HERE, NoEnvironment
from tests.vllm_env import RELEASES, environment_of, vllm_python

if TYPE_CHECKING:
    from tests.drives import Drive

DRIVES = HERE / "data" / "drive_vllm"
#: The model runners, and how the files of their drives end.
RUNNERS = {"V2": "", "V1": "_v1"}
STREAMS = ("tracked", "delayed", "random")
#: Drives of streams alone: they make nothing that the contract declares.
WITHOUT_RELAY = ("offload", "open", "transfer")


@cache
def drive(release: str, name: str, mode: str = "fail") -> Drive:
    """Runs `test_NAME.py` of the drives under a release; what it said is kept as for SGLang's.

    Raises:
        NoEnvironment: if the release or its environment cannot be had.
    """
    arguments = ["-p", "fmcheck", f"--fmcheck={mode}", str(DRIVES / f"test_{name}.py")]
    if name in WITHOUT_RELAY:
        arguments.append("--fmcheck-allow-unchecked")
    folder = cache_folder() / "drives" / checkout_digest() / f"vllm-{release}"
    return kept_drive(
        folder / f"{name}-{mode}.json",
        lambda: under_pytest(arguments, environment_of(release), vllm_python()),
    )


def workloads(runner: str, streams: str, seeds: range, release: str = RELEASES[-1]) -> Drive:
    """Runs random workloads of one model runner under a mode of streams.

    Raises:
        NoEnvironment: if the release or its environment cannot be had.
    """
    tests = DRIVES / f"test_random{RUNNERS[runner]}.py"
    arguments = ["-p", "fmcheck", f"--fmcheck-streams={streams}", str(tests)]
    reported = {**environment_of(release), "SEEDS": f"{seeds.start} {seeds.stop}"}
    return under_pytest(arguments, reported, vllm_python())


def main() -> None:
    """Prints the table, or what random workloads came to."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm_drives", description=__doc__)
    parser.add_argument("--workloads", type=int, metavar="N", help="random ones, in each mode")
    parser.add_argument("--runner", choices=RUNNERS, help="the workloads of one model runner")
    chosen = parser.parse_args()
    if chosen.workloads is not None:
        for runner in [chosen.runner] if chosen.runner else RUNNERS:
            for streams in STREAMS:
                _tell_workloads(runner, streams, chosen.workloads)
        return
    for release in RELEASES:
        for runner, end in RUNNERS.items():
            _tell(release, runner, end)


def _tell_workloads(runner: str, streams: str, number: int) -> None:
    done = workloads(runner, streams, range(number))
    failed = sorted(done.failures) or "silent"
    print(
        f"vllm {RELEASES[-1]}, {runner}, streams {streams}: {len(done.passed)} of {number} passed, "
        f"{failed}; {done.counts[1]:,} writes, {done.counts[2]:,} gathers, {done.seconds:.0f} s",
        flush=True,
    )


def _tell(release: str, runner: str, end: str) -> None:
    healthy, planted = drive(release, f"healthy{end}"), drive(release, f"planted{end}")
    bare = drive(release, f"planted{end}", mode="off")
    show(f"vllm {release}, {runner}", healthy, planted, bare, "vllm", "fails")


if __name__ == "__main__":
    try:
        main()
    except NoEnvironment as err:
        sys.exit(str(err))
