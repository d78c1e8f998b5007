"""`fmcheck lint` over odd files, odd rules and an impatient user."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from fmcheck.finding import Severity
from fmcheck.lint import FunctionRule, engine
from fmcheck.lint.engine import lint_text
from fmcheck.lint.source import tree
from tests.default_rules import default_rules
from tests.odd_files import BAIT, EVENT, plant
from tests.test_rules import RULES, make

if TYPE_CHECKING:
    from fmcheck.lint.rule import Example, Rule

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


class Failing(FunctionRule):
    """Fails on every file."""

    code = "ZZ101"
    name = "failing"
    severity = Severity.ERROR
    words = (("cuda",),)
    seen_in = ()
    bad = ()
    good = ()

    def check(self, part):
        raise KeyError("lost")


class FailingLate(Failing):
    code = "ZZ102"

    def check(self, part):
        yield part.finding(self, part.node, "before")
        raise KeyError("lost")


class FailingApplies(Failing):
    code = "ZZ103"

    def applies(self, file):
        raise KeyError("lost")


class Endless(Failing):
    code = "ZZ106"

    def check(self, part):
        return self.check(part)


BAD_RULES = [Failing, FailingLate, FailingApplies]


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


def _yielding(number, value):
    class Yielding(Failing):
        code = f"ZZ11{number}"

        def check(self, part):
            yield value(self, part) if callable(value) else value

    return Yielding


class WithoutPieces(Failing):
    code = "ZZ109"

    def pieces(self, module):
        raise KeyError("lost")


class ReturningNothing(Failing):
    code = "ZZ108"

    def check(self, part):
        return None


NO_FINDINGS = {
    "text": (_yielding(0, "wrong"), "expected a finding, got str"),
    "nothing": (_yielding(1, None), "expected a finding, got NoneType"),
    "no text": (_yielding(2, lambda rule, part: part.finding(rule, part.node, 7)), "$.message"),
    "no place": (
        _yielding(3, lambda rule, part: replace(part.finding(rule, part.node, ""), span=3)),
        "$.span",
    ),
    "another rule's": (
        _yielding(4, lambda rule, part: part.finding(Leaving(()), part.node, "")),
        "expected a finding of ZZ114, got one of ZZ108",
    ),
    "no iterable": (ReturningNothing, "not iterable"),
    "no pieces": (WithoutPieces, "KeyError: 'lost'"),
}


@pytest.mark.parametrize(("kind", "message"), NO_FINDINGS.values(), ids=NO_FINDINGS)
def test_a_rule_that_yields_no_finding_of_its_own_spares_the_others(kind, message):
    rule = next(rule for rule in RULES if rule.code == "FM301")
    found = lint_text(BAIT + EVENT, "relay.py", [kind(()), make(rule, rule.bad[0])])

    failed = [one for one in found if one.code == "FM002"]
    assert {one.code for one in found} == {"FM002", "FM301"}
    assert all(f"rule {kind.code} failed here" in one.message for one in failed)
    assert all(message in one.message and one.path == "relay.py" for one in failed)
    assert ("in what it yields" in failed[0].help) == (kind is not WithoutPieces)


def test_a_rule_that_recurses_without_end_is_one_diagnostic():
    findings = lint_text(b"torch.cuda\n", "relay.py", [Endless(())])

    assert [one.code for one in findings] == ["FM001"]
    assert "ZZ106" in findings[0].message


def test_a_failing_rule_makes_exit_2(tmp_path):
    (tmp_path / "relay.py").write_bytes(BAIT + EVENT)
    code = (
        "import sys\n"
        "from fmcheck.registry import rules\n"
        "def check(self, part): raise KeyError('lost')\n"
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
        "def check(self, part, check=rule.check):\n"
        "    if part.path == 'm2.py': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return check(self, part)\n"
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
        "from fmcheck.lint.run import plan\n"
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
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "version.py").write_text('__version__ = "0.5.23"\n')
    heavy = ("dataclasses", "importlib.metadata", "libcst", "logging", "packaging", "pluggy")
    heavy += ("rich", "subprocess", "torch")
    code = (
        "import re, sys\n"
        "real, compiled = re.compile, []\n"
        "def compile(*given, **named):\n"
        "    compiled.append(sys._getframe(1).f_globals['__name__'])\n"
        "    return real(*given, **named)\n"
        "re.compile = compile\n"
        "from fmcheck.__main__ import main\n"
        "main()\n"
        "ours = ('fmcheck.lint', 'fmcheck.rules')\n"
        "assert not [name for name in compiled if name.startswith(ours)], compiled\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, "lint", "--no-cache", "sglang"],
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


def lint_default(source: str, path: str = "runner.py") -> list[tuple[str, str]]:
    return [(one.code, one.message) for one in lint_text(source.encode(), path, default_rules())]


RUNNER = """\
class GraphRunner:
    def replay(self, raw_bs, bs, seq_lens, rows, pad):
{before}        if {test}:
            self.seq_lens.fill_(1)
        self.seq_lens[:raw_bs].copy_(seq_lens)
        self.rows[:raw_bs].copy_(rows)
        self.graph.replay()
