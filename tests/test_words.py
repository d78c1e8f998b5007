"""The tool's own words, once spread over its messages and pages, do not come back into them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
#: What was said, and what everybody says.
INSTEAD = {
    r"told|tells? of": "reported",
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again",
    r"stands? (nowhere|anywhere)|is not there|are not there": "not found",
    r"slip(s|ped) through|slips of the pen": "survived, typos",
    r"(in|out of) (our|its|Python's) sight|out of sight": "untracked",
    r"nobody (had|has|wrote|writes|reads|gathered|holds)": "unwritten, unread, no owner",
    r"(takes?|took|taken) hold of": "instrumented",
    r"planted": "injected",
    r"bears? out": "matches",
    r"in silence": "with no findings",
    r"made empty|made anew": "created",
    r"drawn": "random",
    r"stands for|stands? behind|stands? before|stands? under": "is, after, before, under",
    r"lies (on|in|elsewhere|before|behind)": "is",
    r"handed over|handed on|hands? on": "passed on",
}
_PATTERN = re.compile("|".join(rf"\b(?:{one})\b" for one in INSTEAD))
_CODE = [*(ROOT / "fmcheck").rglob("*.py"), *(ROOT / "rules").glob("*.py"), ROOT / "plugin.py"]
_PAGES = [
    *(ROOT / "docs").glob("*.md"),
    *ROOT.glob("[CRS][EO]*.md"),
    *(ROOT / "fixtures").glob("*.md"),
]


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yields each string of a file that a user may read, with its line.

    That is any but a docstring, and the docstring of a rule: its page.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    if path.parent.name == "rules":
        classes = (one for one in tree.body if isinstance(one, ast.ClassDef))
        bare -= {id(one.body[0].value) for one in classes if isinstance(one.body[0], ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in bare:
            yield one.lineno, one.value


def odd_words(text: str) -> list[str]:
    return [
        match[0]
        for match in _PATTERN.finditer(re.sub(r"`[^`\n]*`", "", text) if " " in text else "")
    ]


@pytest.mark.parametrize("path", sorted(_CODE), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_message_has_a_word_of_our_own(path: Path) -> None:
    found = {line: odd for line, text in messages(path) if (odd := odd_words(text))}
    assert found == {}, f"write instead: {INSTEAD}"


@pytest.mark.parametrize("path", sorted(_PAGES), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_a_word_of_our_own(path: Path) -> None:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    found = {number: odd for number, line in lines if (odd := odd_words(line))}
    assert found == {}, f"write instead: {INSTEAD}"


def test_an_odd_word_is_seen_in_a_message_and_in_a_rules_page_and_not_in_a_comment(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    odd = rules / "odd.py"
    odd.write_text(
        '"""Nobody wrote this."""\n'
        "class Rule:\n"
        '    """What is told of."""\n'
        "    def check(self):\n"
        '        """Tells of it."""\n'
        '        return f"`{self}` was mended anew"  # planted\n'
    )
    found = [(line, odd_words(text)) for line, text in messages(odd)]
    assert [one for one in found if one[1]] == [
        (3, ["told"]),
        (6, ["mended", "anew"]),
    ]
