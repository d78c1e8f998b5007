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


#: A side stream that works between a fork and a join.
ENGINE = """\
import torch

class Engine:
    def __init__(self):
        self.side = torch.cuda.Stream()
        self.done = torch.cuda.Event()

    @property
    def own(self):
        return self.side

    def pair(self, one, other):
        one.wait_stream(other)

    def itself(self, one):
        one.wait_event(one.record_event())

    def main_waits(self, other):
        torch.cuda.current_stream().wait_stream(other)

    def join_twice(self):
        self.side.wait_stream(self.side)

    def forward(self, hidden):
        rows = torch.cat(hidden)
        {fork}
        with torch.cuda.stream(self.side):
            out = torch.mm(rows, rows)
        {join}
        return out + 1
"""
FORK = "self.side.wait_stream(torch.cuda.current_stream())"
JOIN = "torch.cuda.current_stream().wait_stream(self.side)"
ITSELF = [
    "self.side.wait_stream(self.side)",
    "a, b = self.side, self.side; a.wait_stream(b)",
    "s = self.side if self.side is not None else None; s.wait_stream(self.side)",
    "(s := self.side).wait_stream(s)",
    "getattr(self.side, 'wait_stream')(self.side)",
    "self.copies = self.side; self.copies.wait_stream(self.side)",
    "self.own.wait_stream(self.side)",
    "sides = {'a': self.side}; sides['a'].wait_stream(sides['a'])",
    "self.side.wait_event(self.side.record_event())",
    "self.done.record(self.side); self.done.wait(self.side)",
    "self.done.record(); self.done.wait()",
    "self.pair(self.side, self.side)",
    "self.pair(one=self.side, other=self.own)",
    "self.itself(self.side)",
    "self.join_twice()",
]
OTHERS = [
    "a, b = torch.cuda.current_stream(), self.side; a.wait_stream(b); b.wait_stream(a)",
    "self.pair(torch.cuda.current_stream(), self.side); self.pair(self.side, self.main)",
    "self.main_waits(self.side); self.side.wait_stream(torch.cuda.current_stream())",
    "self.pair(self.sides.pop(), self.sides.pop())",
]


def engine_codes(source: str) -> list[str]:
    both = [rules()["FM401"](()), rules()["FM409"](())]
    return sorted(one.code for one in lint_text(source.encode(), "a.py", both))


@pytest.mark.parametrize("wait", ITSELF)
def test_a_stream_that_waits_for_itself_orders_nothing(wait: str) -> None:
    assert engine_codes(ENGINE.format(fork=FORK, join=JOIN)) == []
    assert engine_codes(ENGINE.format(fork=wait, join=JOIN)) == ["FM401"]
    assert engine_codes(ENGINE.format(fork=FORK, join=wait)) == ["FM409"]


@pytest.mark.parametrize("wait", OTHERS)
def test_what_may_wait_for_another_stream_may_order(wait: str) -> None:
    assert engine_codes(ENGINE.format(fork=wait, join=JOIN)) == []
    assert engine_codes(ENGINE.format(fork=FORK, join=wait)) == []


def test_what_is_handed_the_stream_and_is_not_seen_may_join_it() -> None:
    assert engine_codes(ENGINE.format(fork=FORK, join="self.launch(self.side)")) == []


def test_a_join_by_a_property_is_one_of_the_stream_that_it_returns() -> None:
    join = "torch.cuda.current_stream().wait_stream(self.own)"
    assert engine_codes(ENGINE.format(fork=FORK, join=join)) == []


#: Bodies on a stream that the class keeps, or the module.
KEPT = """\
import torch

{module}
class Holder:
    def __init__(self):
        self.copy_stream = {made}

class Engine:
    def __init__(self, stream=None):
        {keep}

    def save(self, parts):
        rows = torch.cat(parts)
        with {enter}:
            self.host.copy_(rows, non_blocking=True)

    def load(self, rows):
        with {enter}:
            rows = rows.to("cuda", non_blocking=True)
        return rows + 1
"""
WAYS = {
    "an attribute": ("self.copy_stream = {made}", "self.copy_stream"),
    "one of two": ("self.copy_stream, self.n = {made}, 1", "self.copy_stream"),
    "a walrus": ("self.copy_stream = (made := {made})", "self.copy_stream"),
    "a list": ("self.streams = [{made}]", "self.streams[0]"),
    "a dict": ("self.streams = {{'main': 0, 'copy': {made}}}", "self.streams['copy']"),
    "a global of a method": ("global copy_stream; copy_stream = {made}", "copy_stream"),
    "an object of another class": ("self.holder = Holder()", "self.holder.copy_stream"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_current_stream_that_is_kept_is_no_side_stream(way: str) -> None:
    keep, stream = WAYS[way]

    def found(made: str) -> list[str]:
        return engine_codes(
            KEPT.format(
                module="copy_stream = None\n",
                made=made,
                keep=keep.format(made=made),
                enter=f"torch.cuda.stream({stream})",
            )
        )

    assert found("torch.cuda.current_stream()") == []
    assert found("torch.cuda.Stream()") == ["FM401", "FM409"]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("torch.cuda.current_stream()", []),
        ("stream or torch.cuda.current_stream()", []),
        ("torch.cuda.Stream() if stream else torch.cuda.current_stream()", ["FM401"]),
        ("torch.cuda.Stream()", ["FM401"]),
    ],
)
def test_a_context_that_is_kept_is_one_of_its_stream(made: str, expected: list[str]) -> None:
    keep = f"self.copy_stream_ctx = torch.cuda.stream({made})"
    source = KEPT.format(module="", made="0", keep=keep, enter="self.copy_stream_ctx")

    assert [one for one in engine_codes(source) if one == "FM401"] == expected
