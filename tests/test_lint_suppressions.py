"""Suppression comments: what they cover, what they must say, and those that cover nothing."""

from __future__ import annotations

import json

import pytest

from fmcheck.finding import Span
from fmcheck.lint.run import suppression_comments
from tests.sources import BROKEN, DEAD_ASSERT, STRAY_EVENT

LINE = "    ready = torch.cuda.Event()"


def codes(out: str) -> list[tuple[str, int]]:
    return [(entry["code"], entry["line"]) for entry in json.loads(out)]


def suppressed(comment: str, source: str = STRAY_EVENT) -> str:
    return source.replace(LINE, f"{LINE}  {comment}")


COVERING = {
    "same line": suppressed("# fmcheck: ignore[FM301] CUDA only"),
    "no space": suppressed("#fmcheck:ignore[FM301] CUDA only"),
    "several codes": suppressed("# fmcheck: ignore[FM301, FM601] CUDA only").replace(
        "import torch\n", "import torch\n", 1
    ),
    "beside another comment": suppressed("# noqa: X  # fmcheck: ignore[FM301] CUDA only"),
    "before another comment": suppressed("# fmcheck: ignore[FM301] CUDA only  # noqa: X"),
    "reason with a number sign": suppressed("# fmcheck: ignore[FM301] see #123"),
    "first line of the statement": STRAY_EVENT.replace(
        LINE,
        "    ready = (  # fmcheck: ignore[FM301] CUDA only\n        torch.cuda.Event()\n    )",
    ),
    "the finding's line inside a statement": STRAY_EVENT.replace(
        LINE,
        "    ready = (\n        torch.cuda.Event()  # fmcheck: ignore[FM301] CUDA only\n    )",
    ),
    "last line of the statement": STRAY_EVENT.replace(
        LINE, "    ready = [\n        torch.cuda.Event()\n    ]  # fmcheck: ignore[FM301] why"
    ),
    "last line, after a continued one": STRAY_EVENT.replace(
        LINE, "    ready = torch.cuda.Event() \\\n        or None  # fmcheck: ignore[FM301] why"
    ),
    "last line of a header": STRAY_EVENT.replace(
        LINE,
        "    with (\n        torch.cuda.Event()\n    ):  # fmcheck: ignore[FM301] a\n        pass",
    ),
    "whole file": "# fmcheck: ignore-file[FM301] CUDA only\n" + STRAY_EVENT,
    "whole file, below the docstring": '"""Doc."""\n# fmcheck: ignore-file[FM301] why\n'
    + STRAY_EVENT,
}


@pytest.mark.parametrize("source", COVERING.values(), ids=COVERING)
def test_a_comment_with_a_reason_suppresses(lint, tmp_path, source):
    (tmp_path / "a.py").write_text(source)

    _, out, _ = lint("--format", "json", "--ignore", "FM003", "a.py")

    assert codes(out) == []


NOT_COVERING = {
    "another line": "# fmcheck: ignore[FM301] CUDA only\n" + STRAY_EVENT,
    "another code": suppressed("# fmcheck: ignore[FM601] CUDA only"),
    "a string": STRAY_EVENT.replace(LINE, f'{LINE}; x = "# fmcheck: ignore[FM301] why"'),
    "a docstring": f'"""\n# fmcheck: ignore-file[FM301] why\n"""\n{STRAY_EVENT}',
    "last line of a body": STRAY_EVENT.replace(
        LINE,
        "    with (\n        torch.cuda.Event()\n    ):\n        pass  # fmcheck: ignore[FM301] a",
    ),
    "inside the statement, below": STRAY_EVENT.replace(
        LINE,
        "    ready = [\n        torch.cuda.Event(),\n        1,  # fmcheck: ignore[FM301] a\n    ]",
    ),
    "prose": suppressed("# see fmcheck: ignore[FM301] is not used here"),
}


@pytest.mark.parametrize("source", NOT_COVERING.values(), ids=NOT_COVERING)
def test_elsewhere_it_does_not(lint, tmp_path, source):
    (tmp_path / "a.py").write_text(source)

    status, out, _ = lint("--format", "json", "--ignore", "FM003,FM004", "a.py")

    assert status == 1
    assert [code for code, _ in codes(out)] == ["FM301"]


