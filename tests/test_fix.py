"""`--fix` and `--diff`: what is written, what is refused, and that nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from msgspec.structs import replace

from fmcheck.files.atomic import replace_file
from fmcheck.finding import Edit, Finding, Severity, Span
from fmcheck.lint.run import fix, tasks
from fmcheck.lint.run.fix import fix_text, fixed_source
from fmcheck.registry import rules
from tests.sources import BROKEN, DEAD_ASSERT, STRAY_EVENT

FIXED = DEAD_ASSERT.replace(".all())", '.all(), "check: (values >= 0).all()")')


def edit(line: int, start: int, end: int, text: str) -> Edit:
    return Edit(Span(line, start, line, end), text)


def finding(*edits: Edit, code: str = "FM999", safe: bool = True) -> Finding:
    return Finding("a.py", edits[0].span, code, Severity.WARNING, "message", edits=edits, safe=safe)


def everything(found, _):
    return found


def rewriting(old: str, new: str, **given):
    """Returns a linter that finds `old` on the first line and would have it be `new`."""

    def lint(text: bytes) -> list[Finding]:
        line = text.decode().partition("\n")[0]
        at = line.find(old) + 1
        return [finding(edit(1, at, at + len(old), new), **given)] if at else []

    return lint


def test_a_second_run_changes_nothing(lint, tmp_path):
    path = tmp_path / "a.py"
    path.write_text(DEAD_ASSERT)

    assert lint("--fix", "a.py")[0] == 0
    assert path.read_text() == FIXED
    before = path.stat()
    assert lint("--fix", "a.py")[0] == 0
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_diff_shows_and_writes_nothing(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT + STRAY_EVENT)

    status, out, err = lint("--diff", "a.py")

    assert status == 1
    assert out.startswith("--- a.py\n+++ a.py\n@@ -2,7 +2,7 @@\n")
    assert out.count("\n+    ") == 1
    assert "\n-    torch._assert_async((values >= 0).all())\n" in out
    assert "1 file would change" in err
    assert (tmp_path / "a.py").read_text() == DEAD_ASSERT + STRAY_EVENT


def test_diff_of_what_cannot_be_fixed_is_empty_and_exits_with_0(lint, tmp_path):
    (tmp_path / "a.py").write_text(STRAY_EVENT)

    assert lint("--diff", "a.py")[:2] == (0, "")


def test_diff_of_a_broken_file_exits_with_2(lint, tmp_path):
    (tmp_path / "a.py").write_text(BROKEN)

    status, out, err = lint("--diff", "a.py")

    assert (status, out) == (2, "")
    assert "a.py: file does not parse" in err


def test_diff_of_a_file_without_final_newline_says_so(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT.rstrip("\n"))

    _, out, _ = lint("--diff", "a.py")

    assert out.count("\\ No newline at end of file\n") == 2


PATCHED = {
    "carriage returns": DEAD_ASSERT.replace("\n", "\r\n").encode(),
    "one line of two ends": DEAD_ASSERT.replace("torch\n", "torch\r\n").encode(),
    "latin-1": b"# coding: latin-1\n# \xe9\n" + DEAD_ASSERT.encode(),
    "byte-order mark": b"\xef\xbb\xbf" + DEAD_ASSERT.encode(),
    "control characters": f"{DEAD_ASSERT}    # \x1b[31m \x0b \u2028 \u202e\n".encode(),
    "no final newline": DEAD_ASSERT.rstrip("\n").encode(),
}


@pytest.mark.parametrize("name", ["a.py", "a b.py"])
@pytest.mark.parametrize("text", PATCHED.values(), ids=PATCHED)
@pytest.mark.parametrize(
    "tool",
    [["git", "apply", "-p0"], ["patch", "--binary", "-p0", "-s", "-i"]],
    ids=["git", "patch"],
)
def test_a_difference_is_a_patch(tmp_path, name, text, tool):
    if shutil.which(tool[0]) is None:
        pytest.skip(f"no {tool[0]} here")
    (tmp_path / name).write_bytes(text)
    lint = [sys.executable, "-m", "fmcheck", "lint", "--no-cache"]

    shown = subprocess.run([*lint, "--diff", name], cwd=tmp_path, capture_output=True)
    (tmp_path / "d.diff").write_bytes(shown.stdout)
    subprocess.run([*tool, "d.diff"], cwd=tmp_path, check=True)

    patched = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(text)
    subprocess.run([*lint, "--fix", name], cwd=tmp_path, check=True, capture_output=True)
    assert patched == (tmp_path / name).read_bytes() != text


def test_a_difference_in_colour_shows_what_a_terminal_would_obey(lint, tmp_path):
    (tmp_path / "a.py").write_text(f"{DEAD_ASSERT}    # \x1b[2J\n")

    assert "\\x1b[2J" in lint("--diff", "--color", "always", "a.py")[1]


def test_a_link_stays_a_link(lint, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_text(DEAD_ASSERT)
    (tmp_path / "a.py").symlink_to(tmp_path / "real" / "a.py")

    lint("--fix", "a.py")

    assert (tmp_path / "a.py").is_symlink()
    assert (tmp_path / "real" / "a.py").read_text() == FIXED


def test_a_byte_order_mark_and_an_encoding_stay(lint, tmp_path):
    (tmp_path / "a.py").write_bytes(DEAD_ASSERT.encode("utf-8-sig"))
    (tmp_path / "b.py").write_bytes(("# coding: latin-1\n# é\n" + DEAD_ASSERT).encode("latin-1"))

    assert lint("--fix", ".")[0] == 0
    assert (tmp_path / "a.py").read_bytes() == FIXED.encode("utf-8-sig")
    assert b"# \xe9\n" in (tmp_path / "b.py").read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_read_only_file_or_folder_is_one_error_and_stays(lint, tmp_path, monkeypatch):
    folder = tmp_path / "ro"
    folder.mkdir()
    (folder / "a.py").write_text(DEAD_ASSERT)
    # Root may write anywhere: say what the system would say to anybody else.
    monkeypatch.setattr(os, "access", lambda path, _: "/ro/" not in str(path))
    (tmp_path / "b.py").write_text(DEAD_ASSERT)

    status, out, err = lint("--fix", ".")

    assert status == 2
    assert "ro/a.py:5:5" in out
    assert err == "fmcheck: ro/a.py: cannot be rewritten: Permission denied\n"
    assert (folder / "a.py").read_text() == DEAD_ASSERT
    assert (tmp_path / "b.py").read_text() == FIXED


def test_a_link_out_of_the_tree_is_neither_followed_nor_rewritten(lint, tmp_path):
    tree, outside = tmp_path / "tree", tmp_path / "outside.py"
    tree.mkdir()
    outside.write_text(DEAD_ASSERT)
    (tree / "link.py").symlink_to(outside)
    (tree / "a.py").write_text(DEAD_ASSERT)

    status, out, err = lint("--fix", "tree")

    assert (status, outside.read_text()) == (0, DEAD_ASSERT)
    assert (tree / "a.py").read_text() == FIXED
    assert err == (
        "fmcheck: not followed out of the tree: tree/link.py (links; name a file to have it "
        "checked)\n"
    )
    status, out, err = lint("--fix", "tree/link.py")
    assert (status, outside.read_text()) == (2, DEAD_ASSERT)
    assert "tree/link.py:5:5" in out
    assert "tree/link.py: cannot be rewritten: it is a link out of the tree" in err


@pytest.mark.parametrize("option", ["", "--fix"])
@pytest.mark.parametrize("kind", ["hard link", "link out of the tree"])
def test_the_closing_line_offers_no_fix_that_is_refused(lint, tmp_path, kind, option):
    tree, outside = tmp_path / "tree", tmp_path / "outside.py"
    tree.mkdir()
    outside.write_text(DEAD_ASSERT)
    if kind == "hard link":
        (tree / "a.py").hardlink_to(outside)
        why = "it has 2 hard links, which a new file would not have"
    else:
        (tree / "a.py").symlink_to(outside)
        why = f"it is a link out of the tree, to {outside}"
    (tree / "b.py").write_text(DEAD_ASSERT)

    _, out, _ = lint(*filter(None, [option, "tree/a.py", "tree/b.py"]))

    assert outside.read_text() == DEAD_ASSERT
    assert ("1 can be fixed with `--fix`" in out) == (not option)
    assert "2 can be fixed" not in out
    assert (f"1 fix refused: tree/a.py ({why})" in out.splitlines()) == bool(option)


def test_the_closing_line_speaks_of_what_remains_only_if_something_does(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)
    assert lint("--fix", "a.py")[1].endswith("\n1 fixed\n")

    (tmp_path / "a.py").write_text(DEAD_ASSERT + STRAY_EVENT)
    assert "1 fixed; the remaining findings are shown above\n" in lint("--fix", "a.py")[1]


def test_the_closing_line_says_what_the_fixer_refused(lint, tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)
    monkeypatch.setattr("fmcheck.lint.run.fix._parses", lambda text: text == DEAD_ASSERT)

    _, out, _ = lint("--fix", "a.py")

    assert "can be fixed" not in out
    assert "1 fix refused: a.py (the fix of FM601 gives source that does not parse)" in out


@pytest.mark.parametrize("there", [True, False], ids=["a file", "nothing yet"])
@pytest.mark.parametrize("option", ["--output-file", "--baseline"])
def test_what_is_written_beside_is_not_written_out_of_the_tree(lint, tmp_path, option, there):
    tree, outside = tmp_path / "tree", tmp_path / "outside.json"
    tree.mkdir()
    (tree / "a.py").write_text(DEAD_ASSERT)
    before = '{"version": 1, "findings": []}'
    if there:
        outside.write_text(before)
    (tree / "link.json").symlink_to(outside)
    update = ["--add-to-baseline"] if option == "--baseline" else []

    status, _, err = lint(option, "tree/link.json", *update, "tree/a.py")

    assert status == 2
    assert f"tree/link.json: cannot be written: it is a link out of the tree, to {outside}" in err
    assert outside.read_text() == before if there else not outside.exists()


@pytest.mark.parametrize("around", ["named folder", "project", "repository"])
def test_a_link_within_the_tree_is_followed(lint, tmp_path, around):
    (tmp_path / "lib").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "lib" / "a.py").write_text(DEAD_ASSERT)
    (tmp_path / "src" / "a.py").symlink_to("../lib/a.py")
    if around == "project":
        (tmp_path / "pyproject.toml").write_text("")
    if around == "repository":
        (tmp_path / ".git").mkdir()

    status, _, err = lint("--fix", "." if around == "named folder" else "src")

    assert (status, err) == (0, "")
    assert (tmp_path / "lib" / "a.py").read_text() == FIXED
    assert (tmp_path / "src" / "a.py").is_symlink()


def test_a_file_with_hard_links_is_left_whole_and_the_others_are_fixed(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)
    (tmp_path / "b.py").write_text(DEAD_ASSERT)
    (tmp_path / "same").hardlink_to(tmp_path / "a.py")

    status, _, err = lint("--fix", ".")

    assert status == 2
    assert err == (
        "fmcheck: a.py: cannot be rewritten: it has 2 hard links, which a new file would not have\n"
    )
    assert (tmp_path / "same").samefile(tmp_path / "a.py")
    assert (tmp_path / "same").read_text() == DEAD_ASSERT
    assert (tmp_path / "b.py").read_text() == FIXED


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_owner_mode_and_attributes_of_a_fixed_file_stay(lint, tmp_path):
    path = tmp_path / "a.py"
    path.write_text(DEAD_ASSERT)
    path.chmod(0o750)
    os.chown(path, 1234, 4321)
    has_attributes = hasattr(os, "setxattr")
    if has_attributes:
        try:
            os.setxattr(path, "user.note", b"mine")
        except OSError:
            has_attributes = False

    lint("--fix", "a.py")

    at = path.stat()
    assert path.read_text() == FIXED
    assert (at.st_uid, at.st_gid, at.st_mode & 0o7777) == (1234, 4321, 0o750)
    assert not has_attributes or os.getxattr(path, "user.note") == b"mine"


def test_a_file_whose_owner_cannot_be_kept_is_left(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text(DEAD_ASSERT)
    before = path.stat()

    def somebody_elses(name, real=os.stat, **options):
        at = real(name, **options)
        is_it = at.st_ino == before.st_ino
        return os.stat_result([*at[:4], 4711, *at[5:]]) if is_it else at

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("fmcheck.files.atomic.os.stat", somebody_elses)
    monkeypatch.setattr("fmcheck.files.atomic.os.chown", refused)
    with pytest.raises(PermissionError, match="it belongs to user 4711"):
        replace_file(path, b"new")

    assert path.read_text() == DEAD_ASSERT
    assert [one.name for one in tmp_path.iterdir()] == ["a.py"]


def test_an_interrupt_just_behind_the_rename_stays_one(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text("old")

    def interrupted(source, target, real=os.replace):
        real(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr("fmcheck.files.atomic.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b"new")

    assert path.read_text() == "new"
    assert [one.name for one in tmp_path.iterdir()] == ["a.py"]


def test_a_file_that_changes_while_it_is_fixed_is_left_as_it_became(lint, tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text(DEAD_ASSERT)
    fixing = fix.fix_text

    def slow(*arguments):
        fixed = fixing(*arguments)
        path.write_text("theirs = 1\n")
        return fixed

    monkeypatch.setattr(fix, "fix_text", slow)

    status, _, err = lint("--fix", "a.py")

    assert (status, path.read_text()) == (2, "theirs = 1\n")
    assert err == "fmcheck: a.py: cannot be rewritten: it changed in the meantime\n"


@pytest.mark.parametrize("option", ["--output-file", "--baseline"])
def test_what_is_written_beside_leaves_a_file_with_hard_links_whole(lint, tmp_path, option):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)
    lint("--baseline", "one.json", "--update-baseline", "a.py")
    (tmp_path / "a.py").write_text("")
    (tmp_path / "two.json").hardlink_to(tmp_path / "one.json")
    before = (tmp_path / "one.json").read_text()
    update = ["--update-baseline"] if option == "--baseline" else []

    status, _, err = lint(option, "one.json", *update, "a.py")

    assert (status, (tmp_path / "two.json").read_text()) == (2, before)
    assert "one.json: cannot be written: it has 2 hard links" in err


def test_unsafe_fixes_need_to_be_asked_for(lint, tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("x = 1\n")
    found = rewriting("1", "2", safe=False)
    monkeypatch.setattr(
        tasks,
        "lint_text",
        lambda now, *_, **__: [replace(x, code="FM301") for x in found(now)],
    )

    status, out, _ = lint("--fix", "a.py")
    assert status == 1
    assert "[fixable, unsafe]" in out
    assert "1 with `--fix --unsafe-fixes`" in out
    assert (tmp_path / "a.py").read_text() == "x = 1\n"

    assert lint("--fix", "--unsafe-fixes", "a.py")[0] == 0
    assert (tmp_path / "a.py").read_text() == "x = 2\n"


def test_unsafe_fixes_alone_are_a_mistake(lint, tmp_path):
    (tmp_path / "a.py").write_text("")

    status, _, err = lint("--unsafe-fixes", "a.py")

    assert (status, err) == (
        2,
        "fmcheck: --unsafe-fixes: expected `--fix` or `--diff` beside it\n",
    )


def test_a_refused_fix_leaves_the_file_and_is_said(lint, tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("x = 1\n")
    found = rewriting("1", "(")
    monkeypatch.setattr(
        tasks,
        "lint_text",
        lambda now, *_, **__: [replace(x, code="FM301") for x in found(now)],
    )

    status, out, err = lint("--fix", "a.py")

    assert status == 1
    assert "FM301" in out
    assert err == (
        "fmcheck: a.py: left as it was: the fix of FM301 gives source that does not parse\n"
    )
    assert (tmp_path / "a.py").read_text() == "x = 1\n"


def test_a_file_that_does_not_parse_is_left_and_no_fix_is_blamed(lint, tmp_path):
    broken = "class Empty:\n" + rules()["FM201"].bad[0].code
    (tmp_path / "a.py").write_text(broken)
    (tmp_path / "pyproject.toml").write_text('[tool.fmcheck]\ncontracts = ["sglang"]\n')

    _, _, err = lint("--select", "FM201", "--fix", "a.py")

    assert "fmcheck: a.py: left as it was: it does not parse as it is\n" in err
    assert (tmp_path / "a.py").read_text() == broken


def test_a_fix_that_makes_a_new_finding_is_refused():
    def lint(text: bytes) -> list[Finding]:
        return rewriting("1", "2")(text) + rewriting("2", "3", code="FM998")(text)

    fixed = fix_text(b"x = 1\n", lint, everything)

    assert fixed.text == b"x = 1\n"
    assert fixed.refused == "the fix of FM999 introduces a new finding, FM998"


def test_a_fix_that_never_ends_is_refused():
    fixed = fix_text(b"x = 1\n", rewriting("1", "1 + 1"), everything)

    assert fixed.text == b"x = 1\n"
    assert fixed.refused == "the fix of FM999 never settles"


def test_what_the_encoding_cannot_hold_is_refused():
    text = b"# coding: latin-1\nx = 1\n"

    def lint(_: bytes) -> list[Finding]:
        return [finding(edit(2, 5, 6, '"\u20ac"'))]

    fixed = fix_text(text, lint, everything)

    assert (fixed.text, fixed.count) == (text, 0)
    assert fixed.refused == "the fix of FM999 cannot be written in iso-8859-1"


def test_a_fix_that_makes_room_for_another_is_followed_by_it():
    def lint(text: bytes) -> list[Finding]:
        return [finding(edit(1, 5, 6, "0"))] if b"123"[len(text) - 6 :] and b"1" in text else []

    fixed = fix_text(b"x = 1\n", lint, everything)

    assert (fixed.text, fixed.count, fixed.refused) == (b"x = 0\n", 1, "")


def test_of_overlapping_edits_the_second_waits_for_the_next_round():
    def lint(text: bytes) -> list[Finding]:
        return [
            finding(edit(1, at, at + 1, "y"))
            for at, letter in enumerate(text.decode(), 1)
            if letter == "x"
        ]

    assert fixed_source("xx\n", lint(b"xx\n")) == "yx\n"
    fixed = fix_text(b"xx\n", lint, everything)
    assert (fixed.text, fixed.count) == (b"yy\n", 2)


def test_a_finding_is_fixed_by_all_its_edits_or_none():
    both = finding(edit(1, 1, 2, "a"), edit(2, 1, 2, "b"))
    first = finding(edit(2, 1, 2, "c"))

    assert fixed_source("x\ny\n", [first, both]) == "x\nc\n"
    assert fixed_source("x\ny\n", [both, first]) == "a\nb\n"


def test_line_ends_of_inserted_text_are_those_of_the_file():
    given = finding(Edit(Span(1, 1, 1, 1), "import os\n"))

    assert fixed_source("x\r\ny\r\n", [given]) == "import os\r\nx\r\ny\r\n"


@pytest.mark.parametrize("quote", ['"', "'", '"""'])
@pytest.mark.parametrize("field", ["{%s}", "{%s!r:>3}", "{[f'{%s}']}"])
def test_no_fix_puts_into_an_f_string_what_ends_it(lint, tmp_path, quote, field):
    call = "torch._assert_async(v)"
    source = DEAD_ASSERT.replace("(values)", "(v)").replace(
        "torch._assert_async((values >= 0).all())", f"return f{quote}{field % call}{quote}"
    )
    (tmp_path / "a.py").write_text(source)

    status, out, _ = lint("--fix", "a.py")

    assert (status, "FM601" in out, "fixable" in out) == (1, True, False)
    assert (tmp_path / "a.py").read_text() == source


