"""FM201, FM203 and FM207: what they say of graph inputs, in our source and in wheels."""

from __future__ import annotations

import re
import textwrap
from functools import cache
from typing import TYPE_CHECKING

import pytest

from fmcheck.config import find_settings
from fmcheck.contract import Contract, GraphInputs, Registry, load_contract
from fmcheck.errors import UsageError
from fmcheck.finding import Severity
from fmcheck.lint.engine import lint_file, lint_text
from fmcheck.lint.graph_inputs.fills import Filling, When, WriteKind
from fmcheck.lint.model.positions import may_cover
from fmcheck.lint.run.fix import fix_text
from fmcheck.lint.scope.files import python_files
from fmcheck.registry import contracts_for, rules
from tests import truth
from tests.corpus import wheel_source
from tests.parts import function_of, functions_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fmcheck.finding import Finding
    from fmcheck.lint.rule import Rule


@cache
def rule(code: str = "FM201") -> Rule:
    here = truth.DATA
    return rules()[code](contracts_for(find_settings(here)))


def lint(source: str) -> list[Finding]:
    return lint_text(textwrap.dedent(source).encode(), "runner.py", [rule()])


def stale(source: str) -> list[str]:
    """The buffers that are called stale, in the order of their lines."""
    return [buffer_of(finding) for finding in lint(source)]


def buffer_of(finding: Finding) -> str:
    """Returns the name of the buffer whose tail a finding is about."""
    (name,) = re.findall(r"^`(.+?)\[[^][`]*:\]` is not reset", finding.message)
    return name


@pytest.mark.parametrize("buffer", ["self.bufs()", "self.bufs(1)[0]", "(a or b)", "a.get(x)"])
def test_a_buffer_without_a_name_is_called_by_its_source(buffer: str) -> None:
    source = f"""\
def replay(self, a, b, x, meta, slots, rows, n, padded):
    {buffer}[:n].copy_(rows)
    slots[:n].copy_(rows)
    meta.rows = {buffer}[:n]
    meta.slots = slots[:padded]
"""
    (finding, *more) = lint_text(source.encode(), "runner.py", [rule("FM206")])

    for one in (finding, *more):
        (name,) = re.findall(r"^`(.*?)` is passed", one.message)
        line = source.splitlines()[one.span.line - 1]
        assert name
        assert name in line[one.span.column - 1 : one.span.end_column - 1]


def stale_slots(source: str) -> list[str]:
    """The slots whose policy keeps the tail, in the order of their lines."""
    found = lint_text(source.encode(), "registry.py", [rule("FM203")])
    return [re.findall(r"`(.+?)`", finding.message)[0] for finding in found]


def replay(body: str, signature: str = "self, batch, bs, raw_bs") -> str:
    """A runner whose replay has this body, and whose `seq_lens` are reset and filled."""
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
    return f"class Runner:\n    def replay({signature}):\n{lines}\n"


def test_a_key_that_is_not_always_known_names_the_buffer_that_the_caret_is_at() -> None:
    source = """\
        class Pool:
            def load(self, batch, bs, raw_bs):
                for key in ("gate", "down"):
                    self.prepare(key)
                key = self.key_of(batch)
                if bs != raw_bs:
                    self.seq_lens.fill_(1)
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                self.tables[key][:raw_bs].copy_(batch.table)
        """
    (finding,) = lint(source)

    line = textwrap.dedent(source).splitlines()[finding.span.line - 1]
    caret = line[finding.span.column - 1 : finding.span.end_column - 1]
    assert caret == "self.tables[key][:raw_bs]"
    assert finding.message.startswith("`tables[*][raw_bs:]` is not reset")


def test_a_key_that_is_known_in_full_names_each_buffer() -> None:
    source = """\
        class Pool:
            def load(self, batch, bs, raw_bs):
                if bs != raw_bs:
                    self.seq_lens.fill_(1)
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                for key in ("gate", "down"):
                    self.tables[key][:raw_bs].copy_(batch.table)
        """
    assert stale(source) == ["gate", "down"]


SIBLING = """
if bs != raw_bs:
    self.seq_lens.fill_(1)
self.seq_lens[:raw_bs].copy_(batch.seq_lens)
"""
FILL = "self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)\n"

# What shows that the batch is padded.


def test_fill_without_a_sibling_that_is_reset_is_left_alone() -> None:
    assert stale(replay("self.seq_lens[:raw_bs].copy_(batch.seq_lens)\n" + FILL)) == []


@pytest.mark.parametrize(
    "test",
    [
        "bs != raw_bs",
        "raw_bs != bs",
        "bs > raw_bs",
        "raw_bs < bs",
        "not bs == raw_bs",
        "bs * self.width != raw_bs * self.width",
        "bs - raw_bs",
        "bs - raw_bs > 0",
        "bs != raw_bs and self.is_padded_backend",
        "bs != raw_bs or self.has_lora",
    ],
)
def test_reset_behind_a_comparison_of_sizes_shows_padding(test: str) -> None:
    # `seq_lens` itself is never filled here: the comparison alone shows what it is reset for.
    body = f"if {test}:\n    self.seq_lens.fill_(1)\n" + FILL
    assert stale(replay(body)) == ["req_pool_indices"]


@pytest.mark.parametrize(
    "flag", ["is_padded = bs != raw_bs", "is_padded = bs - raw_bs", "is_padded: bool = bs > raw_bs"]
)
def test_reset_behind_a_named_flag_shows_padding(flag: str) -> None:
    body = f"{flag}\nif is_padded:\n    self.seq_lens.fill_(1)\n" + FILL
    assert stale(replay(body)) == ["req_pool_indices"]


@pytest.mark.parametrize("test", ["bs == raw_bs", "bs == raw_bs and self.is_whole"])
def test_reset_in_the_else_of_equal_sizes_shows_padding(test: str) -> None:
    body = f"if {test}:\n    pass\nelse:\n    self.seq_lens.fill_(1)\n" + FILL
    assert stale(replay(body)) == ["req_pool_indices"]


@pytest.mark.parametrize(
    "test",
    [
        *("self.has_lora", "self.has_lora or bs == raw_bs", "raw_bs > bs", "bs < raw_bs"),
        *("bs >= raw_bs", "raw_bs > 0", "0 != raw_bs"),
    ],
)
def test_reset_behind_any_other_test_shows_nothing(test: str) -> None:
    assert stale(replay(f"if {test}:\n    self.seq_lens.fill_(1)\n" + FILL)) == []


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        ("zero_()", []),
        ("fill_(0)", []),
        ("fill_(-1)", []),
        ("fill_(1)", ["positions"]),
    ],
)
def test_lengths_of_nothing_mark_padded_rows_as_empty(reset: str, expected: list[str]) -> None:
    # A kernel that takes no token of a padded row reads none of its other values either.
    fill = "self.positions[:raw_bs].copy_(batch.positions)\n"
    assert stale(replay(f"if bs != raw_bs:\n    self.seq_lens.{reset}\n" + fill)) == expected


