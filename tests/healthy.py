"""`python -m tests.healthy`: healthy programs that no check was written with, under a watch.

`fixtures/healthy/README.md` has the rule by which they were chosen and written, blind. `measure`
runs each that has no record yet and writes the record, `now` says what the checks report today,
`table` what they did at first.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fmcheck.strict import convert, read_toml
from tests.blind import ROOT, Measured, Programs, Told, found

CASES = ROOT / "fixtures" / "healthy"


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a writer says of a program: the public source, what it does, what is not as there.

    `fault` says what is wrong with it after all, as found after the measurement.
    """

    source: str
    title: str
    round: int = 1
    note: str = ""
    fault: str = ""


def program(name: str) -> Program:
    """Reads what is said of a program.

    Raises:
        UsageError: if its file is not as it should be.
    """
    path = CASES / name / "case.toml"
    return convert(read_toml(path), Program, str(path))


def _shown(name: str, one: Measured) -> str:
    head = f"round {program(name).round}  {'reported' if one.good.findings else 'silent'}"
    return "\n    ".join([head, *found("good", one.good)])


def _total(measured: dict[str, Measured]) -> str:
    rounds: dict[int, list[Told]] = {}
    for name, one in measured.items():
        rounds.setdefault(program(name).round, []).append(one.good)
    return "\n".join(
        f"round {number}: {sum(bool(one.findings) for one in told)} of {len(told)} reported, "
        f"{sum(one.is_advice for one in told)} of them as advice alone"
        for number, told in sorted(rounds.items())
    )


PROGRAMS = Programs(
    CASES,
    Path(__file__).parent / "data" / "healthy.json",
    ("good",),
    "tests.healthy",
    _shown,
    _total,
)

if __name__ == "__main__":
    PROGRAMS.command()
