"""`--since REV`: findings on lines that changed, as git sees them."""

from __future__ import annotations

import io
import json
import os

import pytest

from fmcheck.cli import main
from tests.sources import BROKEN, STRAY_EVENT

MORE = "\ndef more(device):\n    return torch.get_device_module(device), torch.cuda.Stream()\n"


@pytest.fixture
def committed(git, tmp_path):
    """A repository with one file of one finding, committed."""
    (tmp_path / "a.py").write_text(STRAY_EVENT)
    git("add", "a.py")
    git("commit", "--quiet", "--message", "one")
    return tmp_path


@pytest.fixture
def found(lint):
    """Returns the places of findings since a revision."""

    def run(revision: str, *arguments: str) -> list[str]:
        _, out, _ = lint("--format", "json", "--since", revision, *(arguments or (".",)))
        return [f"{entry['path']}:{entry['line']}" for entry in json.loads(out)]

    return run


def test_an_unchanged_tree_is_not_linted(lint, committed):
    status, out, err = lint("--since", "HEAD", ".")

    assert (status, err) == (0, "")
    assert out.startswith("0 files checked")


def test_changed_lines_alone_are_reported(found, committed):
    (committed / "a.py").write_text("# new\n" + STRAY_EVENT + MORE)

    assert found("HEAD") == ["a.py:10"]


def test_a_deletion_changes_no_line(found, committed):
    (committed / "a.py").write_text(STRAY_EVENT.replace("    return module, ready\n", ""))

    assert found("HEAD") == []


def test_committed_staged_and_unstaged_changes_count(found, committed, git):
    git("checkout", "--quiet", "-b", "topic")
    (committed / "b.py").write_text(STRAY_EVENT)
    git("add", "b.py")
    git("commit", "--quiet", "--message", "two")
    (committed / "c.py").write_text(STRAY_EVENT)
    git("add", "c.py")
    (committed / "a.py").write_text(STRAY_EVENT + MORE)

    assert found("main") == ["a.py:9", "b.py:5", "c.py:5"]


def test_what_the_other_branch_did_meanwhile_does_not_count(found, committed, git):
    git("checkout", "--quiet", "-b", "topic")
    (committed / "b.py").write_text(STRAY_EVENT)
    git("add", "b.py")
    git("commit", "--quiet", "--message", "two")
    git("checkout", "--quiet", "main")
    (committed / "a.py").write_text(STRAY_EVENT.replace("Event", "Stream"))
    git("commit", "--quiet", "--all", "--message", "three")
    git("checkout", "--quiet", "topic")

    assert found("main") == ["b.py:5"]


def test_untracked_files_are_new_and_ignored_ones_are_not(found, committed):
    (committed / ".gitignore").write_text("no.py\n")
    (committed / "no.py").write_text(STRAY_EVENT)
    (committed / "sub").mkdir()
    (committed / "sub" / "new.py").write_text(STRAY_EVENT)

    assert found("HEAD") == ["sub/new.py:5"]
    assert found("HEAD", "sub") == ["sub/new.py:5"]
    assert found("HEAD", "no.py") == []


def test_a_renamed_file_is_changed_where_it_changed(found, committed, git):
    git("mv", "a.py", "b.py")
    (committed / "b.py").write_text(STRAY_EVENT + MORE)
    git("add", "b.py")

    assert found("HEAD") == ["b.py:9"]


def test_odd_names_and_lines_that_look_like_headers(found, committed, git):
    name = 'ü "x"\t.py'
    (committed / name).write_text(STRAY_EVENT + '"""\n"""\n')
    git("add", name)
    git("commit", "--quiet", "--message", "two")
    (committed / name).write_text(
        STRAY_EVENT
        + '"""\n++ b/a.py\n@@ -1,9 +1,9 @@\n"""\n'
        + 'm = torch.get_device_module("xpu"), torch.cuda.Event()\n'
    )

    assert found("HEAD") == [f"{name}:11"]


def test_settings_of_the_users_git_change_nothing(found, committed, git):
    git("config", "diff.noprefix", "true")
    git("config", "color.ui", "always")
    git("config", "diff.external", "false")
    (committed / "a.py").write_text(STRAY_EVENT + MORE)

    assert found("HEAD") == ["a.py:9"]


def test_from_a_folder_of_the_repository(found, committed, monkeypatch):
    (committed / "sub").mkdir()
    (committed / "sub" / "new.py").write_text(STRAY_EVENT)
    (committed / "a.py").write_text(STRAY_EVENT + MORE)
    monkeypatch.chdir(committed / "sub")

    assert found("HEAD", ".", "..") == ["new.py:5", "../a.py:9"]


