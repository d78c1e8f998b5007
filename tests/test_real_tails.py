"""The real fill methods of seven SGLang releases' graph runners, under `pytest -p fmcheck`.

All run in one release's environment, for their dependencies differ little; each older release
lies before it on the path.
"""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sglang_env import STUBS, NoEnvironment, sglang_overlay, sglang_python

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).parent.parent
DRIVE = REPOSITORY / "tests" / "data" / "sglang_tails.py"
BASE = "0.5.23"

ROWS, POSITIONS, MROPE = "req_pool_indices", "positions", "mrope_positions"
#: What each test of the drive must report, by release; a test that is not listed is skipped there.
#: #26292 reset the row indices of four runners in 0.5.13, and missed the multi-layer one; #24401
#: the positions of the main one in 0.5.14, and missed the CPU's.
STALE: Mapping[str, Mapping[str, set[str]]] = {
    "0.5.11": {
        "test_decode_inputs": {ROWS, POSITIONS, MROPE},
        "test_cpu_runner": {ROWS, POSITIONS},
        "test_draft": set(),
        "test_draft_extend": {ROWS},
        "test_multi_layer_step": {ROWS},
    },
    "0.5.12": {
        "test_decode_inputs": {ROWS, POSITIONS, MROPE},
        "test_cpu_runner": {ROWS, POSITIONS},
        "test_draft": set(),
        "test_draft_extend": {ROWS},
        "test_frozen_kv_mtp": {ROWS},
        "test_multi_layer_step": {ROWS},
    },
    "0.5.13": {
        "test_slot_registry": {POSITIONS, MROPE},
        "test_cpu_runner": {POSITIONS},
        "test_draft": set(),
        "test_draft_extend": set(),
        "test_frozen_kv_mtp": set(),
        "test_multi_layer_step": {ROWS},
    },
    "0.5.14": {
        "test_slot_registry": set(),
        "test_cpu_runner": {POSITIONS},
        "test_draft": set(),
        "test_draft_extend": set(),
        "test_frozen_kv_mtp": set(),
        "test_multi_layer_step": {ROWS},
    },
    **{
        release: {
            "test_slot_registry": set(),
            "test_cpu_runner": {POSITIONS},
            "test_draft": set(),
            "test_draft_extend": set(),
            "test_frozen_kv_mtp": set(),
            "test_multi_layer_all_steps": {ROWS},
        }
        for release in ("0.5.16", "0.5.19")
    },
    "0.5.23": {
        "test_slot_registry": set(),
        "test_cpu_runner": {POSITIONS},
        "test_draft": set(),
        "test_draft_extend": set(),
        "test_frozen_kv_mtp": set(),
        "test_multi_layer_all_steps": {ROWS},
        # A backend that stages its metadata has the tail reset, by one method or the other.
        "test_multi_layer_staged_by_prepare": set(),
        "test_multi_layer_staged_ahead": set(),
    },
}


@cache
def drive(release: str, mode: str) -> tuple[Mapping[str, str], frozenset[str], str]:
    """Returns the failures by test, the tests that were skipped, and what was printed."""
    try:
        python = sglang_python(BASE)
        before = [] if release == BASE else [str(sglang_overlay(release))]
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)
    junit = python.parent.parent / f"tails-{release}-{mode}-{os.getpid()}.xml"
    command = [str(python), "-m", "pytest", "-p", "fmcheck", f"--fmcheck={mode}", str(DRIVE)]
    command += ["-p", "no:cacheprovider", f"--junitxml={junit}", "--rootdir=/", "-c", os.devnull]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
        "PYTHONPATH": os.pathsep.join([*before, str(REPOSITORY), str(STUBS)]),
        "TRITON_INTERPRET": "1",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=python.parent, check=False
    )
    if not junit.exists():
        pytest.fail(f"sglang {release}:\n{done.stdout}{done.stderr}", pytrace=False)
    cases = ElementTree.parse(junit).findall(".//testcase")
    junit.unlink()
    failures = {
        case.get("name", ""): bad.text or ""
        for case in cases
        for bad in (*case.findall("failure"), *case.findall("error"))
    }
    skipped = frozenset(c.get("name", "") for c in cases if c.find("skipped") is not None)
    return failures, skipped, done.stdout


def stale(failure: str) -> set[str]:
    return set(re.findall(r"^FMCHECK: FR201 stale-tail in \w+\.(\w+) rows", failure, re.MULTILINE))


@pytest.mark.parametrize(
    ("release", "test"), [(release, test) for release in STALE for test in STALE[release]]
)
def test_a_fill_of_the_real_engine_is_reported_for_just_what_it_leaves(
    release: str, test: str
) -> None:
    failures, skipped, output = drive(release, "fail")
    assert test not in skipped
    assert stale(failures.get(test, "")) == STALE[release][test], output
    if not STALE[release][test]:
        assert test not in failures


@pytest.mark.parametrize("release", STALE)
def test_every_runner_of_the_release_was_driven(release: str) -> None:
    failures, skipped, output = drive(release, "fail")
    assert not skipped & set(STALE[release])
    assert set(failures) <= set(STALE[release])
    assert "fmcheck error" not in output


@pytest.mark.parametrize("release", ["0.5.12", "0.5.23"])
def test_without_the_watch_the_fills_do_the_same(release: str) -> None:
    assert drive(release, "off")[0] == {}
