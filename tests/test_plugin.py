"""The pytest plugin as a user meets it: each run is a process of its own."""

from __future__ import annotations

import os
import textwrap
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

import pytest

from tests.reach.project import CONTRACT, REPOSITORY, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ("pytester",)
UNCHECKED = 20

ENGINE = """
    import torch

    ROWS = torch.tensor([1, 2])

    class FutureMap:
        def __init__(self):
            self.tokens_buf = torch.zeros(8, dtype=torch.int64)

        def stash(self, rows, tokens):
            self.tokens_buf[rows] = tokens

        def gather(self, rows):
            return self.tokens_buf[rows]

    def healthy():
        fm = FutureMap()
        fm.stash(ROWS, 5)
        return fm.gather(ROWS)

    def stale():
        fm = FutureMap()
        fm.stash(ROWS, 5)
        fm.gather(ROWS)
        return fm.gather(ROWS)
"""
HEALTHY = """
    import toy_engine

    def test_it():
        assert toy_engine.healthy().tolist() == [5, 5]
"""
STALE = """
    import toy_engine

    def test_it():
        toy_engine.stale()
"""


class Project:
    """A project with a small engine, its contract and one test file."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.write("toy_engine.py", ENGINE)
        self.write("toy.toml", CONTRACT)
        self.write("pyproject.toml", SETTINGS)

    def write(self, name: str, text: str) -> None:
        (self.pytester.path / name).write_text(textwrap.dedent(text))

    def change(self, name: str, old: str, new: str) -> None:
        path = self.pytester.path / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def run(self, test: str, *arguments: str, load: bool = True) -> pytest.RunResult:
        self.write("test_engine.py", test)
        loaded = ("-p", "fmcheck") if load else ()
        return self.pytester.runpytest_subprocess(*loaded, *arguments)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    for name in ("FMCHECK_MODE", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(pytester.path)]))
    return Project(pytester)


CLOSING = "fmcheck: 1 buffer, 1 write, {} gather*, 0 peeks checked; {} violation*"

# --- on and off ---


def test_a_healthy_test_passes_and_says_how_much_was_checked(project: Project) -> None:
    result = project.run(HEALTHY)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["fmcheck: mode fail, streams tracked, contracts: toy (child processes too)"]
    )
    result.stdout.fnmatch_lines([CLOSING.format(1, 0)])
    assert result.ret == 0


def test_a_violation_fails_the_test_and_is_reported_in_full(project: Project) -> None:
    result = project.run(STALE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "FMCHECK: FR102 double-read in FutureMap.tokens_buf rows 1, 2",
            "  gather      toy_engine.py:14 in FutureMap.gather, called at toy_engine.py:25",
            "    values    -1, -1",
            "  last write  toy_engine.py:11 in FutureMap.stash, called at toy_engine.py:23",
            "  last read   toy_engine.py:14 in FutureMap.gather, called at toy_engine.py:24",
            "  missing     a write of these rows between the last read and this gather",
            "  test        test_engine.py::test_it",
            "fmcheck violation: rule=FR102 buf=FutureMap.tokens_buf rows=1,2 row_count=2 "
            'site=toy_engine.py:14 count=1 device=cpu pid=* step=- stream="default stream" owner=- '
            "generation=- test=test_engine.py::test_it",
            CLOSING.format(2, 1),
        ]
    )


@pytest.mark.parametrize(
    ("flag", "environment", "ini", "load", "failed"),
    [
        (None, None, None, True, True),
        (None, None, None, False, False),
        ("fail", None, None, False, True),
        (None, "fail", None, False, True),
        (None, None, "fail", False, True),
        (None, None, "off", True, False),
        (None, "fail", "off", True, True),
        ("off", "fail", "fail", True, False),
    ],
)
def test_flag_beats_environment_beats_ini_beats_p(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    flag: str | None,
    environment: str | None,
    ini: str | None,
    load: bool,
    failed: bool,
) -> None:
    if environment:
        monkeypatch.setenv("FMCHECK_MODE", environment)
    if not load:
        register(project)
    arguments = [f"--fmcheck={flag}"] if flag else []
    arguments += ["-o", f"fmcheck_mode={ini}"] if ini else []
    result = project.run(STALE, *arguments, load=load)
    result.assert_outcomes(failed=int(failed), passed=int(not failed))
    assert ("contracts: toy" in result.stdout.str()) is failed
    assert ("nothing is watched" in result.stdout.str()) is (
        "off" in (flag or ini or "") and not failed
    )


def register(project: Project) -> None:
    """Makes fmcheck look installed, so that pytest loads it by its entry point."""
    folder = project.pytester.path / "fmcheck-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fmcheck\nVersion: 0.1.0\n")
    (folder / "entry_points.txt").write_text("[pytest11]\nfmcheck = fmcheck\n")


def test_merely_installed_it_patches_nothing_and_imports_nothing_heavy(project: Project) -> None:
    register(project)
    project.write("conftest.py", "import types\npytest_plugins = types.ModuleType('mine')\n")
    result = project.run(
        """
        import sys

        pytest_plugins = ("pytester",)

        def test_it(request):
            assert request.config.pluginmanager.hasplugin("fmcheck")
            assert not {"torch", "numpy", "libcst", "wrapt"} & set(sys.modules)
            import toy_engine, torch
            assert type(toy_engine.FutureMap().tokens_buf) is torch.Tensor
            assert "__setattr__" not in vars(toy_engine.FutureMap)
        """,
        "--strict-config",
        load=False,
    )
    result.assert_outcomes(passed=1)
    assert "fmcheck:" not in result.stdout.str()


def test_p_no_switches_it_off(project: Project) -> None:
    register(project)
    result = project.run(STALE, "-p", "no:fmcheck", load=False)
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("where", ["environment", "ini"])
def test_addopts_switch_it_on(
    project: Project, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "environment":
        monkeypatch.setenv("PYTEST_ADDOPTS", "-p fmcheck")
    else:
        project.write("pytest.ini", "[pytest]\naddopts = -p fmcheck\n")
    project.run(STALE, load=False).assert_outcomes(failed=1)


def test_the_variable_of_pytest_switches_it_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_PLUGINS", "pytester,fmcheck")
    result = project.run(STALE, load=False)
    result.assert_outcomes(failed=1)
    assert "contracts: toy" in result.stdout.str()


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("file", "plugins"),
    [("conftest.py", '"fmcheck"'), ("conftest.py", '["fmcheck"]'), ("test_engine.py", "'fmcheck'")],
)
def test_what_loads_the_plugin_too_late_says_that_nothing_is_watched(
    project: Project, file: str, plugins: str, installed: bool
) -> None:
    if installed:
        register(project)
    named = f"pytest_plugins = {plugins}\n"
    test = textwrap.dedent(STALE)
    if file == "conftest.py":
        project.write(file, named)
    else:
        test = named + test
    result = project.run(test, load=False)
    result.assert_outcomes(passed=1)
    off = f"fmcheck: off: nothing is watched: `pytest_plugins` in {file} comes too late*-p fmcheck*"
    result.stdout.fnmatch_lines(["*= fmcheck =*", off])
    if file == "conftest.py":
        result.stdout.fnmatch_lines([off, "collected *"])
    project.run(test).assert_outcomes(failed=1)


def test_a_conftest_may_import_the_engine(project: Project) -> None:
    project.write("conftest.py", "import toy_engine")
    project.run(STALE).assert_outcomes(failed=1)


# --- what a violation does ---


def test_mode_warn_warns(project: Project) -> None:
    result = project.run(STALE, "--fmcheck=warn")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*FmcheckWarning*", CLOSING.format(2, 1)])
    assert result.ret == 0


def test_a_warning_can_be_turned_into_an_error(project: Project) -> None:
    result = project.run(STALE, "--fmcheck=warn", "-W", "error::fmcheck.FmcheckWarning")
    result.assert_outcomes(failed=1)


def test_xfail_strict_can_ask_for_the_violation(project: Project) -> None:
    result = project.run(
        """
        import fmcheck, pytest, toy_engine

        @pytest.mark.xfail(raises=fmcheck.ViolationError, strict=True)
        def test_stale():
            toy_engine.stale()

        @pytest.mark.xfail(raises=fmcheck.ViolationError, strict=True)
        def test_healthy():
            toy_engine.healthy()
        """
    )
    result.assert_outcomes(xfailed=1, failed=1)


def test_a_test_keeps_its_own_failure(project: Project) -> None:
    result = project.run(
        """
        import toy_engine

        def test_it():
            toy_engine.stale()
            raise ValueError("my own")
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*ValueError: my own",
            "E*FMCHECK: FR102*",
            "*Captured fmcheck call*",
            "FMCHECK: FR102*",
        ]
    )