def test_reset_of_all_before_the_fill_of_a_head_shows_padding() -> None:
    body = "self.seq_lens.zero_()\nself.seq_lens[:raw_bs].copy_(batch.seq_lens)\n" + FILL
    assert stale(replay(body)) == ["req_pool_indices"]


def test_reset_of_all_after_the_fill_shows_nothing() -> None:
    body = "self.seq_lens[:raw_bs].copy_(batch.seq_lens)\nself.seq_lens.zero_()\n" + FILL
    assert stale(replay(body)) == []


def test_size_derived_from_the_raw_one_is_raw() -> None:
    body = SIBLING + "tokens = raw_bs * self.width\nself.positions[:tokens].copy_(batch.positions)"
    assert stale(replay(body)) == ["positions"]


def test_fill_up_to_the_padded_size_is_whole() -> None:
    body = SIBLING + "tokens = bs * self.width\nself.positions[:tokens].copy_(batch.positions)"
    assert stale(replay(body)) == []


def test_size_that_is_padded_up_from_the_raw_one_is_not_raw() -> None:
    body = "bs = (raw_bs + 7) // 8 * 8\n" + SIBLING + "self.rows[:bs].copy_(batch.rows)"
    assert stale(replay(body, "self, batch, raw_bs")) == []


def test_copy_up_to_the_padded_size_does_not_hide_which_size_is_raw() -> None:
    body = SIBLING + "self.seq_lens_cpu[:bs].copy_(batch.padded_lens)\n" + FILL
    assert stale(replay(body)) == ["req_pool_indices"]


def test_width_that_two_sizes_share_makes_neither_raw() -> None:
    body = """
        self.seq_lens.fill_(1)
        self.seq_lens[: raw_bs * self.width].copy_(batch.seq_lens)
        self.pages[: batch.pages * self.width].copy_(batch.pages)
    """
    assert stale(replay(body)) == []


def test_rebinding_in_the_padding_branch_shows_nothing() -> None:
    body = "if bs != raw_bs:\n    batch.seq_lens = self.seq_lens[:bs]\n" + FILL
    body += "if self.flag:\n    self.scratch.zero_()\n"
    assert stale(replay(body)) == []


def test_fill_up_to_an_unrelated_size_is_left_alone() -> None:
    body = SIBLING + "self.positions[: batch.pages].copy_(batch.positions)"
    assert stale(replay(body)) == []


def test_difference_says_nothing_about_what_is_taken_away() -> None:
    body = """
        left = self.length - gone
        for end in self.ends:
            if end - gone > 0:
                self.visible[left:] = False
        self.keys[:left].copy_(self.keys[gone:])
    """
    assert stale(replay(body, "self, gone")) == []


def test_fill_for_unpadded_batches_only_leaves_no_tail() -> None:
    body = SIBLING + "if bs == raw_bs:\n    " + FILL + "else:\n    self.pad(batch)"
    assert stale(replay(body)) == []


# How buffers are named.


@pytest.mark.parametrize(
    "fill",
    [
        "rows = self.req_pool_indices\nrows[:raw_bs].copy_(batch.rows)",
        "held = self.held\nheld.req_pool_indices[:raw_bs].copy_(batch.rows)",
        "held = self.a if self.flag else self.b\nheld.req_pool_indices[:raw_bs].copy_(batch.rows)",
        "held = self.take()\nheld.req_pool_indices[:raw_bs].copy_(batch.rows)",
        "rows = self.req_pool_indices[:raw_bs]\nrows.copy_(batch.rows)",
        "self.held['req_pool_indices'][:raw_bs].copy_(batch.rows)",
        "self.held.get('req_pool_indices')[:raw_bs].copy_(batch.rows)",
        "getattr(self.held, 'req_pool_indices')[:raw_bs].copy_(batch.rows)",
        "self.req_pool_indices.gpu[:raw_bs].copy_(batch.rows)",
        "self.req_pool_indices.view(-1)[:raw_bs].copy_(batch.rows)",
        "self.req_pool_indices.narrow(0, 0, raw_bs).copy_(batch.rows)",
        "self.req_pool_indices[0:raw_bs].copy_(batch.rows)",
        "self.req_pool_indices[..., :raw_bs].copy_(batch.rows)",
        "self.req_pool_indices[:, :raw_bs] = batch.rows",
        "torch.add(batch.rows, 1, out=self.req_pool_indices[:raw_bs])",
        "torch._foreach_copy_([self.req_pool_indices[:raw_bs]], [batch.rows])",
        "to = []\nto.append(self.req_pool_indices[:raw_bs])\ngrouped_copy(to, [batch.rows])",
        "to = []\nto += [self.req_pool_indices[:raw_bs]]\ngrouped_copy(to, [batch.rows])",
        "to = []\nto.extend([self.req_pool_indices[:raw_bs]])\ngrouped_copy(to, [batch.rows])",
        "to = [self.req_pool_indices[:raw_bs]]\n"
        "for target, source in zip(to, [batch.rows]):\n    target.copy_(source)",
        "pairs = [(self.req_pool_indices[:raw_bs], batch.rows)]\n"
        "for target, source in pairs:\n    target.copy_(source)",
        "def fill():\n    self.req_pool_indices[:raw_bs].copy_(batch.rows)\nfill()",
        "with self.stream:\n    for _ in (0,):\n"
        "        self.req_pool_indices[:raw_bs].copy_(batch.rows)",
    ],
)
def test_fill_is_seen_however_the_buffer_is_named(fill: str) -> None:
    assert stale(replay(SIBLING + fill)) == ["req_pool_indices"]


@pytest.mark.parametrize(
    "fill",
    [
        "rows = torch.zeros(bs)\nrows[:raw_bs].copy_(batch.rows)",
        "to = [self.req_pool_indices[:raw_bs]]\nreturn torch.cat(to)",
        "return self.req_pool_indices[:raw_bs]",
        "rows = [batch.rows]\nself.req_pool_indices[:raw_bs].clone().copy_(batch.rows)",
    ],
)
def test_what_is_no_static_buffer_is_left_alone(fill: str) -> None:
    assert stale(replay(SIBLING + fill)) == []


def test_python_list_is_no_graph_input() -> None:
    fill = SIBLING + "self.lens_cpu[:raw_bs] = batch.lens_cpu"
    made = "    def __init__(self):\n        self.lens_cpu = [{}] * 8\n"
    assert stale(replay(fill)) == ["lens_cpu"]
    assert stale(replay(fill) + made.format(1)) == []
    in_place = SIBLING + "self.lens_cpu[:raw_bs].copy_(batch.lens_cpu)"
    assert stale(replay(in_place) + made.format(1)) == ["lens_cpu"]


