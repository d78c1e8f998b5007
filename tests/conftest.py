"""Fixtures that many tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fmcheck.cli import main
from tests import markers, zygote

pytest_plugins = ("pytester",)

ROOT = Path(__file__).resolve().parent.parent

# A shell that runs the tests in the background has all that they start ignore interrupts and quits.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (getattr(signal, "SIGQUIT", None), signal.SIG_DFL),
):
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(number, handler)

# Whoever forbids compiled files makes each process that a test starts compile fmcheck: 1.1 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

HAS_CACHE_OF_COMPILED = "TORCHINDUCTOR_CACHE_DIR" in os.environ

# Tests that others run, in environments of their own.
collect_ignore = ["data"]


def pytest_configure(config):
    for name, what in {**markers.KINDS, **markers.BESIDE}.items():
        config.addinivalue_line("markers", f"{name}: {what}")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config, items):
    data = ROOT / "tests" / "data"  # what is there, other tests run
    markers.mark(item for item in items if data not in item.path.parents)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: markers.turn(item.nodeid))


def pytest_collection_finish():
    _set_aside()


def pytest_runtest_teardown(item, nextitem):
    # torch puts it there when it compiles, and whoever has it is given no fork.
    if not HAS_CACHE_OF_COMPILED:
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    if nextitem is not None and nextitem.path != item.path:
        _set_aside()


def _set_aside():
    """Has the garbage collector look no more at what is there already.

    fmcheck names what it reports by `gc.get_referrers`, which looks at all objects of a process:
    at eight thousand tests, and at what earlier files left. A table that took 43 s takes 16 s.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests that share what took long run in one process, whatever `--dist` says.

    The longest are begun first, and not the most.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class ByScope(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return markers.scope(nodeid)

    return ByScope(config, log)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout that these tests stand in."""
    return ROOT


@pytest.fixture
def pytester(pytester, request, monkeypatch):
    """pytest's own, whose inner runs are forks of the zygote; not in a test marked `fresh`."""
    fresh = request.node.get_closest_marker("fresh") is not None
    start = pytester.popen

    def popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options):
        path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "PYTHONPATH": path}  # as pytester's own
        closed = options.get("stdin", pytester.CLOSE_STDIN) is pytester.CLOSE_STDIN
        files = not isinstance(stdout, int) and not isinstance(stderr, int)
        if fresh or not (closed and files) or zygote.why_not(command, environment):
            return start(command, stdout, stderr, **options)
        with open(os.devnull) as nothing:
            descriptors = (nothing.fileno(), stdout.fileno(), stderr.fileno())
            return zygote.the_zygote().start(command, environment, os.getcwd(), descriptors)

    monkeypatch.setattr(pytester, "popen", popen)
    return pytester


@pytest.fixture(scope="session", autouse=True)
def _no_zygote_is_left():
    yield
    zygote.close()


@pytest.fixture
def lint(tmp_path, monkeypatch, capsys):
    """Runs `fmcheck lint` in an empty folder; returns exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FMCHECK_CACHE_DIR", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["lint", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def git(tmp_path, monkeypatch):
    """Makes the folder a git repository, whatever the user's settings; runs git in it."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")

    def run(*arguments: str) -> str:
        names = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        done = subprocess.run(
            ["git", *names, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    run("init", "--quiet", "--initial-branch=main", ".")
    return run
