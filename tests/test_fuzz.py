"""A slice of the fuzzing, and crashes of old: `python -m tests.fuzz` does more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fmcheck.lint import FunctionRule
from tests.fuzz import campaign as campaigns
from tests.fuzz import contracts, files
from tests.fuzz.campaign import Campaign, again, by_seeds
from tests.fuzz.crash import Crash, least
from tests.fuzz.draw import Draw, FromSeed

ROOT = Path(__file__).parent.parent
OLD = sorted((ROOT / "tests" / "data" / "fuzz").glob("*.[pt]*[yl]"))


@pytest.mark.parametrize("target", ["rules", "contracts"])
def test_nothing_comes_of_a_few_hundred_cases(target):
    campaign = Campaign((target,), trees=False)
    by_seeds(campaign, 1, 150)
    assert campaign.cases == {target: 150}
    assert {crash.what: crash.content for crash in campaign.crashes.values()} == {}


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_nothing_comes_of_a_crash_of_old(path):
    target = "contracts" if path.suffix == ".toml" else "rules"
    assert again(target, path.read_bytes()) == ""


def test_a_seed_makes_the_same_case_each_time():
    texts = files.seeds(trees=False)
    one, same, other = (files.mutated(Draw(FromSeed(seed)), texts) for seed in (5, 5, 6))
    assert one == same != other


def test_most_cases_are_python_and_most_contracts_are_toml():
    texts = files.seeds(trees=False)
    made = [files.mutated(Draw(FromSeed(seed)), texts) for seed in range(60)]
    assert sum(bool(files.statements(one.decode("utf-8", "replace"))) for one in made) > 25
    reported = [
        contracts.broken_contract(
            contracts.as_toml(contracts.valid(Draw(FromSeed(seed)))), must_load=True
        )
        for seed in range(20)
    ]
    assert reported == [""] * 20


class Failing(FunctionRule):
    code = "ZZ101"
    name = "failing"
    words = (("bait",),)

    def check(self, part):
        raise KeyError("lost")


def test_a_rule_that_fails_is_a_crash_and_made_small():
    rule = Failing([])

    def check(text: bytes) -> str:
        return files.broken(text, with_rules=[rule])

    text = b"import torch\n" * 20 + b"bait = 1\n" + b"x = 2\n" * 20
    reported = check(text)
    assert reported.startswith("rule ZZ101 failed here: KeyError")
    assert least(Crash("rules", reported, text), check).content == b"bait = 1\n"


def test_a_contract_error_that_names_no_key_is_a_crash(monkeypatch):
    def refuse(text, where):
        raise contracts.UsageError(where, "is odd")

    monkeypatch.setattr(contracts, "parse_contract", refuse)
    assert contracts.broken_contract(b"") == "an error names no key: fuzzed.toml: is odd"


def test_a_loader_that_fails_is_a_crash_and_saved(monkeypatch, tmp_path):
    def fail(text, where):
        raise TypeError("odd")

    monkeypatch.setattr(contracts, "parse_contract", fail)
    campaign = Campaign(("contracts",), trees=False)
    by_seeds(campaign, 0, 5, tmp_path)
    (crash,) = campaign.crashes.values()
    assert crash.what.startswith("TypeError in test_fuzz.py:fail: odd")
    assert crash.content == b""
    assert {path.suffix for path in tmp_path.iterdir()} == {".toml", ".txt"}


def test_a_case_that_hangs_is_a_crash(monkeypatch):
    def hang(text, where):
        while True:
            pass

    monkeypatch.setattr(contracts, "parse_contract", hang)
    monkeypatch.setattr(campaigns, "MOST_SECONDS", 0.2)
    campaign = Campaign(("contracts",), trees=False)
    by_seeds(campaign, 0, 1)
    (crash,) = campaign.crashes.values()
    assert crash.what == "TimeoutError in campaign.py:stop: took more than 0.2 s"


def test_the_command_says_how_much_was_tried(tmp_path):
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "0.1", "--target", "contracts"]
    done = subprocess.run(
        [*command, "--crashes", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert " of contracts cases in " in done.stdout
    assert done.stdout.endswith("0 crashes\n")
