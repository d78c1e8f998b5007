"""The engine's source under the linter: silent as it is, and loud where a fault is written in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fixtures.engine
from fixtures.engine.faults import FAULTS
from fmcheck.contract import load_contract
from fmcheck.lint.engine import lint_text
from fmcheck.registry import rules

if TYPE_CHECKING:
    from fmcheck.finding import Finding

ENGINE = Path(fixtures.engine.__file__).parent
CONTRACT = load_contract(ENGINE / "fmcheck.toml")
RULES = [rule([CONTRACT]) for rule in rules().values() if rule.on_by_default]
FILES = {
    "decode": "runners/target.py",
    "cpu": "runners/target.py",
    "draft": "runners/draft.py",
    "draft_extend": "runners/draft_extend.py",
    "frozen_kv_mtp": "runners/frozen_kv_mtp.py",
    "multi_layer_draft_extend": "runners/multi_layer.py",
}
BY_SLOTS = ("decode", "frozen_kv_mtp", "multi_layer_draft_extend")
TAILS = [name for name in FAULTS if name.startswith("stale_tail.")]


def lint(path: str, source: str) -> list[Finding]:
    return lint_text(source.encode(), f"fixtures/engine/{path}", RULES)


def written_in(path: str, pattern: str, by: str) -> list[Finding]:
    """What the linter says of a file in which the one match of `pattern` is replaced."""
    source, changes = re.subn(pattern, by, (ENGINE / path).read_text(), flags=re.DOTALL)
    assert changes == 1, f"{path}: {pattern!r} stands there {changes} times"
    return lint(path, source)


def test_the_engine_as_it_is_gives_no_finding() -> None:
    files = [path for path in ENGINE.rglob("*.py") if "faults" not in path.parts]
    assert len(files) > 25
    assert [one for path in files for one in lint(path.name, path.read_text())] == []


@pytest.mark.parametrize("name", TAILS)
def test_a_reset_that_is_taken_out_is_seen_where_the_fault_says_so(name: str) -> None:
    _, runner, buffer = name.split(".")
    if runner in BY_SLOTS:
        pattern = rf'(Slot\(\s*"{buffer}",\s*padding=)Padding\.\w+'
        found = written_in(FILES[runner], pattern, r"\1Padding.COPY_HEAD")
    else:
        pattern = rf"\n +buffers\.{buffer}\.(zero_\(\)|fill_\([^\n]*\))"
        found = written_in(FILES[runner], pattern, "")
    expected = [FAULTS[name].lint] if FAULTS[name].lint else []
    assert [one.code for one in found] == expected
    assert all(re.search(rf"`{buffer}[`\[]", one.message) for one in found)


def test_the_planted_event_of_cuda_is_seen_in_its_own_source() -> None:
    assert FAULTS["event_of_cuda"].lint == "FM301"
    path = "faults/devices.py"
    assert [one.code for one in lint(path, (ENGINE / path).read_text())] == ["FM301"]


def test_an_assert_that_lost_its_message_is_seen_though_it_is_compiled_elsewhere() -> None:
    found = written_in("guard.py", r', "relay row gathered before it was stashed"', "")
    assert [one.code for one in found] == [FAULTS["assert_without_message"].lint]
