"""Historic faults that no check was written for: what is seen of them stays seen."""

from __future__ import annotations

import pytest

from tests.unseen import Measured, case, is_seen, marked, names, records, told

#: What a watch sees by now; the first measurement is in `tests/data/unseen.json`.
SEEN = [
    "ai_toolkit_d184c6c622",
    "ai_toolkit_f4e913",
    "aiter_3288",
    "atom_1229",
    "internevo_276",
    "lightllm_1163",
    "magi_attention_75",
    "megatron_2652",
    "megatron_6388",
    "mini_sglang_103",
    "mstar_0f6221",
    "nequip_def793c",
    "sglang_31870",
    "torchcodec_1651",
    "torchrec_1770",
    "torchrec_2071",
    "transformer_engine_1624",
    "transformer_engine_3089",
    "vllm_37873",
    "vllm_39833",
    "vllm_43020",
    "vllm_ascend_11973",
    "vllm_ascend_13394",
]


@pytest.mark.parametrize("name", names())
def test_an_unseen_fault_is_reported_if_it_ever_was_and_its_fix_is_not(name: str) -> None:
    bad, good = told(name, "bad"), told(name, "good")
    assert not good.findings
    assert not good.problems
    assert is_seen(name, Measured("", bad, good)) == (name in SEEN)


def test_each_case_was_measured_once_and_says_where_its_fault_is() -> None:
    assert set(records()) == set(names())
    assert all(marked(name) and case(name).thread for name in names())