@pytest.mark.parametrize(
    ("statement", "outcomes"), [("fail", {"failed": 1}), ("xfail", {"xfailed": 1})]
)
def test_a_test_that_fails_by_pytests_own_word_is_reported_in_its_call(
    project: Project, statement: str, outcomes: dict[str, int]
) -> None:
    result = project.run(
        f"""
        import pytest, toy_engine

        def test_it():
            toy_engine.stale()
            pytest.{statement}("my own word")
        """,
        "-rxX",
    )
    result.assert_outcomes(**outcomes)
    assert "my own word" in result.stdout.str()
    assert "1 violation" in result.stdout.str()


UNITTEST = """
    import unittest, toy_engine

    class TestRelay(unittest.TestCase):
        def test_stale(self):
            toy_engine.stale()
            {more}
"""


def test_a_unittest_case_that_skips_or_fails_in_health_is_left_alone(project: Project) -> None:
    result = project.run(
        """
        import unittest

        class TestRelay(unittest.TestCase):
            def test_skips(self):
                self.skipTest("no device")

            def test_fails(self):
                self.fail("my own word")

            def test_passes(self):
                pass
        """
    )
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.no_fnmatch_line("*FMCHECK*")


@pytest.mark.parametrize(
    ("more", "own"),
    [("pass", False), ("self.fail('my own word')", True), ("self.skipTest('my own word')", False)],
)
def test_a_unittest_case_fails_and_is_reported(project: Project, more: str, own: bool) -> None:
    result = project.run(UNITTEST.format(more=more))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*FMCHECK: FR102*", "*1 violation*"])
    assert ("E       AssertionError: my own word" in result.stdout.str()) is own


