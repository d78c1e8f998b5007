"""Versions: what is not supported is refused, and what is said to be is what was tried."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fmcheck import __main__, plugin
from fmcheck.errors import UsageError
from fmcheck.supported import LOWEST_PYTEST, LOWEST_PYTHON, LOWEST_TORCH, check_python
from tests import matrix
from tests.empty_cuda import TEXT, make_libraries
from tests.matrix import COMBINATIONS, Combination, Row, Unavailable
from tests.test_plugin import HEALTHY, Project, project  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from pathlib import Path


def metadata_of(name: str, project: Project, version: str) -> None:  # noqa: F811
    folder = project.pytester.path / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["1.13.1", "2.9.0", "2.10.0+cu128"])
def test_an_older_torch_is_refused(project: Project, version: str) -> None:  # noqa: F811
    metadata_of("torch", project, version)
    result = project.run(HEALTHY)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    reported = (
        f"*fmcheck: torch: expected {LOWEST_TORCH} or newer, got {version}; without fmcheck: *"
    )
    result.stderr.fnmatch_lines([reported.replace("[", "[[]")])


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0.dev1", "3.0", "odd"])
def test_a_newer_or_unnamed_torch_is_not(project: Project, version: str) -> None:  # noqa: F811
    metadata_of("torch", project, version)
    project.run(HEALTHY).assert_outcomes(passed=1)


@pytest.mark.parametrize("version", ["6.2.5", "7.3.2"])
def test_an_older_pytest_is_refused(project: Project, version: str) -> None:  # noqa: F811
    metadata_of("pytest", project, version)
    result = project.run(HEALTHY)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    reported = (
        f"*fmcheck: pytest: expected {LOWEST_PYTEST} or newer, got {version}; without fmcheck: *"
    )
    result.stderr.fnmatch_lines([reported])


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "status", "reported"),
    [
        ("--fmcheck=off", 0, ""),
        ("--fmcheck=fail", 4, "ERROR: fmcheck: pytest: expected 7.4 or newer, got 6.2.5; without "),
    ],
)
def test_a_pytest_that_has_no_stash_is_refused_a_watch_and_otherwise_left_alone(
    tmp_path: Path, option: str, status: int, reported: str
) -> None:
    """Each pytest loads the plugin, of an environment that fmcheck only lints in too."""
    (tmp_path / "pytest-6.2.5.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: pytest\nVersion: 6.2.5\n"
    (tmp_path / "pytest-6.2.5.dist-info" / "METADATA").write_text(metadata)
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    older = "import sys, pytest; del pytest.StashKey; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", older, "-q", "-p", "fmcheck", option]
    paths = os.pathsep.join((str(tmp_path), str(matrix.ROOT)))
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.startswith(reported)) == (status, True), done.stderr


def test_an_older_torch_stops_nobody_who_asks_for_no_watch(project: Project) -> None:  # noqa: F811
    metadata_of("torch", project, "1.13.1")
    project.run(HEALTHY, load=False).assert_outcomes(passed=1)


@pytest.fixture
def older_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    monkeypatch.setattr("platform.python_version", lambda: "3.9.18")


@pytest.mark.usefixtures("older_python")
def test_an_older_python_that_runs_a_checkout_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fmcheck", "lint", "."])
    monkeypatch.setitem(sys.modules, "fmcheck.lint.run.replay", None)  # what it cannot import
    assert __main__.main() == 2
    assert capsys.readouterr() == ("", "fmcheck: Python: expected 3.10 or newer, got 3.9.18\n")


@pytest.mark.usefixtures("older_python")
def test_an_older_python_is_refused_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fmcheck.config", None)  # what it cannot import
    with pytest.raises(UsageError, match=r"^Python: expected 3\.10 or newer, got 3\.9\.18$"):
        plugin._watch(None, "fail")


@pytest.mark.parametrize("name", ["fmcheck/__init__", "fmcheck/__main__", "fmcheck/cli/__init__"])
def test_an_older_python_can_read_what_refuses_it(root: Path, name: str) -> None:
    ast.parse((root / f"{name}.py").read_text(), feature_version=(3, 8))


def test_the_oldest_python_is_the_one_that_pip_is_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (named,) = re.findall(r'requires-python = ">=([\d.]+)"', (root / "pyproject.toml").read_text())
    assert named == ".".join(map(str, LOWEST_PYTHON))
    monkeypatch.setattr(sys, "version_info", (*LOWEST_PYTHON, 0, "final", 0))
    check_python()


def test_the_oldest_torch_is_named_once(root) -> None:
    (named,) = re.findall(r'"torch>=([\d.]+)"', (root / "pyproject.toml").read_text())
    assert named == LOWEST_TORCH
    assert LOWEST_TORCH in {one.torch for one in COMBINATIONS}


def test_the_matrix_has_every_python_and_the_oldest_pytest(root) -> None:
    lowest = re.search(r'"pytest>=([\d.]+)"', (root / "pyproject.toml").read_text())
    assert lowest
    assert lowest[1] == LOWEST_PYTEST
    assert lowest[1] in {one.pytest for one in COMBINATIONS}
    oldest = re.search(r'requires-python = ">=3\.(\d+)"', (root / "pyproject.toml").read_text())
    assert oldest
    wanted = {f"3.{minor}" for minor in range(int(oldest[1]), 15)}
    assert {one.python for one in COMBINATIONS} == wanted


def test_the_page_has_a_line_for_each_combination_as_it_is_recorded() -> None:
    text = matrix.PAGE.read_text()
    assert text == matrix.page(matrix.recorded())
    lines = text.splitlines()
    assert sum(line.startswith("| ") and line[2].isdigit() for line in lines) == len(COMBINATIONS)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of its own, in which nothing has been tried."""
    monkeypatch.setattr(matrix, "RECORD", tmp_path / "matrix.json")
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "matrix.md")
    matrix.RECORD.write_text("{}")
    return tmp_path


