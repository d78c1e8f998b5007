"""The real fill methods of seven SGLang releases' graph runners, under `pytest -p fmcheck`.

Which of their tails are stale is known from reading; what fmcheck says of them is set beside it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.drives import drive
from tests.sglang_env import NoEnvironment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.drives import Drive


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
        "test_slot_registry_that_no_graph_reads": set(),
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


def drove(release: str, mode: str) -> Drive:
    try:
        return drive(release, "tails", mode=mode)
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)


def stale(failure: str) -> set[str]:
    return set(
        re.findall(r"^FMCHECK: FR201 stale-tail in [\w.]+\.(\w+) rows", failure, re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("release", "test"), [(release, test) for release in STALE for test in STALE[release]]
)
def test_a_fill_of_the_real_engine_is_reported_for_just_what_it_leaves(
    release: str, test: str
) -> None:
    reported = drove(release, "fail")
    assert test not in reported.skipped
    assert stale(reported.failures.get(test, "")) == STALE[release][test], reported.output
    if not STALE[release][test]:
        assert test not in reported.failures


@pytest.mark.parametrize("release", STALE)
def test_every_runner_of_the_release_was_driven(release: str) -> None:
    reported = drove(release, "fail")
    assert not reported.skipped & set(STALE[release])
    assert set(reported.failures) <= set(STALE[release])
    assert "fmcheck error" not in reported.output


@pytest.mark.parametrize("release", ["0.5.12", "0.5.23"])
def test_without_the_watch_the_fills_do_the_same(release: str) -> None:
    assert dict(drove(release, "off").failures) == {}