def test_a_file_that_does_not_parse_is_reported_of_whatever_changed(lint, committed):
    (committed / "a.py").write_text(BROKEN)

    assert lint("--since", "HEAD", ".")[0] == 2


def test_an_unknown_revision_is_one_error_with_the_nearest(lint, committed):
    status, out, err = lint("--since", "mian", ".")

    assert (status, out) == (2, "")
    assert err == ("fmcheck: --since: expected a git revision, got `mian`; did you mean `main`?\n")


def test_an_option_is_no_revision(lint, committed):
    assert lint("--since=--all", ".")[0] == 2


def test_without_a_commit_there_is_nothing_to_compare_with(lint, git):
    status, _, err = lint("--since", "HEAD", ".")

    assert status == 2
    assert err == "fmcheck: --since: the repository around . has no commit yet\n"


def test_a_submodule_is_compared_with_the_commit_that_was_checked_out_there(
    found, committed, git, tmp_path_factory
):
    other = tmp_path_factory.mktemp("other")
    (other / "b.py").write_text(STRAY_EVENT)
    git("-C", str(other), "init", "--quiet")
    git("-C", str(other), "add", "b.py")
    git("-C", str(other), "commit", "--quiet", "--message", "one")
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    assert found("HEAD") == ["sub/b.py:5"]

    git("commit", "--quiet", "--message", "two")
    assert found("HEAD") == []

    (committed / "sub" / "b.py").write_text(STRAY_EVENT + MORE)
    assert found("HEAD") == ["sub/b.py:9"]
    git("-C", "sub", "commit", "--quiet", "--all", "--message", "three")
    assert found("HEAD") == ["sub/b.py:9"]


def test_a_repository_inside_that_is_no_submodule_is_new(found, committed, git):
    (committed / "inner").mkdir()
    (committed / "inner" / "b.py").write_text(STRAY_EVENT)
    git("-C", "inner", "init", "--quiet")

    assert found("HEAD") == ["inner/b.py:5"]


def test_outside_of_a_repository_is_one_error(lint, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "a.py").write_text("")

    status, _, err = lint("--since", "HEAD", ".")

    assert status == 2
    assert err == "fmcheck: --since: . is not in a git repository that can be read\n"


def test_without_git_there_is_one_error(lint, tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))

    status, _, err = lint("--since", "HEAD", ".")

    assert status == 2
    assert err.startswith("fmcheck: --since: git cannot be run: ")


def test_a_branch_without_common_history_is_one_error(lint, committed, git):
    git("checkout", "--quiet", "--orphan", "other")
    git("commit", "--quiet", "--message", "other")

    status, _, err = lint("--since", "main", ".")

    assert status == 2
    assert "`main` and HEAD have no common ancestor here" in err


ATTRIBUTES = (
    "-diff",
    "binary",
    "-text",
    "diff=none",
    "filter=none",
    "working-tree-encoding=UTF-16",
)


@pytest.mark.parametrize("attribute", ATTRIBUTES)
@pytest.mark.parametrize("command", ["lint", "ci"])
def test_attributes_that_the_change_brings_hide_nothing(
    lint, committed, git, capsys, attribute, command
):
    git("checkout", "--quiet", "-b", "topic")
    (committed / "a.py").write_text(STRAY_EVENT + MORE)
    git("commit", "--quiet", "--all", "--message", "two")
    (committed / ".gitattributes").write_text(f"*.py {attribute}\n")
    git("add", ".gitattributes")
    git("commit", "--quiet", "--message", "three")

    status = main([command, "--since", "main", *(["."] if command == "lint" else [])])

    assert (status, capsys.readouterr().out.count("a.py:9:")) == (1, 1)


#: Settings of a repository that have git run a program, somewhere.
PROGRAMS = (
    "core.fsmonitor",
    "core.pager",
    "core.sshCommand",
    "core.gitProxy",
    "core.askPass",
    "core.editor",
    "credential.helper",
    "diff.external",
    "diff.evil.command",
    "diff.evil.textconv",
    "filter.evil.clean",
    "filter.evil.smudge",
    "filter.evil.process",
    "gpg.program",
    "interactive.diffFilter",
    "merge.evil.driver",
    "pager.diff",
    "remote.origin.uploadpack",
    "sequence.editor",
)