def test_a_skip_does_not_hide_a_violation(project: Project) -> None:
    result = project.run(
        """
        import pytest, toy_engine

        def test_it():
            toy_engine.stale()
            pytest.skip("never mind")
        """
    )
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("before", "after", "outcomes"),
    [
        ("toy_engine.stale()", "", {"errors": 1}),
        ("", "toy_engine.stale()", {"passed": 1, "errors": 1}),
    ],
)
def test_a_fixture_fails_its_own_phase(
    project: Project, before: str, after: str, outcomes: dict[str, int]
) -> None:
    result = project.run(
        f"""
        import pytest, toy_engine

        @pytest.fixture
        def engine():
            {before or "pass"}
            yield
            {after or "pass"}

        def test_it(engine):
            pass
        """
    )
    result.assert_outcomes(**outcomes)


def test_a_parametrised_test_is_named_in_full_and_each_fails(project: Project) -> None:
    result = project.run(
        """
        import pytest, toy_engine

        @pytest.mark.parametrize("size", [1, 2])
        def test_it(size):
            toy_engine.stale()
        """
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["  test        test_engine.py::test_it[[]2[]]"])
    result.stdout.fnmatch_lines(["*; 1 violation in 2 tests"])


def test_pytests_summary_begins_with_the_code(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("CI", raising=False)
    result = project.run(STALE)
    result.stdout.fnmatch_lines(["FAILED test_engine.py::test_it - FR102 double-read in Future*"])


@pytest.mark.parametrize(("mode", "status"), [("fail", 1), ("warn", 0)])
def test_a_test_that_ends_the_run_hides_no_violation(
    project: Project, mode: str, status: int
) -> None:
    test = f"import pytest\n{textwrap.dedent(STALE)}    pytest.exit('enough', returncode=0)\n"
    assert project.run(test, f"--fmcheck={mode}").ret == status


@pytest.mark.parametrize(
    ("end", "banner", "status"),
    [
        ("pytest.exit('enough', returncode=9)", "!* _pytest.outcomes.Exit: enough !*", 9),
        ("pytest.exit('enough')", "!* _pytest.outcomes.Exit: enough !*", 2),
        ("raise KeyboardInterrupt", "!* KeyboardInterrupt !*", 2),
    ],
)
def test_a_test_that_ends_the_run_is_reported_in_the_closing_section(
    project: Project, end: str, banner: str, status: int
) -> None:
    test = f"import pytest\n{textwrap.dedent(STALE)}    {end}\n"
    result = project.run(test)
    assert result.ret == status
    result.stdout.fnmatch_lines(
        [
            "*= fmcheck =*",
            "found in the test that ended the run:",
            "FMCHECK: FR102 double-read in FutureMap.tokens_buf rows 1, 2",
            "  test        test_engine.py::test_it",
            CLOSING.format(2, 1),
        ]
    )
    result.stdout.fnmatch_lines([banner])
    assert result.stdout.str().count("FMCHECK:") == result.stdout.str().count("= fmcheck =") == 1


def test_a_mark_counts_in_a_test_that_ends_the_run(project: Project) -> None:
    marked = "@pytest.mark.fmcheck(allow='FR102')\ndef test"
    test = f"import pytest\n{textwrap.dedent(STALE)}    pytest.exit('enough', returncode=0)\n"
    result = project.run(test.replace("def test", marked))
    assert result.ret == 0
    assert "FMCHECK:" not in result.stdout.str()


def test_an_error_in_pytest_itself_leaves_the_closing_section(project: Project) -> None:
    project.write(
        "conftest.py",
        "def pytest_runtest_logreport(report):\n    0 if report.when == 'setup' else 1 / 0\n",
    )
    result = project.run(HEALTHY)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["*= fmcheck =*", CLOSING.format(1, 0)])


