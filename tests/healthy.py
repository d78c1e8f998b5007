"""`python -m tests.healthy`: healthy programs that no check was written with, under a watch.

`fixtures/healthy/README.md` has the rule by which they were chosen and written, blind. `measure`
runs each that has no record yet, in a process of its own, and writes the record: the first
measurement of a program is the only one that is kept. `now` says what the checks report today,
`table` what they did at first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec

from fmcheck.strict import convert, read_toml
from tests.unseen import Told, commit_of_checks, here, told

CASES = Path(__file__).resolve().parent.parent / "fixtures" / "healthy"
RECORD = Path(__file__).parent / "data" / "healthy.json"


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a writer says of a program: the public source, what it does, what is not as there.

    `fault` says what is wrong with it after all, as found after the measurement.
    """

    source: str
    title: str
    note: str = ""
    fault: str = ""


class First(msgspec.Struct, frozen=True):
    """The first measurement of a program, with the commit of the checks that made it."""

    commit: str
    told: Told


def names() -> list[str]:
    """Returns the names of all programs."""
    return sorted(one.parent.name for one in CASES.glob("*/case.toml"))


def program(name: str) -> Program:
    """Reads what is said of a program.

    Raises:
        UsageError: if its file is not as it should be.
    """
    path = CASES / name / "case.toml"
    return convert(read_toml(path), Program, str(path))


def records() -> dict[str, First]:
    """Reads the first measurements, by program."""
    if not RECORD.exists():
        return {}
    return msgspec.json.decode(RECORD.read_bytes(), type=dict[str, First])


def _measure() -> None:
    known, commit = records(), commit_of_checks(CASES)
    for name in names():
        if name not in known:
            known[name] = First(commit, told(name, "good", "tests.healthy"))
            _print(name, known[name].told)
    text = json.dumps(msgspec.to_builtins(known), indent=1, sort_keys=True)
    RECORD.write_text(text + "\n", encoding="utf-8")
    _total([one.told for one in known.values()])


def _print(name: str, one: Told) -> None:
    print(f"{name:34}{'silent' if not one.findings else 'reported'}", flush=True)
    for found in one.findings:
        print(f"    {found.code} lines {list(found.lines)}: {found.what}")
    for problem in (*one.problems, one.stopped):
        if problem:
            print(f"    problem: {problem}")


def _total(measured: list[Told]) -> None:
    print(f"{sum(bool(one.findings) for one in measured)} of {len(measured)} reported")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.healthy")
    parser.add_argument("command", choices=("measure", "now", "table", "one"))
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.command == "one":
        print(f"\n{msgspec.json.encode(here(*given.names, CASES)).decode()}")
    elif given.command == "measure":
        _measure()
    else:
        measured = {}
        for name in given.names or names():
            is_now = given.command == "now"
            measured[name] = told(name, "good", "tests.healthy") if is_now else records()[name].told
            _print(name, measured[name])
        _total(list(measured.values()))


if __name__ == "__main__":
    main()
