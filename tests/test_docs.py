"""The site: a page a code, made from the code, whole and with nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fmcheck.cli import main
from fmcheck.cli.check_pages import PAGES, check_page
from fmcheck.finding import CHECKS
from fmcheck.lint.own import REMOVED
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


def build(folder, **environ):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder


def test_every_check_is_explained():
    assert set(CHECKS) <= set(PAGES)


@pytest.mark.parametrize("code", CHECKS)
def test_a_checks_page_says_all_there_is_to_say(code):
    page = check_page(code)
    assert page.startswith(f"# {code} {CHECKS[code]}\n")
    for title in ("What it means", "How it is seen", "What it cannot see", "How to fix it"):
        assert re.search(rf"^## {title}\n\n\S.{{20,}}$", page, re.MULTILINE)
    assert re.search(r"^- \[\S+#\d+\]\(https://github\.com/\S+/pull/\d+\)$", page, re.MULTILINE)


@pytest.mark.parametrize("command", ["explain", "rule"])
@pytest.mark.parametrize(("code", "title"), [("fr102", "double-read"), ("FM201", "tail-not-reset")])
def test_a_code_is_explained_on_the_command_line(capsys, command, code, title):
    assert main([command, code]) == 0
    assert capsys.readouterr().out.startswith(f"# {code.upper()} {title}\n")


def test_a_code_that_is_none_is_reported_the_nearest(capsys):
    assert main(["explain", "FR1O2"]) == 2
    assert "explain: there is no `FR1O2`; did you mean `FR1" in capsys.readouterr().err


def test_a_removed_rule_is_explained_as_such_and_its_code_is_given_to_no_other(capsys):
    assert not REMOVED & set(rules())
    assert main(["explain", "FM204"]) == 2
    assert "explain: rule `FM204` was removed: none of its findings" in capsys.readouterr().err


def test_every_code_has_a_page_made_from_the_code(made):
    pages = made.pages()
    for code in rules():
        assert pages[f"rules/{code}.md"].startswith(f"# {code} ")
    for code in CHECKS:
        assert pages[f"checks/{code}.md"] == check_page(code)
        assert f"]({code}.md)" in pages["checks/index.md"]
    assert all(f"]({code}.md)" in pages["rules/index.md"] for code in rules())


def flat(text: str) -> str:
    """The text without indents and empty lines."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def test_a_rule_s_page_says_all_that_the_rule_says(made):
    pages = made.pages()
    for code, rule in rules().items():
        page = pages[f"rules/{code}.md"]
        assert flat(inspect.getdoc(rule)) in flat(page)
        for link in rule.seen_in:
            assert f"({link})" in page or f"<{link}>" in page or f"- {link}" in page
        for example in (*rule.bad, *rule.good):
            assert flat(example.code) in flat(page)
        for judged in rule.judged:
            assert f"- {judged}" in page


def test_of_a_rule_s_examples_one_is_shown_and_the_others_are_folded_away(made):
    page = made.pages()["rules/FM201.md"]
    _, _, examples = page.partition("\n## Reported\n")
    reported, _, quiet = examples.partition("\n## Not reported\n")
    rule = rules()["FM201"]
    for part, shown in ((reported, rule.bad), (quiet, rule.good)):
        assert re.findall(r"^```python", part, re.MULTILINE) == ["```python"]
        assert len(re.findall(r"^    ```python", part, re.MULTILINE)) == len(shown) - 1
        assert f'??? example "{len(shown) - 1} more examples"' in part


def test_headings_and_code_stand_apart(made):
    text = made._apart("One.\n## Two\nthree\n```python\n# not a heading\n\nx\n```\nfour")
    assert text == ("One.\n\n## Two\n\nthree\n\n```python\n# not a heading\n\nx\n```\n\nfour")


def test_every_page_by_hand_has_its_place(made):
    placed = {name for names in made.SECTIONS.values() for name in names}
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert there - placed == set(), "put it into SECTIONS of docs/made.py"


def test_a_page_that_is_not_there_has_no_place(made):
    def names(entries):
        for one in entries:
            yield from names(*one.values()) if isinstance(one, dict) else [one]

    pages = made.pages()
    shown = list(names(made.nav()))
    assert len(shown) == len(set(shown))
    assert set(pages) <= set(shown)
    assert [one for one in shown if one not in pages and not (ROOT / "docs" / one).is_file()] == []


def test_no_made_page_is_kept_in_the_tree(made):
    assert [path for path in made.pages() if (ROOT / "docs" / path).exists()] == []


def test_the_site_is_whole(site, made):
    for path in made.pages():
        assert (site / path).with_suffix(".html").is_file()
    page = (site / "other-engines.html").read_text()
    assert "PAD_SLOT_ID: kernels skip it" in page
    assert "{{" not in page


class Anatomy(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def of(self, tag, **attributes):
        return [one for name, one in self.tags if name == tag and attributes.items() <= one.items()]


def test_a_rule_s_page_has_code_in_colour_folded_examples_and_links(site):
    page = Anatomy((site / "rules" / "FM201.html").read_text())
    assert page.of("div", **{"class": "highlight"})
    assert page.of("span", **{"class": "k"}), "a keyword"
    assert page.of("details", **{"class": "example"})
    assert page.of("a", href="https://github.com/sgl-project/sglang/pull/26292")


def test_every_page_has_search_and_a_dark_mode(site):
    page = Anatomy((site / "index.html").read_text())
    assert page.of("input", name="query")
    schemes = {one.get("data-md-color-scheme") for one in page.of("input", name="__palette")}
    assert schemes == {"default", "slate"}


def test_edit_links_lead_where_the_builder_says_and_nowhere_by_default(site, tmp_path):
    def edits(folder):
        page = Anatomy((folder / "limits.html").read_text())
        return [one["href"] for one in page.of("a", rel="edit")]

    build(tmp_path, FMCHECK_EDIT_URI="https://host.example/me/fmcheck/edit/main/docs/{path}")
    assert edits(site) == []
    assert edits(tmp_path) == ["https://host.example/me/fmcheck/edit/main/docs/limits.md"]


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
