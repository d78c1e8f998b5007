"""The museum: each historic fault is flagged where it stands, and what replaced it is not."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from fmcheck.registry import rules
from tests.museum import MUSEUM, Case, cases, entries, expectations
from tests.museum_page import PAGE, page
from tests.museum_table import main

if TYPE_CHECKING:
    from pathlib import Path

CASES = [pytest.param(case, id=case.folder.name) for case in cases() if case.is_linted]


@pytest.mark.parametrize("case", CASES)
def test_bad_form_is_flagged_just_where_it_says(case: Case) -> None:
    assert case.given("bad.py") == case.expected


@pytest.mark.parametrize("case", CASES)
def test_good_form_is_left_alone(case: Case) -> None:
    assert case.given("good.py") == []


@pytest.mark.parametrize("case", CASES)
def test_case_is_declared_whole(case: Case) -> None:
    entry = entries()[case.file.id]
    assert case.file.title
    assert case.file.class_ == entry.class_
    assert {code for _, code in case.expected} == set(case.file.rules)
    assert set(case.file.rules) <= set(rules())
    assert bool(case.file.why_not) is not bool(case.file.rules)


@pytest.mark.parametrize("case", CASES)
def test_both_forms_parse_and_differ(case: Case) -> None:
    bad, good = (ast.parse((case.folder / name).read_bytes()) for name in ("bad.py", "good.py"))
    assert ast.dump(bad) != ast.dump(good)


def test_folders_hold_cases_and_nothing_else() -> None:
    beside = {"README.md", "contracts"}
    found = {path.name for path in MUSEUM.iterdir() if not (path / "case.toml").is_file()}
    assert found <= beside


def test_an_expectation_is_read_off_its_line() -> None:
    source = (
        "a = 1  # expect: FM201\nb = 2\nc = 3  # because. expect: FM9\n# expect: FM101, FM102\n"
    )
    assert expectations(source) == [(1, "FM201"), (4, "FM101"), (4, "FM102")]


def test_a_case_without_a_finding_is_not_caught(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "bad.py").write_text("x = 1  # expect: FM601\n")
    (folder / "good.py").write_text("x = 2\n")
    (folder / "case.toml").write_text('id = "a#1"\ntitle = "t"\nclass = "A"\nrules = ["FM601"]\n')
    [case] = cases(tmp_path)
    assert case.given("bad.py") == []
    assert not case.is_caught


@pytest.mark.torch
def test_the_tables_name_what_is_not_caught(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, "too few are caught"
    said = capsys.readouterr().out
    totals = [line.split()[1:4] for line in said.splitlines() if line.startswith("all ")]
    missed = sum(int(detectable) - int(caught) for detectable, _, caught in totals)
    reported = [line for line in said.splitlines() if line.startswith(("no case", "not caught"))]
    assert len(totals) == 2
    assert len(reported) == missed
    assert "NOT CAUGHT" not in said


def test_the_page_is_what_the_cases_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.museum --page`"