def test_an_interrupt_by_a_signal_is_shown_at_the_line_of_the_test(project: Project) -> None:
    for end in ("os.kill(os.getpid(), 2)", "signal.raise_signal(2)"):
        test = f"import os, signal\n{textwrap.dedent(HEALTHY)}    {end}\n"
        result = project.run(test)
        place = textwrap.dedent(test).splitlines().index(f"    {end}") + 1
        result.stdout.fnmatch_lines([f"*test_engine.py:{place}: KeyboardInterrupt"])


def test_sys_modules_may_be_put_back_while_the_engine_runs(project: Project) -> None:
    result = project.run(
        """
        import sys
        from unittest import mock

        import toy_engine

        def test_it():
            with mock.patch.dict(sys.modules):
                assert toy_engine.healthy().tolist() == [5, 5]
            assert toy_engine.healthy().tolist() == [5, 5]
        """
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["fmcheck: 2 buffers, 2 writes, 2 gathers, *; 0 violations"])
    assert result.ret == 0


@pytest.mark.parametrize("test", [HEALTHY, "def test_it():\n    pass\n"])
def test_a_violation_outside_of_any_test_fails_the_session(project: Project, test: str) -> None:
    project.write("conftest.py", "import toy_engine\ntoy_engine.stale()\n")
    result = project.run(test)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["found outside of any test:", "FMCHECK: FR102*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_junit_has_the_violation(project: Project) -> None:
    project.run(STALE, "--junitxml=out.xml")
    case = ElementTree.parse(project.pytester.path / "out.xml").find(".//testcase")
    assert case is not None
    failure, reported = case.find("failure"), case.find("./properties/property[@name='fmcheck']")
    assert failure is not None
    assert "FR102" in (failure.text or "")
    assert reported is not None
    assert reported.get("value") == "FMCHECK: FR102 double-read in FutureMap.tokens_buf rows 1, 2"


# --- what was not checked ---


def test_a_run_that_imports_no_relay_says_so(project: Project) -> None:
    result = project.run("def test_it():\n    pass\n")
    result.stdout.fnmatch_lines(
        [
            "fmcheck error: nothing that contract `toy` declares was checked: `toy_engine` was *",
            "fmcheck: 0 buffers, *",
        ]
    )
    assert result.ret == UNCHECKED


def test_a_relay_that_nobody_used_is_reported(project: Project) -> None:
    result = project.run("import toy_engine\n\ndef test_it():\n    toy_engine.FutureMap()\n")
    result.stdout.fnmatch_lines(["fmcheck error: *no buffer of `toy_engine:FutureMap` was ever *"])
    assert result.ret == UNCHECKED


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("FutureMap", "FutureMapp", "*no class `FutureMapp`; did you mean `FutureMap`?"),
        ("tokens_buf", "token_buf", "*`token_buf`: `__init__` did not create it*"),
    ],
)
def test_what_cannot_be_instrumented_fails_the_session(
    project: Project, old: str, new: str, message: str
) -> None:
    project.change("toy.toml", old, new)
    result = project.run(HEALTHY)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"fmcheck error: {message}"])
    assert result.ret == UNCHECKED


