"""Versions: what is not supported is refused, and what is said to be is what was tried."""

from __future__ import annotations

import re
import subprocess

import pytest

from fmcheck.supported import LOWEST_PYTEST, LOWEST_TORCH
from tests import matrix
from tests.matrix import COMBINATIONS, Combination, Row, Unavailable
from tests.test_plugin import HEALTHY, Project, project  # noqa: F401  # a fixture


def metadata_of(name: str, project: Project, version: str) -> None:  # noqa: F811
    folder = project.pytester.path / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["1.13.1", "2.9.0", "2.10.0+cu128"])
def test_an_older_torch_is_refused(project: Project, version: str) -> None:  # noqa: F811
    metadata_of("torch", project, version)
    result = project.run(HEALTHY)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = f"*fmcheck: torch: expected {LOWEST_TORCH} or newer, got {version}; without fmcheck: *"
    result.stderr.fnmatch_lines([told.replace("[", "[[]")])


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0.dev1", "3.0", "odd"])
def test_a_newer_or_unnamed_torch_is_not(project: Project, version: str) -> None:  # noqa: F811
    metadata_of("torch", project, version)
    project.run(HEALTHY).assert_outcomes(passed=1)


@pytest.mark.parametrize("version", ["6.2.5", "7.3.2"])
def test_an_older_pytest_is_refused(project: Project, version: str) -> None:  # noqa: F811
    metadata_of("pytest", project, version)
    result = project.run(HEALTHY)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = f"*fmcheck: pytest: expected {LOWEST_PYTEST} or newer, got {version}; without fmcheck: *"
    result.stderr.fnmatch_lines([told])


def test_an_older_torch_stops_nobody_who_asks_for_no_watch(project: Project) -> None:  # noqa: F811
    metadata_of("torch", project, "1.13.1")
    project.run(HEALTHY, load=False).assert_outcomes(passed=1)


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


def test_the_page_has_a_line_for_each_combination(root) -> None:
    lines = (root / "docs" / "matrix.md").read_text().splitlines()
    assert sum(line.startswith("| ") and line[2].isdigit() for line in lines) == len(COMBINATIONS)


def test_what_cannot_be_had_is_said_to_be_untried(monkeypatch) -> None:
    def missing(asked: Combination, *, cpu_builds: bool) -> str:
        raise Unavailable("no Python 3.99 here")

    monkeypatch.setattr(matrix, "_environment", missing)
    row = matrix.tried(Combination("3.99", "2.11", "7.4"))
    assert row == Row("3.99", "2.11", "7.4", "not tried: no Python 3.99 here")
    assert "| 3.99 | 2.11 | 7.4 | not tried: no Python 3.99 here |" in matrix.page([row])


@pytest.mark.parametrize(("cpu_builds", "others"), [(True, []), (False, ["torch==2.11.*"])])
def test_no_other_than_a_cpu_build_is_asked_for_where_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch, cpu_builds: bool, others: list[str]
) -> None:
    wanted: list[str] = []

    def pip(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        wanted.append(arguments[-1])
        return subprocess.CompletedProcess([], 1)

    monkeypatch.setattr(matrix, "_pip", pip)
    assert not matrix._install_torch("python3.11", "2.11", cpu_builds=cpu_builds)
    assert wanted == ["torch==2.11.0+cpu", *others]


def test_a_python_that_is_not_here_is_named() -> None:
    with pytest.raises(Unavailable, match=r"no Python 3\.99 here"):
        matrix.interpreter("3.99")
