"""What `fmcheck prove` says: a table by operator, what survived, one JSON object."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.prove.operators.all_operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.prove.operators.mutant import Mutant
    from fmcheck.prove.run import Proof, Verdict
    from fmcheck.prove.trial import Result

COLUMNS = (
    *("operator", "mutants", "caught", "by lint", "by a check", "by the tests", "timed out"),
    *("survived", "known"),
)


#: Why a mutant may survive although nothing is wrong with the tests or with the contract.
_HARMLESS = (
    "A survivor may be harmless: a later write or another fence does the same, no test reaches the",
    "mode in which it matters, or the changed line makes no difference (an equivalent mutant).",
    "Where that is so, list it with a reason in the file of --known; else a test or an entry of",
    "the contract is missing.",
)


def caught_by(result: Result) -> str:
    """Returns in one line what noticed a mutant: rules, checks with a test, tests by themselves."""
    parts = [", ".join(dict.fromkeys(result.lint))] if result.lint else []
    for code in result.checks:
        test = next((one.test for one in result.failures if code in one.codes), "")
        parts.append(f"{code} in {test}" if test else f"{code} outside of any test")
    if result.problems:
        parts.append(f"the watch: {result.problems[0]}")
    if result.own:
        first, more = result.own[0], len(result.own) - 1
        where = first.test or "the tests"
        parts.append(f"{where}{f' and {more} more' if more else ''}: {first.own}")
    if result.stopped:
        parts.append(f"the tests {result.stopped}")
    return "; ".join(parts) or "nothing"


def text(proof: Proof, *, verbose: bool) -> str:
    """Returns the whole report."""
    lines = []
    if verbose:
        lines += [f"{_place(one.mutant)}: {caught_by(one.result)}" for one in proof.verdicts]
        lines.append("")
    lines += _table(proof.verdicts)
    for title, chosen in (
        ("survived", [one for one in proof.verdicts if one.survived]),
        ("known survivors", [one for one in proof.verdicts if one.known]),
    ):
        if chosen:
            lines += ["", f"{title}:"]
            lines += [line for one in chosen for line in _verdict_lines(one)]
    if any(one.survived for one in proof.verdicts):
        lines += ["", *_HARMLESS]
    if proof.unimported:
        lines += ["", f"no test imports: {', '.join(map(_short, proof.unimported))}"]
    for one in proof.stale:
        lines += ["", f"stale entry: no survivor matches {one}"]
    return "\n".join([*lines, "", closing(proof)])


def closing(proof: Proof) -> str:
    """Returns the last line: the score, and what the tests would be worth without fmcheck."""
    alone = sum(bool(one.result.own or one.result.stopped) for one in proof.verdicts)
    left_out = len(proof.verdicts) - proof.counted
    known = f", {left_out} known survivors left out" if left_out else ""
    return (
        f"fmcheck prove: {proof.caught} of {proof.counted} mutants caught{known}: score "
        f"{proof.score:.1f} %; by the tests without fmcheck {alone}"
    )


def listing(mutants: Iterable[Mutant]) -> str:
    """Returns the plan, a mutant a line."""
    return "\n".join(f"{one.id}  {one.title}" for one in mutants)


def as_json(proof: Proof, command: Sequence[str]) -> str:
    """Returns the outcome as a JSON object."""
    return json.dumps(
        {
            "command": list(command),
            "tests": proof.tests,
            "seconds": proof.seconds,
            "score": round(proof.score, 2),
            "caught": proof.caught,
            "counted": proof.counted,
            "unimported": [_short(one) for one in proof.unimported],
            "stale": [str(one) for one in proof.stale],
            "mutants": [_object(one) for one in proof.verdicts],
        },
        indent=2,
    )


def _object(one: Verdict) -> dict[str, object]:
    mutant, result = one.mutant, one.result
    return {
        "id": mutant.id,
        "operator": mutant.operator,
        "file": mutant.file,
        "line": mutant.line,
        "function": mutant.function,
        "title": mutant.title,
        "code": mutant.code,
        "caught": result.caught,
        "lint": list(result.lint),
        "checks": list(result.checks),
        "tests": [{"test": f.test, "codes": list(f.codes), "own": f.own} for f in result.failures],
        "problems": list(result.problems),
        "stopped": result.stopped,
        "imported": result.imported,
        "known": one.known,
        "reached": not one.unreached,
        "seconds": result.seconds,
    }


def _table(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [list(COLUMNS)]
    for name in OPERATORS:
        of = [one for one in verdicts if one.mutant.operator == name]
        if of:
            rows.append([name, *map(str, _counts(of))])
    rows.append(["all", *map(str, _counts(verdicts))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _counts(of: Sequence[Verdict]) -> list[int]:
    results = [one.result for one in of]
    return [
        len(of),
        sum(one.caught for one in results),
        sum(bool(one.lint) for one in results),
        sum(bool(one.checks or one.problems) for one in results),
        sum(bool(one.own) for one in results),
        sum(bool(one.stopped) for one in results),
        sum(one.survived for one in of),
        sum(bool(one.known) for one in of),
    ]


def _verdict_lines(one: Verdict) -> Iterator[str]:
    yield f"  {_place(one.mutant)}"
    if one.known:
        yield f"      {one.known}"
    elif not one.result.imported:
        yield "      no test imports this file"
    elif one.unreached:
        yield "      no test runs this line"
    if not one.known:
        yield from (f"      {line}" for line in _changed(one.mutant))


def _place(one: Mutant) -> str:
    return f"{one.file}:{one.line} {one.operator}: {one.title}"


def _changed(one: Mutant) -> Iterator[str]:
    try:
        before = Path(one.file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in difflib.unified_diff(before, one.text.splitlines(), n=0, lineterm=""):
        if line[:1] in "+-" and not line.startswith(("---", "+++")):
            yield line


def _short(path: str) -> str:
    try:
        return Path(path).relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path