def test_a_reloaded_engine_is_watched(project: Project) -> None:
    result = project.run(
        """
        import importlib, toy_engine

        def test_it():
            importlib.reload(toy_engine).stale()
        """
    )
    result.stdout.fnmatch_lines(["FMCHECK: FR102 *"])
    assert result.ret == 1


# --- bad input ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--fmcheck=fial",),
            "*--fmcheck: expected one of fail, warn, halt, off, got `fial`; did you*",
        ),
        (("-o", "fmcheck_mode=loud"), "*fmcheck_mode: expected one of*got `loud`*"),
        (("--fmcheck-config=none.toml",), "*none.toml*"),
        *(
            ((f"--fmcheck{name}=",), f"*--fmcheck{name}: expected a value, got an empty one")
            for name in ("", "-config", "-journal", "-streams", "-seed", "-trace")
        ),
        (("--fmcheck-trace=/dev/null/t.json",), "*--fmcheck-trace: `/dev/null/t.json` cannot be*"),
        (("--fmcheck-trace=.",), "*--fmcheck-trace: expected a file, and `.` is a folder"),
        (("--fmcheck-config=bad.toml",), "*bad.toml*contract*did you mean `contracts`*"),
    ],
)
def test_bad_options_are_usage_errors(
    project: Project, arguments: tuple[str, ...], message: str
) -> None:
    project.write("bad.toml", "contract = []")
    result = project.run(HEALTHY, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_trace_that_cannot_be_written_any_more_fails_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # a worker's trace has its name in it
    lost = """
        import pathlib, toy_engine

        def test_it(tmp_path, monkeypatch):
            monkeypatch.chdir(tmp_path)
            toy_engine.healthy()
            pathlib.Path(__file__).with_name("t.json").mkdir()
    """
    result = project.run(lost, "--fmcheck-trace=t.json")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["fmcheck error: report *t.json: cannot be written: Is a dir*"])
    assert "Traceback" not in result.stderr.str()


def test_settings_may_be_named(project: Project) -> None:
    (project.pytester.path / "pyproject.toml").unlink()
    project.write("mine.toml", 'contracts = ["toy.toml"]')
    project.run(STALE, "--fmcheck-config=mine.toml").assert_outcomes(failed=1)


@pytest.mark.parametrize("way", ["option", "rootdir", "ini"])
def test_settings_that_pytests_rootdir_hides_are_named(project: Project, way: str) -> None:
    inner = project.pytester.mkdir("inner")
    for name in ("pyproject.toml", "toy.toml"):
        (project.pytester.path / name).rename(inner / name)
    project.write("pytest.ini", "[pytest]\n")
    project.write("inner/test_inner.py", STALE)
    if way == "ini":
        arguments, shown = ("inner/test_inner.py::test_it",), "inner/pyproject.toml"
    else:
        project.pytester.chdir()
        os.chdir(inner)
        arguments = ("-c", "../pytest.ini") if way == "option" else ("--rootdir=..", "-q")
        shown = "pyproject.toml"
    result = project.pytester.runpytest_subprocess("-p", "fmcheck", *arguments)
    result.stdout.fnmatch_lines(
        [
            f"fmcheck: no settings: no `?tool.fmcheck?` in a pyproject.toml of "
            f"{project.pytester.path} (pytest's rootdir) or of a folder above it",
            f"fmcheck: `?tool.fmcheck?` of {shown} was not read: it is neither in pytest's rootdir "
            f"({project.pytester.path}) nor above it; read it with `--fmcheck-config {shown}`",
        ]
    )
    named = ("-p", "fmcheck", *arguments, "--fmcheck-config", shown)
    result = project.pytester.runpytest_subprocess(*named)
    result.assert_outcomes(failed=1)
    assert "was not read" not in result.stdout.str()


