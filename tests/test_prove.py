"""`fmcheck prove` from end to end: a small engine of a user's, faults planted, who notices."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import pytest

from fmcheck.errors import UsageError
from fmcheck.prove.known import load_known, reason_for, stale
from fmcheck.prove.mutation_plan import Selection, make_plan
from fmcheck.prove.probe import own_words
from fmcheck.prove.state import ProveState
from fmcheck.prove.trial import Catch, Result, Suite
from fmcheck.prove.working_copy import WorkingCopy, roots_for

ROOT = Path(__file__).parent.parent
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
ENVIRON.pop("PYTEST_ADDOPTS", None)
CONTRACT = """\
[engine]
name = "mine"

[[relay]]
class = "mine.relay:Relay"
buffer = [{ name = "tokens_buf", valid = ">= 0" }]

[device]
agnostic = ["mine/*.py"]
"""
RELAY = """\
import torch


class Relay:
    def __init__(self, size, device="cpu"):
        self.tokens_buf = torch.full((size,), -1, device=device)
        self.count = torch.zeros(1)

    def stash(self, rows, tokens):
        self.count += 1
        self.tokens_buf[rows] = tokens

    def spare(self, rows, tokens):
        self.tokens_buf[rows] = tokens

    def resolve(self, rows):
        return self.tokens_buf[rows]
"""
TESTS = """\
import torch
from mine.relay import Relay

ROWS = torch.tensor([1, 2])


def test_shape():
    relay = Relay(4)
    relay.stash(ROWS, torch.tensor([5, 6]))
    assert relay.resolve(ROWS).shape == (2,)


def test_values():
    relay = Relay(4)
    relay.stash(ROWS, torch.tensor([5, 6]))
    assert relay.resolve(ROWS).tolist() == [5, 6]
"""
FMCHECK = (sys.executable, "-m", "fmcheck", "prove")
COMMAND = ("--", sys.executable, "-m", "pytest", "tests")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's project, and the current folder."""
    project = tmp_path / "project"
    for name, text in {
        "pyproject.toml": '[tool.fmcheck]\ncontracts = ["mine.toml"]\n',
        "mine.toml": CONTRACT,
        "mine/__init__.py": "",
        "mine/relay.py": RELAY,
        "tests/test_relay.py": TESTS,
    }.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(project)
    return project


def prove(*arguments, **more):
    return subprocess.run(
        [*FMCHECK, *arguments],
        env={**ENVIRON, **more},
        capture_output=True,
        text=True,
        timeout=300,
    )


