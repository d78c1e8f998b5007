"""What README.md and the other pages say holds: commands, settings, code, links, findings."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import msgspec
import pytest
import yaml

import fmcheck
from fmcheck.cli import _split, parser
from fmcheck.config import load_settings
from fmcheck.contract import Contract, parse_contract
from fmcheck.finding import CHECKS
from fmcheck.lint.own import OWN_CODES
from fmcheck.prove.known import load_known
from fmcheck.prove.operators.all_operators import OPERATORS
from fmcheck.registry import rules
from tests import readme as made
from tests.drives import DRIVES, drive
from tests.readme import blocks
from tests.sglang_env import release_folder
from tests.test_plugin import Project, project

__all__ = ["project"]

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "fixtures/README.md", "fixtures/museum/README.md")
    for path in ROOT.glob(pattern)
)
#: Made when the site is built.
MADE = {"changelog.md", "rules/index.md", "checks/index.md"} | {
    f"{folder}/{code}.md"
    for folder, codes in (("rules", (*rules(), *OWN_CODES)), ("checks", CHECKS))
    for code in codes
}
#: Options of commands other than fmcheck and pytest.
ELSEWHERE = {
    "--fault": "python -m fixtures.engine",
    "--faults": "python -m fixtures.engine",
    "--all-rules": "python -m tests.historic",
    "--check": "python -m fixtures.engine",
    "--cpu-builds": "python -m tests.matrix",
    "--page": "python -m tests.museum",
    "--whole": "python -m tests.prove_self",
    "--disaggregation-mode": "SGLang's server",
    "--enable-lora-overlap-loading": "SGLang's server",
}

every_page = pytest.mark.parametrize("page", PAGES)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def readme() -> str:
    return read("README.md")


@pytest.fixture(scope="module")
def guide() -> str:
    return read("docs/contracts.md")


def is_settings(block: str) -> bool:
    return "[tool.fmcheck" in block


def is_known(block: str) -> bool:
    return "[[known]]" in block


def contracts_of(text: str) -> list[str]:
    """The contracts of a page, and parts of such."""
    return [one for one in blocks(text, "toml") if not is_settings(one) and not is_known(one)]


def steps_of(guide: str) -> str:
    """The guide from its first step on: there the parts make up one contract."""
    return guide[guide.index("\n## 1. ") :]


# --- README.md ---


def test_the_readme_is_short_and_names_the_two_commands_that_set_up_all(readme):
    assert len(readme.encode()) <= 8000
    assert "`make demo`" in readme
    assert "`make test`" in readme


def test_the_first_finding_is_what_the_linter_says(readme):
    shown = made.finding_block(readme)
    assert "FM201" in shown
    assert shown == made.finding(shown), "run `python -m tests.readme`"


@pytest.mark.release
def test_the_first_violation_is_what_the_watch_says():
    block = next(block for block in blocks(read("docs/runtime.md"), "console") if "FR102" in block)
    parts = block.partition("\n")[2].split("...\n")

    reported = drive("0.5.23", "overlap").output

    folders = (str(one).lstrip("/") for one in (release_folder("0.5.23"), DRIVES))
    for folder in folders:
        reported = reported.replace(f"{folder}/", "")
    reported = re.sub(r"\bpid=\d+", re.search(r"\bpid=\d+", block)[0], reported)
    assert len(parts) == 3
    for part in parts:
        assert part in reported
        reported = reported[reported.index(part) :]


def test_the_ten_lines_of_a_contract_find_the_bug_that_is_shown(readme, tmp_path):
    (contract,) = contracts_of(readme)
    assert len(contract.splitlines()) <= 10
    shown = made.shortened(made.violation(readme, tmp_path))
    assert "FR102 double-read" in shown
    assert made.violation_block(readme) == shown, "run `python -m tests.readme`"


def test_the_quick_start_has_the_same_contract_and_finding(readme):
    quick = read("docs/quick-start.md")
    (shown,) = blocks(quick, "text")
    assert contracts_of(quick) == contracts_of(readme)
    assert shown == made.story(readme), "run `python -m tests.readme`"


@pytest.mark.torch
def test_the_wrong_token_of_the_first_page_is_wrong_and_is_reported():
    from fixtures.engine.faults import fault
    from fixtures.engine.settings import Settings
    from fixtures.engine.workload import random_asks, run

    page = read("docs/index.md")
    tokens, shown = blocks(page, "text")
    asks = random_asks(seed=0, count=8)
    plain = run(Settings(pool_rows=8), asks, overlap=False)
    with fault("every_third_stash_dropped"):
        wrong = run(Settings(pool_rows=8), asks, overlap=True)
        with (
            pytest.raises(fmcheck.ViolationError) as found,
            fmcheck.watch(config=ROOT / "fixtures" / "engine" / "pyproject.toml"),
        ):
            run(Settings(pool_rows=8), asks, overlap=True)

    for line, answers in zip(tokens.splitlines(), (plain, wrong), strict=True):
        reported = [int(number) for number in re.findall(r"\b\d+\b", line)]
        assert reported == list(answers.outcomes[0].tokens[: len(reported)])
    said = str(found.value).replace("fixtures/engine/", "")
    for line in shown.splitlines():
        assert line in said


# --- tables ---


def test_the_table_of_rules_is_the_registry_s():
    page = read("docs/lint.md")
    assert page == made.with_table(page), "run `python -m tests.readme`"


def test_every_check_at_run_time_is_explained():
    page = read("docs/runtime.md")
    assert dict(re.findall(r"^\| \[(FR\d+)\]\S* `([a-z-]+)` \|", page, re.MULTILINE)) == CHECKS


def test_every_operator_of_prove_is_explained():
    said = re.findall(r"^\| `([a-z-]+)` \|", read("docs/prove.md"), re.MULTILINE)
    assert said == list(OPERATORS)


def test_every_key_of_a_contract_is_explained():
    said = re.findall(r"`(?:\[+(?:[a-z_]+\.)*)?([a-z_]+)\]*`", read("docs/keys.md"))
    assert keys_of(Contract) - set(said) == set()


def test_every_public_name_is_in_the_policy_of_versions():
    said = set(re.findall(r"`(\w+)`", read("docs/versions.md")))
    source = ast.parse((ROOT / "fmcheck" / "__init__.py").read_text())
    public = {
        alias.asname
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert public
    assert public <= said


def test_every_target_of_make_has_help_and_is_explained():
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    helped = re.findall(r"^([a-z-]+):[^#\n]*##", makefile, re.MULTILINE)
    explained = re.findall(r"^\| `make ([a-z-]+)` \|", read("CONTRIBUTING.md"), re.MULTILINE)

    assert sorted(phony.split()) == sorted(helped)
    assert set(phony.split()) - {"help"} == set(explained)


# --- every page ---


@every_page
def test_every_command_is_one_that_fmcheck_reads(page):
    lines = [line for block in blocks(read(page), "console") for line in block.splitlines()]
    commands = [line[2:].partition("  #")[0] for line in lines if line.startswith("$ fmcheck ")]

    for command in commands:
        own, _ = _split(shlex.split(command)[1:])
        _, unknown = parser().parse_known_args(own)
        assert not unknown, command


@pytest.fixture(scope="module")
def options() -> set[str]:
    """All options of fmcheck, of its plugin, and of the measure that a page explains."""
    known: set[str] = set()
    commands = (
        "lint",
        "doctor",
        "report show",
        "report merge",
        "ci",
        "prove",
        "contract",
        "init",
        "",
    )
    for command in commands:
        known |= _options_of(["-m", "fmcheck", *command.split()])
    known |= _options_of(["-m", "tests.corpus_first_sight", "verdict"])
    known |= _options_of(["-m", "tests.vllm_drives"])
    return known | _options_of(["-m", "pytest", "-p", "fmcheck"])


def _options_of(command: list[str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, *command, "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(re.findall(r"--[a-z][a-z-]*", done.stdout))


@every_page
def test_every_option_exists(page, options):
    said = set(re.findall(r"(?<![\w|-])(--[a-z][a-z-]*)", read(page)))
    assert said - options - set(ELSEWHERE) == set()


@every_page
def test_every_target_of_make_exists(page):
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    said = re.findall(r"[`$] ?make ([a-z-]+)", read(page))
    assert set(said) - set(phony.split()) == set()


@every_page
def test_settings_are_read(page, tmp_path):
    path = tmp_path / "pyproject.toml"
    for block in filter(is_settings, blocks(read(page), "toml")):
        path.write_text(block)
        assert load_settings(path).settings


@every_page
def test_every_contract_and_part_of_one_is_read(page):
    for block in contracts_of(read(page)):
        head = "" if "[engine]" in block else '[engine]\nname = "x"\n'
        parse_contract(f"{head}{block}", page)


def test_a_file_of_known_survivors_is_read(tmp_path):
    (block,) = filter(is_known, blocks(read("docs/prove.md"), "toml"))
    (tmp_path / "known.toml").write_text(block)
    assert [one.operator for one in load_known(tmp_path / "known.toml")] == ["drop-wait"]


@every_page
def test_python_is_python(page):
    for block in blocks(read(page), "python"):
        ast.parse(block)


@every_page
def test_yaml_names_this_version_and_what_the_repository_offers(page):
    hooks = {one["id"] for one in yaml.safe_load(read(".pre-commit-hooks.yaml"))}
    inputs = set(yaml.safe_load(read("action.yml"))["inputs"])
    for step in (step for block in blocks(read(page), "yaml") for step in yaml.safe_load(block)):
        if "hooks" in step:
            assert step["rev"] == f"v{fmcheck.__version__}"
            assert {hook["id"] for hook in step["hooks"]} <= hooks
        elif "<this repository>" in step["uses"]:
            assert step["uses"].endswith(f"@v{fmcheck.__version__}")
            assert set(step["with"]) <= inputs


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    words = (re.sub(r"[^\w\s-]", "", one).strip().lower() for one in headings)
    return {re.sub(r"[-\s]+", "-", one) for one in words}


@every_page
def test_every_link_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)
    folder = (ROOT / page).parent

    for link in links:
        name, _, anchor = link.partition("#")
        path = folder / name if name else ROOT / page
        is_made = page.startswith("docs/") and name in MADE
        assert is_made or path.exists(), link
        if anchor:
            assert anchor in anchors_of(path.read_text(encoding="utf-8")), link


@every_page
def test_no_page_names_a_machine_or_a_registry(page):
    assert re.findall(r"(?<![\w.])/(?:work|home|root|tmp|opt)/|pypi\.org/simple", read(page)) == []


#: Words of our own for what has a plain technical name, with that name.
PLAIN = {
    r"mend(?:s|ed|ing)?": "fix",
    r"told|tells of": "reported",
    r"planted?s?|plants": "injected",
    r"slip(?:s|ped)? through": "survived",
    r"takes? hold of": "instruments",
    r"anew": "again",
    r"out of sight|out of (?:our|its|Python's) sight": "not followed",
    r"nobody wrote": "unwritten",
    r"stands? nowhere|is not there": "not found",
    r"lies? beside|lies? elsewhere": "is kept beside, is elsewhere",
    r"is held against": "is checked against",
    r"museum": "regression corpus",
}
#: Made of other files, which have tests of their own, or a record of the past.
NOT_OURS = ("CHANGELOG.md", "fixtures/museum/README.md")


def prose_of(page: str) -> str:
    """A page without blocks and pieces of code, and without the table that is made."""
    text = re.sub(f"{re.escape(made.BEGIN)}.*{re.escape(made.END)}", "", read(page), flags=re.S)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_OURS])
def test_prose_uses_the_plain_technical_word(page):
    prose = " ".join(prose_of(page).split())
    found = {
        hit[0]: plain
        for word, plain in PLAIN.items()
        for hit in re.finditer(rf"\b(?:{word})\b", prose, re.IGNORECASE)
    }
    assert found == {}, "say the word on the right"


# --- blocks that run ---


def test_the_watch_of_a_block_of_code_runs(tmp_path):
    (block,) = [one for one in blocks(read("docs/runtime.md"), "python") if "fmcheck.watch" in one]
    program = f"serve, requests = (lambda requests: None), []\n{block}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ)

    assert done.returncode == 0, done.stderr


def test_the_example_of_a_test_that_expects_passes(project: Project):
    (block,) = [one for one in blocks(read("docs/runtime.md"), "python") if "fmcheck.expect" in one]
    example = block[block.index("def test_retry") :].replace("        ...", "        stale()")
    result = project.run(f"from toy_engine import stale\n\n\n{example}")

    result.assert_outcomes(passed=1)
    assert result.ret == 0


def test_the_guide_s_contract_sees_what_its_engine_does_wrong(guide, tmp_path):
    shutil.copytree(ROOT / "tests" / "data" / "my_engine", tmp_path, dirs_exist_ok=True)
    (tmp_path / "my_engine.toml").write_text("\n".join(contracts_of(steps_of(guide))))
    (settings,) = filter(is_settings, blocks(guide, "toml"))
    (tmp_path / "pyproject.toml").write_text(settings)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    command = [sys.executable, "-m", "pytest", "-p", "fmcheck", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ)

    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "FR104 stale-owner in TokenRelay.next_tokens row 1" in done.stdout
    assert "FR201 stale-tail in DecodeRunner.row_ids" in done.stdout
    assert "owner b, generation 2" in done.stdout


def test_what_the_guide_shows_of_fmcheck_contract_is_what_it_prints(guide, tmp_path):
    assert made.typos_block(guide) == made.typos(tmp_path), "run `python -m tests.readme`"


def keys_of(struct: type[msgspec.Struct]) -> set[str]:
    """The keys of a table of a contract, and of the tables in it."""
    keys = {field.encode_name for field in msgspec.structs.fields(struct)}
    for field in msgspec.structs.fields(struct):
        for part in (field.type, *typing.get_args(field.type)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                keys |= keys_of(part)
    return keys