def test_no_program_that_a_repository_names_runs(found, committed, git, monkeypatch):
    ran = committed.parent / f"{committed.name}-ran"
    program = committed.parent / f"{committed.name}-program"
    program.write_text(f"#!/bin/sh\necho $0 $* >> {ran}\n")
    program.chmod(0o755)
    (committed / ".git" / "info").mkdir(exist_ok=True)
    (committed / ".git" / "hooks").mkdir(exist_ok=True)
    for hook in ("post-index-change", "post-checkout", "fsmonitor-watchman", "pre-auto-gc"):
        (committed / ".git" / "hooks" / hook).symlink_to(program)
    (committed / "b.py").write_text(STRAY_EVENT)
    git("add", "b.py")
    (committed / "a.py").write_text(STRAY_EVENT + MORE)
    os.utime(committed / "b.py", (0, 0))  # so that git has to look into it
    attributes = "* diff=evil filter=evil merge=evil\n"
    (committed / ".gitattributes").write_text(attributes)
    (committed / ".git" / "info" / "attributes").write_text(attributes)
    for name in PROGRAMS:
        git("config", name, str(program))
    git("config", "core.untrackedCache", "true")
    git("config", "extensions.partialClone", "origin")
    git("config", "remote.origin.url", f"ext::{program}")
    git("config", "remote.origin.promisor", "true")
    git("config", "protocol.ext.allow", "always")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(program))
    monkeypatch.setenv("GIT_PAGER", str(program))
    ran.unlink(missing_ok=True)  # git config has asked some

    assert found("HEAD") == ["a.py:9", "b.py:5"]
    assert not ran.exists(), ran.read_text()


def test_a_git_in_the_linted_tree_is_not_run(found, committed, monkeypatch):
    (committed / "git").write_text(f"#!/bin/sh\ntouch {committed}/ran\n")
    (committed / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}{os.environ['PATH']}")
    (committed / "a.py").write_text(STRAY_EVENT + MORE)

    assert found("HEAD") == ["a.py:9"]
    assert not (committed / "ran").exists()


def test_a_repository_without_files_of_its_own_inside_of_the_tree_is_not_asked(
    lint, committed, git
):
    """A folder that looks like a bare repository is one to git, with settings of its own."""
    bare = committed / "bare"
    git("init", "--quiet", "--bare", "bare")
    (bare / "a.py").write_text(STRAY_EVENT)

    status, _, err = lint("--since", "HEAD", "bare")

    assert status == 2
    assert err.startswith("fmcheck: --since: bare: cannot use bare repository")


@pytest.mark.skipif(os.name != "posix", reason="names are bytes")
def test_names_of_any_bytes_are_compared(lint, committed, git):
    names = [
        b"new\nline.py",
        b"b/+++ b.py",
        b'quote".py',
        b"back\\slash.py",
        b" .py",
        b"\xff\xfe.py",
    ]
    (committed / "b").mkdir()
    for name in names:
        with open(os.path.join(os.fsencode(committed), name), "w") as file:
            file.write(STRAY_EVENT)
    git("add", "--all")
    git("commit", "--quiet", "--message", "two")
    for name in names:
        with open(os.path.join(os.fsencode(committed), name), "a") as file:
            file.write(MORE)

    _, out, _ = lint("--format", "json", "--since", "HEAD", ".")

    assert {(one["path"], one["line"]) for one in json.loads(out)} == {
        (name.decode(errors="backslashreplace"), 9) for name in names
    }


def test_other_line_ends_are_no_change(found, committed, git):
    git("config", "core.autocrlf", "true")
    (committed / "a.py").write_bytes((STRAY_EVENT + MORE).replace("\n", "\r\n").encode())

    assert found("HEAD") == ["a.py:9"]


def test_flags_of_the_index_hide_nothing(found, committed, git):
    git("update-index", "--assume-unchanged", "a.py")
    (committed / "a.py").write_text(STRAY_EVENT + MORE)

    assert found("HEAD") == ["a.py:9"]


def test_what_a_replacement_says_a_commit_held_is_not_believed(found, committed, git):
    (committed / "a.py").write_text(STRAY_EVENT + MORE)
    old = git("rev-parse", "HEAD:a.py").strip()
    git("replace", old, git("hash-object", "-w", "a.py").strip())

    assert found("HEAD") == ["a.py:9"]


def test_the_standard_input_is_what_is_compared(lint, committed, monkeypatch):
    given = io.TextIOWrapper(io.BytesIO((STRAY_EVENT + MORE).encode()))
    monkeypatch.setattr("sys.stdin", given)

    status, out, _ = lint("--since", "HEAD", "--stdin-filename", "a.py", "-")

    assert (status, out.count("a.py:9:"), out.count("a.py:5:")) == (1, 1, 0)


def test_a_file_that_becomes_a_link_is_new(found, committed):
    (committed / "a.py").unlink()
    (committed / "real.py").write_text(STRAY_EVENT)
    (committed / "a.py").symlink_to("real.py")

    assert found("HEAD") == ["a.py:5", "real.py:5"]