def test_buffers_handed_to_a_function_are_watched() -> None:
    source = """
        def fill(req_pool_indices, seq_lens, rows, lens, raw_bs, bs):
            if raw_bs < bs:
                seq_lens[raw_bs:].fill_(1)
            seq_lens[:raw_bs].copy_(lens)
            req_pool_indices[:raw_bs].copy_(rows)
    """
    assert stale(source) == ["req_pool_indices"]


# What counts as a reset.


@pytest.mark.parametrize(
    "reset",
    [
        "self.req_pool_indices.zero_()",
        "self.req_pool_indices.fill_(0)",
        "self.req_pool_indices[:] = 0",
        "self.req_pool_indices[...] = 0",
        "self.req_pool_indices[raw_bs:] = 0",
        "self.req_pool_indices[1:].zero_()",
        "self.req_pool_indices[raw_bs:bs] = batch.sink_rows",
        "self.req_pool_indices[raw_bs:bs].zero_()",
        "self.req_pool_indices[:bs].zero_()",
        "self.req_pool_indices[:bs] = batch.padded_rows",
        "self.req_pool_indices = torch.zeros_like(batch.rows)",
        "rows = self.req_pool_indices\nrows.zero_()",
        "for rows in (self.positions, self.req_pool_indices):\n    rows.zero_()",
        "for name in ('positions', 'req_pool_indices'):\n    getattr(self, name).zero_()",
        "for name in fields(self):\n    getattr(self, name).zero_()",
        "torch._foreach_zero_([self.positions, self.req_pool_indices])",
        "stale = [self.positions]\nstale.append(self.req_pool_indices)\n"
        "torch._foreach_zero_(stale)",
        "if self.req_pool_indices is not None:\n    self.req_pool_indices.zero_()",
        "if bs != raw_bs:\n    self.req_pool_indices.zero_()",
        "if bs == raw_bs:\n    pass\nelse:\n    self.req_pool_indices.zero_()",
        "torch.zero_(self.req_pool_indices)",
        "torch.fill_(self.req_pool_indices[raw_bs:], 0)",
        "self.req_pool_indices[raw_bs:].mul_(0)",
        "self.req_pool_indices[raw_bs:bs] *= 0",
        "for rows in vars(self).values():\n    rows.zero_()",
        "reset_tail(self.req_pool_indices, raw_bs)",
        "scrub([self.positions, self.req_pool_indices])",
        "super().reset_inputs()",
        "def reset():\n    self.req_pool_indices.zero_()\nreset()",
    ],
)
def test_reset_makes_the_tail_clean(reset: str) -> None:
    assert stale(replay(SIBLING + reset + "\n" + FILL)) == []


@pytest.mark.parametrize(
    "reset",
    [
        "self.req_pool_indices[:raw_bs].zero_()",
        "self.req_pool_indices[: raw_bs // 2].zero_()",
        "self.req_pool_indices[:1].zero_()",
        "self.req_pool_indices[bs:].zero_()",
        "self.req_pool_indices[1:raw_bs].zero_()",
        "self.positions.zero_()",
        "batch.req_pool_indices.zero_()",
        "self.req_pool_indices_cpu.zero_()",
        "self.other['req_pool_indices'].zero_()",
        "if bs == raw_bs:\n    self.req_pool_indices.zero_()",
        "if not bs != raw_bs:\n    self.req_pool_indices.zero_()",
        "torch.zero_(self.req_pool_indices[:raw_bs])",
        "torch.zero_(self.positions)",
        "self.req_pool_indices[raw_bs:].mul_(2)",
        "self.req_pool_indices[raw_bs:] *= 2",
        "self.req_pool_indices[raw_bs:] += 0",
        "for rows in vars(batch).values():\n    rows.zero_()",
        "self.req_pool_indices.clone()",
        "print(self.req_pool_indices)",
    ],
)
def test_what_looks_like_a_reset_and_misses_the_tail_does_not_count(reset: str) -> None:
    assert stale(replay(SIBLING + reset + "\n" + FILL)) == ["req_pool_indices"]


def test_reset_loop_over_a_container_reaches_what_it_holds() -> None:
    body = """
        if bs != raw_bs:
            self.seq_lens.fill_(1)
            for held in self.inputs.values():
                held.zero_()
        self.inputs['req_pool_indices'][:raw_bs].copy_(batch.rows)
    """
    assert stale(replay(body)) == []


# Resets in other functions.


OTHER = """
    def {name}(self):
        self.req_pool_indices.zero_()
"""


@pytest.mark.parametrize("name", ["reset_inputs", "before_step", "init_replay_state"])
def test_reset_in_another_method_counts(name: str) -> None:
    assert stale(replay(SIBLING + FILL) + OTHER.format(name=name)) == []


@pytest.mark.parametrize("name", ["__init__", "capture_one", "warmup"])
def test_reset_before_the_first_replay_does_not_count(name: str) -> None:
    assert stale(replay(SIBLING + FILL) + OTHER.format(name=name)) == ["req_pool_indices"]


def test_reset_that_another_method_makes_for_its_own_fill_does_not_count() -> None:
    other = """
    def replay_other(self, batch, bs, raw_bs):
        if bs != raw_bs:
            self.req_pool_indices.zero_()
        self.req_pool_indices[:raw_bs].copy_(batch.rows)
"""
    assert stale(replay(SIBLING + FILL) + other) == ["req_pool_indices"]


def test_reset_in_a_method_that_is_called_counts_whatever_else_it_does() -> None:
    other = """
    def prepare(self, batch, bs, raw_bs):
        if bs != raw_bs:
            self.req_pool_indices.zero_()
        self.req_pool_indices[:raw_bs].copy_(batch.rows)
"""
    assert stale(replay(SIBLING + "self.prepare(batch, bs, raw_bs)\n" + FILL) + other) == []


def test_reset_of_every_field_in_another_method_counts() -> None:
    other = """
    def reset(self):
        for field in fields(self):
            getattr(self, field.name).zero_()
"""
    assert stale(replay(SIBLING + FILL) + other) == []


def test_call_of_a_method_that_resets_every_field_counts() -> None:
    held = """
class Held:
    def reset(self):
        for buffer in vars(self).values():
            buffer.zero_()
"""
    body = SIBLING + "held = self.held\nheld.reset()\nheld.rows[:raw_bs].copy_(batch.rows)"
    assert stale(replay(body) + held) == []
    assert stale(replay(body) + held.replace("vars(self).values()", "()")) == ["rows"]


def test_sibling_reset_in_another_method_without_a_comparison_shows_nothing() -> None:
    body = "self.seq_lens[:raw_bs].copy_(batch.seq_lens)\n" + FILL
    other = "    def reset_inputs(self):\n        self.seq_lens.fill_(1)\n"
    assert stale(replay(body) + other) == []


def test_sibling_reset_in_another_method_shows_padding() -> None:
    body = """
        if bs != raw_bs:
            self.reset_inputs()
        self.seq_lens[:raw_bs].copy_(batch.seq_lens)
        self.req_pool_indices[:raw_bs].copy_(batch.rows)
    """
    other = "    def reset_inputs(self):\n        self.seq_lens.fill_(1)\n"
    assert stale(replay(body) + other) == ["req_pool_indices"]


