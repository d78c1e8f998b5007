"""Each fault of docs/found.md, shown on the engine's unmodified code, in a process of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fixtures.found.late import CUDA, LateDevice
from tests.found import DRIVES, FOUND, shown
from tests.sglang_env import NoEnvironment

PAGE = Path(__file__).parent.parent / "docs" / "found.md"
#: What a user gets in the order that the author had in mind, and in another that is allowed.
WRONG = {
    "atom_logprobs": ("[-0.313, -0.127, -0.049, -0.018]", "[2.0, 3.0, 4.0, 5.0]"),
    "deepspeed_put": ("[45, 19, 87]", "[87, 87, 87]"),
    "gllm_tokens": (
        "[[10, 73, 9, 66, 61], [17, 21, 49, 43, 1]]",
        "[[73, 9, 66, 61, 61], [21, 49, 43, 1, 1]]",
    ),
    "lightx2v_flux2": ("[510.0, 510.0, 510.0, 510.0]", "[110.0, 110.0, 110.0, 110.0]"),
    "mini_sglang_row": ("[78, 18, 43, 41, 25, 99]", "[74, 87, 90, 13, 3, 24]"),
    "mstar_offload": ("[59, 68, 39, 9, 72]", "[76, 2, 16, 27, 14]"),
    "mstar_sampling": ("[19, 19, 19, 19, 19, 19]", "[17, 14, 17, 18, 10, 13]"),
    "sglang_lora": ("[11, 12, 21, 22]", "[21, 22, 21, 22]"),
    "transformers_batching": ("[55, 67, 14, 82, 12, 32]", "[55, 88, 59, 7, 59, 12]"),
    "transformers_offload": ("[48, 48, 48, 30, 30, 59]", "[48, 69, 30, 0, 83, 48]"),
    "vllm_ascend_seed": ("[22, 28, 6, 20]", "[20, 20, 20, 20]"),
    "vllm_fast_prefill": ("[1, 2, 2, 2]", "[1, 1, 1, 1]"),
    "vllm_gcu_index": ("[11, 80, 58]", "[7, 52, 64]"),
    "vllm_weights": ("[40.0, 40.0, 40.0, 40.0]", "[4.0, 4.0, 4.0, 4.0]"),
}


#: Nothing downloads these: `python -m tests.found NAME` shows them where there is a clone.
CLONED = {name for name, one in FOUND.items() if one.needs_clone}


@pytest.mark.release
@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(FOUND.keys() - CLONED))
def test_an_order_that_the_fences_allow_changes_what_a_user_gets(name: str) -> None:
    try:
        done = shown(name)
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)
    assert done.returncode == 0, done.stdout + done.stderr
    right, wrong = WRONG[name]
    assert f"  right: {right}\n  wrong: {wrong}\n" in done.stdout


def test_every_drive_is_run() -> None:
    assert {path.stem for path in DRIVES.glob("*.py")} == set(FOUND) == set(WRONG)


@pytest.mark.parametrize("name", sorted(FOUND))
def test_the_page_has_the_command_the_version_and_the_figures(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"^## ", page, flags=re.M)[1:]
    section = next(part for part in sections if f"tests.found {name}" in part)
    right, wrong = WRONG[name]
    assert f"right: {right}\n  wrong: {wrong}" in section
    assert FOUND[name].version in section


@pytest.mark.torch
@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
def test_the_stand_in_for_a_device_waits_where_pageable_memory_is_copied(make) -> None:
    with LateDevice() as device:
        device.default.late = True
        torch.ones(2, device=CUDA).add_(1)
        assert not device.default.query()
        make([1, 2], device=CUDA)
        assert device.default.query()
