"""`data/judged.md` lists what the linter says of two released trees, and its figures add up."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from fmcheck.registry import rules
from tests.corpus import wheel_source

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = (Path(__file__).parent / "data" / "judged.md").read_text(encoding="utf-8")
TREES = ("sglang 0.5.23", "vllm 0.20.2")
DEFAULT, OFF = "on by default", "off by default"
SWEEP = pytest.mark.sweep
_ROW = re.compile(r"^\| `(\S+:\d+)` \| (\w+) \| .+ \| (right|wrong|debatable) \| .+ \|$")
_SUMMARY = re.compile(r"^\| (FM\d+|all) \| (.+?) \| (\d+) \| (\d+) \| (\d+) % \|$", re.MULTILINE)


class Row(NamedTuple):
    """One finding of the page."""

    code: str
    place: str
    severity: str
    verdict: str


@cache
def judged(tree: str, default: str) -> tuple[Row, ...]:
    """The rows of a tree; each line of its tables below their heads is one."""
    rows: list[Row] = []
    code = ""
    for line in section(f"{tree}, {default}").splitlines():
        if line.startswith("### "):
            code = line.removeprefix("### ")
        elif line.startswith("|") and not line.startswith(("| file:line", "|---")):
            found = _ROW.match(line)
            assert found, f"not a row of a judged finding: {line}"
            rows.append(Row(code, *found.groups()))
    return tuple(rows)


def section(name: str) -> str:
    """The text below a heading of the second rank, up to the next."""
    _, _, after = PAGE.partition(f"\n## {name}\n")
    assert after, f"judged.md lacks a section `{name}`"
    return after.partition("\n## ")[0]


def summary(default: str) -> Mapping[tuple[str, str], tuple[int, int, int]]:
    """Findings, right ones and share in percent, by rule and tree, as the page sums them up."""
    return {
        (code, tree): (int(findings), int(right), int(share))
        for code, tree, findings, right, share in _SUMMARY.findall(
            section(f"Rules that are {default}")
        )
    }


def figures(rows: tuple[Row, ...]) -> tuple[int, int, int]:
    right = sum(row.verdict == "right" for row in rows)
    return len(rows), right, round(100 * right / len(rows))


@pytest.mark.parametrize("defaults", [(DEFAULT,), pytest.param((DEFAULT, OFF), marks=SWEEP)])
@pytest.mark.parametrize("tree", TREES)
def test_the_page_lists_what_the_linter_says(tree, defaults, lint):
    package, _, version = tree.partition(" ")
    folder = wheel_source(package, version)
    selected = ("--select", "ALL") if OFF in defaults else ()

    _, out, err = lint(*selected, "--format", "json", "--no-cache", str(folder))

    said = Counter(
        (one["code"], f"{Path(one['path']).relative_to(folder)}:{one['line']}", one["severity"])
        for one in json.loads(out)
    )
    assert said, err
    rows = [row for default in defaults for row in judged(tree, default)]
    listed = Counter((row.code, row.place, row.severity) for row in rows)
    assert said - listed == Counter(), "said, and not on the page: read it and judge it"
    assert listed - said == Counter(), "on the page, and said no more"


@pytest.mark.parametrize("default", [DEFAULT, OFF])
def test_the_summary_is_that_of_the_tables(default):
    by_tree = {tree: judged(tree, default) for tree in TREES}
    expected = {
        (code, tree): figures(tuple(row for row in rows if row.code == code))
        for tree, rows in by_tree.items()
        for code in {row.code for row in rows}
    }
    expected |= {("all", tree): figures(rows) for tree, rows in by_tree.items()}
    expected["all", "both"] = figures(sum(by_tree.values(), ()))

    assert summary(default) == expected


def test_nine_of_ten_findings_of_each_rule_that_is_on_are_right():
    for (code, tree), (findings, right, _) in summary(DEFAULT).items():
        assert right >= 0.9 * findings, (code, tree)


def test_every_rule_s_page_gives_these_figures():
    for code, rule in rules().items():
        reported = {one.corpus: (one.findings, one.right) for one in rule.judged}
        rows = summary(DEFAULT if rule.on_by_default else OFF)
        for tree in TREES:
            assert reported.get(tree) == rows.get((code, tree), (0, 0, 0))[:2], (code, tree)


def test_notes_are_counted():
    rows = [row for tree in TREES[:1] for row in judged(tree, DEFAULT)]
    others = [row for row in rows if row.severity != "note"]
    right = sum(row.verdict == "right" for row in others)
    text = " ".join(section(f"Rules that are {DEFAULT}").split())

    assert f"Of the findings on SGLang {len(rows) - len(others)} are notes" in text
    assert f"without them {right} of {len(others)} are right" in text


@pytest.mark.parametrize("page", ["README.md", "docs/proof.md", "docs/false-alarms.md"])
def test_the_pages_give_the_figure_of_the_default_rules(page):
    findings, right, _ = summary(DEFAULT)["all", "both"]
    text = " ".join((Path(__file__).parent.parent / page).read_text(encoding="utf-8").split())

    assert set(
        re.findall(r"\d+ of \d+(?= (?:findings of the default|(?:are )?true positives))", text)
    ) == {f"{right} of {findings}"}


def test_rules_that_are_on_without_a_finding_are_named():
    found = {code for code, _ in summary(DEFAULT)}
    text = section(f"Rules that are {DEFAULT}")
    _, _, after = text.partition("On by default without a finding on either tree:")
    named = re.findall(r"FM\d{3}", after.partition(".")[0])

    assert named == [
        code for code, rule in rules().items() if rule.on_by_default and code not in found
    ]


def test_those_of_them_that_rest_on_an_earlier_release_are_named():
    found = {code for code, _ in summary(DEFAULT)}
    text = section(f"Rules that are {DEFAULT}")
    _, _, after = text.partition("Of these, ")
    named = re.findall(r"FM\d{3}", after.partition("have findings")[0])

    assert named == [
        code
        for code, rule in rules().items()
        if rule.on_by_default and code not in found and any(one.findings for one in rule.judged)
    ]
    for code in named:
        assert all(one.right == one.findings for one in rules()[code].judged)
