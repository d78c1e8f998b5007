"""The museum runs: each historic fault is reported where it happens, and its mending is not."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from fmcheck.finding import CHECKS
from tests.museum import Case, CaseFile, cases, entries, expectations
from tests.museum_runs import is_caught, others, run

if TYPE_CHECKING:
    from pathlib import Path

CASES = [pytest.param(case, id=case.folder.name) for case in cases() if case.is_run]
CAUGHT = [
    pytest.param(case, id=case.folder.name)
    for case in cases()
    if case.is_run and not case.file.missed
]


def bad_source(case: Case) -> str:
    return (case.folder / "bad_run.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CAUGHT)
def test_bad_run_is_reported_just_where_it_says(case: Case) -> None:
    made = run(case, "bad")
    assert made.problems == ()
    assert made.found == expectations(bad_source(case))
    assert others(bad_source(case)) <= made.against


@pytest.mark.parametrize("case", CASES)
def test_good_run_is_left_alone(case: Case) -> None:
    made = run(case, "good")
    assert made.problems == ()
    assert made.found == []
    assert made.stopped is None


@pytest.mark.parametrize("case", CASES)
def test_run_is_declared_whole(case: Case) -> None:
    entry = entries()[case.file.id]
    assert case.file.title
    assert case.file.class_ == entry.class_
    assert {code for _, code in expectations(bad_source(case))} == set(case.file.checks)
    assert set(case.file.checks) <= set(CHECKS)
    assert bool(case.file.missed) is not bool(case.file.checks)
    assert (case.folder / case.file.watch).is_file()


@pytest.mark.parametrize("case", CASES)
def test_both_runs_parse_and_differ(case: Case) -> None:
    bad, good = (
        ast.parse((case.folder / name).read_bytes()) for name in ("bad_run.py", "good_run.py")
    )
    assert ast.dump(bad) != ast.dump(good)


def test_a_run_is_held_against_the_lines_that_are_marked() -> None:
    source = "a = 1  # against: FR401\nb = 2  # against: FR401 # expect: FR401\nc = 3\n"
    assert others(source) == {(1, "FR401"), (2, "FR401")}
    assert expectations(source) == [(2, "FR401")]


@pytest.mark.parametrize(
    ("bad", "good"), [("pass", "pass"), ("relay.buf[[1]]  # expect: FR101", "relay.buf[[1]]")]
)
def test_a_run_that_is_silent_or_never_silent_is_not_caught(
    tmp_path: Path, bad: str, good: str
) -> None:
    (tmp_path / "watch.toml").write_text(
        '[engine]\nname = "toy"\n\n[[relay]]\nclass = "museum_case:Relay"\n\n'
        '[[relay.buffer]]\nname = "buf"\n'
    )
    for form, line in (("bad", bad), ("good", good)):
        (tmp_path / f"{form}_run.py").write_text(
            "import torch\n\n\nclass Relay:\n    def __init__(self):\n"
            "        self.buf = torch.zeros(4, dtype=torch.int64)\n\n\n"
            f"def run():\n    relay = Relay()\n    {line}\n"
        )
    file = CaseFile(id="a#1", title="t", class_="A", checks=("FR101",), watch="watch.toml")
    assert not is_caught(Case(tmp_path, file))