@pytest.mark.usefixtures("kept")
def test_what_is_not_tried_again_keeps_its_line_with_its_day() -> None:
    first, second = (one.name for one in COMBINATIONS[:2])
    before = Row("3.10.1", "2.14", "9.2", "7 passed", "2026-11-22, `abc`", passed=True)
    after = Row("3.11.1", "2.15", "9.2", "8 passed", "2026-11-23, `def`", passed=True)
    matrix.record(first, before)
    matrix.record(second, after)
    matrix.record(first, Row("3.10", "newest", "newest", "not tried: no network"))
    assert matrix.recorded()[:2] == [before, after]
    assert "| 3.10.1 | 2.14 | 9.2 | 7 passed | 2026-11-22, `abc` |" in matrix.PAGE.read_text()
    assert "| 3.14 | newest | newest | not tried |" in matrix.PAGE.read_text()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("row", "status"),
    [
        (Row("3.10.1", "2.14", "9.2", "7 passed", "2026-11-22", passed=True), 0),
        (Row("3.10.1", "2.14", "9.2", "7 passed: 1 failed in `test_x`", "2026-11-22"), 1),
        (Row("3.10", "newest", "newest", "not tried: no Python 3.10 here"), 0),
    ],
)
def test_the_command_ends_with_1_where_a_test_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, row: Row, status: int
) -> None:
    monkeypatch.setattr(matrix, "tried", lambda *_, **__: row)
    monkeypatch.setattr(matrix, "KEPT", tmp_path / "environments")
    assert matrix.main(["--only", COMBINATIONS[0].name]) == status


FILES = {
    "passes": "assert True",
    "fails": "assert False",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "late": "assert True",
}


@pytest.mark.process
def test_a_file_that_fails_crashes_or_cannot_be_imported_is_named_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    for name, code in FILES.items():
        text = f"import pytest\n@pytest.mark.torch\ndef test_it():\n    {code}\n"
        (folder / f"test_{name}.py").write_text(text)
    (folder / "test_new_grammar.py").write_text("import nothing_of_this_name\n")
    (folder / "test_other.py").write_text("def test_that_is_not_chosen(): assert False\n")
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    found, log = matrix.quick_tests(sys.executable, dict(os.environ), with_torch=True)
    assert not found.all_passed
    assert found.said == (
        "2 passed, 1 failed, 1 error: `test_crashes` crashed (SIGSEGV); 1 failed in `test_fails`; "
        "1 error in `test_new_grammar`"
    )
    assert "nothing_of_this_name" in log


@pytest.mark.process
def test_tests_that_cannot_be_collected_are_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    found, _ = matrix.quick_tests(sys.executable, dict(os.environ), with_torch=True)
    assert not found.all_passed
    assert found.said == "collecting the tests ended with 5"