def test_reset_by_another_class_of_the_module_counts() -> None:
    worker = "class Worker:\n    def step(self):\n        self.held['req_pool_indices'].zero_()\n"
    assert stale(replay(SIBLING + FILL) + worker) == []


def test_reset_when_another_class_is_made_does_not_count() -> None:
    worker = "class Worker:\n    def __init__(self):\n        self.req_pool_indices.zero_()\n"
    assert stale(replay(SIBLING + FILL) + worker) == ["req_pool_indices"]


def test_reset_by_a_subclass_counts() -> None:
    child = (
        "class Padded(Runner):\n    def replay(self, batch, bs, raw_bs):\n"
        "        self.req_pool_indices.zero_()\n        super().replay(batch, bs, raw_bs)\n"
    )
    assert stale(replay(SIBLING + FILL) + child) == []


def test_reset_by_a_class_that_fills_its_own_buffer_does_not_count() -> None:
    twin = replay(SIBLING + "self.req_pool_indices.zero_()\n" + FILL).replace("Runner", "Twin")
    assert stale(replay(SIBLING + FILL) + twin) == ["req_pool_indices"]


SLICES = """
self.seq_lens[:raw_bs] = batch.seq_lens
self.{name}[:raw_bs] = batch.{name}
if bs > raw_bs:
    self.seq_lens[raw_bs:bs] = 1
"""


@pytest.mark.parametrize(("name", "found"), [("req_pool_indices", 1), ("block_ids", 0)])
def test_module_of_slice_assignments_alone_is_judged_for_row_indices(name: str, found: int) -> None:
    assert len(stale(replay(SLICES.format(name=name)))) == found


def test_reset_that_was_split_off_compares_the_sizes() -> None:
    split = (
        "class Runner:\n    def reset(self, raw_bs, bs):\n        if bs != raw_bs:\n"
        "            self.seq_lens.fill_(1)\n"
        "    def fill(self, batch, raw_bs, bs):\n        self.reset(raw_bs, bs)\n"
        "        self.seq_lens[:raw_bs].copy_(batch.seq_lens)\n"
        "        self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)\n"
    )
    assert stale(split) == ["req_pool_indices"]
    assert stale(split.replace("self.reset(raw_bs, bs)", "self.tidy(raw_bs, bs)")) == []


def test_reset_method_of_a_class_that_fills_its_own_buffer_does_not_count() -> None:
    twin = (
        "class Twin:\n    def reset(self):\n        self.req_pool_indices.zero_()\n"
        "    def load(self, batch, bs, raw_bs):\n        self.reset()\n"
        "        self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)\n"
    )
    assert stale(replay(SIBLING + FILL) + twin) == ["req_pool_indices"]


def test_inherited_reset_method_that_is_called_counts() -> None:
    base = (
        "class Base:\n    def reset(self):\n        self.req_pool_indices.zero_()\n"
        "    def load(self, batch, bs, raw_bs):\n        self.reset()\n"
        "        self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)\n"
    )
    child = replay("self.reset()\n" + SIBLING + FILL).replace("Runner", "Runner(Base)")
    assert stale(base + child) == []


# Which buffers matter, and how much.


def test_buffer_whose_tail_may_stay_is_left_alone() -> None:
    assert stale(replay(SIBLING + "self.input_ids[:raw_bs].copy_(batch.input_ids)")) == []


def test_severity_follows_what_a_stale_tail_does() -> None:
    others = "".join(f"self.{name}[:raw_bs].copy_(batch.{name})\n" for name in ("lens", "topk_p"))
    found = lint(replay(SIBLING + FILL + others))
    assert [one.severity for one in found] == [Severity.ERROR, Severity.WARNING, Severity.NOTE]
    assert ["tail_may_stay" in one.help for one in found] == [False, False, True]


def test_no_more_than_three_siblings_are_shown() -> None:
    siblings = "".join(f"self.buffer_{number}.zero_()\n" for number in range(5))
    (found,) = lint(replay(f"if bs != raw_bs:\n{textwrap.indent(siblings, '    ')}" + FILL))
    assert found.note.endswith("`buffer_0`, `buffer_1`, `buffer_2` and 2 more are reset")
    assert len(found.related) == 3


def test_buffer_is_reported_once_a_function_where_it_is_filled_first() -> None:
    found = lint(replay(SIBLING + FILL + FILL))
    assert [(one.span.line, one.span.column) for one in found] == [(6, 9)]


def test_finding_names_the_size_the_siblings_and_the_way_out() -> None:
    (found,) = lint(replay("if bs != raw_bs:\n    self.seq_lens.zero_()\n" + FILL))
    assert found.message.startswith("`req_pool_indices[raw_bs:]` is not reset")
    assert found.note.endswith("; `seq_lens` is reset")
    assert "`self.req_pool_indices.zero_()`" in found.help
    assert [(span.line, text) for span, text in found.related] == [(4, "`seq_lens` is reset here")]


def test_module_without_a_tensors_own_writes_holds_host_arrays() -> None:
    body = "if bs != raw_bs:\n    self.seq_lens[raw_bs:] = 1\nself.positions[:raw_bs] = batch.rows"
    assert stale(replay(body)) == []
    assert stale(replay(body + "\nself.out_cache_loc.zero_()")) == ["positions"]


# Declared slots.


def slot(name: str, rest: str = "") -> str:
    return f"GraphSlot({name!r}, shape, kind{rest}),"


ZERO = ", padding_policy=PaddingPolicy.ZERO"


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ([slot("positions"), slot("seq_lens", ZERO)], ["positions"]),
        ([slot("nested.positions"), slot("seq_lens", ZERO)], ["nested.positions"]),
        ([slot("positions"), slot("seq_lens")], []),
        ([slot("positions", ', axis="bs"'), slot("seq_lens", ZERO)], []),
        ([slot("positions", ', axis="tokens"'), slot("seq_lens", ZERO)], ["positions"]),
        ([slot("positions", ", padding_policy=PaddingPolicy.KEEP_PAD"), slot("x", ZERO)],
         ["positions"]),
        ([slot("positions", ", padding_policy=policy"), slot("seq_lens", ZERO)], []),
        ([slot("positions", ', "tokens", None, PaddingPolicy.ZERO'), slot("x", ZERO)], []),
        ([slot("positions", ", post_fill=compute"), slot("seq_lens", ZERO)], []),
        ([slot("positions", ", **more"), slot("seq_lens", ZERO)], []),
        ([slot("input_ids"), slot("seq_lens", ZERO)], []),
        ([slot("encoder_lens"), slot("seq_lens", ZERO)], []),
        ([slot("req_pool_indices")], ["req_pool_indices"]),
    ],
)  # fmt: skip
def test_slot_with_a_policy_that_keeps_the_tail(slots: list[str], expected: list[str]) -> None:
    source = "def build(shape, kind):\n    return [\n" + "\n".join(slots) + "\n]\n"
    assert stale_slots(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "SLOTS = [GraphSlot('req_pool_indices', shape, kind)]",
        "from registry import GraphSlot as S\nSLOTS = [S('req_pool_indices', shape, kind)]",
        "import registry\nSLOTS = [registry.GraphSlot(name='req_pool_indices')]",
    ],
)
def test_slot_is_seen_wherever_it_is_made(source: str) -> None:
    assert stale_slots(source) == ["req_pool_indices"]