"""
MADE_OF_THEMSELVES = {
    "itself": ("pad = pad or raw_bs != bs", "pad"),
    "itself and not": ("pad = not pad", "pad or raw_bs != bs"),
    "another": ("pad = more or raw_bs != bs\n        more = pad or more", "pad"),
    "a size": ("raw_bs = raw_bs + 1 - 1\n        n = raw_bs\n        raw_bs = n", "raw_bs != bs"),
    "a place": (
        "rows = seq_lens\n        seq_lens = rows\n        rows.to(0, non_blocking=True)",
        "raw_bs != bs",
    ),
}


@pytest.mark.parametrize(("assigned", "test"), MADE_OF_THEMSELVES.values(), ids=MADE_OF_THEMSELVES)
def test_names_that_are_made_of_themselves_end_no_analysis(assigned, test):
    source = RUNNER.format(before=f"        {assigned}\n", test=test)
    codes = [code for code, _ in lint_default(source)]
    assert "FM001" not in codes
    assert "FM002" not in codes


def test_a_reset_under_a_test_of_itself_is_one_for_the_padding():
    source = RUNNER.format(before="        pad = pad or raw_bs != bs\n", test="pad")
    assert [code for code, _ in lint_default(source)] == ["FM201"]


def test_names_that_are_bound_in_every_way_are_one_diagnostic_for_a_rule():
    names = range(14)
    ways = [(a, b) for a in names for b in names if a != b]
    maze = "        while bs:\n" + "".join(
        f"            if n{b}:\n                n{a} = n{b}\n" for a, b in ways
    )
    source = RUNNER.format(before=maze, test="raw_bs != bs").replace("self.rows[", "n0[")
    found = lint_default(source)
    assert found == [
        (
            "FM001",
            "file could not be checked for FM201: its names are bound to one another in too "
            "many ways",
        ),
    ]


DEEP = {
    "brackets": "(" * 5000 + ")" * 5000,
    "sums": "1 + " * 5000 + "1",
    "attributes": "a" + ".b" * 5000,
    "calls": "f" + "()" * 5000,
    "minus": "-" * 5000 + "1",
    "choices": "1 if a else " * 5000 + "1",
    "lambdas": "lambda: " * 5000 + "1",
    "fewer lambdas": "lambda: " * 600 + "1",
    "fewer lists": "[" * 450 + "]" * 450,
    "lambdas of arguments": "lambda a, b=1: " * 600 + "1",
}


@pytest.mark.parametrize("deep", DEEP.values(), ids=DEEP)
def test_an_expression_that_nests_too_deeply_is_one_diagnostic(deep, request):
    # Python's own limit: an import of an earlier test may have raised it.
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(1000)
    source = RUNNER.format(before=f"        x = {deep}\n", test="raw_bs != bs")
    assert [code for code, _ in lint_default(source)] == ["FM001"]


class FailingOnTheSecond(Failing):
    """Finds one thing, then fails."""

    code = "ZZ107"

    def check(self, part):
        yield part.finding(self, part.node, "one thing")
        raise KeyError("lost")


class Leaving(Failing):
    """Ends the process, if it may."""

    code = "ZZ108"

    def check(self, part):
        raise SystemExit(0)


def test_more_text_than_can_be_parsed_at_once_is_one_diagnostic():
    one = "def g():\n    torch.get_device_module()\n    return torch.cuda.Event()\n"
    source = f"import torch\n{one}def f():\n    torch.cuda.Event([{'1, ' * 400_000}])\n{one}"
    found = lint_text(source.encode(), "a.py", default_rules())
    assert [one.code for one in found] == ["FM301", "FM001", "FM301"]
    assert "1,200,0" in found[1].message


def test_what_a_rule_found_before_it_failed_is_kept_and_the_line_is_named():
    source = b"x = 1\n\n\ndef f():\n    return torch.cuda\n"
    found = lint_text(source, "relay.py", [FailingOnTheSecond(())])
    assert sorted(one.code for one in found) == ["FM002", "ZZ107"]
    assert [one.span.line for one in found if one.code == "FM002"] == [4]


def test_a_rule_that_leaves_is_one_that_failed():
    found = lint_text(b"torch.cuda\n", "relay.py", [Leaving(())])
    assert [one.code for one in found] == ["FM002"]


NEWER = {
    "after it": lambda code: f"{code}\ntype X = int\n",
    "in it": lambda code: re.sub(
        r"^( *)((?:async )?def [^\n]*:)\n",
        '\\1\\2\n\\1    y_ = f"{"a"}"\n',
        code,
        flags=re.MULTILINE,
    ),
}
EXAMPLES = [
    pytest.param(rule, number, id=f"{rule.code}-{number}")
    for rule in RULES
    for number in range(len(rule.bad))
]


@pytest.mark.parametrize("newer", NEWER.values(), ids=NEWER)
@pytest.mark.parametrize(("rule", "number"), EXAMPLES)
def test_newer_grammar_silences_no_rule(rule, number, newer):
    example = rule.bad[number]
    found = lint_text(newer(example.code).encode(), example.path, [make(rule, example)])
    assert {one.code for one in found} & {rule.code, "FM001"}


def test_many_functions_are_read_once_each(monkeypatch):
    read = []
    real = tree.Tree

    def counted(text, before=""):
        read.append(len(text))
        return real(text, before)

    monkeypatch.setattr(tree, "Tree", counted)
    one = "def f{0}(a):\n    torch.get_device_module()\n    return torch.cuda.Event()\n\n\n"
    source = "import torch\n" + "".join(one.format(number) for number in range(500))
    found = lint_default(source)
    assert {code for code, _ in found} == {"FM301"}
    assert len(found) == 500
    assert sum(read) <= len(source)


def steps_of(rule: Rule, path: str, source: str) -> int:
    """Returns how many lines of fmcheck are run to lint a source by one rule, to the end."""
    count, ours = 0, f"{ROOT}{os.sep}"

    def line(frame, event, arg):
        nonlocal count
        count += 1
        return line

    def call(frame, event, arg):
        return line if frame.f_code.co_filename.startswith(ours) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        found = lint_text(source.encode(), path, [rule])
    finally:
        sys.settrace(before)
    assert "FM001" not in {one.code for one in found}, (
        "the time limit ended the work, and the count"
    )
    return count


@pytest.mark.parametrize(("rule", "number"), EXAMPLES)
def test_four_times_the_blocks_are_four_times_the_work(rule, number):
    example = rule.bad[number]
    made = make(rule, example)
    steps_of(made, example.path, example.code)  # what is imported and compiled but once
    # Counts are exact: without what two blocks take, which has all that is done once for a file,
    # 20 are six times 5.
    two, few, many = (steps_of(made, example.path, f"{example.code}\n" * n) for n in (2, 5, 20))
    assert many - two < 6.39 * (few - two)


RESETS = {
    "one function": lambda n: (
        "class Runner:\n    def replay(self, n, bs):\n        if n != bs:\n"
        + "".join(f"            self.b{i}.zero_()\n" for i in range(n))
        + "".join(f"        self.b{i}[:n].copy_(x{i})\n" for i in range(n))
        + "        self.c[:n].copy_(x)\n"
    ),
    "peers": lambda n: (
        "class Runner:\n"
        + "".join(
            f"    def replay_{i}(self, n):\n        self.b{i}[:n].copy_(x)\n"
            f"        self.b{(i + 1) % n}.zero_()\n"
            for i in range(n)
        )
    ),
    "streams": lambda n: (
        "def f(self, a):\n"
        + "".join(
            f"    with torch.cuda.stream(self.s):\n        b{i} = a.cuda(non_blocking=True)\n"
            "    torch.cuda.current_stream().wait_stream(self.s)\n"
            for i in range(n)
        )
    ),
}


@pytest.mark.parametrize("source", RESETS.values(), ids=RESETS)
@pytest.mark.parametrize("code", ["FM201", "FM401"])
def test_four_times_the_statements_are_four_times_the_work(code, source):
    rule = next(one for one in default_rules() if one.code == code)
    steps_of(rule, "runner.py", source(4))
    few, many = (steps_of(rule, "runner.py", source(n)) for n in (100, 400))
    assert many < 5 * few


GATHERS = {
    "asserts": (
        "FM101",
        "        t{0} = self.output_tokens_buf[rows{0}]\n"
        "        torch._assert_async((t{0} >= 0).all(), 'x')\n"
        "        self.output_tokens_buf[rows{0}] = -1\n",
    ),
    "guards behind one switch": (
        "FM101",
        "        if batch.a:\n"
        "            t{0} = self.output_tokens_buf[rows]\n"
        "        if batch.a:\n"
        "            guard(t{0}, self.output_tokens_buf, rows)\n",
    ),
    "guards that are entered": (
        "FM101",
        "        with guard(self.output_tokens_buf, rows):\n"
        "            t{0} = self.output_tokens_buf[rows]\n",
    ),
    "exits": (
        "FM105",
        "        if batch.x{0}:\n            return\n"
        "        t{0} = self.output_tokens_buf[rows{0}]\n",
    ),
}


@pytest.mark.parametrize(("code", "gather"), GATHERS.values(), ids=GATHERS)
def test_four_times_the_gathers_are_four_times_the_work(code, gather):
    rule = next(one for one in default_rules() if one.code == code)
    few, many = (
        steps_of(
            rule,
            "sglang/srt/managers/overlap_utils.py",
            "class FutureMap:\n    def resolve(self, batch):\n"
            + "".join(map(gather.format, range(n))),
        )
        for n in (50, 200)
    )
    assert many < 5 * few


class Body:
    """The faulty function of an example, whose body can be said over and over."""

    def __init__(self, example: Example) -> None:
        lines = example.code.splitlines(keepends=True)
        every = [
            one
            for one in ast.walk(ast.parse(example.code))
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        inside = [one for one in every if one.lineno < example.at[0][0] <= one.end_lineno]
        faulty = (inside or every)[0]
        first, last = faulty.body[0].lineno - 1, faulty.end_lineno
        self.before, self.after = "".join(lines[:first]), "".join(lines[last:])
        # What comes after a `return` would never be reached.
        body = re.sub(r"\breturn\b *(?=\S)", "kept = ", "".join(lines[first:last]))
        self.text = re.sub(r"\breturn\b", "pass", body)
        self.indent = " " * faulty.body[0].col_offset
        stored = (one for one in ast.walk(faulty) if isinstance(one, ast.Name))
        self.local = {one.id for one in stored if isinstance(one.ctx, ast.Store)}

    def again(self, number: int) -> str:
        """Returns the body with local names of its own."""
        return re.sub(
            r"(?<![\w.\"'])([A-Za-z_]\w*)",
            lambda match: f"{match[0]}_{number}" if match[0] in self.local else match[0],
            self.text,
        )

    def inner(self) -> str:
        """Returns the body a level deeper."""
        return textwrap.indent(self.text, "    ")


SHAPES = {
    "the same names": lambda body, n: body.text * n,
    "names of its own": lambda body, n: "".join(map(body.again, range(n))),
    "in a loop": lambda body, n: f"{body.indent}for one in self.every:\n" + body.inner() * n,
    "each under a test": lambda body, n: "".join(
        f"{body.indent}if self.has_{number}:\n{body.inner()}" for number in range(n)
    ),
}


def in_functions(rule: type[Rule]) -> list[Example]:
    """Returns the examples of a rule that are wrong in a function, the longest first."""
    found = [one for one in rule.bad if "def " in one.code]
    return sorted(found, key=lambda one: -Body(one).text.count("\n"))


LONG = [
    pytest.param(
        rule, example, marks=[pytest.mark.sweep] if number else [], id=f"{rule.code}-{number}"
    )
    for rule in RULES
    for number, example in enumerate(in_functions(rule))
]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("rule", "example"), LONG)
def test_a_function_four_times_as_long_is_four_times_the_work(rule, example, shape):
    body, made = Body(example), make(rule, example)
    # Once to begin with, for what is imported and compiled but once.
    _, few, many = [
        steps_of(made, example.path, f"{body.before}{shape(body, n)}{body.after}")
        for n in (1, 10, 40)
    ]
    assert many < 5 * few


TAIL = next(one for one in RULES if one.code == "FM201")


@pytest.mark.parametrize("number", range(len(in_functions(TAIL))))
def test_what_is_written_alike_many_times_is_one_thing(number):
    example = in_functions(TAIL)[number]
    body, made = Body(example), make(TAIL, example)
    # Of a size that is bound twice nobody knows which one it is.
    twice, often = (
        {
            one.message
            for one in lint_text(
                f"{body.before}{body.text * n}{body.after}".encode(), example.path, [made]
            )
        }
        for n in (2, 12)
    )
    assert twice == often


def test_four_times_the_findings_are_four_times_the_work():
    rule = next(one for one in default_rules() if one.code == "FM201")
    faulty = next(one for one in rule.bad if one.fixed).code
    steps_of(rule, "runner.py", faulty)
    few, many = (
        steps_of(rule, "runner.py", "".join(faulty.replace("Runner", f"R{n}") for n in range(most)))
        for most in (25, 100)
    )
    assert many < 4.5 * few


def test_a_larger_file_has_more_time(monkeypatch):
    given = []

    def within(seconds):
        given.append(seconds)
        return nullcontext()

    monkeypatch.setattr(engine, "within", within)
    rule = next(one for one in default_rules() if one.code == "FM201")
    faulty = next(one for one in rule.bad if one.fixed).code
    lint_text(faulty.encode(), "runner.py", [rule])
    lint_text(faulty.ljust(1000 * len(faulty), "#").encode(), "runner.py", [rule])

    few, many = given
    assert many - few == pytest.approx(999 * (few - engine.MOST_SECONDS))
    assert many > few + 5


class Spinning(Failing):
    """Never ends."""

    code = "ZZ109"

    def check(self, part):
        while True:
            try:
                len("")
            except Exception:
                continue


def test_a_file_that_takes_too_long_is_one_diagnostic_and_what_was_found_stays(monkeypatch):
    monkeypatch.setattr(engine, "MOST_SECONDS", 0.2)
    rule = next(rule for rule in RULES if rule.code == "FM301")
    good = make(rule, rule.bad[0])

    found = lint_text(BAIT + EVENT, "relay.py", [good, Spinning(()), good])

    assert sorted(one.code for one in found) == ["FM001", "FM301"]
    reported = next(one for one in found if one.code == "FM001")
    assert reported.message == (
        "file could not be checked for ZZ109, FM301: rules took over 0.2 s of processor time"
    )
    assert signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL
