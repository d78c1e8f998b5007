"""`fmcheck lint` over odd files, odd rules and an impatient user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fmcheck.finding import Severity
from fmcheck.lint.engine import lint_text
from fmcheck.lint.rule import Rule, Scope
from tests.odd_files import BAIT, EVENT, plant
from tests.test_rules import RULES, make

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "fmcheck", "lint"]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}

posix = pytest.mark.skipif(os.name != "posix", reason="needs FIFOs and fork")


def codes_by_file(output: bytes) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in json.loads(output):
        found[entry["path"]] = (*found.get(entry["path"], ()), entry["code"])
    return found


@posix
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_odd_files_are_one_diagnostic_each_and_spare_the_others(tmp_path, jobs):
    expected = plant(tmp_path)

    done = subprocess.run(
        [*COMMAND, "--no-cache", "--select=FM3", "--format=json", "-j", jobs, "."],
        cwd=tmp_path,
        env=ENVIRON,
        capture_output=True,
        timeout=120,
    )

    assert done.stderr == b""
    assert done.returncode == 2
    assert codes_by_file(done.stdout) == {name: codes for name, codes in expected.items() if codes}


class Failing(Rule):
    """Fails on every file."""

    code = "ZZ101"
    name = "failing"
    severity = Severity.ERROR
    scope = Scope.FUNCTION
    needles = ((b"cuda",),)
    seen_in = ()
    bad = ()
    good = ()

    def check(self, block):
        raise KeyError("lost")


class FailingLate(Failing):
    code = "ZZ102"

    def check(self, block):
        yield block.finding(self, block.module.body[0], "before")
        raise KeyError("lost")


class FailingSuspects(Failing):
    code = "ZZ103"

    def suspects(self, node, facts):
        raise KeyError("lost")


class FailingConcerns(Failing):
    code = "ZZ104"

    def concerns(self, text):
        raise KeyError("lost")


class FailingModule(Failing):
    code = "ZZ105"

    def concerns_module(self, facts):
        raise KeyError("lost")


class Endless(Failing):
    code = "ZZ106"

    def check(self, block):
        return self.check(block)


BAD_RULES = [Failing, FailingLate, FailingSuspects, FailingConcerns, FailingModule]


@pytest.mark.parametrize("kind", BAD_RULES, ids=lambda kind: kind.__name__)
def test_a_rule_that_fails_is_named_with_the_file_and_spares_the_others(kind):
    rule = next(rule for rule in RULES if rule.code == "FM301")
    bad, good = kind(()), make(rule, rule.bad[0])

    findings = lint_text(BAIT + EVENT, "relay.py", [bad, good])

    failed = [one for one in findings if one.code == "FM002"]
    assert failed
    assert all(one.path == "relay.py" for one in failed)
    assert all(f"rule {kind.code} failed" in one.message for one in failed)
    assert all("KeyError: 'lost'" in one.message for one in failed)
    assert [one.code for one in findings if one.code == "FM301"] == ["FM301"]


def test_a_rule_that_recurses_without_end_is_one_diagnostic():
    findings = lint_text(b"torch.cuda\n", "relay.py", [Endless(())])

    assert [one.code for one in findings] == ["FM001"]
    assert "ZZ106" in findings[0].message


def test_a_failing_rule_makes_exit_2(tmp_path):
    (tmp_path / "relay.py").write_bytes(BAIT + EVENT)
    code = (
        "import sys\n"
        "from fmcheck.registry import rules\n"
        "def check(self, block): raise KeyError('lost')\n"
        "rules()['FM301'].check = check\n"
        "from fmcheck.__main__ import main\n"
        "sys.exit(main())\n"
    )

    for _ in range(2):  # nor does the cache make it anything else
        done = subprocess.run(
            [sys.executable, "-c", code, "lint", "--cache-dir=cache", "relay.py"],
            cwd=tmp_path,
            env=ENVIRON,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert "FM002" in done.stdout
        assert "FM301" in done.stdout
        assert "Traceback" not in done.stdout + done.stderr


def test_a_file_that_ends_its_process_is_one_diagnostic(tmp_path):
    for number in range(4):
        (tmp_path / f"m{number}.py").write_bytes(BAIT + EVENT)
    code = (
        "import os, signal, sys\n"
        "from fmcheck.registry import rules\n"
        "rule = rules()['FM301']\n"
        "def check(self, block, check=rule.check):\n"
        "    if block.path == 'm2.py': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return check(self, block)\n"
        "rule.check = check\n"
        "from fmcheck.__main__ import main\n"
        "sys.exit(main())\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, "lint", "--no-cache", "-j2", "--format=json", "."],
        cwd=tmp_path,
        env=ENVIRON,
        capture_output=True,
    )

    assert codes_by_file(done.stdout) == {
        "m0.py": ("FM301",),
        "m1.py": ("FM301",),
        "m2.py": ("FM001",),
        "m3.py": ("FM301",),
    }
    assert done.returncode == 2


@posix
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_ends_at_once_without_a_traceback(tmp_path, jobs):
    line = BAIT + b"torch.cuda.Event([[" + b"1, " * 2000 + b"]])\n"
    for number in range(60):
        (tmp_path / f"m{number}.py").write_bytes(line * 20)
    command = [*COMMAND, "--no-cache", "-j", jobs, "."]
    run = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=ENVIRON,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(1)
    assert run.poll() is None
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=20)

    assert run.returncode == 130
    assert err == b"fmcheck: interrupted\n"
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


def test_files_that_vanish_meanwhile_are_one_diagnostic_each(tmp_path):
    for number in range(3):
        (tmp_path / f"m{number}.py").write_bytes(BAIT + EVENT)
    code = (
        "import os, sys\n"
        "from fmcheck.lint import plan\n"
        "def files(paths, *more, list=plan.python_files):\n"
        "    for path in [*list(paths, *more)]:\n"
        "        if path.name == 'm1.py': os.unlink(path)\n"
        "        yield path\n"
        "plan.python_files = files\n"
        "from fmcheck.__main__ import main\n"
        "sys.exit(main())\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, "lint", "--no-cache", "--format=json", "."],
        cwd=tmp_path,
        env=ENVIRON,
        capture_output=True,
    )

    assert codes_by_file(done.stdout)["m1.py"] == ("FM001",)
    assert done.returncode == 2


def test_a_file_of_no_concern_needs_nothing_heavy(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    heavy = ("libcst", "importlib.metadata", "logging", "packaging", "rich", "subprocess", "torch")
    code = (
        "import sys\n"
        "from fmcheck.__main__ import main\n"
        "main()\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, "lint", "--no-cache", "a.py"],
        cwd=tmp_path,
        env=ENVIRON,
        capture_output=True,
        text=True,
    )

    assert done.stderr == "[]\n"


#: Modules that fmcheck imports, at once or late, which a tree may bring under the same names.
INSTALLED = "msgspec pluggy packaging libcst rich jinja2 markupsafe tomli evil"
STANDARD = (
    "argparse ast tokenize tomllib json hashlib difflib dataclasses typing pathlib tempfile "
    "subprocess shlex datetime"
)
SCRIPT = "import sys; from fmcheck.__main__ import main; sys.exit(main())"
WAYS = {
    "-m": ([sys.executable, "-m", "fmcheck"], str(ROOT)),
    "-c": ([sys.executable, "-c", SCRIPT], str(ROOT)),
    "script": (["SCRIPT"], str(ROOT)),
    "relative": (["SCRIPT"], f"{ROOT}{os.pathsep}."),
    "empty": (["SCRIPT"], f"{ROOT}{os.pathsep}{os.pathsep}"),
}
COMMANDS = (
    ["lint", "a.py"],
    ["lint", "--format", "sarif", "."],
    ["lint", "--diff", "."],
    ["rules"],
    ["contract", "--list"],
    ["ci", "--lint", "."],
)


@pytest.fixture
def hostile(tmp_path):
    """A tree whose every module tells that it was run, and which registers one as a plugin."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in f"{INSTALLED} {STANDARD}".split():
        (tree / f"{name}.py").write_text(f"print('RUN: {name}')\n")
    for kind in ("dist", "egg"):
        info = tree / f"evil-1.0.{kind}-info"
        info.mkdir()
        (info / "entry_points.txt").write_text("[fmcheck]\nevil = evil\n")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (tree / "a.py").write_bytes(BAIT + EVENT)
    return tree


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("way", WAYS)
def test_no_code_of_the_linted_tree_runs(hostile, tmp_path, way, command):
    start, path = WAYS[way]
    if start == ["SCRIPT"]:
        script = tmp_path / "fmcheck"
        script.write_text(SCRIPT)
        start = [sys.executable, str(script)]
    if path != str(ROOT):
        # Python's own start, and what it runs then, look there too: nobody else can help that.
        for name in STANDARD.split():
            (hostile / f"{name}.py").unlink()
    done = subprocess.run(
        [*start, *command],
        cwd=hostile,
        env={**ENVIRON, "PYTHONPATH": path, "FMCHECK_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert "RUN" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if command == COMMANDS[0]:
        assert (done.returncode, done.stderr) == (1, "")
