"""`fmcheck lint` as a user meets it: output, selection, exit status, bad files, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fmcheck.cli import main
from fmcheck.registry import rules
from tests.sources import ANNOTATION, DEAD_ASSERT, STRAY_EVENT


def test_finding_is_shown_with_excerpt_caret_and_help(lint, tmp_path):
    (tmp_path / "relay.py").write_text(STRAY_EVENT)

    status, out, _ = lint("relay.py")

    assert status == 1
    assert out == (
        "warning[FM301]: `torch.cuda.Event` in device-agnostic code\n"
        " --> relay.py:5:13\n"
        "  |\n"
        "5 |     ready = torch.cuda.Event()\n"
        "  |             ^^^^^^^^^^^^^^^^\n"
        "  |\n"
        "  = help: use `torch.get_device_module(device).Event`\n"
        "\n"
        f"1 file checked with {len(default_rules())} rules: 1 warning\n"
    )


def default_rules() -> list:
    return [code for code, rule in rules().items() if rule.on_by_default]


def test_a_related_place_of_several_lines_shows_its_first_as_it_is(lint, tmp_path):
    first = '    h = a.to("cpu", non_blocking=True  # why'
    (tmp_path / "a.py").write_text(f"def f(a):\n{first}\n    )\n    return h.tolist()\n")

    assert f"2 | {first}\n" in lint("a.py")[1]


def test_clean_tree_says_how_much_was_checked(lint, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("")

    status, out, err = lint(".")

    assert (status, err) == (0, "")
    assert out == f"2 files checked with {len(default_rules())} rules: no findings\n"


def test_notes_alone_do_not_fail(lint, tmp_path):
    (tmp_path / "relay.py").write_text(ANNOTATION)

    status, out, _ = lint("relay.py")

    assert status == 0
    assert out.startswith("note[FM301]")


def test_json_is_a_list_of_objects(lint, tmp_path):
    (tmp_path / "relay.py").write_text(STRAY_EVENT)

    status, out, _ = lint("--format", "json", "relay.py")

    assert status == 1
    assert json.loads(out) == [
        {
            "path": "relay.py",
            "line": 5,
            "column": 13,
            "end_line": 5,
            "end_column": 29,
            "code": "FM301",
            "severity": "warning",
            "message": "`torch.cuda.Event` in device-agnostic code",
            "note": "",
            "help": "use `torch.get_device_module(device).Event`",
            "related": [],
            "fixable": False,
            "safe": False,
        }
    ]


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ((), {"FM301", "FM601"}),
        (("--select", "FM601"), {"FM601"}),
        (("--select", "FM3"), {"FM301"}),
        (("--select", "FM3,FM6"), {"FM301", "FM601"}),
        (("--select", "FM3", "--select", "FM601"), {"FM301", "FM601"}),
        (("--select", "ALL"), {"FM301", "FM601"}),
        (("--ignore", "FM301"), {"FM601"}),
        (("--select", "ALL", "--ignore", "FM6"), {"FM301"}),
    ],
)
def test_selection(lint, tmp_path, options, codes):
    (tmp_path / "a.py").write_text(STRAY_EVENT)
    (tmp_path / "b.py").write_text(DEAD_ASSERT)

    _, out, _ = lint("--format", "json", *options, ".")

    assert {entry["code"] for entry in json.loads(out)} == codes


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_unknown_rule_is_named_with_the_nearest(lint, tmp_path, option):
    (tmp_path / "a.py").write_text("")

    status, out, err = lint(option, "FM310", "a.py")

    assert (status, out) == (2, "")
    assert err == (
        f"fmcheck: {option}: expected a rule code, a family like `FM2`, or `ALL`, "
        "got `FM310`; did you mean `FM301`?\n"
    )


@pytest.mark.parametrize(
    "options", [("--select", "FM301", "--ignore", "FM301"), ("--ignore", "ALL")]
)
def test_a_run_without_a_rule_is_an_error(lint, tmp_path, options):
    (tmp_path / "a.py").write_text(STRAY_EVENT)

    status, out, err = lint(*options, "a.py")

    assert (status, out) == (2, "")
    assert err == "fmcheck: --ignore: expected at least one selected rule to be left, got none\n"


@pytest.mark.parametrize(
    ("settings", "options", "where"),
    [
        ('ignore = ["FM301"]', ("--select", "FM301"), "{} key `ignore`"),
        ('ignore = ["ALL"]', ("--select", "FM3"), "{} key `ignore`"),
        ('select = ["FM301"]\nignore = ["FM3"]', (), "{} key `ignore`"),
        ('select = ["FM301"]', ("--ignore", "FM301"), "--ignore"),
        (
            'ignore = ["FM301"]',
            ("--select", "FM301,FM601", "--ignore", "FM601"),
            "--ignore and {} key `ignore`",
        ),
    ],
)
def test_settings_that_leave_no_selected_rule_are_an_error(
    lint, tmp_path, settings, options, where
):
    (tmp_path / "pyproject.toml").write_text(f"[tool.fmcheck]\n{settings}\n")
    (tmp_path / "a.py").write_text(STRAY_EVENT)

    status, out, err = lint(*options, "a.py")

    assert (status, out) == (2, "")
    where = where.format(f"{tmp_path}/pyproject.toml:")
    assert err == f"fmcheck: {where}: expected at least one selected rule to be left, got none\n"


def test_one_of_two_trees_may_ignore_what_is_selected(lint, tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(STRAY_EVENT)
    (tmp_path / "one" / "pyproject.toml").write_text('[tool.fmcheck]\nignore = ["FM301"]\n')

    assert lint("--select", "FM301", "one", "other")[0] == 1


def test_settings_may_ignore_every_rule(lint, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.fmcheck]\nignore = ["ALL"]\n')
    (tmp_path / "a.py").write_text(STRAY_EVENT)

    assert lint("a.py")[:2] == (0, "1 file checked with 0 rules: no findings\n")


@pytest.mark.parametrize("option", ["--select", "--ignore", "--exclude", "--since", "--cache-dir"])
@pytest.mark.parametrize("value", ["", " ", ","])
def test_an_option_of_a_variable_that_is_not_set_is_an_error(lint, tmp_path, option, value):
    (tmp_path / "a.py").write_text(STRAY_EVENT)

    status, out, err = lint(option, value, "a.py")

    assert (status, out) == (2, "")
    assert err == f"fmcheck: {option}: expected a value, got an empty one\n"


def test_a_family_is_letters_and_one_digit_not_any_prefix(lint, tmp_path):
    (tmp_path / "a.py").write_text("")

    assert lint("--select", "FM30", "a.py")[0] == 2
    assert lint("--select", "F", "a.py")[0] == 2


def test_missing_path_stops_before_anything_is_read(lint, tmp_path):
    (tmp_path / "relay.py").write_text(STRAY_EVENT)

    status, out, err = lint("relay.py", "rellay.py")

    assert (status, out) == (2, "")
    assert err == "fmcheck: rellay.py: no such file or folder; did you mean `relay.py`?\n"


def test_folder_without_python_says_that_nothing_was_checked(lint, tmp_path):
    (tmp_path / "notes.txt").write_text("")

    status, out, err = lint(".")

    assert status == 0
    assert out.startswith("0 files checked")
    assert "nothing was checked" in err


UNREADABLE = {
    "latin-1 of no rule's concern": b"# \xe9\n",
    "syntax error": b"device_module = torch\ntorch.cuda.Event(\n",
    "undeclared latin-1": b"# \xe9\ntorch.cuda.Event\n",
    "unknown encoding": b"# coding: klingon\ntorch.cuda.Event\n",
    "NUL byte": b"torch.cuda.Event\0\n",
    "tabs and spaces": b"device_module = torch\nif x:\n\ttorch.cuda.Event()\n        y = 1\n",
    "deep nesting": b"device_module = torch\ntorch.cuda.Event(" + b"(" * 5000 + b")" * 5001 + b"\n",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_file_that_cannot_be_parsed_is_one_diagnostic_and_the_run_goes_on(lint, tmp_path, content):
    (tmp_path / "a.py").write_bytes(content)
    (tmp_path / "b.py").write_text(STRAY_EVENT)

    status, out, _ = lint("--format", "json", ".")

    assert status == 2
    assert [(entry["path"], entry["code"]) for entry in json.loads(out)] == [
        ("a.py", "FM001"),
        ("b.py", "FM301"),
    ]


@pytest.mark.parametrize(
    ("broken", "place"),
    [
        ('print "x"\nx = 1\n', (7, 1)),
        ('if x:\n    print "x"\n', (8, 5)),
        ("\n\nx = (1,\ny = 2\n", (9, 5)),
        ("\n\nx = 'abc\n", (9, 5)),
        ("\f\nx = 1 )\n", (8, 7)),
    ],
)
def test_a_file_that_does_not_parse_is_reported_where_python_says(lint, tmp_path, broken, place):
    (tmp_path / "a.py").write_text(STRAY_EVENT + broken)

    status, out, _ = lint("--format", "json", "a.py")
    (found,) = json.loads(out)

    assert (status, found["code"]) == (2, "FM001")
    assert (found["line"], found["column"]) == place
    assert "expected one of" not in found["message"]


def test_what_nests_too_deeply_is_reported_on_its_line(lint, tmp_path):
    (tmp_path / "a.py").write_text(f"{STRAY_EVENT}\n\nx = 1\ny = [\n    {'-' * 2500}1\n]\n")

    _, out, _ = lint("--format", "json", "a.py")

    assert [(one["code"], one["line"]) for one in json.loads(out)] == [("FM001", 11)]


def test_file_of_no_concern_is_not_parsed(lint, tmp_path):
    (tmp_path / "a.py").write_bytes(b"def f(:\n")

    assert lint("a.py")[0] == 0


def test_a_broken_file_cannot_be_deselected(lint, tmp_path):
    (tmp_path / "a.py").write_bytes(UNREADABLE["syntax error"])

    assert lint("--select", "FM301", "a.py")[0] == 2


@pytest.mark.skipif(os.name != "posix", reason="FIFOs are POSIX's")
def test_fifo_named_py_does_not_hang(lint, tmp_path):
    os.mkfifo(tmp_path / "pipe.py")

    status, out, _ = lint("pipe.py")

    assert status == 2
    assert "cannot be read: expected a regular file, got a named pipe" in out


@pytest.mark.parametrize(
    "content",
    [
        STRAY_EVENT.encode("utf-8-sig"),
        STRAY_EVENT.replace("\n", "\r\n").encode(),
        ("# coding: latin-1\nimport torch  # é" + STRAY_EVENT[13:]).encode("latin-1"),
        STRAY_EVENT.replace("import torch\n", "import torch  # \x0c \u2028\n").encode(),
        STRAY_EVENT.rstrip().encode(),
    ],
    ids=["byte-order mark", "CRLF", "declared latin-1", "odd line ends", "no final newline"],
)
def test_unusual_text_is_linted_all_the_same(lint, tmp_path, content):
    (tmp_path / "a.py").write_bytes(content)

    status, out, _ = lint("--format", "json", "a.py")

    assert status == 1
    (entry,) = json.loads(out)
    assert (entry["line"], entry["column"]) == (5, 13)


def test_links_are_not_followed_and_files_are_linted_once(lint, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(STRAY_EVENT)
    (tmp_path / "src" / "loop").symlink_to(tmp_path / "src")

    _, out, _ = lint("--format", "json", "src", "src/a.py")

    assert len(json.loads(out)) == 1


def test_fix_rewrites_and_reports_the_rest(lint, tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes((DEAD_ASSERT + STRAY_EVENT.partition("\n")[2]).replace("\n", "\r\n").encode())
    path.chmod(0o640)

    status, out, _ = lint("--fix", "a.py")

    assert status == 1
    assert "FM601" not in out
    assert "FM301" in out
    assert "1 fixed" in out
    text = path.read_bytes()
    assert b', "check: (values >= 0).all()")\r\n' in text
    assert text.count(b"\n") == text.count(b"\r\n")
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.py"]


def test_file_that_cannot_be_rewritten_is_named_and_stays(lint, tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    status, _, err = lint("--fix", "a.py")

    assert (status, err) == (2, "fmcheck: a.py: cannot be rewritten: No space left on device\n")
    assert (tmp_path / "a.py").read_text() == DEAD_ASSERT
    assert os.listdir(tmp_path) == ["a.py"]


def test_reader_that_goes_away_is_no_traceback(tmp_path):
    (tmp_path / "a.py").write_text(STRAY_EVENT * 2000)

    done = subprocess.run(
        f"{sys.executable} -m fmcheck lint a.py | head -n 1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.stdout.startswith("warning[FM301]")
    assert done.stderr == ""


def test_without_fix_nothing_is_written(lint, tmp_path):
    (tmp_path / "a.py").write_text(DEAD_ASSERT)

    lint("a.py")

    assert (tmp_path / "a.py").read_text() == DEAD_ASSERT


def test_rules_lists_every_rule(capsys):
    assert main(["rules"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in lines] == list(rules())
    assert "[fix]" in next(line for line in lines if line.startswith("FM601"))


def test_rule_explains_one_rule(capsys):
    assert main(["rule", "fm301"]) == 0

    assert capsys.readouterr().out.startswith("# FM301 cuda-api\n")


def test_unknown_rule_to_explain(capsys):
    assert main(["rule", "FM6O1"]) == 2

    assert "there is no `FM6O1`; did you mean `FM601`?" in capsys.readouterr().err


def python(code: str) -> list[str]:
    """Runs `code` in a fresh interpreter and returns the words it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_fmcheck_imports_nothing_heavy():
    loaded = python("import sys, fmcheck; print(*sys.modules)")

    assert not {"torch", "libcst", "pytest", "msgspec", "pluggy"} & set(loaded)


@pytest.mark.parametrize("source", ["x = 1\n", "import torch\ntorch.cuda.Event()\n"])
def test_a_file_that_no_rule_concerns_imports_no_libcst(tmp_path, source):
    path = tmp_path / "a.py"
    path.write_text(source)

    loaded = python(
        "import sys; from fmcheck.cli import main;"
        f"assert main(['lint', {str(path)!r}]) == 0; print(*sys.modules)"
    )

    assert not {"torch", "libcst", "pytest", "rich"} & set(loaded)


def test_what_is_too_deep_to_check_is_said_and_the_rest_is_checked(lint, tmp_path):
    deep = " + ".join(["1"] * 2500)
    (tmp_path / "a.py").write_text(
        f"{STRAY_EVENT}\ndef sum_up(device):\n"
        f"    torch.get_device_module(device) and torch.cuda.synchronize()\n    return {deep}\n"
    )

    status, out, _ = lint("--format", "json", "a.py")

    assert status == 2
    assert [(entry["code"], entry["line"]) for entry in json.loads(out)] == [
        ("FM301", 5),
        ("FM001", 10),
    ]
