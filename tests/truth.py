"""The truth: lines of released sglang wheels that a rule must flag, or must leave alone.

`python -m tests.truth` prints what was expected of each line and what was given. Exit status 1 if
fewer than 95 % of the lines to flag are, or more than 3 % of the clean ones.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.config import find_settings
from fmcheck.lint.engine import lint_file
from fmcheck.registry import contracts_for, rules
from tests.corpus import wheel_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.rule import Rule

DATA = Path(__file__).parent / "data" / "lint_truth.json"
#: The rule of this project that answers for a kind of truth.
CODES = {
    "padding-zero": "FM201",
    "graphslot-policy": "FM203",
    "cuda-event": "FM301",
    "relay-gather-unchecked": "FM101",
    "relay-ring": "FM104",
    "multi-gather": "FM501",
    "hidden-sync": "FM502",
    "guard-coverage": "FM403",
    "negative-sentinel-index": "FM207",
}
#: Kinds that no rule answers for, and why. Their lines to flag count as missed.
WITHOUT_RULE = {
    "triton-pad-store": "what a Triton kernel stores under its mask is no Python that a rule reads",
}
LEAST_FLAGGED, MOST_CLEAN = 0.95, 0.03


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a wheel and what is expected of it."""

    package: str
    version: str
    file: str
    line: int
    code: str
    is_flagged: bool
    why: str

    def __str__(self) -> str:
        return f"{self.package} {self.version} {self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was given for a line: "flag", "clean", or "rule not there"."""

    line: Line
    given: str

    @property
    def is_right(self) -> bool:
        """Tells whether it is what was expected; no rule flags nothing."""
        return (self.given == "flag") is self.line.is_flagged


def lines() -> list[Line]:
    """Returns all lines, in the order of the file; a kind without a rule stands for its code."""
    return [
        Line(
            one["package"],
            one["version"],
            one["file"],
            one["line"],
            CODES.get(one["rule"], one["rule"]),
            one["expected"] == "flag",
            one["why"],
        )
        for one in json.loads(DATA.read_text(encoding="utf-8"))
    ]


def verdicts(expected: Sequence[Line]) -> Iterator[Verdict]:
    """Yields what the rules give for each line, in order; each file is linted once."""
    present = {code: kind(_contracts()) for code, kind in rules().items()}
    by_file: dict[Path, dict[str, list[Finding]]] = {}
    for line in expected:
        rule = present.get(line.code)
        if rule is None:
            yield Verdict(line, "rule not there")
            continue
        path = wheel_source(line.package, line.version) / line.file
        if path not in by_file:
            by_file[path] = _findings(path, list(present.values()))
        spans = [one.span for one in by_file[path][line.code]]
        given = any(span.line <= line.line <= span.end_line for span in spans)
        yield Verdict(line, "flag" if given else "clean")


@cache
def _contracts() -> tuple[Contract, ...]:
    return contracts_for(find_settings(DATA))


def _findings(path: Path, with_rules: Sequence[Rule]) -> dict[str, list[Finding]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: named by {DATA.name}, and not in the wheel")
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in lint_file(path, with_rules):
        found[finding.code].append(finding)
    return found


def shares(given: Sequence[Verdict]) -> tuple[float, float]:
    """Returns the shares of lines to flag that are flagged, and of clean ones that are."""
    wanted = [one.given == "flag" for one in given if one.line.is_flagged]
    clean = [one.given == "flag" for one in given if not one.line.is_flagged]
    return _share(wanted, 1.0), _share(clean, 0.0)


def _share(held: Sequence[bool], of_none: float) -> float:
    return sum(held) / len(held) if held else of_none


def main() -> int:
    """Prints the table, the totals and the misses."""
    expected = lines()
    given = []
    for number, verdict in enumerate(verdicts(expected), 1):
        given.append(verdict)
        if sys.stderr.isatty():
            print(f"\r{number} of {len(expected)} lines", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    width = max(len(str(one.line)) for one in given)
    for one in given:
        wish = "flag" if one.line.is_flagged else "clean"
        mark = "" if one.is_right else "  MISS"
        print(f"{one.line.code}  {one.line!s:{width}}  {wish:5}  {one.given}{mark}")
    return _totals(given)


def _totals(given: Sequence[Verdict]) -> int:
    print()
    for code in (*sorted(set(CODES.values())), *WITHOUT_RULE, "all"):
        part = [one for one in given if code in (one.line.code, "all")]
        flagged, clean = shares(part)
        wanted = sum(one.line.is_flagged for one in part)
        print(
            f"{code}: {flagged:.0%} of {wanted} lines to flag are given, "
            f"{clean:.0%} of {len(part) - wanted} clean lines"
        )
    for one in given:
        if not one.is_right:
            why = WITHOUT_RULE.get(one.line.code, one.line.why)
            print(f"missed: {one.line.code} {one.line}: {why} (given: {one.given})")
    flagged, clean = shares(given)
    return int(flagged < LEAST_FLAGGED or clean > MOST_CLEAN)


if __name__ == "__main__":
    sys.exit(main())
