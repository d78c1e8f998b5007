"""Which tests run which lines of a healthy engine, so that a trial need not run the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.prove import probe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fmcheck.prove.trial import Suite
    from fmcheck.prove.working_copy import WorkingCopy

# What is compiled runs out of a tracer's sight.
_TRACED = {probe.LINES_VARIABLE: "1", "TORCHDYNAMO_DISABLE": "1"}


class Reach:
    """The tests that reach each line, by file; "" is what is no test, as an import."""

    def __init__(self, lines: Mapping[str, Mapping[int, set[str]]]) -> None:
        self._lines = lines

    @classmethod
    def traced(cls, tests: Suite, scratch: WorkingCopy) -> Reach | None:
        """Runs all tests and notes their lines; None if they do not pass when they are traced."""
        raw = tests.run(scratch, None, more=_TRACED)
        if raw.status or not raw.head or raw.head["status"]:
            return None
        found: dict[str, dict[int, set[str]]] = {}
        for one in raw.results:
            for file, lines in one["lines"].items():
                known = found.setdefault(file, {})
                for line, by in lines.items():
                    known.setdefault(int(line), set()).update(by)
        return cls(found)

    def tests_of(self, file: Path, lines: Iterable[int]) -> tuple[str, ...] | None:
        """Returns the tests that run any of these lines; None if it may be any test."""
        known = self._lines.get(str(file), {})
        found = {test for line in lines for test in known.get(line, ())}
        return None if "" in found else tuple(sorted(found))