def test_several_settings_that_are_not_read_are_counted(project: Project) -> None:
    for name in ("one", "two", "none"):
        folder = project.pytester.mkdir(name)
        text = "[tool.other]" if name == "none" else "[tool.fmcheck]"
        (folder / "pyproject.toml").write_text(f"{text}\n")
        project.write(f"{name}/test_{name}.py", HEALTHY)
    project.write("pytest.ini", "[pytest]\n")
    result = project.run(HEALTHY)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*of one/pyproject.toml (and 1 more) was not read: *"])
    assert "no settings" not in result.stdout.str()


@pytest.mark.fresh
@pytest.mark.parametrize("package", ["numpy", "wrapt"])
def test_a_missing_package_is_named(project: Project, package: str) -> None:
    project.write(
        "sitecustomize.py",
        f"""
        import importlib.abc, sys

        class Missing(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == {package!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}")

        sys.meta_path.insert(0, Missing())
        """,
    )
    result = project.run("def test_it():\n    pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*needs {package}: pip install 'fmcheck[[]pytest[]]'*"])


# --- halt, suppressions, advice, dead detectors ---


@pytest.mark.parametrize("option", ["--fmcheck", "--fmcheck-mode"])
def test_mode_halt_raises_at_the_offending_line(project: Project, option: str) -> None:
    result = project.run(STALE, f"{option}=halt")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "toy_engine.py:14: *",
            "E*ViolationError: FR102 double-read in FutureMap.tokens_buf rows 1, 2: gather at *",
            "*Captured fmcheck call*",
        ]
    )


SUPPRESSED = """
    [tool.fmcheck]
    contracts = ["toy.toml"]

    [[tool.fmcheck.suppress]]
    check = "FR102"
    buffer = "FutureMap.tokens_buf"
    site = "toy_engine.py"
    reason = "waits for the next release"
    expires = {expires}
"""


