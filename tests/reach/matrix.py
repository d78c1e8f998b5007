"""The matrix: each way to start a child against each way that it ends.

In every cell a child finds a violation and ends. It must be reported in the test that started
the child, once, and not in the next test.
"""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.reach.project import Project

WAYS = ("popen", "popen -E", "popen -I", "exec", "spawn", "forkserver", "fork", "os.fork")
ENDS = ("returns", "raises", "os._exit", "SIGTERM", "SIGKILL", "segfault")

CHILD = """
    import ctypes, os, signal, sys

    def run(end):
        import toy_engine

        toy_engine.stale()
        if end == "raises":
            raise ValueError("as meant")
        if end == "os._exit":
            os._exit(3)
        if end.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, end))
        if end == "segfault":
            ctypes.string_at(0)

    if __name__ == "__main__":
        *way, end = sys.argv[1:]
        if way:
            os.execv(sys.executable, [sys.executable, __file__, end])
        run(end)
"""
TESTS = """
    import multiprocessing, os, subprocess, sys, traceback
    import pytest, child

    CELLS = {cells!r}

    def start(way, end):
        if way in ("spawn", "fork", "forkserver"):
            process = multiprocessing.get_context(way).Process(target=child.run, args=(end,))
            process.start()
            process.join()
        elif way == "os.fork":
            pid = os.fork()
            if not pid:
                try:
                    child.run(end)
                    os._exit(0)
                finally:
                    os._exit(1)
            os.waitpid(pid, 0)
        else:
            options = way.split()[1:]
            here = os.path.dirname(os.path.abspath(child.__file__))
            code = f"import sys; sys.path.append({{here!r}}); import child; child.run({{end!r}})"
            command = ["child.py", "exec", end] if way == "exec" else ["-c", code]
            subprocess.run([sys.executable, *options, *command])

    @pytest.mark.parametrize(("way", "end"), CELLS)
    def test_child(way, end):
        start(way, end)

    @pytest.mark.parametrize(("way", "end"), CELLS[-1:])
    def test_nothing(way, end):
        pass
"""


class Cell(NamedTuple):
    """What came of one way to start and to end: "" if all was as it should be."""

    way: str
    end: str
    wrong: str


def run(project: Project, cells: Iterable[tuple[str, str]], *arguments: str) -> list[Cell]:
    """Runs the cells in one pytest session and judges each.

    Raises:
        AssertionError: if the session went wrong as a whole.
    """
    cells = list(cells)
    project.write("child.py", CHILD)
    project.write("test_cells.py", TESTS.format(cells=cells))
    done = project.pytest("-p", "fmcheck", "--junitxml=cells.xml", "--tb=short", *arguments)
    assert "test session starts" in done.stdout, done.stdout + done.stderr
    cases = ElementTree.parse(project.folder / "cells.xml").findall(".//testcase")
    named = {case.get("name", ""): case for case in cases}
    judged = [Cell(way, end, _wrong(named, f"test_child[{way}-{end}]")) for way, end in cells]
    for name, case in named.items():
        if name.startswith("test_nothing"):
            assert case.find("failure") is None, ElementTree.tostring(case, "unicode")
    checked = re.search(r"(\d+) buffers?, .* checked in (\d+) process(?:es)?; (.*)", done.stdout)
    assert checked, done.stdout
    assert checked[1] == checked[2] == str(len(cells)), checked[0]
    in_tests = f" in {len(cells)} tests" if len(cells) > 1 else ""
    assert checked[3] == f"1 violation{in_tests}", checked[0]
    for end, reported in (("SIGTERM", "killed by SIGTERM"), ("segfault", "killed by SIGSEGV")):
        if any(cell[1] == end for cell in cells):
            assert reported in done.stdout, done.stdout
    assert "nobody saw how" not in done.stdout, done.stdout
    return judged


def _wrong(cases: dict[str, ElementTree.Element], name: str) -> str:
    case = cases.get(name)
    if case is None:
        return "the test did not run"
    failure = case.find("failure")
    if failure is None:
        return "lost: the test passed"
    text = failure.text or ""
    if text.count("FMCHECK: FR102") != 1:
        return f"reported {text.count('FMCHECK: FR102')} times"
    return "" if f"test_cells.py::{name}" in text else "reported in another test"


def everything() -> list[tuple[str, str]]:
    """Returns all cells."""
    return list(itertools.product(WAYS, ENDS))


def table(judged: Iterable[Cell]) -> str:
    """Returns the cells as a table."""
    found = {(way, end): wrong for way, end, wrong in judged}
    lines = [f"{'':10}" + "".join(f"{end:>10}" for end in ENDS)]
    for way in WAYS:
        row = [found.get((way, end), "-") for end in ENDS]
        lines.append(f"{way:10}" + "".join(f"{one or 'ok':>10.9}" for one in row))
    return "\n".join(lines)
