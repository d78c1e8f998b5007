"""The rules about streams on released trees: the historic faults, and what came after them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from fmcheck.config import Located, Settings
from fmcheck.contract import parse_contract
from fmcheck.lint.engine import lint_file, lint_text
from fmcheck.registry import contracts_for, rules
from tests.corpus import wheel_source

if TYPE_CHECKING:
    from fmcheck.contract import Contract

SCHEDULER = "sglang/srt/managers/scheduler.py"
VLLM_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
GUARD = """
engine.name = "vllm"
[[streams.guard]]
name = "synchronize_input_prep"
covers = ["_update_states", "_prepare_inputs", "_preprocess"]
"""


@cache
def registered() -> tuple[Contract, ...]:
    return contracts_for(Located(Settings(), None))


def lines(code: str, package: str, release: str, file: str) -> list[int]:
    path = wheel_source(package, release) / file
    return [one.span.line for one in lint_file(path, [rules()[code](registered())])]


def test_staging_of_0_5_19_waits_for_the_default_stream() -> None:
    staging = "sglang/srt/disaggregation/common/staging_buffer.py"

    assert lines("FM406", "sglang", "0.5.19", staging) == [364, 440]
    assert lines("FM406", "sglang", "0.5.23", staging) == []


def test_barrier_of_0_5_14_stands_before_the_launch_and_that_of_0_5_16_after_it() -> None:
    assert lines("FM408", "sglang", "0.5.14", SCHEDULER) == [1578]
    assert lines("FM408", "sglang", "0.5.16", SCHEDULER) == []


def test_truth_of_two_asynchronous_copies_is_asked_for_at_once() -> None:
    modulate = "sglang/kernels/ops/diffusion/modulate/scale_shift_triton.py"

    assert lines("FM404", "sglang", "0.5.23", modulate) == [554, 555]


def test_object_is_made_of_a_copy_that_nothing_waits_for() -> None:
    assert lines("FM404", "vllm", "0.20.2", "vllm/v1/attention/backends/utils.py") == [407]


@pytest.mark.parametrize("code", ["FM401", "FM404", "FM405"])
@pytest.mark.parametrize(
    "file", ["vllm/v1/worker/gpu/async_utils.py", "vllm/v1/kv_offload/worker/cpu_gpu.py"]
)
def test_what_vllm_orders_is_left_alone(code: str, file: str) -> None:
    assert lines(code, "vllm", "0.20.2", file) == []


def guarded(source: bytes) -> list[int]:
    rule = rules()["FM403"]([parse_contract(GUARD, "vllm")])
    return [one.span.line for one in lint_text(source, VLLM_RUNNER, [rule])]


def test_guard_of_vllm_covers_what_writes_reused_inputs() -> None:
    source = (wheel_source("vllm", "0.20.2") / VLLM_RUNNER).read_bytes()
    body = b"            deferred_state_corrections_fn = self._update_states("
    before = b"        with (\n            record_function_or_nullcontext("
    moved = source.replace(before, b"        self._update_states(scheduler_output)\n" + before, 1)
    line = moved[: moved.index(b"        self._update_states(scheduler_output)\n")].count(b"\n") + 1

    assert body in source
    assert guarded(source) == []
    assert guarded(moved) == [line]


UNORDERED = """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
"""


@pytest.mark.parametrize(
    "entered",
    [
        "with (\n        torch.no_grad(),\n        torch.cuda.stream(self.side),\n    ):",
        "with torch.no_grad(), \\\n            torch.cuda.stream(self.side):",
        "with note('('), torch.no_grad(  # :)\n    ), torch.cuda.stream(self.side):",
        "with torch.no_grad(\n    ), torch.cuda.stream(\n        self.side\n    ):",
        "with torch.cuda.stream(\n        # the copies'\n        stream=self.side\n    ):",
        "with torch.cuda.StreamContext(self.side):",
        "with self.side_stream_ctx:",
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_stream_is_entered_however_the_head_is_laid_out(entered: str, ends: str) -> None:
    source = UNORDERED.replace("with torch.cuda.stream(self.side):", entered)

    found = lint_text(source.replace("\n", ends).encode(), "a.py", [rules()["FM401"](())])

    assert [one.code for one in found] == ["FM401"]


@pytest.mark.parametrize(
    "wait",
    [
        "self.other.wait_stream(torch.cuda.current_stream())",
        "self.side.wait_stream(self.other)\n    self.other.wait_stream(self.side)",
        "with torch.cuda.stream(self.other):\n        self.other.wait_event(self.ready)",
    ],
)
def test_wait_of_another_stream_orders_nothing(wait: str) -> None:
    source = UNORDERED.replace("    with", f"    {wait}\n    with", 1)

    found = lint_text(source.encode(), "a.py", [rules()["FM401"](())])

    assert found == lint_text(source.encode(), "a.py", [rules()["FM401"](())], whole=True)
    assert len(found) == ("self.side" not in wait)


REUSED = """\
import torch

class Lengths:
{filler}
    def __init__(self, n):
        self.host = torch.empty(n, pin_memory=True)

    def keep(self):
        {view}

    def stage(self, values):
        self.lens.copy_(self.host, non_blocking=True)
        self.host_np.fill(1)
"""
FILLER = "".join(f"    field_{number} = {number}\n" for number in range(100))


@pytest.mark.parametrize(
    "view",
    [
        "self.host_np = self.host.numpy()",
        "self.host_np: torch.Tensor = (\n            self.host.numpy()\n        )",
        "self . host_np = \\\n            self.host.numpy()",
        "self.host_np = self.other = self.host.numpy()",
        "self.host_np: dict[\n            str, int\n        ] = self.host.numpy()",
    ],
)
def test_view_that_another_method_keeps_is_the_same_buffer(view: str) -> None:
    source = REUSED.format(filler=FILLER, view=view).encode()
    rule = rules()["FM403"](())

    found = lint_text(source, "a.py", [rule])

    assert [one.code for one in found] == ["FM403"]
    assert found == lint_text(source, "a.py", [rule], whole=True)
