"""Settings: where they are found, and what is said when they do not fit."""

from __future__ import annotations

import json

import pytest

from fmcheck.cli import main
from fmcheck.config import find_settings, load_settings, unread_settings
from fmcheck.errors import UsageError

SOURCE = "import torch\nm = torch.get_device_module()\ne = torch.cuda.Event()\n"


def write(folder, text, name="pyproject.toml"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_settings_are_found_upwards_from_the_linted_path(tmp_path, capsys, monkeypatch):
    write(tmp_path / "repo", '[tool.fmcheck]\nignore = ["FM301"]\n')
    write(tmp_path / "repo" / "src", SOURCE, "a.py")
    monkeypatch.chdir(tmp_path)

    assert main(["lint", "repo/src"]) == 0
    assert "no findings" in capsys.readouterr().out


def test_a_pyproject_without_our_table_is_passed_over(tmp_path):
    path = write(tmp_path, '[tool.fmcheck]\nselect = ["FM6"]\n')
    write(tmp_path / "sub", "[tool.ruff]\n")

    assert find_settings(tmp_path / "sub").origin == path


def test_no_settings_anywhere_means_the_defaults(tmp_path):
    located = find_settings(tmp_path)

    assert located.origin is None
    assert located.settings.select == ()


def test_each_linted_path_has_its_own_settings(tmp_path, capsys, monkeypatch):
    write(tmp_path / "quiet", '[tool.fmcheck]\nignore = ["ALL"]\n')
    write(tmp_path / "quiet", SOURCE, "a.py")
    write(tmp_path / "loud", SOURCE, "a.py")
    monkeypatch.chdir(tmp_path)

    main(["lint", "--format", "json", "quiet", "loud"])

    assert [entry["path"] for entry in json.loads(capsys.readouterr().out)] == ["loud/a.py"]


def test_config_option_wins_and_needs_no_tool_table(tmp_path, capsys):
    write(tmp_path, '[tool.fmcheck]\nignore = ["ALL"]\n')
    source = write(tmp_path, SOURCE, "a.py")
    config = write(tmp_path, 'select = ["FM3"]\n', "ci.toml")

    assert main(["lint", "--config", str(config), str(source)]) == 1


def test_a_removed_rule_cannot_be_selected(lint, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")

    status, _, err = lint("--select", "FM204", "a.py")

    assert status == 2
    assert "--select: rule `FM204` was removed: none of its findings was right" in err
    (tmp_path / "pyproject.toml").write_text('[tool.fmcheck]\nselect = ["FM204"]\n')
    assert "key `select`: rule `FM204` was removed" in lint("a.py")[2]


def test_a_removed_rule_that_is_ignored_is_noted_and_fails_nothing(lint, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.fmcheck]\nignore = ["FM204"]\n\n'
        '[tool.fmcheck.per-file-ignores]\n"b.py" = ["FM305"]\n'
    )

    status, _, err = lint("--ignore", "FM103", "a.py")

    assert status == 0
    for where, code in (
        ("--ignore", "FM103"),
        ("key `ignore`", "FM204"),
        ('key `per-file-ignores."b.py"`', "FM305"),
    ):
        assert f"{where}: rule `{code}` was removed; ignoring it has no effect" in err


def test_select_on_the_command_line_replaces_and_ignore_adds(tmp_path, capsys):
    write(tmp_path, '[tool.fmcheck]\nselect = ["FM6"]\nignore = ["FM2"]\n')
    source = write(tmp_path, SOURCE, "a.py")

    assert main(["lint", str(source)]) == 0
    assert main(["lint", "--select", "FM3", str(source)]) == 1
    assert main(["lint", "--select", "FM3", "--ignore", "FM301", str(source)]) == 0


BAD = {
    "unknown key": (
        '[tool.fmcheck]\nselct = ["FM3"]\n',
        "unknown key `tool.fmcheck.selct`; did you mean `select`?",
    ),
    "a key that is like none": (
        '[tool.fmcheck]\nstrict = "on"\n',
        "unknown key `tool.fmcheck.strict` (known here: `contracts`, `select`",
    ),
    "an option of pytest's": (
        '[tool.fmcheck]\nmode = "warn"\n',
        "unknown key `tool.fmcheck.mode`: it is an option of pytest's, `fmcheck_mode` under "
        "`[tool.pytest.ini_options]`",
    ),
    "wrong type": (
        "[tool.fmcheck]\nselect = 3\n",
        'key `tool.fmcheck.select`: expected a list of strings, `["..."]`, got a whole number',
    ),
    "wrong type inside": (
        "[tool.fmcheck]\nselect = ['FM3', 3]\n",
        "key `tool.fmcheck.select[1]`: expected a string, got a whole number",
    ),
    "no table of tools": ("tool = 3\n", "key `tool`: expected a table"),
    "not a table": ("[tool]\nfmcheck = 3\n", "key `tool.fmcheck`: expected a table"),
    "not TOML": ("[tool.fmcheck\n", "is not valid TOML"),
    "unknown rule": (
        '[tool.fmcheck]\nselect = ["FM3011"]\n',
        "key `select`: expected a rule code, a family like `FM2`, or `ALL`, got `FM3011`; "
        "did you mean `FM301`?",
    ),
    "unknown contract": (
        '[tool.fmcheck]\ncontracts = ["sglan"]\n',
        "key `contracts`: expected a path ending in .toml or one of `sglang`, `vllm`, got `sglan`; "
        "did you mean `sglang`?",
    ),
    "missing contract": (
        '[tool.fmcheck]\ncontracts = ["my.toml"]\n',
        "pyproject.toml: key `contracts`: ",
    ),
    "missing contract's file": (
        '[tool.fmcheck]\ncontracts = ["my.toml"]\n',
        "my.toml: no such file",
    ),
    "misspelt table": (
        '[tool.fmchek]\nselect = ["FM3"]\n',
        "unknown table `tool.fmchek`; did you mean `tool.fmcheck`?",
    ),
    "no date": (
        '[[tool.fmcheck.suppress]]\ncheck = "FR101"\nreason = "known"\nexpires = "soon"\n',
        "key `tool.fmcheck.suppress[0].expires`: expected a date like 2027-01-31, got a string",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_settings_give_one_error_and_exit_2(tmp_path, capsys, text, message):
    path = write(tmp_path, text)
    source = write(tmp_path, SOURCE, "a.py")

    assert main(["lint", str(source)]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"fmcheck: {path.parent}")
    assert message in err


def test_missing_config_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.toml: no such file"):
        load_settings(tmp_path / "none.toml")


def test_pyproject_named_by_the_user_must_have_our_table(tmp_path):
    path = write(tmp_path, "[tool.ruff]\n")

    with pytest.raises(UsageError, match=r"expected a table `\[tool\.fmcheck\]`, found none"):
        load_settings(path)


def test_a_contract_in_a_settings_file_s_place_is_reported_for_what_it_is(tmp_path, capsys):
    contract = write(tmp_path, '[engine]\nname = "mine"\n', "mine.toml")
    source = write(tmp_path, SOURCE, "a.py")

    assert main(["lint", "--config", str(contract), str(source)]) == 2
    assert (
        'this is a contract: expected a settings file, with `contracts = ["mine.toml"]`'
        in capsys.readouterr().err
    )


def test_what_is_advice_at_times_may_fail_a_run_too(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.fmcheck]\nfail-on = ["FR402", "FR602"]\n')
    assert find_settings(tmp_path).settings.fail_on == ("FR402", "FR602")


def test_settings_beside_the_tests_that_are_not_read_are_found(tmp_path):
    root = tmp_path / "root"
    inner = root / "a" / "tests"
    other = tmp_path / "other" / "tests"
    for folder in (root, inner, other, root / "bad"):
        folder.mkdir(parents=True)
    (root / "loop").symlink_to(root / "loop")
    for folder, text in (
        (tmp_path, "[tool.fmcheck]"),
        (root, "[tool.fmcheck]"),
        (root / "a", "[tool.fmcheck]"),
        (inner, "[tool.other]"),
        (other.parent, "[tool.fmcheck]"),
        (root / "bad", "no TOML"),
    ):
        (folder / "pyproject.toml").write_text(text)
    starts = [root, inner, inner, root / "bad", root / "none", root / "loop", other]
    assert unread_settings(starts, root) == [
        root / "a" / "pyproject.toml",
        other.parent / "pyproject.toml",
    ]
    assert unread_settings([root], root) == []