def digest(folder):
    """What is in a folder, names and contents."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(str(path.relative_to(folder)).encode())
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()


def mutants(report):
    return {one["id"].partition("@")[0] + f":{one['line']}": one for one in report["mutants"]}


def test_a_run_says_who_noticed_and_touches_nothing(mine, tmp_path):
    before = digest(mine)
    out, state = tmp_path / "out.json", tmp_path / "state"
    known = tmp_path / "known.toml"
    entry = (
        '[[known]]\noperator = "{}"\nfile = "mine/relay.py"\ncode = "{}"\nreason = "no caller"\n'
    )
    known.write_text(
        entry.format("gather-twice", "self.gone[rows]") + entry.format("hardcode-device", "device")
    )
    arguments = ("mine", "-j", "2", "--json", str(out), "--resume", str(state))
    done = prove(*arguments, "--known", str(known), *COMMAND)
    assert done.returncode == 1, done.stderr
    report = json.loads(out.read_text())
    found = mutants(report)

    assert found["hardcode-device:6"]["lint"] == ["FM302"]
    assert found["gather-twice:17"]["checks"] == ["FR102"]
    assert found["gather-twice:17"]["lint"] == ["FM101"]
    assert found["gather-twice:17"]["tests"][0]["test"] == "tests/test_relay.py::test_shape"
    dropped = found["drop-stash:11"]
    assert dropped["checks"] == ["FR101"]
    assert {one["test"]: bool(one["own"]) for one in dropped["tests"]} == {
        "tests/test_relay.py::test_shape": False,
        "tests/test_relay.py::test_values": True,
    }
    spare = found["drop-stash:14"]
    assert (spare["caught"], spare["reached"]) == (False, False)
    assert "mine/relay.py:14 drop-stash" in done.stdout
    assert "no test runs this line" in done.stdout
    assert "stale entry: no survivor matches gather-twice" in done.stdout
    assert f"{report['caught']} of {report['counted']} mutants caught" in done.stdout
    progress = done.stderr.splitlines()
    assert progress[-1] == "fmcheck prove: 4 of 4 tried, 1 survived"
    assert all(line.startswith("fmcheck prove: ") for line in progress)
    assert digest(mine) == before

    # Again: nothing is tried again, the known survivor no longer counts, and the score is enough.
    known.write_text(entry.format("drop-stash", "self.tokens_buf[rows] = tokens"))
    again = prove(*arguments, "--known", str(known), "--min-score", "100", *COMMAND)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "were tried in an earlier run" in again.stdout
    assert "known survivors:" in again.stdout
    assert again.stdout.count("no caller") == 1
    assert json.loads(out.read_text())["score"] == 100


@pytest.mark.parametrize(
    "ends", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.sweep)]
)
def test_a_run_that_is_ended_keeps_what_it_tried(mine, tmp_path, ends):
    state = tmp_path / "state"
    process = subprocess.Popen(
        [*FMCHECK, "mine", "-j", "1", "--all-tests", "--resume", str(state), *COMMAND],
        env={**ENVIRON, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    end = time.monotonic() + 200
    while not state.exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(ends)
    process.communicate(timeout=60)
    assert process.returncode == 130
    kept = msgspec.json.decode(state.read_bytes())["results"]
    assert 1 <= len(kept) < len(plan("mine").mutants)
    assert not list(tmp_path.glob("fmcheck-prove-*"))


def test_an_interrupt_while_healthy_tests_run_leaves_none_running(mine, tmp_path):
    started = tmp_path / "started"
    code = (
        f"import os, time; open({str(started)!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(90)"
    )
    process = subprocess.Popen(
        [*FMCHECK, "mine", "--", sys.executable, "-c", code], env=ENVIRON, stderr=subprocess.PIPE
    )
    end = time.monotonic() + 60
    while not (started.exists() and started.read_text().endswith(" ")):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def plan(*paths, selection=None):
    return make_plan([Path(one) for one in paths], None, (), selection or Selection())


def test_a_plan_is_the_same_each_time(mine):
    first, second = plan("mine"), plan("mine")
    assert [one.id for one in first.mutants] == [one.id for one in second.mutants]
    assert len({one.id for one in first.mutants}) == len(first.mutants)
    assert first.mutants[0].id == "hardcode-device@mine/relay.py:6:58"
    assert first.import_roots == (mine,)


def test_a_plan_may_be_a_part_of_it(mine):
    whole = [one.id for one in plan("mine").mutants]
    front = plan("mine", selection=Selection(limit=2)).mutants
    drawn = plan("mine", selection=Selection(limit=2, seed=7)).mutants
    only = plan("mine", selection=Selection(only=("drop-stash",))).mutants
    assert [one.id for one in front] == whole[:2]
    assert [one.id for one in drawn] == [one for one in whole if one in {m.id for m in drawn}]
    assert [one.id for one in drawn] != whole[:2]
    assert {one.operator for one in only} == {"drop-stash"}


def test_the_list_tells_the_plan_and_tries_nothing(mine):
    done = prove("mine", "--list", "--only", "drop-stash")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "drop-stash@mine/relay.py:11:9",
        "drop-stash@mine/relay.py:14:9",
    ]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--root", "nowhere", "--root: `*nowhere` is no folder"),
        ("--known", "nowhere.toml", "nowhere.toml: no such file"),
        ("--resume", "mine", "--resume: expected a file, and `mine` is a folder"),
        ("--resume", "pyproject.toml", "pyproject.toml: is no state of an earlier run: *"),
        ("--resume", "mine/relay.py/x", "--resume: `mine/relay.py/x` cannot be written: *"),
    ],
)
def test_the_list_refuses_what_a_run_would_refuse(mine, option, value, message):
    done = prove("mine", "--list", option, value)
    assert (done.returncode, done.stdout) == (2, "")
    assert fnmatch(done.stderr, f"fmcheck: {message}\n")


ERRORS = {
    "operator": (
        ("mine", "--only", "drop-rest", *COMMAND),
        "--only: there is no operator `drop-rest`; did you mean `drop-reset`?",
    ),
    "no command": (("mine",), "prove: expected `-- COMMAND`"),
    "no contract": (("tests", *COMMAND), "tests: no contract is about this code: what "),
    "no path": (("minf", *COMMAND), "minf: no such file or folder"),
    "no such command": (
        ("mine", "--", "no-such-command"),
        "no-such-command: cannot be run: No such",
    ),
    "no pytest": (
        ("mine", "--", sys.executable, "-c", "print('hello')"),
        "ran no pytest that fmcheck's plugins could listen to (exit status 0):\nhello",
    ),
    "another Python's pytest": (
        ("mine", "--", sys.executable, "-c", "exit(\"No module named 'fmcheck'\")"),
        f"(exit status 1): its Python has no fmcheck; try `{sys.executable} -m pytest`:\n",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_cannot_be_tried_is_one_clear_error(mine, case):
    arguments, message = ERRORS[case]
    done = prove(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_tests_that_fail_without_a_fault_prove_nothing(mine):
    text = f"{TESTS}\n\ndef test_twice():\n    relay = Relay(4)\n    relay.resolve(ROWS)\n"
    (mine / "tests" / "test_relay.py").write_text(text)
    done = prove("mine", *COMMAND)
    assert done.returncode == 2
    assert "the tests fail, or produce findings, on unmodified code" in done.stderr
    assert "FR101 read-before-write" in done.stderr


def test_a_module_that_is_not_the_copy_is_an_error(mine):
    text = f"import sys\nsys.path.insert(0, {str(mine)!r})\n{TESTS}"
    (mine / "tests" / "test_relay.py").write_text(text)
    done = prove("mine", *COMMAND)
    assert done.returncode == 2
    assert f"the tests imported {mine}/mine/__init__.py itself and not its copy" in done.stderr


def test_a_hang_is_killed_with_all_that_it_started(mine, tmp_path):
    marker = tmp_path / "pid"
    child = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    scratch = WorkingCopy(tmp_path / "scratch", (mine,))
    tests = Suite((sys.executable, "-c", parent), (mine,), ())
    raw = tests.run(scratch, 3)
    assert raw.status is None
    assert 3 <= raw.seconds < 60
    for _ in range(100):
        if not _lives(int(marker.read_text())):
            break
        time.sleep(0.1)
    else:
        pytest.fail("the hanging child is still there")


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_a_test_leaves_running_is_ended(mine, tmp_path):
    marker = tmp_path / "pid"
    child = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = (
        "import subprocess, sys, time, os\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"while not os.path.exists({str(marker)!r}) or not open({str(marker)!r}).read():\n"
        "    time.sleep(0.05)\n"
    )
    scratch = WorkingCopy(tmp_path / "scratch", (mine,))
    assert Suite((sys.executable, "-c", parent), (mine,), ()).run(scratch, 120).status == 0
    time.sleep(0.5)
    assert not _lives(int(marker.read_text()))


def test_a_mutated_file_never_has_the_time_of_another(mine, tmp_path):
    scratch = WorkingCopy(tmp_path / "scratch", (mine,))
    file = mine / "mine" / "relay.py"
    times = {file.stat().st_mtime}
    for content in (b"a = 1\n", b"a = 2\n", file.read_bytes()):
        scratch.write(file, content)
        assert scratch.at(file).read_bytes() == content
        times.add(scratch.at(file).stat().st_mtime)
    assert len(times) == 4
    assert file.read_text() == RELAY


def test_a_mutant_of_a_file_that_is_a_link_leaves_the_users_file(mine, tmp_path):
    (tmp_path / "lib").mkdir()
    real = tmp_path / "lib" / "real.py"
    real.write_text("x = 1\n")
    (mine / "mine" / "linked.py").symlink_to(real)
    (mine / "folder").symlink_to(tmp_path / "lib")
    scratch = WorkingCopy(tmp_path / "scratch", (mine,))

    scratch.write(mine / "mine" / "linked.py", b"mutant\n")
    scratch.restore(mine / "mine" / "linked.py")
    with pytest.raises(UsageError, match="is reached by a link out of the copied folders"):
        scratch.write(mine / "folder" / "real.py", b"mutant\n")

    assert real.read_text() == "x = 1\n"


def test_paths_of_a_command_lead_to_the_copy(mine, tmp_path):
    scratch = WorkingCopy(tmp_path / "scratch", (mine,))
    copy = str(scratch.at(mine))
    assert scratch.argument(f"{mine}/tests") == f"{copy}/tests"
    assert scratch.argument(f"{mine}/tests/t.py::test_x") == f"{copy}/tests/t.py::test_x"
    assert scratch.argument(f"--rootdir={mine}") == f"--rootdir={copy}"
    assert scratch.argument("tests") == "tests"
    assert scratch.argument("/elsewhere") == "/elsewhere"
    path = scratch.environment((mine,), {"PYTHONPATH": f"/lib{os.pathsep}{mine}"})["PYTHONPATH"]
    assert path.split(os.pathsep) == [copy, "/lib"]


def test_environments_and_caches_are_not_copied(mine, tmp_path):
    for name in (".venv/x.py", ".git/config", "mine/__pycache__/x.pyc", "build/x.py", ".x_cache/y"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text("")
    copy = WorkingCopy(tmp_path / "scratch", (mine,)).at(mine)
    names = {path.name for path in copy.iterdir()}
    assert names == {"pyproject.toml", "mine.toml", "mine", "tests", "build"}
    assert not (copy / "mine" / "__pycache__").exists()


def test_what_lies_outside_of_the_current_folder_is_copied_too(mine, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    file = mine / "mine" / "relay.py"
    assert roots_for((), (file,), (mine,)) == (elsewhere, mine)
    assert roots_for((tmp_path,), (file,), (mine,)) == (tmp_path,)
    with pytest.raises(UsageError, match=r"relay\.py is in none of"):
        roots_for((elsewhere,), (file,), (mine,))


def test_a_known_survivor_is_reported_by_its_function_and_code(mine, tmp_path):
    path = tmp_path / "known.toml"
    entry = (
        '[[known]]\noperator = "drop-*"\nfile = "relay.py"\ncode = "self.tokens_buf[rows] = t*"\n'
    )
    path.write_text(f'{entry}function = "Relay.sp*"\nreason = "spare"\n')
    known = load_known(path)
    mutants = [one for one in plan("mine").mutants if one.operator == "drop-stash"]
    reasons = {one.function: reason_for(one, known) for one in mutants}
    assert reasons == {"Relay.stash": "", "Relay.spare": "spare"}


def test_the_engines_known_survivors_are_all_faults_of_the_plan(monkeypatch):
    monkeypatch.chdir(ROOT)
    known = load_known(ROOT / "fixtures" / "engine" / "prove.toml")
    assert stale(known, plan("fixtures/engine").mutants) == ()


def test_the_state_of_another_run_is_refused(tmp_path):
    path = tmp_path / "state"
    result = Result(lint=("FM201",), failures=(Catch("t", ("FR101",), "boom"),))
    ProveState(path, "key").put("m", result)
    assert ProveState(path, "key").results == {"m": result}
    with pytest.raises(UsageError, match="is the state of another run"):
        ProveState(path, "other")
    path.write_text("{}")
    with pytest.raises(UsageError, match="is no state of an earlier run"):
        ProveState(path, "key")


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("FMCHECK: FR101 read-before-write in R.b rows 1\n  gather  x.py:3", ""),
        ("[gw0] linux -- Python 3.11\nFMCHECK: FR101 read-before-write in R.b rows 1", ""),
        ("def t():\n>   assert x == 2\nE   assert 1 == 2\n\nx.py:3: Error", "assert 1 == 2"),
        ("[gw1] linux -- Python 3.11\nFailed: no", "Failed: no"),
        ("", "failed"),
    ],
)
def test_what_a_test_says_itself_is_told_from_what_fmcheck_says(text, own):
    assert own_words(text) == own


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('operator = "drop-rest"', r"known\[0\]\.operator`: there is no operator `drop-rest`"),
        ('operator = "drop-*"\nreason = " "', r"known\[0\]\.reason`: expected a sentence"),
        ('operator = "drop-*"\nwhy = "x"', r"unknown key `known\[0\]\.why`"),
    ],
)
def test_a_misfit_in_the_known_file_is_named(tmp_path, entry, message):
    path = tmp_path / "known.toml"
    rest = "" if "reason" in entry else '\nreason = "why"'
    path.write_text(f'[[known]]\nfile = "x.py"\ncode = "y"\n{entry}{rest}\n')
    with pytest.raises(UsageError, match=message):
        load_known(path)


def test_a_quick_run_is_content_with_the_first_that_notices_and_leaves_no_copy(mine, tmp_path):
    out, scratch = tmp_path / "out.json", tmp_path / "tmp"
    scratch.mkdir()
    arguments = ("--only", "gather-twice", "--only", "drop-stash", "--limit", "2", "--quick")
    done = prove("mine", *arguments, "--json", str(out), *COMMAND, TMPDIR=str(scratch))
    assert done.returncode == 1, done.stderr
    assert [one for one in scratch.iterdir() if one.name.startswith("fmcheck")] == []
    shutil.rmtree(scratch)
    found = mutants(json.loads(out.read_text()))
    assert len(found["drop-stash:11"]["tests"]) == 1
    (mine / "mine" / "relay.py").write_text(RELAY.replace("def spare", "def other"))
    done = prove("mine", "--only", "gather-twice", "--quick", "--json", str(out), *COMMAND)
    (twice,) = json.loads(out.read_text())["mutants"]
    assert (twice["lint"], twice["tests"], twice["caught"]) == (["FM101"], [], True)


def test_the_repositorys_own_plan_is_reported_by_one_command():
    command = [sys.executable, "-m", "tests.prove", "engine", "--list", "--only", "widen-bound"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "widen-bound@fixtures/engine/guard.py",
        "widen-bound@fixtures/engine/guard.py",
    ]