@pytest.mark.process
def test_what_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(matrix, "LIMIT", 2)
    done = matrix._ended(["sh", "-c", f"sleep 600 > {held} & echo begun; wait"], dict(os.environ))
    assert (done.status, done.output) == (None, "begun\n")
    found = matrix.Results()
    found.add("tests/engine/test_x.py", done)
    assert found.troubles == ["`engine/test_x` did not end within 2 s"]
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    ((_, state),) = poll.poll(60_000)  # the sleeping one held the other end
    os.close(reader)
    assert state & select.POLLHUP


@pytest.mark.process
def test_an_empty_library_has_torch_tell_that_there_is_no_device(tmp_path: Path) -> None:
    """torch reads the text of an error: a number in its place ended the process."""

    def compiled(name: str, code: str, *options: str) -> None:
        (tmp_path / "it.c").write_text(code)
        command = ["cc", "-shared", "-fPIC", "-w", "-o", name, "it.c", *options]
        subprocess.run(command, cwd=tmp_path, check=True)

    (tmp_path / "it.map").write_text("libcudart.so.13 { global: *; };\n")
    soname = "-Wl,-soname,libcudart.so.13"
    code = "int cudaGetDevice(void) {}\nchar *cudaGetErrorString(int error) {}\n"
    compiled("libcudart.so.13", code, soname, "-Wl,--version-script=it.map")
    code = "char *found(void) { return cudaGetErrorString(cudaGetDevice()); }\n"
    declared = "int cudaGetDevice(void);\nchar *cudaGetErrorString(int);\n"
    (tmp_path / "lib").mkdir()
    compiled("lib/libtorch_cuda.so", declared + code, "./libcudart.so.13")

    make_libraries(tmp_path / "lib", tmp_path / "empty")
    library = ctypes.CDLL(str(tmp_path / "empty" / "libcudart.so.13"))
    assert library.cudaGetDevice() == 100
    library.cudaGetErrorString.restype = ctypes.c_char_p
    assert library.cudaGetErrorString(100) == TEXT.encode()


def test_what_cannot_be_had_is_said_to_be_untried(monkeypatch) -> None:
    def missing(asked: Combination, *, cpu_builds: bool) -> str:
        raise Unavailable("no Python 3.99 here")

    monkeypatch.setattr(matrix, "_environment", missing)
    row = matrix.tried(Combination("3.99", "2.11", "7.4"))
    assert row == Row("3.99", "2.11", "7.4", "not tried: no Python 3.99 here")
    assert "| 3.99 | 2.11 | 7.4 | not tried: no Python 3.99 here |" in matrix.page([row])


@pytest.mark.parametrize(
    ("torch", "cpu_builds", "asked_for"),
    [
        ("2.11", True, ["torch==2.11.0+cpu"]),
        ("2.11", False, ["torch==2.11.0+cpu", "torch==2.11.*"]),
        ("newest", True, ["torch==2.13.0+cpu"]),
        ("newest", False, ["torch"]),
    ],
)
def test_a_cpu_build_of_a_version_comes_first_and_alone_where_no_other_is_wanted(
    monkeypatch: pytest.MonkeyPatch, torch: str, cpu_builds: bool, asked_for: list[str]
) -> None:
    wanted: list[str] = []

    def pip(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        wanted.append(arguments[-1])
        return subprocess.CompletedProcess([], 1)

    monkeypatch.setattr(matrix, "_pip", pip)
    assert not matrix._install_torch("python3.11", torch, cpu_builds=cpu_builds)
    assert wanted == asked_for


@pytest.mark.parametrize(
    ("line", "asked_for"),
    [
        ('triton==3.6.0; platform_system == "Linux"', "triton==3.6.0"),
        ('triton~=3.9.0; platform_system == "Linux"', "triton~=3.9.0"),
        ("triton-kernels>=1", ""),
    ],
)
def test_the_triton_that_torch_asks_for_comes_with_it(line: str, asked_for: str) -> None:
    assert matrix.triton_of(["sympy>=1.13.3", line, "networkx"]) == asked_for


def test_a_python_that_is_not_here_is_named() -> None:
    with pytest.raises(Unavailable, match=r"no Python 3\.99 here"):
        matrix.interpreter("3.99")
