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


def test_prove_without_pytest_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delitem(sys.modules, "fmcheck.prove.probe", raising=False)
    assert main(["prove", "mine", "--", "pytest"]) == 2
    assert capsys.readouterr().err == (
        "fmcheck: prove: trials need pytest: pip install 'fmcheck[pytest]'\n"
    )
