"""What is shipped: the wheel and the editable install, in fresh environments, from elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import pytest

import fmcheck
from fmcheck.processes.child.run_context import RunContext
from tests.environments import Environment, build_wheel, copy_checkout

STRAY_EVENT = "import torch\nm = torch.get_device_module()\ne = torch.cuda.Event()\n"

GENERIC_NAMES = ("rules", "plugin", "tests", "fixtures", "engine")


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_checkout(root, folder / "source"), folder)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder that is not the checkout, with a file to lint."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "relay.py").write_text(STRAY_EVENT)
    return folder


@pytest.fixture(scope="module")
def lint_only(wheel, tmp_path_factory, elsewhere):
    """An environment with `pip install fmcheck` and no extra."""
    environment = Environment.make(tmp_path_factory.mktemp("lint-only"))
    environment.install(str(wheel), cwd=elsewhere)
    return environment


def test_wheel_holds_one_importable_name_and_all_its_parts(wheel):
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"fmcheck"}
    for name in ("fmcheck-reach.pth", "fmcheck-reach.start"):
        assert [one for one in names if one.endswith(name)] == [name]
    for part in (
        "py.typed",
        "plugin.py",
        "rules/fm301_cuda_api.py",
        "contracts/sglang.toml",
        "contracts/vllm.toml",
        "report/run-1.schema.json",
        "report/run/page/run.css",
        "report/run/page/run.html.j2",
        "report/run/page/run.js",
    ):
        assert f"fmcheck/{part}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_holds_every_package_of_the_checkout(root, wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(root).as_posix() for path in (root / "fmcheck").rglob("*.py")}
    rules = {f"fmcheck/rules/{path.name}" for path in (root / "rules").glob("*.py")}

    assert modules | rules <= names


@pytest.mark.sweep
def test_a_release_is_built_and_passes_the_checks_of_its_index(root, wheel, tmp_path):
    """As .github/workflows/release.yml does it: the wheel is built from the sdist."""
    source, made = copy_checkout(root, tmp_path / "source"), tmp_path / "dist"
    ran("build", "--outdir", str(made), str(source))
    (built,), (sdist,) = made.glob("*.whl"), made.glob("*.tar.gz")

    ran("twine", "check", "--strict", str(built), str(sdist))
    ran("check_wheel_contents", "--config", str(root / "pyproject.toml"), str(built))
    assert sdist.name == f"fmcheck-{fmcheck.__version__}.tar.gz"
    assert sorted(zipfile.ZipFile(built).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def ran(module, *arguments):
    """Runs a tool of this environment; AssertionError with its output if it ends with an error."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{module} failed:\n{done.stdout}{done.stderr}"


def test_linter_runs_from_elsewhere_without_torch_and_pytest(lint_only, elsewhere):
    done = lint_only.run("fmcheck", "lint", "relay.py", cwd=elsewhere)

    assert done.returncode == 1, done.stderr
    assert "warning[FM301]" in done.stdout
    assert not lint_only.finds("torch", elsewhere)
    assert not lint_only.finds("pytest", elsewhere)


