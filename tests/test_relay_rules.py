"""The rules about relays and launches: on released trees, and the helpers that they share."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from fmcheck.config import Located, Settings
from fmcheck.contract import parse_contract
from fmcheck.finding import Severity
from fmcheck.lint.devices.syncs import Syncs
from fmcheck.lint.engine import lint_file, lint_text
from fmcheck.lint.model.accesses import Accesses
from fmcheck.lint.model.relays import Relays
from fmcheck.lint.source.file import File
from fmcheck.lint.source.identity import is_module
from fmcheck.registry import contracts_for, rules
from tests import truth
from tests.corpus import wheel_source
from tests.parts import function_of

if TYPE_CHECKING:
    from fmcheck.contract import Contract
    from fmcheck.lint.model.function import Function

RELAY_RULES = ("FM101", "FM102", "FM104", "FM105", "FM501")
OVERLAP_UTILS = "sglang/srt/managers/overlap_utils.py"


@cache
def sglang() -> tuple[Contract, ...]:
    return contracts_for(Located(Settings(), None))


def lines(code: str, release: str, file: str = OVERLAP_UTILS) -> list[int]:
    path = wheel_source("sglang", release) / file
    return [finding.span.line for finding in lint_file(path, [rules()[code](sglang())])]


@pytest.mark.parametrize("code", ["FM101", "FM104", "FM501", "FM502"])
def test_truth_holds(code: str) -> None:
    expected = [line for line in truth.lines() if line.code == code]
    assert expected
    assert [str(one.line) for one in truth.verdicts(expected) if not one.is_right] == []


def test_the_ring_of_0_5_12_is_unchecked_unpoisoned_and_costs_five_launches_each_way() -> None:
    assert lines("FM101", "0.5.12.post1") == [147, 148, 149, 150, 152]
    assert lines("FM102", "0.5.12.post1") == [75, 97, 102, 107]
    assert lines("FM104", "0.5.12.post1") == [124]
    assert lines("FM501", "0.5.12.post1") == [147, 182]


#: A relay class, a method body, and what FM102 and FM104 say of it.
BODIES = [
    ("self.topk_index_buf, self.n = torch.empty(8), 0", ["FM102"]),
    ("self.topk_index_buf = torch.empty(8); self.topk_index_buf[:] = -1", []),
    ("self.topk_index_buf = torch.empty(8); self.topk_index_buf[...] = -1", []),
    (
        "self.topk_index_buf = torch.empty(8)\n"
        "        for one in (self.topk_index_buf,): one.fill_(-1)",
        [],
    ),
    (
        "self.count = (self.count + rows) % self.limit; self.topk_index_buf[self.count] = 1",
        ["FM104"],
    ),
    (
        "self.refuse(rows); self.count = (self.count + rows) % self.limit\n"
        "        self.topk_index_buf[self.count] = 1\n"
        "    def refuse(self, rows):\n"
        "        assert self.used + rows < self.limit",
        [],
    ),
    (
        "while not self.has_room(rows): self.drain()\n"
        "        self.count = (self.count + rows) % self.limit\n"
        "        self.topk_index_buf[self.count] = 1",
        [],
    ),
]


@pytest.mark.parametrize(("body", "expected"), BODIES)
def test_a_buffer_is_filled_and_a_ring_asked_in_many_ways(body: str, expected: list[str]) -> None:
    text = f"import torch\nclass FutureMap:\n    def act(self, rows):\n        {body}\n".encode()
    chosen = [rules()[code](sglang()) for code in ("FM102", "FM104")]
    assert [one.code for one in lint_text(text, OVERLAP_UTILS, chosen)] == expected


def test_the_one_gather_that_0_5_13_left_unchecked_is_found() -> None:
    assert lines("FM101", "0.5.13") == [213]


def test_what_0_5_23_checks_is_left_alone() -> None:
    assert lines("FM101", "0.5.23") == [484, 485]
    assert lines("FM104", "0.5.23") == []
    assert lines("FM105", "0.5.23") == []


@pytest.mark.parametrize(
    ("handed", "is_checked"),
    [
        ("(p >= 0).all()", True),
        ("torch.all(p.cpu() >= 0), 'stale row'", True),
        ("(q >= 0).all() and bool((p >= 0).all())", True),
        ("(prompts >= 0).all()", False),
        ("(batch.p >= 0).all()", False),
        ("ok, p='stale row'", False),
    ],
)
def test_an_assert_is_one_of_what_it_names(handed: str, is_checked: bool) -> None:
    body = f"        p = self.output_tokens_buf[rows]\n        torch._assert_async({handed})\n"
    source = f"import torch\nclass FutureMap:\n    def resolve(self, batch, rows, q, ok):\n{body}"
    (found,) = lint_text(source.encode(), OVERLAP_UTILS, [rules()["FM101"](sglang())])
    assert ("its rows are not invalidated" in f"{found.message} {found.note}") is is_checked


#: A relay with helpers that check what they are handed, and what stands around a gather in it.
GUARDED = """
import contextlib

