"""The command line: wrong arguments, completion scripts, and linting again after a change."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fmcheck.cli import main
from fmcheck.cli.lint_watch import watch
from fmcheck.report_files import check_writable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "COMMAND: expected one of lint, init, contract"),
        ("lnt src", "got `lnt`; did you mean `lint`?"),
        ("lint", "lint: expected PATH; `fmcheck lint --help` shows the usage"),
        ("lint --formt json .", "--formt: no such option or argument; did you mean `--format`?"),
        ("lint --format jsno .", "got `jsno`; did you mean `json`?"),
        ("lint -j 0 .", "--jobs: must be a whole number of at least 1 (got `0`)"),
        ("lint -j", "--jobs: expected a value after it"),
        ("lint --fix --diff .", "--diff: cannot be combined with `--fix`"),
        ("lint --watch --fix .", "--watch: cannot be combined with `--fix`"),
        ("lint --watch -", "--watch: cannot be combined with `-`"),
        ("ci --bogus", "--bogus: no such option or argument; `fmcheck ci --help` lists them"),
        ("prove . --timeout abc -- true", "--timeout: expected a number, got `abc`"),
        ("prove . --timeout -1 -- true", "--timeout: expected a number above 0, got `-1`"),
        ("prove . --timeout nan -- true", "--timeout: expected a number above 0, got `nan`"),
        ("prove . --min-score 200 -- true", "--min-score: expected a number from 0 to 100"),
        ("prove . --json tests -- true", "--json: expected a file, and `tests` is a folder"),
        ("prove . --json /dev/null/x -- true", "--json: `/dev/null/x` cannot be written: "),
        ("init . --output=", "--output: expected a path, got an empty one"),
        ("report shwo x", "fmcheck: report WHAT: expected one of `show`, `merge`, `schema`"),
        ("completion fish", "expected one of `bash`, `zsh`, `tcsh`, got `fish`\n"),
        ("explain", "explain: expected CODE; `fmcheck explain --help` shows the usage"),
    ],
)
def test_an_argument_error_names_the_option_and_the_way_out(
    argv: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv.split()) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_result_may_be_written_to_a_pipe_behind_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "out.json").symlink_to(tmp_path / "pipe")
    monkeypatch.chdir(folder)
    check_writable(folder / "out.json", "out.json", "--json")


def test_a_check_is_explained_by_its_name_and_the_nearest_name_is_offered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "double-read"]) == 0
    assert capsys.readouterr().out.startswith("# FR102 ")
    for given, near in (("double-raed", "double-read"), ("Tail-not-rest", "tail-not-reset")):
        assert main(["explain", given]) == 2
        expected = f"fmcheck: explain: there is no `{given}`; did you mean `{near}`?\n"
        assert capsys.readouterr().err == expected


def test_a_rule_is_explained_by_its_name_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tail-not-reset"]) == 0
    assert capsys.readouterr().out.startswith("# FM201 tail-not-reset\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_completion_script_knows_commands_and_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "contract" in out
    assert "add-to-baseline" in out


def test_completion_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "fmcheck.cli.completion.find_spec", lambda name: None if name == "shtab" else find(name)
    )
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == (
        "fmcheck: completion: needs shtab: pip install 'fmcheck[completion]'\n"
    )


def test_watch_lints_again_after_each_change_and_not_without_one(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one = 1\n")
    looks, linted = iter(["nothing", "change", "settings", "nothing", "end"]), []

    def lint() -> int:
        linted.append(file.read_text())
        return len(linted)

    def wait(_: float) -> None:
        what = next(looks)
        if what == "change":
            file.write_text("two = 22\n")
        elif what == "settings":
            (tmp_path / "pyproject.toml").write_text("[tool.fmcheck]\n")
        elif what == "end":
            raise KeyboardInterrupt

    assert watch([tmp_path], lint, wait) == 3
    assert linted == ["one = 1\n", "two = 22\n", "two = 22\n"]


def test_watch_goes_on_over_settings_in_the_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("one = 1\n")
    (tmp_path / "pyproject.toml").write_text("[tool.fmcheck]\nselec = []\n")
    looks = iter(["mend", "end"])

    def wait(_: float) -> None:
        if next(looks) == "end":
            raise KeyboardInterrupt
        (tmp_path / "pyproject.toml").write_text("[tool.fmcheck]\nselect = []\n")

    monkeypatch.setattr("fmcheck.cli.lint_watch.watch.__defaults__", (wait,))
    assert main(["lint", "--watch", "--no-cache", "."]) == 0
    err = capsys.readouterr().err
    assert "unknown key `tool.fmcheck.selec`" in err
    assert err.count("watching for changes") == 2


GONE = "fmcheck: the current folder was removed: expected to run in one that exists\n"


@pytest.mark.parametrize(
    "argv",
    [
        ("lint", "."),
        ("lint", "--no-cache", "{}/a.py"),
        ("lint", "--format", "sarif", "{}/a.py"),
        ("lint", "--stdin-filename", "a.py", "-"),
        ("ci", "--lint", "{}"),
    ],
)
def test_a_current_folder_that_was_removed_is_one_error(tmp_path: Path, argv) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    gone = tmp_path / "gone"
    gone.mkdir()
    told = " ".join(shlex.quote(one.format(tmp_path)) for one in argv)
    done = subprocess.run(
        ["sh", "-c", f"rmdir {gone}; exec {sys.executable} -m fmcheck {told} < /dev/null"],
        cwd=gone,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(GONE)
    assert "internal error" not in done.stderr


def test_a_watched_folder_that_was_removed_ends_the_watch(lint, tmp_path, monkeypatch) -> None:
    def removing(_: object) -> int:
        tmp_path.rmdir()
        return 0

    monkeypatch.setattr("fmcheck.cli.lint._lint", removing)

    status, _, err = lint("--watch", ".")

    assert (status, err.endswith(GONE)) == (2, True)


def test_without_its_folder_it_still_says_its_version(lint, tmp_path, capsys) -> None:
    tmp_path.rmdir()
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("fmcheck ")