def is_reached(environment, folder, monkeypatch):
    """Tells whether a plain start of the environment's Python comes to a run's folder."""
    folder.mkdir()
    packet = RunContext(str(folder), "board", 0, "fail", "off", 0, [], "")
    monkeypatch.setenv("FMCHECK_RUN", packet.pack())
    done = environment.run("python", "-I", "-c", "pass", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return [path.name.partition("-")[0] for path in folder.iterdir()] == ["starts"]


def test_the_wheel_reaches_each_python_of_a_run(lint_only, tmp_path, monkeypatch):
    assert is_reached(lint_only, tmp_path / "run", monkeypatch)


def test_the_wheel_is_found_by_sglang(lint_only, tmp_path):
    code = (
        "from importlib.metadata import entry_points\n"
        "(point,) = entry_points(group='sglang.srt.plugins', name='fmcheck')\n"
        "print(point.load().__module__)"
    )
    done = lint_only.run("python", "-c", code, cwd=tmp_path)
    assert done.stdout == "fmcheck.processes.sglang\n", done.stderr


def test_no_generic_name_is_importable(lint_only, elsewhere):
    assert [name for name in GENERIC_NAMES if lint_only.finds(name, elsewhere)] == []
    assert lint_only.finds("fmcheck.rules", elsewhere)
    assert lint_only.finds("fmcheck.plugin", elsewhere)


@pytest.mark.sweep
def test_editable_install_gives_the_same_names(root, tmp_path, elsewhere, monkeypatch):
    source = copy_checkout(root, tmp_path / "source")
    environment = Environment.make(tmp_path / "env")
    environment.install("-e", str(source), cwd=elsewhere)

    assert environment.run("fmcheck", "lint", "relay.py", cwd=elsewhere).returncode == 1
    assert [name for name in GENERIC_NAMES if environment.finds(name, elsewhere)] == []
    assert environment.finds("fmcheck.plugin", elsewhere)
    assert is_reached(environment, tmp_path / "run", monkeypatch)


ACME = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "acme-engine"
version = "1.0"

[project.entry-points.fmcheck]
acme = "acme.hooks"

[tool.setuptools]
packages = ["acme"]

[tool.setuptools.package-data]
acme = ["acme.toml"]
""",
    "acme/__init__.py": "",
    "acme/acme.toml": """\
[engine]
name = "acme"

[device]
device_modules = ["acme_device"]
""",
    "acme/hooks.py": '''\
from pathlib import Path

from fmcheck.hookspecs import hookimpl
from fmcheck.lint import Example, FunctionRule, Severity


class NoSleep(FunctionRule):
    """No sleeping in the scheduler."""

    code = "ACME001"
    name = "no-sleep"
    severity = Severity.ERROR
    words = (("sleep",),)
    seen_in = ()
    bad = (Example("sleep()\\n", at=((1, 1),)),)
    good = (Example("x = 1\\n"),)

    def check(self, part):
        for node in part.nodes():
            if getattr(node, "value", None) == "sleep":
                yield part.finding(self, node, "sleeps", help="wait on an event")


@hookimpl
def fmcheck_rules():
    return [NoSleep]


@hookimpl
def fmcheck_contracts():
    return {"acme": Path(__file__).parent / "acme.toml"}
''',
}


def test_an_installed_package_adds_its_rule_and_contract(lint_only, tmp_path):
    project = tmp_path / "acme-engine"
    for name, text in ACME.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "scheduler.py").write_text(
        "import acme\nimport torch\nm = acme_device()\ne = torch.cuda.Event()\nsleep()\n"
    )
    lint_only.install(str(project), cwd=tmp_path)

    done = lint_only.run("fmcheck", "lint", "scheduler.py", cwd=tmp_path)

    assert "error[ACME001]: sleeps" in done.stdout, done.stderr
    assert "warning[FM301]" in done.stdout  # acme_device is a device module by its contract
    assert "ACME001" in lint_only.run("fmcheck", "rules", cwd=tmp_path).stdout


@pytest.fixture(scope="module")
def with_pytest(wheel, tmp_path_factory, elsewhere):
    """An environment with `pip install fmcheck[pytest]`, and no torch yet."""
    environment = Environment.make(tmp_path_factory.mktemp("with-pytest"))
    environment.install(f"{wheel}[pytest]", cwd=elsewhere)
    return environment


def test_plugin_without_torch_runs_a_suite_and_says_what_it_checked(with_pytest, tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")

    done = with_pytest.run("pytest", "-p", "fmcheck", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "no contract applied: nothing that a contract declares was checked" in done.stdout
    assert not with_pytest.finds("torch", tmp_path)


def test_plugin_from_the_wheel_finds_the_demo_faults(root, with_pytest, tmp_path):
    shutil.copytree(root / "fixtures", tmp_path / "fixtures")
    with_pytest.link("torch")

    done = with_pytest.run("pytest", "-p", "fmcheck", "fixtures/engine", cwd=tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "FR101 read-before-write" in done.stdout
    assert "FR102 double-read" in done.stdout