MALFORMED = {
    "no reason": (
        "ignore[FM301]",
        "no reason is given, so it suppresses nothing: write why after `[FM301]`",
    ),
    "a reason without a word": ("ignore[FM301] . -", "no reason is given"),
    "no code": ("ignore CUDA only", "`ignore` names no code"),
    "empty brackets": ("ignore[] CUDA only", "`ignore` names no code"),
    "unknown code": ("ignore[FM3001] why", "there is no rule `FM3001`; did you mean `FM301`?"),
    "codes without commas": (
        "ignore[FM301; FM302] why",
        "expected codes separated by commas, got `FM301; FM302`",
    ),
    "unknown family": ("ignore[FM999] why", "there is no rule `FM999`; families: FM1, FM2"),
    "family": ("ignore[FM3] why", "there is no rule `FM3`"),
    "own code": ("ignore[FM001] why", "`FM001` cannot be suppressed"),
    "unknown word": (
        "ignroe[FM301] why",
        "expected `ignore` or `ignore-file`, got `ignroe`; did you mean `ignore`?",
    ),
    "file, too far down": (
        "ignore-file[FM301] why",
        "`ignore-file` counts only above the first statement of the file",
    ),
}


@pytest.mark.parametrize(("text", "message"), MALFORMED.values(), ids=MALFORMED)
def test_what_a_comment_lacks_is_reported_and_it_suppresses_nothing(lint, tmp_path, text, message):
    (tmp_path / "a.py").write_text(suppressed(f"# fmcheck: {text}"))

    status, out, _ = lint("--format", "json", "a.py")

    assert status == 1
    assert codes(out) == [("FM301", 5), ("FM004", 5)]
    assert message in json.loads(out)[1]["message"]
    assert json.loads(out)[1]["column"] == len(LINE) + 3
    assert f"error[FM004]: suppression: {message}" in lint("a.py")[1]  # and nothing is cut out
    assert "..." not in lint("a.py")[1]


@pytest.mark.parametrize("start", ["fmcheck ", "fmcheck  ", "fmcheck = ", "fmcheck - "])
def test_a_comment_without_its_colon_is_reported(lint, tmp_path, start):
    (tmp_path / "a.py").write_text(suppressed(f"# {start}ignore[FM301] why"))

    _, out, _ = lint("--format", "json", "a.py")

    assert codes(out) == [("FM301", 5), ("FM004", 5)]
    assert "expected `fmcheck:` before `ignore`" in out


def test_prose_about_fmcheck_is_no_comment_of_ours(lint, tmp_path):
    (tmp_path / "a.py").write_text("x = 1  # fmcheck ignores this; fmcheck [FM301] too\n")

    assert lint("a.py")[0] == 0


def test_a_known_code_beside_an_unknown_one_counts(lint, tmp_path):
    (tmp_path / "a.py").write_text(suppressed("# fmcheck: ignore[FM301, FM3001] why"))

    assert codes(lint("--format", "json", "a.py")[1]) == [("FM004", 5)]


def test_a_comment_that_suppresses_nothing_is_reported(lint, tmp_path):
    (tmp_path / "a.py").write_text("x = 1  # fmcheck: ignore[FM301] CUDA only\n")

    status, out, _ = lint("a.py")

    assert status == 1
    assert "warning[FM003]: unused suppression: no `FM301` here [fixable]" in out


