"""`python -m tests.unseen`: historic faults that no check was written for, under a watch.

`fixtures/unseen/README.md` has the rule by which they were chosen and written, blind. `measure`
runs each that has no record yet, both forms, each in a process of its own, and writes the record:
the first measurement of a case is the only one that is kept. `now` runs all of them and prints what
the checks say today. `table` prints the first measurement, and `show CASE` what was reported.

A fault is *seen* if an access of a finding lies on a line of `bad_run.py` that is marked `# fault`,
and nothing is reported of `good_run.py`. What names a function as a whole, by the line of its
`def`, counts for every line of it: that is how a graph input's fill is reported.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fmcheck.strict import convert, read_toml
from tests.museum_runs import run_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.finding import Access, Violation

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "fixtures" / "unseen"
RECORD = Path(__file__).parent / "data" / "unseen.json"
FORMS = ("bad", "good")
WATCHED = ("fmcheck", "plugin.py")
LIMIT = 300  # seconds for one form


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """What a writer says of a case: the public thread, what goes wrong, its class and its round."""

    thread: str
    title: str
    class_: str
    round: int = 1


class Finding(msgspec.Struct, frozen=True):
    """A finding: its code, the lines of the program that it names, its own first, and of what."""

    code: str
    lines: tuple[int, ...]
    what: str


class Told(msgspec.Struct, frozen=True):
    """What a watch told of one form; `stopped` is the error that ended the program."""

    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    stopped: str = ""


class Measured(msgspec.Struct, frozen=True):
    """The first measurement of a case, with the commit of the checks that made it."""

    commit: str
    bad: Told
    good: Told


def names() -> list[str]:
    """Returns the names of all cases."""
    return sorted(one.parent.name for one in CASES.glob("*/case.toml"))


def case(name: str) -> Case:
    """Reads a case.

    Raises:
        UsageError: if its file is not as it should be.
    """
    path = CASES / name / "case.toml"
    return convert(read_toml(path), Case, str(path))


def marked(name: str) -> set[int]:
    """Returns the lines of the bad form that a good report would name."""
    source = (CASES / name / "bad_run.py").read_text(encoding="utf-8")
    return {number for number, line in enumerate(source.splitlines(), 1) if "# fault" in line}


def is_seen(name: str, measured: Measured) -> bool:
    """Tells whether the bad form is reported on a marked line, and the good form not at all."""
    whole = _functions(name)
    lines = {line for one in measured.bad.findings for line in one.lines}
    lines |= {inside for line in lines for inside in whole.get(line, ())}
    return bool(lines & marked(name)) and not measured.good.findings


def _functions(name: str) -> dict[int, range]:
    """Returns the lines of each function of the bad form, by the line of its `def`."""
    tree = ast.parse((CASES / name / "bad_run.py").read_text(encoding="utf-8"))
    return {
        one.lineno: range(one.lineno, (one.end_lineno or one.lineno) + 1)
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef)
    }


def told(name: str, form: str, module: str = "tests.unseen") -> Told:
    """Runs one form in a process of its own; `module` knows where it is.

    Raises:
        RuntimeError: if that process says nothing.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, "one", name, form],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode:
        raise RuntimeError(f"{name}, {form}: status {done.returncode}\n{done.stderr}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Told)


def records() -> dict[str, Measured]:
    """Reads the first measurements, by case."""
    if not RECORD.exists():
        return {}
    return msgspec.json.decode(RECORD.read_bytes(), type=dict[str, Measured])


def here(name: str, form: str, cases: Path = CASES) -> Told:
    """Runs one form in this process."""
    path = cases / name / f"{form}_run.py"
    run = run_file(path, cases / name / "watch.toml")
    findings = tuple(
        Finding(one.code, tuple(_lines(path, one)), f"{one.name}, {one.buffer}")
        for one in run.violations
    )
    return Told(findings, run.problems, repr(run.stopped) if run.stopped else "")


def _lines(path: Path, violation: Violation) -> list[int]:
    accesses: list[Access | None] = [violation.access, violation.last_write, violation.last_read]
    return [one.site.line for one in accesses if one is not None and one.site.path == str(path)]


def commit_of_checks(cases: Path) -> str:
    """Returns the commit of the checks and of the cases.

    Raises:
        SystemExit: if they have changes that are not committed.
    """
    changed = _git("status", "--porcelain", "--", *WATCHED, str(cases))
    if changed:
        raise SystemExit(f"not committed, so nothing is measured:\n{changed}")
    return _git("rev-parse", "--short=10", "HEAD").strip()


def _measure(wanted: Sequence[str]) -> None:
    known, commit = records(), commit_of_checks(CASES)
    for name in wanted or names():
        if name not in known:
            known[name] = Measured(commit, *(told(name, form) for form in FORMS))
            _print(name, known[name])
    text = json.dumps(msgspec.to_builtins(known), indent=1, sort_keys=True)
    RECORD.write_text(text + "\n", encoding="utf-8")
    _total(known)


def _now(wanted: Sequence[str]) -> None:
    measured = {}
    for name in wanted or names():
        measured[name] = Measured("", *(told(name, form) for form in FORMS))
        _print(name, measured[name])
    _total(measured)


def _print(name: str, one: Measured) -> None:
    bad, good = (
        ", ".join(sorted({found.code for found in form.findings})) or "-"
        for form in (one.bad, one.good)
    )
    seen = "seen" if is_seen(name, one) else "not seen"
    flags = " problems" * bool(one.bad.problems or one.good.problems)
    print(f"{name:34}{case(name).class_:3}{seen:10}{bad:24}{good}{flags}", flush=True)


def _total(measured: dict[str, Measured]) -> None:
    for number in sorted({case(name).round for name in measured}):
        inside = {name: one for name, one in measured.items() if case(name).round == number}
        seen = sum(is_seen(name, one) for name, one in inside.items())
        alarms = sum(bool(one.good.findings) for one in inside.values())
        print(f"round {number}: {seen} of {len(inside)} seen, {alarms} good forms reported")


def _show(name: str) -> None:
    one = records()[name]
    print(f"marked: {sorted(marked(name))}")
    for form, what in zip(FORMS, (one.bad, one.good), strict=True):
        for found in what.findings:
            print(f"{form}: {found.code} lines {list(found.lines)}: {found.what}")
        for problem in what.problems:
            print(f"{form}: problem: {problem}")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.unseen")
    parser.add_argument("command", choices=("measure", "now", "table", "show", "one"))
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.command == "one":
        print(f"\n{msgspec.json.encode(here(*given.names)).decode()}")
    elif given.command == "measure":
        _measure(given.names)
    elif given.command == "now":
        _now(given.names)
    elif given.command == "show":
        for name in given.names:
            _show(name)
    else:
        for name, one in records().items():
            _print(name, one)
        _total(records())


if __name__ == "__main__":
    main()