def test_beside_an_f_string_a_fix_is_made(lint, tmp_path):
    call = "torch._assert_async((values >= 0).all())"
    (tmp_path / "a.py").write_text(DEAD_ASSERT.replace(call, f'print(f"{{values}}", {call})'))

    assert lint("--fix", "a.py")[0] == 0


COPY = "def f(a):\n    return a.to('cpu', non_blocking=True{}).item()\n"


@pytest.mark.parametrize("comment", ["  # ticket 4711\n    ", "\n        # ticket 4711\n    "])
def test_a_fix_that_would_take_a_comment_out_is_not_offered(lint, tmp_path, comment):
    source = COPY.format(comment)
    (tmp_path / "a.py").write_text(source)

    status, out, _ = lint("--fix", "a.py")

    assert (status, "FM404" in out, "fixable" in out) == (1, True, False)
    assert (tmp_path / "a.py").read_text() == source


def test_a_comment_that_a_fix_leaves_is_no_reason_against_it(lint, tmp_path):
    (tmp_path / "a.py").write_text("# why\n" + COPY.format(",  # flag\n    ") + "# end\n")

    assert lint("--fix", "a.py")[0] == 0
    assert (tmp_path / "a.py").read_text().count("# ") == 3


def test_only_what_is_reported_is_fixed(lint, tmp_path, git):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)
    git("add", "a.py")
    git("commit", "--quiet", "--message", "one")
    (tmp_path / "a.py").write_text(DEAD_ASSERT + DEAD_ASSERT.replace(">=", ">"))

    status, out, _ = lint("--fix", "--since", "HEAD", "a.py")

    assert (status, "1 fixed" in out) == (0, True)
    assert (tmp_path / "a.py").read_text() == DEAD_ASSERT + FIXED.replace(">=", ">")


