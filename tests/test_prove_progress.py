"""Progress of `fmcheck prove` where standard error is no terminal: a few plain lines."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from fmcheck.cli import main
from fmcheck.cli.prove import MOST_LINES, _Progress


def test_a_pipe_gets_plain_lines_and_not_one_for_each_mutant(capsys):
    progress = _Progress()
    for done in range(1, 201):
        progress.tried(done, 200, SimpleNamespace(id="x"), SimpleNamespace(caught=done > 2))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MOST_LINES
    assert lines[-1] == "fmcheck prove: 200 of 200 tried, 2 survived"
    assert not any("\x1b" in line or "\r" in line for line in lines)


def test_progress_estimates_the_time_left(capsys):
    times = iter([0.0, 30.0, 30.0, 150.0])
    progress = _Progress(lambda: next(times))
    for done in (1, 2, 3):
        progress.tried(done, 6, SimpleNamespace(id="x"), SimpleNamespace(caught=True))
    assert capsys.readouterr().err.splitlines() == [
        "fmcheck prove: 1 of 6 tried, 0 survived, about 2 min left",
        "fmcheck prove: 2 of 6 tried, 0 survived, about 60 s left",
        "fmcheck prove: 3 of 6 tried, 0 survived, about 2 min left",
    ]


def test_prove_without_pytest_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delitem(sys.modules, "fmcheck.prove.probe", raising=False)
    assert main(["prove", "mine", "--", "pytest"]) == 2
    assert capsys.readouterr().err == (
        "fmcheck: prove: trials need pytest: pip install 'fmcheck[pytest]'\n"
    )