class FutureMap:
    @contextlib.contextmanager
    def settled(self, rows):
        try:
            yield
        finally:
            check(self.output_tokens_buf, rows)

    @contextlib.contextmanager
    def looked_at(self, rows):
        check(self.output_tokens_buf, rows)
        yield

    def check(self, rows):
        check(self.output_tokens_buf, rows)

    def resolve(self, batch, rows):
        {around}
            batch.p = self.output_tokens_buf[rows]
"""
GUARD = "guarded(self.output_tokens_buf, rows)"


@pytest.mark.parametrize(
    ("around", "is_checked"),
    [
        (f"with torch.no_grad(), {GUARD} as guard:", True),
        (f"guard = {GUARD}\n        with guard:", True),
        (f"with {GUARD} if DEBUG else contextlib.nullcontext():", True),
        (f"with contextlib.ExitStack() as stack:\n            stack.enter_context({GUARD})", True),
        (
            "with contextlib.ExitStack() as stack:\n"
            "            stack.callback(check, self.output_tokens_buf, rows)",
            True,
        ),
        ("with self.settled(rows):", True),
        ("with self.looked_at(rows):", False),
        ("with self.settled(batch.rows):", False),
        ("with guarded(self.output_tokens_buf, batch.rows):", False),
        ("with torch.no_grad():", False),
        (f"guard = {GUARD}\n        if guard:", False),
        (f"with {GUARD}:\n            pass\n        if batch:", False),
        (
            f"with contextlib.ExitStack() as stack:\n            other.enter_context({GUARD})",
            False,
        ),
        ("if batch:\n            batch.p = 0\n        if batch:", False),
    ],
)
def test_a_gather_inside_of_a_guard_is_checked_as_that_is_left(
    around: str, is_checked: bool
) -> None:
    source = GUARDED.format(around=around).encode()
    found = lint_text(source, OVERLAP_UTILS, [rules()["FM101"](sglang())])
    assert [one.code for one in found] == ["FM101"] * (not is_checked)


@pytest.mark.parametrize(
    ("after", "is_checked"), [("self.check(rows)", True), ("self.check(batch.rows)", False)]
)
def test_a_method_that_checks_the_rows_that_it_is_handed_is_a_guard(
    after: str, is_checked: bool
) -> None:
    source = f"{GUARDED.format(around='if batch:')}        {after}\n".encode()
    found = lint_text(source, OVERLAP_UTILS, [rules()["FM101"](sglang())])
    assert [one.code for one in found] == ["FM101"] * (not is_checked)


def test_late_results_are_booked_unasked_up_to_0_5_11() -> None:
    managers = "sglang/srt/managers/"
    mixin = managers + "scheduler_output_processor_mixin.py"
    processor = managers + "scheduler_components/batch_result_processor.py"
    assert lines("FM106", "0.5.11", mixin) == [373]
    assert lines("FM106", "0.5.12", mixin) == []
    assert lines("FM106", "0.5.23", processor) == []


@pytest.mark.parametrize("code", [*RELAY_RULES, "FM106", "FM502"])
def test_rule_is_silent_without_a_contract(code: str) -> None:
    rule = rules()[code]
    for example in rule.bad:
        assert lint_text(example.code.encode(), example.path, [rule([])]) == []


@pytest.mark.parametrize("code", RELAY_RULES)
def test_file_without_a_relay_class_is_not_looked_at(code: str) -> None:
    rule = rules()[code](sglang())
    texts = {
        "self.output_tokens_buf[rows]": False,
        "class FutureMap": False,
        "class FutureMap: output_tokens_buf[rows]": True,
    }
    for text, is_wanted in texts.items():
        # Rules about a relay's own module ask for the module alone, before they look for words.
        file = File("sglang/x.py" if is_wanted is False else OVERLAP_UTILS, text)
        assert (rule.applies(file) and file.holds_all(rule.words)) is is_wanted


# The accesses of relay buffers.


def accesses(body: str, path: str = OVERLAP_UTILS) -> Accesses:
    source = "class FutureMap:\n    def act(self, batch, rows, future_map):\n        " + body
    return Accesses(function_of(f"{source}\n", path), Relays(sglang()))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x = self.output_tokens_buf[rows]", [("output_tokens_buf", "rows", False)]),
        ("self.output_tokens_buf[rows] = batch", [("output_tokens_buf", "rows", True)]),
        ("self.output_tokens_buf[rows] += 1", [("output_tokens_buf", "rows", True)]),
        ("b = self.topk_p_buf; x = b.view(-1)[rows]", [("topk_p_buf", "rows", False)]),
        ("i = batch.rows; x = self.topk_p_buf[i]", [("topk_p_buf", "batch.rows", False)]),
        ("x = future_map.topk_p_buf[rows]", [("topk_p_buf", "rows", False)]),
        ("x = batch.topk_p_buf[rows]", []),
        ("x = self.topk_p_buf[0] + self.topk_p_buf[:4] + self.topk_p_buf[-1]", []),
        ("self.topk_p_buf.index_copy_(0, rows, batch)", [("topk_p_buf", "rows", True)]),
        ("x = self.topk_p_buf.index_select(0, rows)", [("topk_p_buf", "rows", False)]),
        ("x = torch.index_select(self.topk_p_buf, 0, rows)", [("topk_p_buf", "rows", False)]),
        ("x = torch.gather(self.topk_p_buf, 0, rows)", [("topk_p_buf", "rows", False)]),
        ("x = self.topk_p_buf.gather(index=rows, dim=0)", [("topk_p_buf", "rows", False)]),
        ("x = self.topk_p_buf.take_along_dim(rows, 0)", [("topk_p_buf", "rows", False)]),
        ("x = torch.take(self.topk_p_buf, rows)", [("topk_p_buf", "rows", False)]),
        ("x = F.embedding(rows, self.topk_p_buf)", [("topk_p_buf", "rows", False)]),
        ("x = torch.gather(batch, 0, self.topk_p_buf)", []),
        ("for i in range(batch): log(self.topk_p_buf[i])", []),
        ("x = [self.topk_p_buf[i] for i, _ in enumerate(batch)]", []),
        ("for i in range(batch): self.topk_p_buf[i] = 0", [("topk_p_buf", "i", True)]),
        ("x = self.draft_probs_buf[rows]", []),
        (
            "x = self.draft_probs_buf[rows], self.topk_p_buf",
            [("draft_probs_buf", "rows", False)],
        ),
        (
            "gather_spec_extras(self.topk_p_buf, indices=rows)",
            [("topk_p_buf", "rows", False)],
        ),
        ("gather_spec_extras(rows, self.topk_p_buf)", [("topk_p_buf", "rows", False)]),
        ("del self.topk_p_buf[rows]", []),
        ("self.topk_p_buf[()] = batch", [("topk_p_buf", "()", True)]),
        ("self.topk_p_buf[rows].zero_(); self.topk_p_buf[rows].copy_(batch)", []),
        ("self.topk_p_buf[rows] = batch[rows : rows + 1]", []),
        ("x = self.topk_p_buf[rows].sum_()", [("topk_p_buf", "rows", False)]),
    ],
)
def test_accesses(body: str, expected: list[tuple[str, str, bool]]) -> None:
    found = accesses(body).all
    assert [(one.buffer, one.index, one.is_write) for one in found] == expected


def test_elsewhere_a_buffer_is_known_by_what_holds_it() -> None:
    body = "x = self.future_map.topk_p_buf[rows], self.topk_p_buf[rows]"
    assert len(accesses(body, "sglang/srt/managers/scheduler.py").all) == 1


def test_a_second_gather_is_no_check_of_the_first() -> None:
    body = "x = self.topk_p_buf[rows]; y = torch.gather(self.topk_p_buf, 0, rows)"
    assert list(accesses(body).guards("rows")) == []


def test_only_a_constant_puts_the_poison_back() -> None:
    body = "b = self.topk_p_buf; b[rows] = -1; b[rows] = POISON; b[rows] = batch.p"
    assert [one.is_constant for one in accesses(body).writes] == [True, True, False]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/engine/relay.py", True),
        ("engine\\relay.py", True),
        ("engine/relay.py", True),
        ("an_engine/relay.py", False),
        ("engine/relay/map.py", False),
    ],
)
def test_a_file_is_a_module_by_its_whole_path(path: str, expected: bool) -> None:
    assert is_module(path, "engine.relay") is expected


# What makes the host wait.

SYNCS = [
    "x = batch.ids[0].item()",
    "x = batch.ids.cpu().numpy()",
    "x = batch.ids.to('cpu')",
    "x = batch.ids.to(device='cpu')",
    "x = torch.tensor(batch.new, device=self.device)",
    "x = torch.as_tensor([1, 2], device='cuda')",
    "n = torch.tensor(batch.new); x = n.to(self.device, non_blocking=True)",
    "x = batch.ids.to(torch.device('cpu'))",
    "assert torch.all(batch.mask)",
    "x = bool(torch.any(batch.mask))",
    "x = torch.from_numpy(batch.new).cuda(non_blocking=True)",
    "x = torch.nonzero(batch.ids)",
    "x = batch.ids.unique()",
    "x = torch.where(batch.ids > 0)",
    "x = batch.ids[batch.ids > 0]",
    "x = batch.ids[~batch.done]",
    "m = batch.ids > 0; x = batch.ids[m]",
    "x = batch.ids[batch.loss_mask]",
    "x = int(batch.ids.sum())",
    "x = bool(batch.mask.any())",
    "x = 1 if not batch.mask.any() else 2",
    "assert batch.mask.all()",
    "for i in range(4): x = batch.seq_lens[i]",
    "x = [batch.seq_lens[i] for i, _ in enumerate(batch.reqs)]",
]
NO_SYNCS = [
    "x = batch.ids.to(device='cpu', non_blocking=True)",
    "x = batch.ids_cpu.tolist()",
    "x = self.starts_np[0].item()",
    "h = batch.ids.to('cuda').shape; x = torch.zeros(4).sum().item()",
    "x = torch.tensor(batch.new, pin_memory=True).to(self.device, non_blocking=True)",
    "x = torch.tensor(batch.new, device='cpu')",
    "x = torch.tensor(0, device=self.device)",
    "x = torch.from_numpy(batch.new).to(self.device)",
    "batch.ids[batch.ids < 0] = 0",
    "x = torch.where(batch.ids > 0, batch.ids, 0)",
    "x = any(batch.flags) and bool(batch.reqs)",
    "x = int(batch.seq_lens_cpu.sum())",
    "x = batch.ids[rows]",
    "x = batch.seq_lens[0]",
    "for i in range(4): x = batch.seq_lens_cpu[i]",
    "for i in range(4): x = batch.chunks[i]",
    "x = np.unique(batch.names)",
    "x = torch.any(batch.mask)",
    "m = batch.copy(); x = batch.ids[m]",
]


def step(body: str) -> Function:
    source = "import torch\nimport numpy as np\ndef step(self, batch, rows):\n    " + body
    return function_of(f"{source}\n", "step.py")


@pytest.mark.parametrize("body", SYNCS)
def test_host_waits(body: str) -> None:
    assert len(list(Syncs(step(body), mirrored=["seq_lens"]).all())) == 1


@pytest.mark.parametrize("body", NO_SYNCS)
def test_host_does_not_wait(body: str) -> None:
    assert list(Syncs(step(body), mirrored=["seq_lens"]).all()) == []


def test_names_that_the_contract_calls_host_values_are_left_alone() -> None:
    assert list(Syncs(step("x = batch.delta.item()"), host_values=["del*"]).all()) == []


@pytest.mark.parametrize(
    ("value", "count"),
    [("self.host_io.delta", 0), ("host_io.delta", 0), ("self.dev_io.delta", 1), ("delta", 1)],
)
def test_a_host_value_may_be_an_attribute_of_what_the_contract_names(
    value: str, count: int
) -> None:
    syncs = Syncs(step(f"x = {value}.item()"), host_values=["host_io.del*", "other.*"])
    assert len(list(syncs.all())) == count


def test_only_the_functions_of_the_contract_run_every_step() -> None:
    contract = parse_contract(
        '[engine]\nname = "e"\n[launches]\nper_step = ["runner:Runner.step"]\n', "e.toml"
    )
    source = (
        b"class Runner:\n    def step(s, t):\n        t.item()\n"
        b"    def end(s, t):\n        t.item()\n"
    )
    rule = rules()["FM502"]([contract])
    found = {
        path: [one.span.line for one in lint_text(source, path, [rule])]
        for path in ("runner.py", "other.py")
    }
    assert found == {"runner.py": [3], "other.py": []}


def test_an_upload_at_which_the_host_may_wait_is_a_note() -> None:
    contract = parse_contract('[engine]\nname = "e"\n[launches]\nper_step = ["r:step"]\n', "e.toml")
    source = (
        b"import torch\ndef step(rows, device):\n"
        b"    a = torch.tensor(rows).to(device, non_blocking=True)\n"
        b"    return a, torch.tensor(rows, device=device)\n"
    )
    found = lint_text(source, "r.py", [rules()["FM502"]([contract])])
    assert [one.severity for one in found] == [Severity.NOTE, Severity.WARNING]
    assert "may still block" in found[0].message