def test_what_the_baseline_allows_is_not_fixed(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)
    lint("--baseline", "b.json", "--update-baseline", "a.py")
    (tmp_path / "a.py").write_text(DEAD_ASSERT.replace(">=", ">") + DEAD_ASSERT)

    assert lint("--fix", "--baseline", "b.json", "a.py")[0] == 0
    assert (tmp_path / "a.py").read_text() == FIXED.replace(">=", ">") + DEAD_ASSERT


def test_json_tells_whether_a_fix_is_safe(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)

    (entry,) = json.loads(lint("--format", "json", "a.py")[1])

    assert (entry["fixable"], entry["safe"]) == (True, True)


def test_thousands_of_fixes_in_a_long_file_are_put_together_once():
    """To cut the source again for each of them takes hours: if it does again, the suite hangs."""
    count = 6_000
    source = "x = 1\n" * count + "#" * 9_000_000
    found = [finding(edit(line, 1, 2, "yy")) for line in range(1, count + 1)]

    assert fixed_source(source, found) == source.replace("x", "yy")


def test_an_encoding_that_gives_other_bytes_for_a_text_is_refused():
    text = b"# coding: utf-7\nx = 1  # +AGE-\n"

    fixed = fix_text(text, lambda now: [finding(edit(2, 1, 2, "y"))], everything)

    assert (fixed.text, fixed.refused) == (text, "utf-7 gives other bytes for the same text")
