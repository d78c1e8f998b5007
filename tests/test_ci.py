"""What other people's CI runs: the GitHub action and the pre-commit hook."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest
import yaml

from fmcheck.cli import main
from tests.sources import DEAD_ASSERT, STRAY_EVENT


@pytest.fixture(scope="session")
def action(root) -> dict:
    return yaml.safe_load((root / "action.yml").read_text())


@pytest.fixture
def run_action(action, root, tmp_path):
    """Runs the action's last step in a folder, with the command that stands in this checkout."""
    temp = tmp_path / "temp"
    work = tmp_path / "work"
    temp.mkdir()
    work.mkdir()
    command = temp / "fmcheck"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fmcheck "$@"\n')
    command.chmod(0o755)
    defaults = {name: one.get("default", "") for name, one in action["inputs"].items()}

    def run(**inputs: str) -> tuple[int, str, str]:
        given = defaults | inputs
        environ = {
            **os.environ,
            "PYTHONPATH": str(root),
            "FMCHECK": str(command),
            "PATHS": given["paths"],
            "ARGS": given["args"],
            "TESTS": given["tests"],
            "REPORT": given["report"],
            "PYTHON": sys.executable,
            "GITHUB_ACTIONS": "true",
            "GITHUB_STEP_SUMMARY": str(temp / "page.md"),
            "SARIF": given.get("sarif", given["sarif-file"]),
            "GITHUB_OUTPUT": str(temp / "output"),
        }
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", action["runs"]["steps"][-1]["run"]],
            cwd=work,
            env=environ,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, (temp / "output").read_text()

    run.folder = work
    return run


def test_every_input_is_used(action):
    used = str(action["runs"]["steps"])

    for name in action["inputs"]:
        assert f"inputs.{name}" in used


def test_the_action_annotates_and_fails(run_action):
    (run_action.folder / "a.py").write_text(STRAY_EVENT)

    status, out, output = run_action()

    assert (status, output) == (1, "exit-status=1\n")
    assert out.startswith("::warning title=FM301 cuda-api,file=a.py,line=5")


def test_the_action_is_quiet_about_a_clean_tree(run_action):
    (run_action.folder / "a.py").write_text("x = 1\n")

    status, out, output = run_action()

    assert (status, output) == (0, "exit-status=0\n")
    assert out.startswith("1 file checked")
    assert "::" not in out


def test_the_action_writes_sarif_beside(run_action):
    (run_action.folder / "a.py").write_text(STRAY_EVENT)

    assert run_action(sarif="out.sarif")[0] == 1
    log = json.loads((run_action.folder / "out.sarif").read_text())
    assert [one["ruleId"] for one in log["runs"][0]["results"]] == ["FM301"]


def test_the_action_writes_no_sarif_through_a_link(run_action, tmp_path):
    (run_action.folder / "a.py").write_text("x = 1\n")
    (tmp_path / "precious").write_text("mine")
    (run_action.folder / "out.sarif").symlink_to(tmp_path / "precious")

    assert run_action(sarif="out.sarif")[0] == 0
    assert (tmp_path / "precious").read_text() == "mine"
    assert json.loads((run_action.folder / "out.sarif").read_text())["runs"]


@pytest.mark.parametrize("folder", ["reports", "missing"])
def test_the_action_writes_no_sarif_into_a_folder_outside_of_the_checkout(
    run_action, tmp_path, folder
):
    (run_action.folder / "a.py").write_text("x = 1\n")
    (tmp_path / "precious").mkdir()
    (run_action.folder / "reports").symlink_to(tmp_path / "precious")

    status, out, output = run_action(sarif=f"{folder}/out.sarif")

    assert (status, output) == (2, "exit-status=2\n")
    assert f"::error::sarif-file: the folder of {folder}/out.sarif does not exist, or is" in out
    assert os.listdir(tmp_path / "precious") == []


def test_the_action_writes_sarif_to_a_whole_path(run_action, tmp_path):
    (run_action.folder / "a.py").write_text("x = 1\n")

    assert run_action(sarif=str(tmp_path / "out.sarif"))[0] == 0
    assert json.loads((tmp_path / "out.sarif").read_text())["runs"]