def test_slot_class_is_the_contracts() -> None:
    inputs = GraphInputs(
        row_indices=("rows",),
        registry=(Registry(slot_class="Input", default_policy="KEEP", stale_policies=("KEEP",)),),
    )
    own = type(rule("FM203"))(
        [Contract(engine=rule("FM203").contracts[0].engine, graph_inputs=inputs)]
    )
    assert [one.code for one in lint_text(b"INPUTS = [Input('rows')]\n", "x.py", [own])] == [
        "FM203"
    ]


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("slot_class", '"a.B"', "registry[0].slot_class"),
        ("stale_policies", "[]", "registry[0].stale_policies"),
        ("axis_argument", '""', "registry[0].axis_argument"),
    ],
)
def test_registry_that_means_nothing_is_refused(
    tmp_path: Path, key: str, value: str, wanted: str
) -> None:
    table = {"slot_class": '"Slot"', "default_policy": '"KEEP"', "stale_policies": '["KEEP"]'}
    table[key] = value
    path = tmp_path / "contract.toml"
    registry = "\n".join(f"{name} = {text}" for name, text in table.items())
    path.write_text(f'[engine]\nname = "x"\n[[graph_inputs.registry]]\n{registry}\n')
    with pytest.raises(UsageError, match=re.escape(wanted)):
        load_contract(path)


# The facts underneath.


def filling(source: str) -> Filling:
    return Filling(function_of(source))


def test_when_a_write_is_reached() -> None:
    found = filling("""
        def replay(self, batch, bs, raw_bs):
            self.a.zero_()
            if bs != raw_bs:
                self.b.zero_()
            else:
                self.c.zero_()
            if self.flag:
                self.d.zero_()
            if self.e is not None:
                self.e.zero_()
            self.rows[:raw_bs].copy_(batch.rows)
    """)
    reached = {write.region.leaf: found.when(write) for write in found.writes}
    assert reached == {
        "a": When.ALWAYS,
        "b": When.PADDED,
        "c": When.UNPADDED,
        "d": When.SOMETIMES,
        "e": When.ALWAYS,
        "rows": When.ALWAYS,
    }


def test_a_method_keeps_its_places_in_the_file() -> None:
    source = "class A:\n    def f(self):\n        pass\n\n    def g(self):\n        return self.x\n"
    _, function = functions_of(source)
    part = function.part
    (found,) = [node for node in part.nodes() if part.code(node) == "self.x"]
    assert (part.span(found).line, part.span(found).column) == (6, 16)


def test_no_copy_to_a_front_and_no_reset_is_left_out() -> None:
    found = filling("""
        def f(self, n):
            rows = self.rows
            rows[:n].copy_(0)
            self.lens[n:] = 1
            for held in (self.a, self.b):
                held.zero_()
            torch._foreach_zero_([self.d])
            to = [self.c[:n]]
            to.append(self.e[:n])
            grouped_copy(to)
            torch.add(1, 2, out=self.f[:n])
            self.g.narrow(0, 0, n).copy_(0)
    """)
    assert {one.region.leaf for one in found.copies} == {"rows", "c", "e", "f", "g"}
    assert {one.region.leaf for one in found.constants} == {"lens", "a", "b", "d"}


STALE = """
def replay(self, batch, bs, raw_bs):
    if bs != raw_bs:
        self.seq_lens.fill_(1)
    self.seq_lens[:raw_bs].copy_(batch.seq_lens)
    self.rows[:raw_bs].copy_(batch.rows)
"""


def is_stale(source: str) -> bool:
    return bool(lint_text(source.encode(), "x.py", [rule()]))


@pytest.mark.parametrize(
    "source",
    [
        STALE.replace("    if", "    self.rows.zero_()\n    if"),
        STALE.replace("bs != raw_bs", "self.flag"),
        STALE.replace("self.rows[:raw_bs]", "self.rows[:16]"),
        STALE.replace("self.rows[:raw_bs]", "torch.empty(bs)[:raw_bs]"),
        STALE.replace("self.rows[:raw_bs]", "self.rows"),
    ],
    ids=["reset for sure", "no sizes compared", "no raw size", "no buffer", "no front"],
)
def test_what_cannot_be_stale_is_no_finding(source: str) -> None:
    source = source.replace("self.seq_lens[:raw_bs]", "torch.empty(bs)[:raw_bs]")
    assert not is_stale(source)


def test_a_reset_front_keeps_its_tail() -> None:
    front = "view = self.rows[:raw_bs]\n    view.zero_()\n    view.copy_(batch.rows)"
    source = STALE.replace("self.rows[:raw_bs].copy_(batch.rows)", front)
    assert is_stale(source.replace("self.seq_lens[:raw_bs]", "torch.empty(bs)[:raw_bs]"))


def test_what_may_be_stale_is_left_to_the_rule() -> None:
    assert is_stale(STALE)
    assert is_stale(STALE.replace("self.seq_lens[:raw_bs]", "torch.empty(bs)[:raw_bs]"))


# The fix.


def test_fix_stands_below_the_last_reset_that_padding_alone_reaches() -> None:
    (found,) = lint("""
        def replay(self, batch, bs, raw_bs):
            if bs != raw_bs:
                self.seq_lens.fill_(1)  # as captured
                if self.mask is not None:
                    self.mask.zero_()
            self.seq_lens[:raw_bs].copy_(batch.seq_lens)
            self.mask[:raw_bs].copy_(batch.mask)
            self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
    """)
    (edit,) = found.edits
    assert (edit.span.line, edit.text.strip()) == (5, "self.req_pool_indices.zero_()")
    assert found.safe


@pytest.mark.parametrize(
    "fill",
    [
        "if batch.rows is not None:\n        self.rows[:raw_bs].copy_(batch.rows)",
        "self.rows[:raw_bs] = batch.rows",
        "rows = find(self)\n    rows.rows[:raw_bs].copy_(batch.rows)",
    ],
    ids=["may be left out", "may be an array", "another root"],
)
def test_no_fix_where_the_buffer_may_not_be_there(fill: str) -> None:
    source = (
        "def replay(self, batch, bs, raw_bs):\n"
        "    if bs != raw_bs:\n        self.seq_lens.fill_(1)\n"
        f"    self.seq_lens[:raw_bs].copy_(batch.seq_lens)\n    {fill}\n"
    )
    assert [found.edits for found in lint(source)] == [()]


