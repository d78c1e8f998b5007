"""Fixtures that many tests share."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path

import pytest

from fmcheck.cli import main

pytest_plugins = ("pytester",)

ROOT = Path(__file__).resolve().parent.parent

# A shell that runs the tests in the background has all that they start ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that others run, in environments of their own.
collect_ignore = ["data"]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout that these tests stand in."""
    return ROOT


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
