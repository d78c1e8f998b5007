"""`make corpus-diff`: what two revisions of the linter find in one tree, set side by side."""

from __future__ import annotations

import pytest

from tests import corpus_diff
from tests.corpus_diff import Found, compared, reported

OLD = Found("FM201", "a.py", 3, 5, "`rows` is stale")
NEW = Found("FM401", "a.py", 9, 1, "no wait")


def test_a_finding_that_only_one_side_has_is_reported():
    change = compared([OLD], [NEW])
    assert list(reported("sglang-1", 1, 1, change)) == [
        "sglang-1: 1 findings before, 1 now",
        "  FM201: +0 -1",
        "    - a.py:3:5 `rows` is stale",
        "  FM401: +1 -0",
        "    + a.py:9:1 no wait",
    ]


def test_other_words_for_one_finding_are_no_difference():
    change = compared([OLD], [OLD._replace(message="`rows` is stale here")])
    assert change == ([], [])


def test_what_is_too_much_is_counted():
    many = [OLD._replace(line=number) for number in range(30)]
    lines = list(reported("t", 0, 30, compared([], many), 20))
    assert lines[1] == "  FM201: +30 -0"
    assert lines[-1] == "    + and 10 more (--all)"
    assert len(lines) == 2 + 20 + 1


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree with one stray event, and a cache of its own."""
    source = tmp_path / "tree-1"
    (source / "pkg").mkdir(parents=True)
    text = "import torch\nmodule = torch.get_device_module()\nready = torch.cuda.Event()\n"
    (source / "pkg" / "x.py").write_text(text)
    monkeypatch.setenv("FMCHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(corpus_diff, "TREES", (("tree", "1"),))
    monkeypatch.setattr(corpus_diff, "wheel_source", lambda *names: source)
    return source


def test_two_revisions_are_run_over_a_tree_and_the_older_one_once(tree, tmp_path, capsys):
    assert corpus_diff.main(["HEAD"]) == 0
    assert "tree-1: 1 findings before, 1 now" in capsys.readouterr().out
    (kept,) = (tmp_path / "cache" / "corpus-diff").glob("*.json")
    kept.write_text("[]")
    assert corpus_diff.main(["HEAD"]) == 1
    out = capsys.readouterr().out
    assert "  FM301: +1 -0\n    + pkg/x.py:3:9 `torch.cuda.Event` in device-agnostic code" in out


def test_a_revision_that_is_none_is_reported(tree, capsys):
    assert corpus_diff.main(["no-such-branch"]) == 2
    assert "git knows no revision `no-such-branch`" in capsys.readouterr().err