def test_no_fix_where_the_reset_shares_its_line() -> None:
    (found,) = lint("""
        def replay(self, batch, bs, raw_bs):
            if bs != raw_bs:
                self.seq_lens.fill_(1); self.count = 0
            self.seq_lens[:raw_bs].copy_(batch.seq_lens)
            self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
    """)
    assert found.edits == ()


def test_a_fix_of_what_the_contract_does_not_name_is_unsafe() -> None:
    (found,) = lint("""
        def replay(self, batch, bs, raw_bs):
            if bs != raw_bs:
                self.seq_lens.fill_(1)
            self.seq_lens[:raw_bs].copy_(batch.seq_lens)
            self.rows[:raw_bs].copy_(batch.rows)
    """)
    assert found.edits
    assert not found.safe


# Released wheels. These fetch what is not in the cache; see tests/corpus.py.


@cache
def wheel_findings(version: str) -> list[tuple[str, int, str]]:
    """The file, line and buffer of each finding on a release of sglang."""
    root = wheel_source("sglang", version)
    return [
        (
            str(path.relative_to(root / "sglang/srt")),
            finding.span.line,
            buffer_of(finding),
        )
        for path in python_files([root / "sglang/srt"])
        for finding in lint_file(path, [rule()])
    ]


def row_indices(version: str) -> list[tuple[str, int]]:
    return [
        (file, line) for file, line, leaf in wheel_findings(version) if leaf == "req_pool_indices"
    ]


def test_the_runners_that_upstream_fixed_by_hand_are_found_in_0_5_12() -> None:
    assert {
        ("model_executor/cuda_graph_runner.py", 313),
        ("model_executor/cpu_graph_runner.py", 790),
        ("speculative/eagle_draft_extend_cuda_graph_runner.py", 486),
        ("speculative/frozen_kv_mtp_cuda_graph_runner.py", 355),
    } <= set(row_indices("0.5.12"))


@pytest.mark.parametrize(
    ("file", "holder", "above"),
    [
        (
            "model_executor/cpu_graph_runner.py",
            "captured_forward_batch",
            "captured_forward_batch.out_cache_loc.zero_()",
        ),
        ("model_executor/cuda_graph_runner.py", "self", "self.out_cache_loc.zero_()"),
        (
            "speculative/eagle_draft_extend_cuda_graph_runner.py",
            "buffers",
            "buffers.extend_seq_lens.fill_(self.num_tokens_per_bs)",
        ),
        ("speculative/frozen_kv_mtp_cuda_graph_runner.py", "buffers", "buffers.positions.zero_()"),
    ],
)
def test_fix_of_0_5_12_is_one_line_where_upstream_has_it(
    file: str, holder: str, above: str
) -> None:
    before = (wheel_source("sglang", "0.5.12") / "sglang/srt" / file).read_bytes()

    def lint_now(text: bytes) -> list[Finding]:
        return lint_text(text, file, [rule()])

    def safe(found: Sequence[Finding], _: bytes) -> list[Finding]:
        return [one for one in found if one.safe]

    after = fix_text(before, lint_now, safe).text
    old, new = before.decode().splitlines(), after.decode().splitlines()
    added = next(at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    assert new[:added] + new[added + 1 :] == old
    assert new[added].strip() == f"{holder}.req_pool_indices.zero_()"
    assert new[added - 1].strip() == above
    assert not any(one.message.startswith("`req_pool_indices[") for one in lint_now(after))
    assert fix_text(after, lint_now, safe).count == 0


def test_only_the_runner_that_upstream_missed_is_found_in_0_5_13() -> None:
    missed = "speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py"
    assert row_indices("0.5.13") == [(missed, 516)]


def test_truth_holds_for_fm201() -> None:
    expected = [line for line in truth.lines() if line.code == "FM201"]
    flagged, clean = truth.shares(list(truth.verdicts(expected)))
    assert flagged >= truth.LEAST_FLAGGED
    assert clean <= truth.MOST_CLEAN


def test_words_clear_nothing_that_the_rule_would_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = wheel_source("sglang", "0.5.13") / "sglang/srt/speculative"
    files = list(python_files([folder]))
    staged = [finding for path in files for finding in lint_file(path, [rule()])]
    everywhere = rule()
    everywhere.words = ()
    monkeypatch.setattr("fmcheck.lint.graph_inputs.resets.FRONT", (("",), ("",)))
    assert staged
    assert [finding for path in files for finding in lint_file(path, [everywhere])] == staged


def test_rule_that_is_not_there_flags_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "rules", dict)
    given = list(truth.verdicts(truth.lines()))
    assert {one.given for one in given} == {"rule not there"}
    assert truth.shares(given) == (0.0, 0.0)


def test_an_index_that_is_padded_by_a_negative_is_said_to_fail_where_it_does() -> None:
    source = """\
def store(cache, slot_mapping, values):
    cache[slot_mapping] = values
    cache.index_copy_(0, slot_mapping, values)
    cache.index_fill_(0, slot_mapping, 0)
"""
    found = lint_text(source.encode(), "cache.py", [rule("FM207")])
    ends = [one.message.rpartition(", and ")[2] for one in found]
    last_row = "index -1 is the last row"
    assert ends == [last_row, "`index_copy_` fails on -1", last_row]


# What clears a block before a tree is needed.

DEEP = "deep = batch" + ".rows" * 1200


def quick_and_whole(source: str, code: str) -> tuple[list[Finding], list[Finding]]:
    text = textwrap.dedent(source).encode()
    used = [rule(code)]
    return lint_text(text, "x.py", used), lint_text(text, "x.py", used, whole=True)


@pytest.mark.parametrize("rest", ["", "    self.rows.zero_()\n"], ids=["stale", "reset"])
def test_a_function_that_nests_too_deeply_is_reported_of_in_any_case(rest: str) -> None:
    quick, whole = quick_and_whole(f"{STALE}    {DEEP}\n{rest}", "FM201")

    for found in (quick, whole):
        assert [one.code for one in found] == ["FM001"]


def test_one_buffer_alone_has_none_beside_it() -> None:
    alone = STALE.replace("self.rows[:raw_bs].copy_(batch.rows)", "pass")
    assert not is_stale(alone)
    assert not is_stale(alone.replace("    if bs != raw_bs:\n    ", ""))
    assert is_stale(alone.replace("        self.seq_lens.fill_", "        self.rows.fill_"))
    assert is_stale(alone.replace("self.seq_lens[:raw_bs]", "self[name][:raw_bs]"))


def test_a_reset_that_the_module_defines_is_read_however_it_is_defined() -> None:
    source = """
        class Runner:
            def replay(self, batch, bs, raw_bs):
                if bs != raw_bs:
                    self.seq_lens.fill_(1)
                    self.reset_rows(self.rows)
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                self.rows[:raw_bs].copy_(batch.rows)

            async def \\
                    reset_rows(self, rows):
                rows.count = 0
    """
    assert stale(source) == ["rows"]
    assert stale(source.replace("reset_rows(self, rows)", "reset_others(self, rows)")) == []


