"""The pytest plugin within a trial: says which tests failed and why, and whose modules they ran.

Loaded by `fmcheck prove` with `-p fmcheck.prove.probe`; without its variable it does nothing.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import FrameType

#: Names a folder: `wanted.json` lies there, and the answers of all processes go there.
VARIABLE = "FMCHECK_PROVE"
#: Asks for the lines that each test runs, which takes its time.
LINES_VARIABLE = "FMCHECK_PROVE_LINES"
WANTED = "wanted.json"
#: The tests to run, if not all.
CHOSEN = "chosen.json"
RESULTS = "result-*.json"
# pytest-xdist says first which worker it was.
_WORKER = re.compile(r"\[gw\d+\] ")
_HEADLINE = re.compile(r"^FMCHECK: (\w+)")


def pytest_configure(config: pytest.Config) -> None:
    """Starts listening."""
    folder = os.environ.get(VARIABLE)
    if folder:
        config.pluginmanager.register(_Probe(config, Path(folder)), "fmcheck-prove")


class _Probe:
    """What one process of pytest saw."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.failures: list[dict[str, Any]] = []
        self.tests = 0
        wanted = json.loads((folder / WANTED).read_text(encoding="utf-8"))
        self.originals = {os.path.realpath(copy): original for copy, original in wanted}
        # By file and line, the tests that ran it; "" is whatever is no test, an import say.
        self.lines: dict[str, dict[int, set[str]]] = {original: {} for _, original in wanted}
        self.places: dict[str, str | None] = {}
        self.test = ""
        if os.environ.get(LINES_VARIABLE):
            threading.settrace(self._enter)
            sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        """Traces the functions of wanted files, and no others."""
        name = frame.f_code.co_filename
        if name not in self.places:  # spelled as the import path was, with `..` in it perhaps
            self.places[name] = self.originals.get(os.path.realpath(name))
        original = self.places[name]
        if original is None:
            return None
        lines = self.lines[original]

        def line(frame: FrameType, event: str, arg: object) -> Any:
            lines.setdefault(frame.f_lineno, set()).add(self.test)
            return line

        return line(frame, event, arg)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leaves out the tests that were not chosen."""
        path = self.folder / CHOSEN
        if path.exists():
            chosen = set(json.loads(path.read_text(encoding="utf-8")))
            items[:] = [item for item in items if item.nodeid in chosen]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes which test begins."""
        self.test = nodeid

    def pytest_runtest_logfinish(self) -> None:
        """Notes that a test is over."""
        self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a phase of a test."""
        self.tests += report.when == "call"
        if report.failed:
            self._note(report.nodeid, report.longreprtext, report.user_properties)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a module that could not be imported."""
        if report.failed:
            self._note(report.nodeid, report.longreprtext, [])

    def _note(self, test: str, text: str, properties: list[tuple[str, object]]) -> None:
        printed = [str(value) for name, value in properties if name == "fmcheck"]
        codes = [found[1] for one in printed if (found := _HEADLINE.match(one))]
        own = own_words(text)
        self.failures.append({"test": test, "codes": list(dict.fromkeys(codes)), "own": own})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes down what was seen."""
        watch = self.config.pluginmanager.get_plugin("fmcheck-session")
        result = {
            "is_worker": hasattr(self.config, "workerinput"),
            "watched": watch is not None,
            "status": int(session.exitstatus),
            "tests": self.tests,
            "failures": self.failures,
            "outside": [one.code for one in getattr(watch, "outside", ())],
            "modules": self._modules(),
            "lines": {
                file: {line: sorted(tests) for line, tests in lines.items()}
                for file, lines in self.lines.items()
                if lines
            },
        }
        if watch is not None and not result["is_worker"]:
            result["problems"] = list(watch.coordinator.run().problems)
        path = self.folder / f"result-{os.getpid()}.json"
        path.write_text(json.dumps(result), encoding="utf-8")

    def _modules(self) -> dict[str, str]:
        """Returns the wanted files that are imported, each as `copy` or `original`."""
        places = {copy: (original, "copy") for copy, original in self.originals.items()}
        for original in self.originals.values():
            places[os.path.realpath(original)] = (original, "original")
        found: dict[str, str] = {}
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            place = places.get(os.path.realpath(file)) if isinstance(file, str) else None
            if place is not None and found.get(place[0]) != "original":
                found[place[0]] = place[1]
        return found


def own_words(text: str) -> str:
    """Returns what a failed test says itself: the error in its traceback, or its last line.

    What fmcheck fails has its report for a text, and nothing of the test's own: then "".
    """
    lines = [line for line in text.splitlines() if line.strip() and not _WORKER.match(line)]
    if lines and lines[0].startswith("FMCHECK: "):
        return ""
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return (errors or lines[-1:] or ["failed"])[0].strip()[:200]
