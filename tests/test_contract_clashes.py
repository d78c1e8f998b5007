"""Contracts that contradict themselves, or check nothing: errors as soon as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fmcheck.contract import load_contract, parse_contract
from fmcheck.errors import UsageError

BASE = """
[engine]
name = "toy"
"""
FILL = """
[[graph_inputs.fill]]
class = "toy:Runner"
methods = ["run"]
inputs = "self"
axis.rows = { raw = "raw", padded = "bs", capacity = "self.max_bs" }
"""
RELAYS = """
[[relay]]
class = "toy:Map"
releases = "FIRST"
buffer = [{ name = "tokens", valid = ">= 0" }]

[[relay]]
class = "toy:Map"
releases = "SECOND"
buffer = [{ name = "tokens" }]
"""
BUDGETS = """
[[launches.budget]]
functions = ["toy:Runner.step"]
syncs = 1

[[launches.budget]]
functions = ["toy:Runner.step", "toy:Runner.run"]
syncs = 2
"""


def inputs(text: str) -> str:
    return f"{BASE}\n[graph_inputs]\n{text}\n"


def refused(text: str) -> str:
    with pytest.raises(UsageError) as err:
        parse_contract(text, "toy.toml")
    return str(err.value)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (
            inputs('row_indices = ["rows"]\nholds = { rows = 3 }'),
            "toy.toml: key `graph_inputs.holds.rows`: 3 contradicts `rows` in "
            "`graph_inputs.row_indices`, whose tail must point at the sink row: expected 0, or "
            "the name in one of the two",
        ),
        (
            inputs('row_indices = ["rows_*"]\nholds = { "*_a" = 3 }'),
            "toy.toml: key `graph_inputs.holds.*_a`: 3 contradicts `rows_*`",
        ),
        (
            inputs('row_indices = ["rows"]\ntail_may_stay = ["r*"]'),
            "toy.toml: key `graph_inputs.tail_may_stay`: `r*` contradicts `rows` in",
        ),
        (
            inputs('row_indices = ["rows"]\ntail_is_discarded = ["rows"]'),
            "toy.toml: key `graph_inputs.tail_is_discarded`: `rows` contradicts `rows` in",
        ),
        (
            inputs('tail_may_stay = ["ids"]\nholds = { ids = 3 }'),
            "toy.toml: key `graph_inputs.holds.ids`: is without effect beside `ids` in",
        ),
        (
            inputs('holds = { "seq_*" = 1, "*_lens" = 2 }'),
            "toy.toml: key `graph_inputs.holds`: globs `seq_*` (1) and `*_lens` (2) may mean the "
            "same name: expected one value for it",
        ),
        (
            inputs('batch_dim = { "*" = 1, "seq_*" = 0 }'),
            "toy.toml: key `graph_inputs.batch_dim`: globs `*` (1) and `seq_*` (0) may mean",
        ),
        (
            inputs('row_indices = ["rows"]') + FILL + "holds = { rows = 1 }",
            "toy.toml: key `graph_inputs.fill[0].holds.rows`: 1 contradicts `rows`",
        ),
        (
            inputs('row_indices = ["rows"]') + FILL + 'only = ["rows", "row"]',
            "toy.toml: key `graph_inputs.fill[0].only`: nothing is demanded of `row`: expected it "
            "in `holds` of this fill, or in `row_indices`, `index_like`, `offsets`, `holds`, "
            "`head` or `rewritten` of `[graph_inputs]`; did you mean `rows`?",
        ),
        (
            BASE + FILL,
            "toy.toml: key `graph_inputs.fill[0]`: checks nothing, for nothing is demanded of any "
            "input: expected a name in its `holds`, or in",
        ),
        (
            inputs('index_like = ["ids"]\ntail_may_stay = ["ids"]') + FILL,
            "toy.toml: key `graph_inputs.fill[0]`: checks nothing",
        ),
        (
            BASE + RELAYS.replace("FIRST", ">=1.0,<2").replace("SECOND", ">=1.5"),
            "toy.toml: key `relay[1]`: contradicts `relay[0]`, which is of the same class "
            "`toy:Map`, in buffer `tokens`: expected `releases` that do not overlap, got "
            "`>=1.0,<2` and `>=1.5` (both have 1.5)",
        ),
        (
            BASE + RELAYS.replace("FIRST", "").replace("SECOND", ""),
            "toy.toml: key `relay[1]`: contradicts `relay[0]`",
        ),
        (
            BASE + BUDGETS,
            "toy.toml: key `launches.budget[1].syncs`: 2 contradicts `launches.budget[0].syncs` = "
            "1 for `toy:Runner.step`: expected one number, or `releases` or `when` that tell",
        ),
        (
            f'{BASE}[[relay]]\nclass = "toy:Map"\nbuffer = [{{ name = "a" }}]\n'
            'sink_rows = [0, "pad"]',
            "toy.toml: key `relay[0].sink_rows`: expected a row's number, or a path like "
            "`self.pad_row`, got `pad`",
        ),
        (
            f'{BASE}[[relay]]\nclass = "toy:Map"\nbuffer = [{{ name = "a" }}]\n'
            "sink_rows = [9999999999]",
            "toy.toml: key `relay[0].sink_rows`: expected rows from 0 to 2147483647, or from -1",
        ),
    ],
)
def test_what_contradicts_itself_or_checks_nothing_is_refused(text: str, reported: str) -> None:
    assert refused(text).startswith(reported)


@pytest.mark.parametrize(
    "text",
    [
        inputs('row_indices = ["rows"]\nholds = { rows = 0, other = 3 }'),
        inputs('holds = { "seq_*" = 1, "*" = 2 }'),
        inputs('holds = { "seq_*" = 1, "*_lens" = 1, seq_lens = 2 }'),
        inputs('index_like = ["*"]\ntail_may_stay = ["ids"]') + FILL + 'only = ["slots"]',
        inputs('row_indices = ["rows"]') + FILL + 'holds = { rows = "self.sink" }',
        BASE + FILL + 'mapping = "self.mapping"',
        BASE + RELAYS.replace("FIRST", "<2").replace("SECOND", ">=2"),
        BASE + BUDGETS.replace("syncs = 2", "launches = 2"),
        BASE + BUDGETS.replace("syncs = 2", 'syncs = 2\nwhen = "self.graphs"'),
    ],
)
def test_what_only_looks_alike_is_read(text: str) -> None:
    parse_contract(text, "toy.toml")


LONG = "expected a key of at most 100 parts, got a longer one"


@pytest.mark.parametrize("text", ['head = { ids = ">= 0" }', 'rewritten = ["ids"]'])
def test_a_fill_may_check_its_real_rows_alone(text: str) -> None:
    parse_contract(inputs(text) + FILL + 'only = ["ids"]', "toy.toml")
    assert "did you mean `ids`?" in refused(inputs(text) + FILL + 'only = ["idz"]')


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (
            "a" + ".a" * 50_000 + " = 1",
            "line 4: expected a key of at most 100 parts, got a longer one",
        ),
        (
            "[" + "a." * 50_000 + "a]",
            "line 4: expected a key of at most 100 parts, got a longer one",
        ),
        ("a = " + "[" * 100_000, "is not valid TOML: it nests too deeply"),
        ("a = " + "{a=" * 100_000, "is not valid TOML: it nests too deeply"),
    ],
)
def test_what_would_keep_the_parser_for_minutes_is_refused(line: str, reported: str) -> None:
    assert refused(f"{BASE}{line}\n") == f"toy.toml: {reported}"


def test_dots_and_brackets_in_strings_are_no_levels() -> None:
    text = BASE.replace("toy", "." * 500 + "[" * 500 + "{" * 500)
    assert parse_contract(text, "toy.toml").engine.name.startswith("...")


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match="its name holds a null byte"):
        load_contract(Path("toy\0.toml"))
