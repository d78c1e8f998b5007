"""Historic faults that no check was written for: what is seen of them stays seen."""

from __future__ import annotations

import pytest

from tests.unseen import Measured, case, here, is_seen, marked, names, records

#: What no check can see by now, as docs/limits.md says.
UNSEEN = [
    "ascend_13902",
    "ascend_9687",
    "deepspeed_8158",
    "gaudi_589",
    "megatron_4982",
    "sdnext_28eeb0",
    "sdnext_68f3c2",
    "sglang_32896",
    "sglang_33016",
    "tokenspeed_376",
    "vllm_38148",
    "vllm_ascend_8749",
]
#: Reported where a thread of the host is slower than another one, which is as it comes.
BY_CHANCE = ["ascend_13120", "torchtitan_1783"]


@pytest.mark.parametrize("name", names())
def test_an_unseen_fault_is_reported_if_it_can_be_and_its_fix_is_not(name: str) -> None:
    bad, good = here(name, "bad"), here(name, "good")
    assert not good.findings
    assert not good.problems
    if name not in BY_CHANCE:
        assert is_seen(name, Measured("", bad, good)) == (name not in UNSEEN)


def test_each_case_was_measured_once_and_says_where_its_fault_is() -> None:
    assert set(records()) == set(names())
    assert all(marked(name) and case(name).thread for name in names())