def test_a_suppressed_violation_passes_and_is_counted(project: Project) -> None:
    project.write("pyproject.toml", SUPPRESSED.format(expires="2999-01-31"))
    result = project.run(STALE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*checked; 0 violations, 1 suppressed"])
    result.stdout.no_fnmatch_line("*matched nothing*")
    assert result.ret == 0


def test_an_expired_suppression_fails_the_session_and_suppresses_nothing(project: Project) -> None:
    project.write("pyproject.toml", SUPPRESSED.format(expires="2020-01-31"))
    result = project.run(STALE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["fmcheck error: *pyproject.toml*suppress[[]0[]]*expired on 2020-01-31*"]
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_an_unmatched_suppression_is_reported_of_the_whole_run(
    project: Project, workers: tuple[str, ...]
) -> None:
    project.write("pyproject.toml", SUPPRESSED.format(expires="2999-01-31"))
    project.write("test_more.py", STALE)
    result = project.run(HEALTHY, "test_engine.py", *(("-n", "1") if workers else ()))
    result.stdout.fnmatch_lines(
        ["fmcheck: suppression *suppress[[]0[]]*matched nothing in this run*"]
    )
    assert result.ret == 0
    result = project.run(HEALTHY, *workers)
    result.stdout.no_fnmatch_line("*matched nothing*")
    result.stdout.fnmatch_lines(["*1 suppressed"])


DEAD_ASSERT = """
    import torch

    @torch.compile(backend="aot_eager")
    def guard(values):
        torch._assert_async((values >= 0).all())
        return values + 1

    def test_it():
        guard(torch.ones(2))
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_dead_assert_is_reported_of_and_fails_nothing(
    project: Project, workers: tuple[str, ...]
) -> None:
    result = project.run(DEAD_ASSERT, *workers, "--fmcheck-allow-unchecked")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "Advisories (do not fail the run):",
            "FMCHECK: FR602 dead-assert in guard",
            "  assert      test_engine.py:6 in guard*",
            "*; 0 violations, 1 warning",
        ]
    )
    assert result.ret == 0


def test_a_dead_assert_fails_where_the_settings_say_so(project: Project) -> None:
    project.write("pyproject.toml", SETTINGS + '    fail-on = ["FR602"]\n')
    result = project.run(DEAD_ASSERT)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*; 1 violation"])


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_dead_detector_stops_the_session(project: Project, workers: tuple[str, ...]) -> None:
    project.write(
        "conftest.py",
        """
        from fmcheck.runtime.relay.buffer import RelayBuffer

        RelayBuffer._poison_over = lambda *args: None
        """,
    )
    project.write("test_more.py", HEALTHY)
    result = project.run(HEALTHY, *workers)
    result.stdout.fnmatch_lines(["fmcheck error: *FR102 double-read does not work on cpu*"])
    result.stdout.no_fnmatch_line("*could not be instrumented*")
    assert result.parseoutcomes().get("passed", 0) <= 1
    assert result.ret != 0


# --- xdist ---


def test_workers_report_to_the_controller(project: Project) -> None:
    project.write(
        "test_more.py", "import toy_engine\n\ndef test_more():\n    toy_engine.healthy()\n"
    )
    result = project.run(STALE, "-n", "2")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["fmcheck: 2 buffers, 2 writes, 3 gathers, 0 peeks checked in 2 processes; 1 violation"]
    )


def test_a_problem_of_a_worker_fails_the_session(project: Project) -> None:
    project.change("toy.toml", "FutureMap", "FutureMapp")
    result = project.run(HEALTHY, "-n", "1")
    result.stdout.fnmatch_lines(["fmcheck error: *no class*"])
    assert result.ret == UNCHECKED


def test_a_worker_that_was_killed_loses_no_finding_and_no_count(project: Project) -> None:
    result = project.run(
        """
        import os, signal, toy_engine

        def test_it():
            toy_engine.stale()
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        "-n",
        "1",
        "--max-worker-restart=0",
    )
    result.stdout.fnmatch_lines(
        [
            "found after its test had ended:",
            "FMCHECK: FR102 double-read in FutureMap.tokens_buf rows 1, 2",
            "  test        test_engine.py::test_it",
            "fmcheck: 1 process killed by SIGKILL: * (gw0); what they had checked*",
            "fmcheck: 1 buffer, 1 write, 2 gathers, 0 peeks checked in 1 process; 1 violation",
        ]
    )
    result.stdout.no_fnmatch_line("*PytestAssertRewriteWarning*")


# --- the fixture engine ---


@pytest.mark.parametrize(
    ("tests", "load", "failed", "passed"),
    [
        ("tests/test_loop.py", True, 4, 1),
        pytest.param("", True, 4, 11, marks=pytest.mark.sweep),
        ("", False, 0, 15),
    ],
)
def test_the_fixture_engine_shows_what_it_is_for(
    project: Project, tests: str, load: bool, failed: int, passed: int
) -> None:
    engine = REPOSITORY / "fixtures" / "engine" / tests
    loaded = ("-p", "fmcheck") if load else ()
    result = project.pytester.runpytest_subprocess(
        *loaded, "-p", "no:cacheprovider", "-v", str(engine)
    )
    result.assert_outcomes(passed=passed, failed=failed)
    if load:
        result.stdout.fnmatch_lines(["*test_healthy PASSED*"])
        result.stdout.fnmatch_lines(["FMCHECK: FR102*", "  gather*future_map.py:*"])
        result.stdout.fnmatch_lines(["FMCHECK: FR101*", "  gather*future_map.py:*"])
        result.stdout.fnmatch_lines(["FMCHECK: FR104*", "FMCHECK: FR201*"])
