"""Every rule's own examples, and the laws that hold for all rules."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from fmcheck.config import Located, Settings
from fmcheck.contract import Contract, parse_contract
from fmcheck.lint.engine import lint_text
from fmcheck.lint.page import rule_page
from fmcheck.lint.rule import Example, Rule, problems
from fmcheck.lint.run.fix import fixed_source
from fmcheck.registry import contracts_for, rules
from tests.test_judged import TREES

RULES = list(rules().values())


def cases(kind: str) -> list:
    return [
        pytest.param(rule, example, id=f"{rule.code}-{kind}-{number}")
        for rule in RULES
        for number, example in enumerate(getattr(rule, kind), 1)
    ]


@cache
def shipped() -> tuple[Contract, ...]:
    """The contracts that apply to any file; reading them takes as long as linting an example."""
    return tuple(contracts_for(Located(Settings(), None)))


def make(rule: type[Rule], example: Example) -> Rule:
    own = [parse_contract(example.contract, f"example of {rule.code}")] if example.contract else []
    return rule([*shipped(), *own])


def found(rule: Rule, example: Example, code: str | None = None) -> list:
    return lint_text((code or example.code).encode(), example.path, [rule])


@pytest.mark.parametrize(("rule", "example"), cases("bad"))
def test_bad_example_is_flagged_where_it_says(rule, example):
    assert example.at
    at = [
        (finding.span.line, finding.span.column) for finding in found(make(rule, example), example)
    ]

    assert at == list(example.at)


@pytest.mark.parametrize(("rule", "example"), cases("good"))
def test_good_example_is_left_alone(rule, example):
    assert found(make(rule, example), example) == []


@pytest.mark.parametrize(("rule", "example"), cases("bad"))
def test_finding_tells_a_way_out(rule, example):
    for finding in found(make(rule, example), example):
        assert finding.code == rule.code
        assert finding.help


@pytest.mark.parametrize(
    ("rule", "example"), [case for case in cases("bad") if case.values[1].fixed is not None]
)
def test_fix_gives_the_shown_source_which_lints_clean(rule, example):
    fixed = fixed_source(example.code, found(make(rule, example), example))

    assert fixed == example.fixed
    ast.parse(fixed)
    assert found(make(rule, example), example, fixed) == []


@pytest.mark.parametrize(("rule", "example"), cases("bad") + cases("good"))
def test_cheap_stages_change_no_finding(rule, example):
    every = make(rule, example)
    everything = lint_text(example.code.encode(), example.path, [every], whole=True)

    assert everything == found(every, example)


@pytest.mark.parametrize("head", ["\n", "    # a comment\n", "\f\n", "\f"])
@pytest.mark.parametrize(("rule", "example"), cases("bad"))
def test_what_stands_before_the_first_statement_changes_no_finding(rule, example, head):
    lines = head.count("\n")
    at = [(line + lines, column + (line == 1 and not lines)) for line, column in example.at]
    every = make(rule, example)

    for whole in (False, True):
        code = (head + example.code).encode()
        given = lint_text(code, example.path, [every], whole=whole)
        assert [(one.span.line, one.span.column) for one in given] == at


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_rule_is_declared_whole(rule):
    assert list(problems(rule)) == []
    assert rule.code.startswith("FM")
    assert rule.bad
    assert rule.good
    assert all(link.startswith("https://github.com/") for link in rule.seen_in)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_page_shows_what_why_and_instead(rule):
    page = rule_page(rule)

    for heading in ("## What it does", "## Why is this bad", "## Example", "## Use instead"):
        assert heading in page
    assert rule.bad[0].code.splitlines()[0] in page
    assert ("a note where no contract binds the file" in page) is not rule.warns_undeclared


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_page_shows_examples_as_code_and_sources_as_links(rule):
    page = rule_page(rule)
    for example in (*rule.bad, *rule.good):
        code = example.code.strip("\n")
        assert f"\n\n```python\n{code}\n```\n" in page or page.startswith(f"```python\n{code}")
    for link in rule.seen_in:
        if link.startswith("https://"):
            assert f"- <{link}>\n" in page


def test_the_rule_that_the_guide_shows_is_whole():
    guide = Path(__file__).parent.parent / "docs" / "write-a-rule.md"
    shown = re.search(r"(?s)```python\n(.*?)```", guide.read_text(encoding="utf-8"))
    module = {"__name__": "fm503_step_synchronize"}
    exec(shown[1], module)
    rule = module["StepSynchronize"]

    assert rule.code not in rules()
    assert not rule.on_by_default
    assert [(one.corpus, one.findings, one.right) for one in rule.judged] == [
        (tree, 0, 0) for tree in TREES
    ]
    for test in (
        test_rule_is_declared_whole,
        test_page_shows_what_why_and_instead,
        test_a_page_shows_examples_as_code_and_sources_as_links,
    ):
        test(rule)
    for example in rule.bad:
        test_bad_example_is_flagged_where_it_says(rule, example)
        test_finding_tells_a_way_out(rule, example)
    for example in rule.good:
        test_good_example_is_left_alone(rule, example)
