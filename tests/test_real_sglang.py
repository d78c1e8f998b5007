"""The real, unmodified FutureMap of SGLang releases, driven on CPU under `pytest -p fmcheck`."""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.sglang_env import STUBS, NoEnvironment, sglang_python

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).parent.parent
DRIVE = REPOSITORY / "tests" / "data" / "sglang_drive.py"
RELEASES = ["0.5.13", "0.5.23"]
HEALTHY = [
    "test_plain_loop_is_healthy",
    "test_padded_rows_read_the_sink",
    "test_mixed_batch_is_healthy",
    "test_idle_rank_is_healthy",
    "test_lengths_are_healthy",
    "test_extras_loop_is_healthy",
]
ENGINE = "sglang/srt/managers/overlap_utils.py"


class Drive(NamedTuple):
    """What one run of the drive said."""

    failures: Mapping[str, str]
    passed: frozenset[str]
    skipped: frozenset[str]
    output: str


@cache
def drive(release: str, in_ci: bool, mode: str = "fail") -> Drive:
    try:
        python = sglang_python(release)
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)
    junit = python.parent.parent / f"drive-{in_ci}-{mode}-{os.getpid()}.xml"
    command = [str(python), "-m", "pytest", "-p", "fmcheck", f"--fmcheck={mode}", str(DRIVE)]
    command += ["-p", "no:cacheprovider", f"--junitxml={junit}", "--rootdir=/", "-c", "/dev/null"]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUBS)]),
        "TRITON_INTERPRET": "1",
        "SGLANG_IS_IN_CI": str(in_ci).lower(),
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd="/tmp", check=False
    )
    output = done.stdout + done.stderr
    if not junit.exists():
        pytest.fail(f"the drive of sglang {release} did not run:\n{output}", pytrace=False)
    cases = ElementTree.parse(junit).findall(".//testcase")
    junit.unlink()
    failures = {
        case.get("name", ""): bad.text or ""
        for case in cases
        for bad in (*case.findall("failure"), *case.findall("error"))
    }
    skipped = frozenset(c.get("name", "") for c in cases if c.find("skipped") is not None)
    names = frozenset(case.get("name", "") for case in cases)
    return Drive(failures, names - skipped - set(failures), skipped, output)


real = pytest.mark.parametrize("release", RELEASES)
guarded = pytest.mark.parametrize("in_ci", [False, True], ids=["production", "in CI"])


@real
@guarded
def test_a_healthy_engine_is_silent(release: str, in_ci: bool) -> None:
    told = drive(release, in_ci)
    assert told.passed.issuperset(HEALTHY), told.output


def test_buffers_that_a_graph_filled_are_adopted_in_silence() -> None:
    assert "test_adopted_buffers_are_healthy" in drive("0.5.23", False).passed
    assert "test_adopted_buffers_are_healthy" in drive("0.5.13", False).skipped


def lines_of(failure: str, label: str) -> list[int]:
    return [int(n) for n in re.findall(rf"{label} +{re.escape(ENGINE)}:(\d+) in ", failure)]


def source_line(release: str, number: int) -> str:
    python = sglang_python(release)
    (path,) = python.parent.parent.glob(f"lib/python*/site-packages/{ENGINE}")
    return path.read_text().splitlines()[number - 1]


@real
@guarded
@pytest.mark.parametrize(
    ("test", "code", "buffers", "written", "read"),
    [
        (
            *("test_plain_double_gather", "FR102", ["output_tokens_buf"]),
            *("self.output_tokens_buf[indices] =", "future_map.output_tokens_buf["),
        ),
        (
            *("test_plain_gather_before_stash", "FR101", ["output_tokens_buf"]),
            *(None, "future_map.output_tokens_buf["),
        ),
        (
            *("test_lengths_double_gather", "FR102", ["new_seq_lens_buf"]),
            *("self.new_seq_lens_buf[indices] =", "self.new_seq_lens_buf[fi]"),
        ),
        (
            "test_extras_double_gather",
            "FR102",
            ["topk_p_buf", "topk_index_buf", "output_tokens_buf", "hidden_states_buf"],
            "_buf[indices] =",
            "gather_spec_extras(",
        ),
    ],
    ids=["plain double gather", "gather before stash", "lengths", "speculative extras"],
)
def test_a_planted_fault_fails_with_both_sites(
    release: str,
    in_ci: bool,
    test: str,
    code: str,
    buffers: list[str],
    written: str | None,
    read: str,
) -> None:
    failure = drive(release, in_ci).failures[test]
    assert re.findall(r"FMCHECK: (\w+) [\w-]+ in FutureMap\.(\w+) rows", failure) == [
        (code, buffer) for buffer in buffers
    ]
    for number in lines_of(failure, "gather"):
        assert read in source_line(release, number)
    assert len(lines_of(failure, "gather")) == len(buffers)
    if written is None:
        assert "last write  none" in failure
        return
    writes, reads = lines_of(failure, "last write"), lines_of(failure, "last read")
    assert len(writes) == len(reads) == len(buffers)
    for number in writes:
        assert written in source_line(release, number)
    for number in reads:
        assert read in source_line(release, number)


@real
def test_without_the_watch_nothing_is_said(release: str) -> None:
    told = drive(release, False, mode="off")
    assert dict(told.failures) == {}
    assert "test_plain_double_gather" in told.passed


@real
@guarded
def test_the_closing_line_counts_what_was_checked(release: str, in_ci: bool) -> None:
    (counts,) = re.findall(
        r"^fmcheck: (\d+) buffers, (\d+) writes, (\d+) gathers, .*; (\d+) violations",
        drive(release, in_ci).output,
        re.MULTILINE,
    )
    buffers, writes, gathers, violations = map(int, counts)
    assert buffers >= 20
    assert writes >= 50
    assert gathers >= 50
    assert violations == 7
    assert "fmcheck error" not in drive(release, in_ci).output


@real
@guarded
def test_the_engines_own_guard_is_told_to_be_dead_where_it_is(release: str, in_ci: bool) -> None:
    output = drive(release, in_ci).output
    told = re.findall(r"^FMCHECK: FR602 dead-assert in (\w+)$", output, re.MULTILINE)
    assert told == (["_assert_nonneg_and_invalidate"] if in_ci else [])
    lines = re.findall(rf"^  assert +{re.escape(ENGINE)}:(\d+) in ", output, re.MULTILINE)
    for number in map(int, lines):
        assert "_assert_async((values >= 0).all())" in source_line(release, number)
    assert len(lines) == len(told)
