"""The baseline: what it lets pass, that it only shrinks, and what is said of a bad one."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from tests.sources import BROKEN, DEAD_ASSERT, STRAY_EVENT

WITH = ("--baseline", "base.json")


@pytest.fixture
def known(lint, tmp_path):
    """A folder with a file of two findings, both in the baseline."""
    (tmp_path / "a.py").write_text(STRAY_EVENT + "    torch.cuda.Stream()\n")
    assert lint(*WITH, "--update-baseline", ".")[0] == 0
    return tmp_path


def entries(folder) -> list[dict]:
    return json.loads((folder / "base.json").read_text())["findings"]


def test_a_new_baseline_holds_all_that_is_found_an_entry_a_line(known):
    text = (known / "base.json").read_text()

    assert [(one["path"], one["code"], one["count"]) for one in entries(known)] == [
        ("a.py", "FM301", 1),
        ("a.py", "FM301", 1),
    ]
    assert len(text.splitlines()) == 4
    assert text.endswith("]}\n")


def test_what_it_lists_is_not_reported(lint, known):
    status, out, _ = lint(*WITH, ".")

    assert status == 0
    assert out.endswith("no findings\n2 more in the baseline\n")


def test_moved_and_reindented_code_is_still_known(lint, known):
    text = (known / "a.py").read_text()
    (known / "a.py").write_text(
        "# new\n\n" + text.replace("    ready", "    if device:\n        ready")
    )

    assert lint(*WITH, ".")[0] == 0


def test_one_more_of_the_same_is_reported(lint, known):
    with (known / "a.py").open("a") as file:
        file.write("    torch.cuda.Stream()\n")

    status, out, _ = lint(*WITH, "--format", "json", ".")

    assert status == 1
    assert [entry["line"] for entry in json.loads(out)] == [8]


def test_a_gone_entry_is_an_error_with_the_command_to_run(lint, known):
    (known / "a.py").write_text(STRAY_EVENT)

    status, out, _ = lint(*WITH, "a.py")

    assert status == 1
    assert "error[FM005]: stale baseline entry: FM301 in a.py\n" in out
    assert "note: fingerprint " in out
    assert ": 1 allowed, 0 found" in out
    assert "--> base.json:" in out
    assert "`fmcheck lint --baseline base.json --update-baseline a.py`" in out

    assert lint(*WITH, "--update-baseline", "a.py")[0] == 0
    assert len(entries(known)) == 1
    assert lint(*WITH, "a.py")[0] == 0


def test_an_update_adds_nothing(lint, known):
    (known / "b.py").write_text(DEAD_ASSERT)

    status, out, err = lint(*WITH, "--update-baseline", ".")

    assert status == 1
    assert "FM601" in out
    assert err == "fmcheck: base.json: 0 removed, 0 added\n"
    assert {one["path"] for one in entries(known)} == {"a.py"}


def test_adding_is_asked_for_by_name(lint, known):
    (known / "b.py").write_text(DEAD_ASSERT)
    (known / "a.py").write_text(STRAY_EVENT)

    status, _, err = lint(*WITH, "--add-to-baseline", ".")

    assert (status, err) == (0, "fmcheck: base.json: 1 removed, 1 added\n")
    assert [one["path"] for one in entries(known)] == ["a.py", "b.py"]
    assert lint(*WITH, ".")[0] == 0


def test_an_update_without_change_leaves_the_same_bytes(lint, known):
    before = (known / "base.json").read_bytes()

    lint(*WITH, "--add-to-baseline", ".")

    assert (known / "base.json").read_bytes() == before


def test_entries_of_files_and_rules_that_were_not_checked_stay(lint, known):
    (known / "b.py").write_text("x = 1\n")
    (known / "a.py").write_text(STRAY_EVENT)

    assert lint(*WITH, "b.py")[0] == 0
    assert lint(*WITH, "--select", "FM601", ".")[0] == 0
    assert lint(*WITH, "--update-baseline", "b.py")[0] == 0
    assert len(entries(known)) == 2


def test_entries_of_a_deleted_file_are_gone(lint, known):
    (known / "b.py").write_text("x = 1\n")
    (known / "a.py").unlink()

    assert lint(*WITH, "b.py")[0] == 0
    status, out, _ = lint(*WITH, ".")
    assert (status, out.count("error[FM005]")) == (1, 2)


def test_entries_of_a_file_that_cannot_be_parsed_stay(lint, known):
    (known / "a.py").write_text(BROKEN)

    assert lint(*WITH, "--update-baseline", ".")[0] == 2
    assert len(entries(known)) == 2


def test_a_file_that_cannot_be_parsed_is_never_allowed(lint, tmp_path):
    (tmp_path / "a.py").write_text(BROKEN)

    assert lint(*WITH, "--update-baseline", ".")[0] == 2
    assert entries(tmp_path) == []
    assert lint(*WITH, ".")[0] == 2


def test_not_even_an_entry_for_it_allows_a_file_that_cannot_be_parsed(lint, tmp_path):
    (tmp_path / "a.py").write_text(STRAY_EVENT)
    assert lint(*WITH, "--update-baseline", ".")[0] == 0
    text = (tmp_path / "base.json").read_text().replace("FM301", "FM001")
    (tmp_path / "base.json").write_text(text)
    (tmp_path / "a.py").write_text(BROKEN)
    broken = lint("--format", "json", ".")[1]
    line = json.loads(broken)[0]["line"]
    digits = hashlib.sha256(" ".join(BROKEN.splitlines()[line - 1].split()).encode()).hexdigest()
    (tmp_path / "base.json").write_text(
        text.replace(entries(tmp_path)[0]["fingerprint"], digits[:16])
    )

    assert lint(*WITH, ".")[0] == 2


def test_paths_start_at_the_baseline_file(lint, tmp_path, monkeypatch):
    (tmp_path / "src").mkdir()
    (tmp_path / "ci").mkdir()
    (tmp_path / "src" / "a.py").write_text(STRAY_EVENT)
    lint("--baseline", "ci/base.json", "--update-baseline", "src")

    assert entries(tmp_path / "ci")[0]["path"] == "../src/a.py"
    monkeypatch.chdir(tmp_path / "src")
    assert lint("--baseline", "../ci/base.json", ".")[0] == 0


def test_a_setting_names_it_from_the_settings_file(lint, known, monkeypatch):
    (known / "pyproject.toml").write_text('[tool.fmcheck]\nbaseline = "base.json"\n')
    (known / "sub").mkdir()
    monkeypatch.chdir(known / "sub")

    assert lint("..")[0] == 0
    (known / "a.py").write_text(STRAY_EVENT)
    assert "`fmcheck lint --update-baseline ..`" in lint("..")[1]


BAD = {
    "missing": (None, "no such baseline; make it with `--update-baseline`"),
    "not JSON": ("{", "is not valid JSON"),
    "not an object": ("[]", "expected a baseline: a JSON object with `findings`"),
    "no findings": ('{"version": 1}', "key `findings` is missing: expected a list of tables"),
    "unknown key": (
        '{"version": 1, "finding": []}',
        "unknown key `finding`; did you mean `findings`?",
    ),
    "of a later version": ('{"version": 2, "findings": []}', "key `version`: expected 1, got 2"),
    "count of none": (
        '{"version": 1, "findings": [{"path": "", "code": "", "fingerprint": "", "count": 0}]}',
        "key `findings[0].count`: expected at least 1, got 0",
    ),
    "wrong type": (
        '{"version": 1, "findings": [{"path": 3, "code": "FM301", "fingerprint": ""}]}',
        "key `findings[0].path`: expected a string, got a whole number",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_bad_baseline_is_one_error(lint, tmp_path, text, message):
    (tmp_path / "a.py").write_text(STRAY_EVENT)
    if text is not None:
        (tmp_path / "base.json").write_text(text)

    status, out, err = lint(*WITH, ".")

    assert (status, out) == (2, "")
    assert err.startswith("fmcheck: base.json: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--update-baseline", "--add-to-baseline"])
def test_an_update_needs_a_baseline(lint, tmp_path, option):
    (tmp_path / "a.py").write_text("")

    status, _, err = lint(option, ".")

    assert status == 2
    assert err.startswith(f"fmcheck: {option}: ")
    assert "expected `--baseline FILE` beside it, or a setting `baseline`" in err


def test_a_baseline_in_a_folder_that_may_not_be_looked_at_is_named(lint, tmp_path, monkeypatch):
    def refusing(path, real=os.stat, **options):
        if "closed" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return real(path, **options)

    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(os, "stat", refusing)

    status, _, err = lint("--baseline", "closed/b.json", "--update-baseline", "a.py")

    assert (status, "internal error" in err, "closed/b.json" in err) == (2, False, True)


def test_a_baseline_that_cannot_be_written_is_named_and_stays(lint, known, monkeypatch):
    before = (known / "base.json").read_bytes()
    (known / "a.py").write_text(STRAY_EVENT)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    status, _, err = lint(*WITH, "--update-baseline", ".")

    assert status == 2
    assert err == "fmcheck: base.json: cannot be written: No space left on device\n"
    assert (known / "base.json").read_bytes() == before
    assert sorted(os.listdir(known)) == ["a.py", "base.json"]
