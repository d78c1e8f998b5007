"""`--since REV`: findings on lines that changed, as git sees them."""

from __future__ import annotations

import json

import pytest

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


def test_a_file_that_does_not_parse_is_told_of_whatever_changed(lint, committed):
    (committed / "a.py").write_text(BROKEN)

    assert lint("--since", "HEAD", ".")[0] == 2


def test_an_unknown_revision_is_one_error_with_the_nearest(lint, committed):
    status, out, err = lint("--since", "mian", ".")

    assert (status, out) == (2, "")
    assert err == ("fmcheck: --since: expected a git revision, got `mian`; did you mean `main`?\n")


def test_an_option_is_no_revision(lint, committed):
    assert lint("--since=--all", ".")[0] == 2


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
