"""What README.md and fixtures/README.md say holds: options, tables, settings, contracts, code."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import typing

import msgspec
import pytest

from fmcheck.cli import _parser, _split, main
from fmcheck.config import load_settings
from fmcheck.contract import Contract, parse_contract
from fmcheck.finding import CHECKS
from tests.corpus import wheel_source
from tests.drives import DRIVES, drive
from tests.readme import made
from tests.sglang_env import release_folder
from tests.test_plugin import Project, project

__all__ = ["project"]


@pytest.fixture(scope="module")
def readme(root) -> str:
    return (root / "README.md").read_text()


@pytest.fixture(scope="module")
def fixtures_readme(root) -> str:
    return (root / "fixtures" / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def contract_of(guide: str) -> list[str]:
    """The parts of the contract that the guide writes, without the settings that name it."""
    return [block for block in blocks(guide, "toml") if "[tool." not in block]


def test_the_table_of_rules_is_the_registry_s(readme):
    assert readme == made(readme), "run `python -m tests.readme`"


def test_every_check_at_run_time_is_explained(readme):
    rows = dict(re.findall(r"^\| (FR\d+) `([a-z-]+)` \|", readme, re.MULTILINE))

    assert rows == CHECKS


def test_every_command_is_one_that_fmcheck_reads(readme):
    lines = [line for block in blocks(readme, "console") for line in block.splitlines()]
    commands = [line[2:].partition("  #")[0] for line in lines if line.startswith("$ fmcheck ")]

    assert len(commands) > 5
    for command in commands:
        own, _ = _split(shlex.split(command)[1:])
        _, unknown = _parser().parse_known_args(own)
        assert not unknown, command


def test_every_option_exists(readme, capsys):
    known = {"--fault", "--faults"}  # of the reference engine
    for command in ("lint", "doctor", "report", "ci", "prove"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        known |= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    command = [sys.executable, "-m", "pytest", "-p", "fmcheck", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    known |= set(re.findall(r"--fmcheck[a-z-]*", done.stdout))

    assert set(re.findall(r"(?<![-\w`|])`?(--[a-z]+[a-z-]*)", readme)) <= known


def test_the_settings_are_read(readme, tmp_path):
    block = next(block for block in blocks(readme, "toml") if "[tool.fmcheck]" in block)
    path = tmp_path / "pyproject.toml"
    path.write_text(block)

    settings = load_settings(path).settings

    assert settings.select
    assert settings.suppress


def test_the_watch_of_a_block_of_code_runs(readme, root, tmp_path):
    (block,) = [block for block in blocks(readme, "python") if "fmcheck.watch" in block]
    program = f"serve, requests = (lambda requests: None), []\n{block}"
    environ = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ)

    assert done.returncode == 0, done.stderr


def test_the_example_of_a_test_that_expects_passes(readme, project: Project):
    (block,) = [block for block in blocks(readme, "python") if "fmcheck.expect" in block]
    example = block[block.index("def test_retry") :].replace("        ...", "        stale()")
    result = project.run(f"from toy_engine import stale\n\n\n{example}")

    result.assert_outcomes(passed=1)
    assert result.ret == 0


def test_the_first_finding_is_what_the_linter_says(readme, monkeypatch, capsys):
    block = next(block for block in blocks(readme, "console") if "FM201" in block)
    command, _, expected = block.partition("\n")
    monkeypatch.chdir(wheel_source("sglang", "0.5.12"))

    assert main([*shlex.split(command)[2:], "--no-cache"]) == 1

    assert expected in capsys.readouterr().out


@pytest.mark.release
def test_the_first_violation_is_what_the_watch_says(readme):
    block = next(block for block in blocks(readme, "console") if "FR102" in block)
    parts = block.partition("\n")[2].split("...\n")

    told = drive("0.5.23", "overlap").output

    folders = (str(one).lstrip("/") for one in (release_folder("0.5.23"), DRIVES))
    for folder in folders:
        told = told.replace(f"{folder}/", "")
    told = re.sub(r"\bpid=\d+", re.search(r"\bpid=\d+", block)[0], told)
    assert len(parts) == 3
    for part in parts:
        assert part in told
        told = told[told.index(part) :]


def test_every_target_of_make_has_help_and_is_told_of(readme, root):
    makefile = (root / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    helped = re.findall(r"^([a-z-]+):[^#\n]*##", makefile, re.MULTILINE)

    assert sorted(phony.split()) == sorted(helped)
    assert {f"make {target}" for target in phony.split()} <= set(
        re.findall(r"make [a-z-]+", readme)
    )


@pytest.mark.parametrize("name", ["README.md", "fixtures/README.md"])
def test_every_link_into_the_checkout_leads_somewhere(root, name):
    page = root / name
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_contract_to_start_from_is_one(fixtures_readme):
    whole = [block for block in contract_of(fixtures_readme) if "[engine]" in block]

    assert whole
    for block in whole:
        parse_contract(block, "fixtures/README.md")


def test_every_part_of_a_contract_is_one(fixtures_readme):
    parts = [block for block in contract_of(fixtures_readme) if "[engine]" not in block]

    for part in parts:
        parse_contract(f'[engine]\nname = "x"\n{part}', "fixtures/README.md")


def test_every_key_of_a_contract_is_explained(fixtures_readme):
    _, _, tables = fixtures_readme.partition("## The contract, key by key")
    told = set(re.findall(r"`(?:\[+(?:[a-z_]+\.)*)?([a-z_]+)\]*`", tables))

    assert keys_of(Contract) - told == set()


def test_the_guide_s_contract_sees_what_its_engine_does_wrong(fixtures_readme, root, tmp_path):
    shutil.copytree(root / "tests" / "data" / "my_engine", tmp_path, dirs_exist_ok=True)
    (tmp_path / "my_engine.toml").write_text("\n".join(contract_of(fixtures_readme)))
    (settings,) = [block for block in blocks(fixtures_readme, "toml") if "[tool." in block]
    (tmp_path / "pyproject.toml").write_text(settings)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(tmp_path)))}
    command = [sys.executable, "-m", "pytest", "-p", "fmcheck", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ)

    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "FR104 stale-owner in TokenRelay.next_tokens row 1" in done.stdout
    assert "FR201 stale-tail in DecodeRunner.row_ids" in done.stdout
    assert "owner b, generation 2" in done.stdout


def keys_of(struct: type[msgspec.Struct]) -> set[str]:
    """The keys of a table of a contract, and of the tables in it."""
    keys = {field.encode_name for field in msgspec.structs.fields(struct)}
    for field in msgspec.structs.fields(struct):
        for part in (field.type, *typing.get_args(field.type)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                keys |= keys_of(part)
    return keys
