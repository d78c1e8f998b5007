"""Part: `tests/test_cuda.py`, whose tests need a GPU: none may fail, and none be skipped."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tests.gpu.facts import Fact, exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
TESTS = ROOT / "tests" / "test_cuda.py"


def run(device: str) -> Iterator[Fact]:
    """Runs the tests; they ask torch itself for the device."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(TESTS), "-rA", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(
            [*command, f"--junitxml={report}"], cwd=ROOT, env=environment, check=False
        )
        if not report.exists():
            yield exactly("exit status of pytest", done.returncode, 0)
            return
        yield from facts(ElementTree.parse(report).getroot())
        yield exactly("exit status of pytest", done.returncode, 0)


def facts(report: ElementTree.Element) -> Iterator[Fact]:
    """Yields what a JUnit report says: a fact for each test that did not pass, and the sums."""
    cases = list(report.iter("testcase"))
    failed = [one for one in cases if _has(one, "failure") or _has(one, "error")]
    skipped = [one for one in cases if _has(one, "skipped")]
    for case in failed:
        yield Fact(str(case.get("name")), "failed", "", "passed", False)
    passed = len(cases) - len(failed) - len(skipped)
    yield Fact("passed", passed, "tests", "at least 1", passed > 0)
    yield exactly("failed", len(failed), 0, "tests")
    yield exactly("skipped", len(skipped), 0, "tests")


def _has(case: ElementTree.Element, what: str) -> bool:
    return case.find(what) is not None
