"""Headlines: each finding's first line has fewer than 100 characters, and names code and place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from fmcheck.finding import CHECKS, Access, Finding, Severity, Site, Span, Violation
from fmcheck.lint.engine import lint_text
from fmcheck.lint.own import OWN_CODES
from fmcheck.report import concise, text
from fmcheck.report.contents import Contents
from fmcheck.report.headline import MOST, fitted
from fmcheck.report.run.violation import render
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.session.probes import PROBES, ProbeTarget, tried
from tests.museum import Case, cases
from tests.museum_runs import run
from tests.sources import ROOT
from tests.test_rules import RULES, found, make, shipped
from tests.test_rules import cases as examples

if TYPE_CHECKING:
    from fmcheck.lint.rule import Example, Rule

HERE = ProbeTarget("cpu")
AT = Span(1, 1, 1, 2)
LONG = "self.forward_metadata_of_the_draft_worker.page_table_of_the_sliding_window.rows"


def first_line(finding: Finding) -> str:
    return text.render(finding, lambda _: ()).partition("\n")[0]


def check(violation: Violation) -> None:
    first, *_ = render(violation, ROOT).splitlines()
    assert len(first) <= MOST
    assert first.startswith(f"FMCHECK: {violation.code} {violation.name} in {violation.buffer}")


@pytest.mark.parametrize(("rule", "example"), examples("bad"))
def test_an_example_of_a_rule_has_a_headline_that_is_not_cut(rule: type[Rule], example: Example):
    for finding in found(make(rule, example), example):
        first = first_line(finding)
        assert len(first) <= MOST
        assert first.startswith(f"{finding.severity.value}[{finding.code}]: {finding.message}")


@pytest.mark.parametrize(
    "case", [case for case in cases() if case.is_linted], ids=lambda case: case.folder.name
)
def test_a_historic_fault_in_source_has_a_headline_that_is_not_cut(case: Case):
    path = case.folder / "bad.py"
    every = [rule(shipped()) for rule in RULES]
    for finding in lint_text(path.read_bytes(), case.file.path or str(path), every):
        assert len(first_line(finding)) <= MOST
        assert finding.message in first_line(finding)


@pytest.mark.parametrize("code", OWN_CODES)
def test_a_code_of_the_linter_itself_has_one_whatever_it_quotes(code: str):
    message = f"file cannot be read: {LONG * 9}: {'no such thing ' * 9}"
    finding = Finding("a.py", AT, code, OWN_CODES[code].severity, message)
    assert len(first_line(finding)) <= MOST
    assert f"note: {message}" in text.render(finding, lambda _: ())


@pytest.mark.parametrize(
    "probe", [one for one in PROBES if one.applies(HERE)], ids=lambda probe: probe.code
)
def test_what_the_probe_of_a_check_reports_has_one(probe, monkeypatch: pytest.MonkeyPatch):
    reported: list[Violation] = []
    report = Tally.report

    def noted(tally: Tally, violation: Violation) -> None:
        reported.append(violation)
        report(tally, violation)

    monkeypatch.setattr(Tally, "report", noted)
    assert tried(probe, HERE) == ""
    for violation in reported:
        check(violation)


@pytest.mark.parametrize(
    "case", [case for case in cases() if case.is_run], ids=lambda case: case.folder.name
)
def test_a_historic_fault_in_a_run_has_one(case: Case):
    for violation in run(case, "bad").violations:
        check(violation)


@pytest.mark.parametrize("code", CHECKS)
def test_a_long_buffer_and_many_rows_are_cut_and_told_whole_below(code: str):
    rows = tuple(range(10_000_000, 10_000_008))
    violation = Violation(
        code=code,
        name=CHECKS[code],
        buffer=LONG,
        rows=rows,
        row_count=700,
        access=Access("gather", Site("engine.py", 1, "step")),
        test="",
        device="cpu",
        pid=1,
    )
    first, second, *rest = render(violation, ROOT).splitlines()
    assert len(first) <= MOST
    assert first.startswith(f"FMCHECK: {code} {CHECKS[code]} in self.")
    assert second == f"  buffer      {LONG}"
    assert f"buf={LONG} rows={','.join(map(str, rows))}" in rest[-1]
    short = render(replace(violation, buffer="Map.buf"), ROOT).splitlines()
    assert "in Map.buf rows 10000000, " in short[0]
    assert short[0].endswith(" more")


def test_long_names_are_cut_in_the_middle_and_told_whole_in_a_note():
    message = f"`{LONG}` is rebound here, but a captured graph reads the old tensor"
    finding = Finding("a.py", AT, "FM603", Severity.WARNING, message, note="and more")
    lines = text.render(finding, lambda _: ()).splitlines()
    assert lines[0].startswith("warning[FM603]: `self.")
    assert lines[0].endswith("` is rebound here, but a captured graph reads the old tensor")
    assert len(lines[0]) <= MOST
    assert [one.strip() for one in lines[2:]] == [f"= note: {message}", "= note: and more"]
    assert len(fitted("word " * 50)) == MOST


def test_a_concise_line_has_the_headline_after_its_place():
    message = f"`{LONG}` is rebound here, but a captured graph reads the old tensor"
    finding = Finding("a.py", AT, "FM603", Severity.WARNING, message)
    line = concise.render(Contents([finding], [], {}, lambda _: (), "", "1", 1, complete=True))
    assert line.startswith("a.py:1:1: FM603 `self.")
    assert len(line.removeprefix("a.py:1:1: ")) <= MOST