def test_the_action_reads_its_inputs_as_words_and_runs_none(run_action):
    (run_action.folder / "a b").mkdir()
    (run_action.folder / "a b" / "a.py").write_text(STRAY_EVENT + DEAD_ASSERT)
    (run_action.folder / "c.py").write_text(DEAD_ASSERT)

    status, out, _ = run_action(
        paths="'a b' c.py", args="--select FM301 --exclude '$(touch$IFS-pwned)'"
    )

    assert status == 1
    assert out.count("::") == 2
    assert sorted(os.listdir(run_action.folder)) == ["a b", "c.py", "fmcheck-report"]


@pytest.mark.parametrize("name", ["paths", "args", "tests"])
def test_the_action_refuses_a_quote_that_is_not_closed(run_action, name):
    (run_action.folder / "a.py").write_text("x = 1\n")

    status, out, reported = run_action(**{name: "a.py it's b.py"})

    assert (status, reported) == (2, "exit-status=2\n")
    assert "a quote that is not closed" in out


def test_the_action_runs_tests_where_it_is_asked_to(run_action):
    (run_action.folder / "a.py").write_text("x = 1\n")
    (run_action.folder / "test_a.py").write_text(
        "def test_good():\n    pass\n\ndef test_bad():\n    assert False\n"
    )

    status, out, output = run_action(tests="-q -k 'good or bad' test_a.py")

    assert (status, output) == (1, "exit-status=1\n")
    assert "1 failed, 1 passed" in out
    reports = sorted(os.listdir(run_action.folder / "fmcheck-report"))
    assert reports == ["fmcheck.html", "fmcheck.json", "fmcheck.sarif"]
    assert run_action(tests="-q -k good")[0] == 0


@pytest.mark.parametrize("tests", ["", "-q"])
@pytest.mark.parametrize("named", ["path", "name"])
def test_the_action_installs_from_outside_of_the_checkout(action, tmp_path, tests, named):
    """`python -m pip` would take a pip.py of the checkout."""
    work, temp = tmp_path / "work", tmp_path / "temp"
    (temp / "fmcheck" / "bin").mkdir(parents=True)
    work.mkdir()
    for python in (work / "python", temp / "fmcheck" / "bin" / "python"):
        python.write_text(f"#!/bin/sh\npwd >> {shlex.quote(str(tmp_path / 'seen'))}\n")
        python.chmod(0o755)
    given = {"PYTHON": "./python"} if named == "path" else {"PYTHON": "python"}
    path = os.pathsep.join([str(work), os.environ["PATH"]])
    given |= {"TESTS": tests, "ACTION": "/action", "VENV": str(temp / "fmcheck"), "PATH": path}

    step = action["runs"]["steps"][0]["run"]
    subprocess.run(["bash", "-eo", "pipefail", "-c", step], cwd=work, env=given, check=True)

    seen = (tmp_path / "seen").read_text().split()
    assert set(seen) == {str(temp)}
    assert len(seen) == (1 if tests else 2)


def test_the_action_runs_no_fmcheck_of_the_checkout(run_action):
    (run_action.folder / "fmcheck").mkdir()
    for name in ("fmcheck/__init__.py", "fmcheck/__main__.py", "msgspec.py"):
        (run_action.folder / name).write_text("print('RUN'); raise SystemExit(0)\n")
    (run_action.folder / "a.py").write_text(STRAY_EVENT)

    # Its tests may run what they like: none are, for want of a file.
    status, out, _ = run_action(tests="no_such_test.py", paths="a.py")

    assert status == 2
    assert "title=FM301" in out


def test_a_path_that_is_no_option(run_action):
    (run_action.folder / "a.py").write_text(STRAY_EVENT)

    assert run_action(paths="--exit-zero")[0] == 2


def test_hooks_run_options_that_there_are(root, tmp_path, monkeypatch, capsys):
    hooks = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())
    monkeypatch.chdir(tmp_path)

    assert [hook["id"] for hook in hooks] == ["fmcheck", "fmcheck-fix"]
    for hook in hooks:
        (tmp_path / "a.py").write_text(DEAD_ASSERT)
        (tmp_path / "build").mkdir(exist_ok=True)
        (tmp_path / "build" / "b.py").write_text(STRAY_EVENT)
        name, *arguments = hook["entry"].split()
        assert name == "fmcheck"
        # pre-commit names every file, excluded or not.
        status = main([*arguments, "a.py", "build/b.py"])
        assert status == (0 if "--fix" in arguments else 1)
        assert "FM301" not in capsys.readouterr().out