def test_a_comment_that_names_a_removed_rule_is_unused_and_says_so(lint, tmp_path):
    (tmp_path / "a.py").write_text(suppressed("# fmcheck: ignore[FM301, FM204] why"))

    status, out, _ = lint("a.py")

    assert status == 1
    assert "warning[FM003]: unused suppression: no `FM204` here [fixable]" in out
    assert "note: removed rules: FM204" in out
    assert lint("--fix", "a.py")[0] == 0
    assert "# fmcheck: ignore[FM301] why" in (tmp_path / "a.py").read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # fmcheck: ignore[FM301] why\n", "x = 1\n"),
        ("x = 1  # noqa: X  # fmcheck: ignore[FM301] why\n", "x = 1  # noqa: X\n"),
        ("x = 1  # fmcheck: ignore[FM301] why  # noqa: X\n", "x = 1  # noqa: X\n"),
        ("x = 1\n# fmcheck: ignore[FM301] why\ny = 2\n", "x = 1\ny = 2\n"),
        ("# fmcheck: ignore-file[FM301] why\n", ""),
        ("x = 1\r\n    # fmcheck: ignore[FM301] why\r\ny = 2\r\n", "x = 1\r\ny = 2\r\n"),
        (
            suppressed("# fmcheck: ignore[FM301, FM601] why"),
            suppressed("# fmcheck: ignore[FM301] why"),
        ),
    ],
)
def test_the_fix_takes_out_the_comment_and_nothing_else(lint, tmp_path, before, after):
    (tmp_path / "a.py").write_bytes(before.encode())

    assert lint("--fix", "a.py")[0] == 0
    assert (tmp_path / "a.py").read_bytes() == after.encode()


def test_an_unselected_rule_makes_nothing_unused(lint, tmp_path):
    (tmp_path / "a.py").write_text(suppressed("# fmcheck: ignore[FM301] why"))

    assert lint("--select", "FM601", "a.py")[0] == 0
    assert lint("--ignore", "FM301", "a.py")[0] == 0


def test_a_file_that_was_not_checked_whole_has_no_unused_ones(lint, tmp_path):
    (tmp_path / "a.py").write_text("x = 1  # fmcheck: ignore[FM301] why\n" + BROKEN)

    status, out, _ = lint("--format", "json", "a.py")

    assert (status, [code for code, _ in codes(out)]) == (2, ["FM001"])


def test_a_fix_of_a_suppressed_finding_is_not_made(lint, tmp_path):
    line = "    torch._assert_async((values >= 0).all())"
    source = DEAD_ASSERT.replace(line, f"{line}  # fmcheck: ignore[FM601] a test of it")
    (tmp_path / "a.py").write_text(source)

    assert lint("--fix", "a.py")[0] == 0
    assert (tmp_path / "a.py").read_text() == source


def test_a_fix_leaves_a_statement_alone_whose_last_line_has_the_comment(lint, tmp_path):
    line = "    torch._assert_async((values >= 0).all())"
    formatted = "    torch._assert_async(\n        (values >= 0).all()\n    )"
    comment = "# fmcheck: ignore[FM601] a test of it"
    source = DEAD_ASSERT.replace(line, f"{formatted}  {comment}\n    values.sum()  # at the end")
    (tmp_path / "a.py").write_text(source)

    assert lint("--fix", "a.py")[0] == 0
    assert (tmp_path / "a.py").read_text() == source


def test_what_is_suppressed_can_be_shown_with_its_reason(lint, tmp_path):
    (tmp_path / "a.py").write_text(suppressed("# fmcheck: ignore[FM301] CUDA only"))

    status, out, _ = lint("--show-suppressed", "a.py")
    _, as_json, _ = lint("--show-suppressed", "--format", "json", "a.py")

    assert status == 0
    assert "suppressed warning[FM301]" in out
    assert "= suppressed: CUDA only" in out
    assert [entry["suppressed"] for entry in json.loads(as_json)] == ["CUDA only"]


def test_two_comments_for_one_finding_leave_one_unused(lint, tmp_path):
    (tmp_path / "a.py").write_text(
        "# fmcheck: ignore-file[FM301] CUDA\n" + suppressed("# fmcheck: ignore[FM301] CUDA only")
    )

    assert codes(lint("--format", "json", "a.py")[1]) == [("FM003", 1)]


def test_taking_out_one_of_many_comments_copies_no_line():
    copied = []

    class Line(str):
        def __getitem__(self, key):
            found = super().__getitem__(key)
            copied.append(len(found))
            return found

    line = Line("x = 1  # fmcheck: ignore[FM301] why " * 1000)
    one = suppression_comments._Suppression(1, ("FM301",), "why", Span(1, 8, 1, 36), line[7:35])
    copied.clear()
    suppression_comments._without(one, ("FM301",), [line])
    assert sum(copied) < 10