APART = {
    "an index beyond a slice": "x[:, :3, 3] = t\nx[:, 3, 3] = 1",
    "a method": "x[:, :3, 3].copy_(t)\nx[:, 3, 3] = 1",
    "another index": "x[0, :n] = t\nx[1] = 0",
    "another index, in two steps": "x[0][:n] = t\nx[1] = 0",
    "by a name": "row = x[0]\nrow[:n] = t\nx[1] = 0",
    "from the end": "x[-1, :n] = t\nx[-2] = 0",
    "the last, after all but it": "x[:, :-1, 3] = t\nx[:, -1, 3] = 1",
    "after an ellipsis": "x[..., :3, 3] = t\nx[..., 3, 3] = 1",
    "before an ellipsis": "x[0, ..., :n] = t\nx[1, ...] = 0",
    "every second": "x[:n, 1::2] = t\nx[:, ::2] = 0",
    "a list of indices": "x[[0, 1], :n] = t\nx[[2, 3]] = 0",
    "a slice of a slice": "x[2:][0, :n] = t\nx[1] = 0",
    "with an axis more": "x[None, 0, :n] = t\nx[None, 1] = 0",
    "in an array of the host": "host = x[0].numpy()\nhost[:n] = t\nx[1] = 0",
    "one of several": "x[i, :n] = t\nx[i, 0] = 1",
    "the one after the front": "x[i, :n] = t\nx[i, n] = -1",
    "a column": "x[i, :n] = t\nx[i, :, 3] = 0",
    "of another holder": "x[0].rows[:n] = t\nx[1].rows[:] = 0",
}


def may_cover_front(body: str) -> bool:
    """Tells whether the last write of a function may cover the first one that is a copy."""
    lines = textwrap.indent(re.sub(r"\bx\b", "self.x", body), " " * 4)
    writes = Filling(function_of(f"def stage(self, t, n, i, j):\n{lines}\n")).writes
    copies = [one for one in writes if one.kind is WriteKind.COPY]
    return may_cover(writes[-1].region, copies[0].region)


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_another_part_of_a_buffer_covers_no_front(body: str) -> None:
    assert not may_cover_front(body)


MET = {
    "the same index": "x[0, :n] = t\nx[0] = 0",
    "unknown indices": "x[i, :n] = t\nx[j] = 0",
    "from both ends": "x[0, :n] = t\nx[-1] = 0",
    "an index inside": "x[:, :3, 3] = t\nx[:, :, 3] = 1",
    "in another shape": "flat = x.view(-1, 4)\nflat[0, :n] = t\nx[1] = 0",
    "turned": "x.T[0, :n] = t\nx[1] = 0",
    "any of them": "x[0][:n] = t\nfor one in x:\n    one.zero_()",
    "starred": "x[*i, :n] = t\nx[1] = 0",
    "a slice of one": "x[i, :1] = t\nx[i, 0] = 1",
    "an unknown step": "x[::n][0, :i] = t\nx[1] = 0",
    "expressions": "x[i, : 2 * n] = t\nx[i, n + 1] = 0",
}


@pytest.mark.parametrize("body", MET.values(), ids=MET)
def test_what_may_be_the_same_part_of_a_buffer_may_cover_its_front(body: str) -> None:
    assert may_cover_front(body)


FILLED = {
    "a comment first": ("", "self.seq_lens.fill_(  # as captured\n    1)"),
    "by keyword": ("", "self.seq_lens.fill_(value=1)"),
    "in brackets": ("", "(self.seq_lens.fill_)((1))"),
    "of a sign": ("", "self.seq_lens.fill_(-1)"),
    "of another base": ("", "self.seq_lens.fill_(0x1)"),
    "a name": ("", "lens = self.seq_lens\nlens.fill_(1)"),
    "a slice": ("", "self.seq_lens[2:].fill_(1)"),
    "a key": ("", "self.all['seq_lens'].fill_(1)"),
    "what is held": ("", "self.seq_lens.gpu.fill_(1)"),
    "made": ("self.seq_lens = torch.ones(1)", "self.seq_lens.fill_(self.seq_len_fill_value)"),
    "made, spaced": (
        "self.seq_lens = torch . zeros(1)",
        "self.seq_lens.fill_( # it\n    self.seq_len_fill_value)",
    ),
    "made, named": (
        "self.seq_lens = torch.ones(1)",
        "lens = self.seq_lens\nlens.fill_(self.seq_len_fill_value)",
    ),
}


@pytest.mark.parametrize(("make", "fill"), FILLED.values(), ids=FILLED)
@pytest.mark.parametrize("filler", [0, 100], ids=["short", "long"])
def test_an_undeclared_fill_is_found_however_it_is_written(
    make: str, fill: str, filler: int
) -> None:
    others = "".join(f"    def m{n}(self):\n        return {n}\n" for n in range(filler))
    body = textwrap.indent(fill, " " * 8)
    source = (
        "class Runner:\n    def __init__(self, value):\n"
        f"        self.seq_len_fill_value = value\n        {make or 'pass'}\n"
        f"{others}    def replay(self):\n{body}\n"
    )
    quick, whole = quick_and_whole(source, "FM202")

    assert {one.code for one in quick} == {"FM202"}
    assert quick == whole


def test_a_clamp_is_found_by_any_of_its_arguments() -> None:
    source = "def pad(self, n):\n    return self.slot_mapping.clamp(max=n, min=0)\n"
    quick, whole = quick_and_whole(source, "FM202")

    assert {one.code for one in quick} == {"FM202"}
    assert quick == whole


def test_what_shows_that_a_module_has_tensors_may_stand_in_another_block() -> None:
    source = """
        class Runner:
            def replay(self, batch, bs, raw_bs):
                if bs != raw_bs:
                    self.seq_lens[raw_bs:] = 1
                self.seq_lens[:raw_bs] = batch.seq_lens
                self.rows[:raw_bs] = batch.rows

        class Other:
            def clear(self):
                self.totals.zero_()
    """
    assert stale(source) == ["rows"]


#: What another function resets of what it is handed.
HELPERS = """
import lib
import numpy
import torch

def tidy(buf, raw_bs, bs):
    buf[raw_bs:bs] = 0

def tidy_all(*bufs, start):
    for one in bufs:
        one[start:].fill_(0)

def look(buf, raw_bs, bs):
    return buf[raw_bs:bs].sum()

def look_deeper(buf):
    return look(buf, 1, 2), torch.nn.functional.pad(buf, (0, 1))

def tidy_deeper(buf, first, last):
    tidy(buf, first, last)

def launch(buf, first, last):
    unknown_kernel[(1,)](buf, first, last)

def tidy_by_copy(buf, zeros):
    buf.copy_(zeros)

class Runner:
    def launch_own(self, first):
        unknown_kernel[(1,)](self.rows, first)

    @staticmethod
    def of_class(raw_bs, buf):
        buf[raw_bs:] = 0

    def replay(self, batch, bs, raw_bs):
        if bs != raw_bs:
            self.seq_lens[raw_bs:bs].fill_(1)
            pass
        self.seq_lens[:raw_bs].copy_(batch.seq_lens)
        self.rows[:raw_bs].copy_(batch.rows)
        self.graph.replay()
"""


