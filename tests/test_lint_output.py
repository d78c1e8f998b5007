"""What stands around the findings: colour, statistics, quiet, the standard input, exit status."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys

import pytest

from fmcheck.report import colour
from tests.sources import BROKEN, DEAD_ASSERT, STRAY_EVENT


@pytest.mark.parametrize(
    ("choice", "environ", "is_terminal", "wanted"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_when_to_colour(choice, environ, is_terminal, wanted):
    assert colour.wanted(choice, environ, is_terminal) is wanted


def test_colour_changes_no_text(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT + STRAY_EVENT)

    plain = lint("--color", "never", ".")[1]
    coloured = lint("--color", "always", ".")[1]

    assert "\x1b[1;31merror[FM601]\x1b[0m" in coloured
    for code in colour.STYLES.values():
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured.replace("\x1b[0m", "") == plain


def test_a_diff_is_coloured_too(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)

    assert "\x1b[32m+    torch" in lint("--color", "always", "--diff", ".")[1]


def test_a_file_gets_no_colour_unless_it_is_asked_for(lint, tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    lint("--output-file", "report", ".")

    assert "\x1b" not in (tmp_path / "report").read_text()


def test_statistics_stand_alone(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT + STRAY_EVENT + STRAY_EVENT)

    _, out, _ = lint("--statistics", ".")

    assert out.startswith("2  FM301  cuda-api\n1  FM601  messageless-async-assert\n1 file checked")


def test_concise_is_one_line_a_finding(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT + STRAY_EVENT)

    status, out, _ = lint("--format", "concise", "-q", ".")

    assert status == 1
    first, second = out.splitlines()
    assert re.fullmatch(r"a\.py:\d+:\d+: FM601 async assert .* \[fixable\]", first)
    assert re.fullmatch(r"a\.py:\d+:\d+: FM301 .*", second)


def test_concise_says_what_a_comment_suppresses(lint, tmp_path):
    ignored = "# fmcheck: ignore-file[FM301] a profiler of CUDA alone\n"
    (tmp_path / "a.py").write_text(ignored + STRAY_EVENT)

    _, out, _ = lint("--format", "concise", "--show-suppressed", "-q", ".")

    assert out.endswith("(suppressed: a profiler of CUDA alone)\n")


def test_statistics_are_text(lint, tmp_path):
    status, _, err = lint("--statistics", "--format", "json", ".")

    assert status == 2
    assert err == "fmcheck: --statistics: expected `--format text` beside it\n"


def test_quiet_leaves_the_findings(lint, tmp_path):
    (tmp_path / "a.py").write_text(STRAY_EVENT)

    _, out, _ = lint("-q", ".")

    assert out.startswith("warning[FM301]")
    assert "checked" not in out


def test_exit_zero_says_the_same_and_exits_with_0(lint, tmp_path):
    (tmp_path / "a.py").write_text(STRAY_EVENT)

    status, out, _ = lint("--exit-zero", ".")

    assert status == 0
    assert "FM301" in out


def test_exit_zero_hides_no_file_that_could_not_be_checked(lint, tmp_path):
    (tmp_path / "a.py").write_text(STRAY_EVENT)
    (tmp_path / "b.py").write_text(BROKEN)

    assert lint("--exit-zero", ".")[0] == 2


@pytest.fixture
def stdin(monkeypatch):
    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return give


def test_the_standard_input_is_linted_under_a_name(lint, tmp_path, stdin):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "pyproject.toml").write_text(
        '[tool.fmcheck]\nper-file-ignores = {"quiet.py" = ["FM301"]}\n'
    )
    stdin(STRAY_EVENT)
    status, out, _ = lint("--stdin-filename", "src/loud.py", "-")
    assert status == 1
    assert "--> src/loud.py:5:13" in out
    assert "ready = torch.cuda.Event()" in out

    stdin(STRAY_EVENT)
    assert lint("--stdin-filename", "src/quiet.py", "-")[0] == 0


def test_the_standard_input_may_be_excluded(lint, tmp_path, stdin):
    stdin(STRAY_EVENT)

    assert lint("--exclude", "gen", "--force-exclude", "--stdin-filename", "gen/a.py", "-")[0] == 0


def test_the_standard_input_is_fixed_onto_the_standard_output(lint, stdin, tmp_path):
    stdin(DEAD_ASSERT + STRAY_EVENT)

    status, out, err = lint("--fix", "-")

    assert status == 1
    fixed = DEAD_ASSERT.replace("all())", 'all(), "check: (values >= 0).all()")')
    assert out == fixed + STRAY_EVENT
    assert "FM301" in err
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_fixed_comes_out_as_it_went_in(lint, stdin):
    stdin(BROKEN)

    status, out, _ = lint("--fix", "-")

    assert (status, out) == (2, BROKEN)


def test_a_diff_of_the_standard_input(lint, stdin):
    stdin(DEAD_ASSERT)

    status, out, _ = lint("--diff", "--stdin-filename", "a.py", "-")

    assert status == 1
    assert out.startswith("--- a.py\n+++ a.py\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-", "a.py"), "-: expected no other path beside the standard input"),
        (("--stdin-filename", "a.py", "b.py"), "--stdin-filename: expected the path `-` beside it"),
    ],
)
def test_the_standard_input_stands_alone(lint, arguments, message):
    status, _, err = lint(*arguments)

    assert (status, err) == (2, f"fmcheck: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sinc", "HEAD", "."), "--sinc: no such option or argument; did you mean `--since`?"),
        (("--sel", "FM3", "."), "--sel: no such option or argument; did you mean `--select`?"),
        ((), "lint: expected PATH; `fmcheck lint --help` shows the usage"),
        (("--output-file", "a.py", "b.py"), "--output-file: `a.py` is source: not overwritten"),
        (("",), "lint PATH: expected a path, got an empty one"),
        (("a.ipynb",), "a.ipynb: is a notebook, and no Python source; export it as a script"),
        (
            ("--select", "tail-not-reset", "."),
            "--select: expected a rule code, a family like `FM2`, or `ALL`, got `tail-not-reset`; "
            "did you mean `FM201`?",
        ),
        (("--fix", "--diff", "."), "--diff: cannot be combined with `--fix`"),
    ],
)
def test_options_that_do_not_fit_are_one_error(lint, tmp_path, arguments, message):
    (tmp_path / "a.ipynb").write_text("{}")

    assert lint(*arguments) == (2, "", f"fmcheck: {message}\n")


def test_an_unknown_command_is_named_with_the_nearest(capsys):
    from fmcheck.cli import main

    assert main(["lnit"]) == 2
    err = capsys.readouterr().err
    assert "got `lnit`; did you mean `lint`?" in err
    assert err.endswith("did you mean `lint`?\n")


def test_help_is_grouped_and_names_the_exit_statuses(capsys, lint):
    with pytest.raises(SystemExit):
        lint("--help")

    out = capsys.readouterr().out
    for heading in ("which rules:", "which files and lines:", "fixes:", "baseline:", "output:"):
        assert f"\n{heading}\n" in out
    for status in (" 0 ", " 1 ", " 2 ", " 130 ", " 141 "):
        assert f"\n {status}" in out


def run_on_terminal(root, *arguments: str) -> str:
    """Runs the command with a terminal for its standard error; returns what that shows."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fmcheck", "lint", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(root), "TERM": "xterm"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs, stdin=theirs, env=environ
    ):
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # what Linux says when the other end is closed
                part = b""
            if not part:
                break
            shown += part
    os.close(ours)
    return shown.decode()


def test_progress_is_shown_on_a_terminal_unless_quiet(root, tmp_path):
    for number in range(250):
        (tmp_path / f"a{number}.py").write_text("x = 1\n")

    assert "linting" in run_on_terminal(root, str(tmp_path))
    assert run_on_terminal(root, "--quiet", str(tmp_path)) == ""


def test_interrupted_says_so_and_exits_with_130(lint, tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(STRAY_EVENT)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fmcheck.lint.run.tasks.lint_text", interrupted)

    assert lint(".") == (130, "", "fmcheck: interrupted\n")


def test_own_codes_have_pages(capsys):
    from fmcheck.cli import main
    from fmcheck.lint.own import OWN_CODES

    for code, own in OWN_CODES.items():
        assert main(["rule", code]) == 0
        assert capsys.readouterr().out.startswith(f"# {code} {own.name}\n")


def test_json_stays_json_whatever_the_options(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)

    assert json.loads(lint("--format", "json", "--fix", "--color", "always", ".")[1]) == []
