"""The site: a page a code, made from the code, whole and with nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fmcheck.check_pages import PAGES, check_page
from fmcheck.cli import main
from fmcheck.config import load_settings
from fmcheck.contract import parse_contract
from fmcheck.finding import CHECKS
from fmcheck.lint.page import rule_page
from fmcheck.prove.known import load_known
from fmcheck.prove.operators import OPERATORS
from fmcheck.registry import rules

ROOT = Path(__file__).parent.parent
ELSEWHERE = re.compile(
    r"""(?:<script[^>]*\ssrc|<link[^>]*\shref|<img[^>]*\ssrc|@import|url\()"""
    r"""\s*=?\s*["'(]?\s*(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def made():
    spec = importlib.util.spec_from_file_location("made", ROOT / "docs" / "made.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_check_is_explained():
    assert set(CHECKS) <= set(PAGES)


@pytest.mark.parametrize("code", CHECKS)
def test_a_checks_page_says_all_there_is_to_say(code):
    page = check_page(code)
    assert page.startswith(f"# {code} {CHECKS[code]}\n")
    for title in ("What it means", "How it is seen", "What it cannot see", "How to mend it"):
        assert re.search(rf"^## {title}\n\n\S.{{20,}}$", page, re.MULTILINE)
    assert re.search(r"^- \[\S+#\d+\]\(https://github\.com/\S+/pull/\d+\)$", page, re.MULTILINE)


@pytest.mark.parametrize("command", ["explain", "rule"])
@pytest.mark.parametrize(("code", "title"), [("fr102", "double-read"), ("FM201", "tail-not-reset")])
def test_a_code_is_explained_on_the_command_line(capsys, command, code, title):
    assert main([command, code]) == 0
    assert capsys.readouterr().out.startswith(f"# {code.upper()} {title}\n")


def test_a_code_that_is_none_is_told_the_nearest(capsys):
    assert main(["explain", "FR1O2"]) == 2
    assert "explain: there is no `FR1O2`; did you mean `FR1" in capsys.readouterr().err


def test_every_code_has_a_page_made_from_the_code(made):
    pages = made.pages()
    for code, rule in rules().items():
        assert pages[f"rules/{code}.md"] == rule_page(rule)
    for code in CHECKS:
        assert pages[f"checks/{code}.md"] == check_page(code)
        assert f"]({code}.md)" in pages["checks/index.md"]
    assert all(f"]({code}.md)" in pages["rules/index.md"] for code in rules())


def test_the_guide_to_contracts_is_a_page(made):
    page = made.pages()["keys.md"]
    assert page.startswith("# A contract for an engine of your own\n")
    assert "\n## The contract, key by key\n" in page
    assert "](" not in page  # a link would be one from fixtures/


def test_no_made_page_is_kept_in_the_tree():
    kept = {path.name for path in (ROOT / "docs").rglob("*.md")}
    assert kept == {
        "index.md",
        "contract.md",
        "matrix.md",
        "self-mutation.md",
        "proof.md",
        "gpu.md",
        "prove.md",
        "unseen.md",
        "false-alarms.md",
        "first-sight.md",
    }


def blocks(name, language):
    text = (ROOT / "docs" / name).read_text()
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for _, block in found]


def test_what_the_pages_show_of_a_contract_can_be_loaded():
    settings, *shown = blocks("contract.md", "toml")
    assert "[tool.fmcheck]" in settings
    assert len(shown) >= 4
    for block in shown:
        parse_contract(f'[engine]\nname = "mine"\n{block}', "shown.toml")


def test_what_the_pages_show_of_files_and_settings_can_be_loaded(tmp_path):
    known, settings = tmp_path / "known.toml", tmp_path / "pyproject.toml"
    known.write_text(*blocks("prove.md", "toml"))
    assert [one.operator for one in load_known(known)] == ["drop-wait"]
    settings.write_text(*blocks("false-alarms.md", "toml"))
    assert [one.check for one in load_settings(settings).settings.suppress] == ["FR102"]


def test_the_operators_are_told_by_name():
    told = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "prove.md").read_text(), re.MULTILINE)
    assert told == list(OPERATORS)


def test_the_site_is_whole(site, made):
    for path in made.pages():
        assert (site / path).with_suffix(".html").is_file()
    page = (site / "contract.html").read_text()
    assert "PAD_SLOT_ID: kernels skip it" in page
    assert "{{" not in page


def test_the_site_fetches_nothing(site):
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > 50
    fetched = {
        (path.name, found[0])
        for path in files
        for found in ELSEWHERE.finditer(path.read_text(encoding="utf-8"))
    }
    assert fetched == set()


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js">',
        '<link rel="stylesheet" href="//fonts.example/css">',
        "@import url(https://fonts.example/css)",
    ],
)
def test_what_would_be_fetched_is_recognised(text):
    assert ELSEWHERE.search(text)