@pytest.mark.parametrize(
    ("call", "is_reset"),
    [
        ("tidy(self.rows, raw_bs, bs)", True),
        ("tidy(raw_bs=raw_bs, bs=bs, buf=self.rows)", True),
        ("tidy(self.rows[:bs], raw_bs, bs)", True),
        ("tidy_all(self.slots, self.rows, start=raw_bs)", True),
        ("self.of_class(raw_bs, self.rows)", True),
        ("unknown(self.rows, raw_bs, bs)", True),
        ("unknown_kernel[(1,)](self.rows, raw_bs, bs)", True),
        ("self.rows.narrow(0, raw_bs, bs - raw_bs).zero_()", True),
        ("tidy(self.rows[:raw_bs], raw_bs, bs)", False),
        ("tidy(self.slots, raw_bs, bs)", False),
        ("tidy(*self.rows)", False),
        ("look(self.rows, raw_bs, bs)", False),
        ("getattr(self, name)[raw_bs:bs].sum()", False),
        ("print(self.rows)", False),
        ("unknown(self.rows[:raw_bs], raw_bs, bs)", False),
        ("self.slots[raw_bs:bs].copy_(self.rows[raw_bs:bs])", False),
        ("tidy_deeper(self.rows, raw_bs, bs)", True),
        ("tidy_by_copy(self.rows, self.zeros)", True),
        ("launch(self.rows, raw_bs, bs)", True),
        ("unknown(self.rows)", True),
        ("look_deeper(self.rows)", False),
        ("launch(self.rows[:raw_bs], raw_bs, bs)", False),
        ("padded = torch.nn.functional.pad(self.rows, (0, 1))", False),
        ("torch.nn.functional.relu(self.rows, inplace=True)", True),
        ("host = numpy.asarray(self.rows)", False),
        ("numpy.copyto(self.rows, 0)", True),
        ("picked = self.table.gather(0, self.rows)", False),
        ("self.slots.add_(self.rows)", False),
        ("lib.add_(self.rows)", True),
        ("self.metrics.put(self.rows)", False),
        ("self.sink.put(self.rows)", True),
        ("self.sink.record(self.rows)", False),
        ("size = count(self.rows)", False),
        ("count(self.rows)", True),
    ],
)
def test_what_is_handed_to_a_function_that_resets_it_is_reset(call: str, is_reset: bool) -> None:
    assert ("rows" not in stale(HELPERS.replace("pass", call))) is is_reset


def test_a_loop_over_names_resets_these_and_no_other() -> None:
    loop = (
        "for name in ('seq_lens', 'slots'):\n                getattr(self, name)[raw_bs:].zero_()"
    )
    assert stale(HELPERS.replace("pass", loop)) == ["rows"]


@pytest.mark.parametrize(
    ("call", "is_reset"),
    [
        ("tidy_deeper(self.rows, raw_bs, bs)", True),
        ("launch(self.rows, raw_bs, bs)", True),
        ("launch(first=raw_bs, last=bs, buf=self.rows)", True),
        ("self.launch_own(raw_bs)", True),
        ("unknown_kernel[(1,)](self.rows.data_ptr(), raw_bs)", True),
        ("unknown_kernel.run([self.rows, self.slots], raw_bs, bs)", True),
        ("unknown(self.rows[raw_bs:])", True),
        ("pad_rows(self.rows)", True),
        ("launch(self.rows, bs, bs)", False),
        ("launch(self.rows[:raw_bs], raw_bs, bs)", False),
        ("launch(self.slots, raw_bs, bs)", False),
        ("self.launch_own(bs)", False),
        ("unknown_kernel[(1,)](self.rows)", False),
        ("unknown(self.rows, raw_bs)", False),
        ("unknown(self.rows)", False),
        ("log(self.rows, raw_bs, bs)", False),
    ],
)
def test_what_every_batch_reaches_is_a_reset_if_it_knows_the_padded_rows(
    call: str, is_reset: bool
) -> None:
    source = HELPERS.replace("        self.graph", f"        {call}\n        self.graph")
    assert ("rows" not in stale(source)) is is_reset


@pytest.mark.parametrize(
    ("after", "is_reset"), [("[:raw_bs].zero_()", True), ("[:1].zero_()", False)]
)
def test_raw_rows_that_are_cleared_after_the_replay_leave_nothing(
    after: str, is_reset: bool
) -> None:
    assert (stale(f"{HELPERS}        self.rows{after}\n") == []) is is_reset


def test_a_reset_that_a_base_class_makes_shows_that_the_tails_are_read() -> None:
    source = """\
        class Base:
            def settle(self):
                self.seq_lens.fill_(1)

        class Runner(Base):
            def replay(self, batch, bs, raw_bs):
                if bs != raw_bs:
                    self.settle()
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                self.rows[:raw_bs].copy_(batch.rows)
        """
    assert stale(source) == ["rows"]
    assert stale(source.replace("self.settle()", "pass")) == []


def test_an_entry_under_an_unknown_key_may_be_one_that_is_reset() -> None:
    source = """\
        class Runner:
            def replay(self, batch, bs, raw_bs):
                def put(key, value):
                    self.inputs[key][:raw_bs].copy_(value)

                if bs != raw_bs:
                    self.inputs["seq_lens"][raw_bs:bs].fill_(1)
                put("seq_lens", batch.seq_lens)
        """
    in_all = "for one in self.inputs.values():\n                        one[:raw_bs].copy_(value)"
    assert stale(source) == []
    assert stale(source.replace("self.inputs[key][:raw_bs].copy_(value)", in_all)) == ["inputs[*]"]


@pytest.mark.parametrize("test", ["(pad := bs - raw_bs) > 0", "(pad := bs - raw_bs)"])
def test_a_walrus_in_a_comparison_tells_the_sizes_apart(test: str) -> None:
    assert stale(HELPERS.replace("if bs != raw_bs:", f"if {test}:")) == ["rows"]


def test_no_fix_goes_into_a_case_that_padded_batches_may_not_reach() -> None:
    """The last case is of another mode: a reset there would hide that the padding has none."""
    source = """\
        class Runner:
            def replay(self, batch, bs, raw_bs):
                match batch.mode:
                    case "decode" if raw_bs < bs:
                        self.seq_lens.fill_(1)
                    case "verify":
                        self.seq_lens.fill_(1)
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                self.rows[:raw_bs].copy_(batch.rows)
        """
    (finding,) = lint(source)
    assert buffer_of(finding) == "rows"
    assert not finding.edits
    assert stale(source.replace(" if raw_bs < bs", "")) == []
