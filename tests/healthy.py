"""`python -m tests.healthy`: healthy programs that no check was written with, under a watch.

`fixtures/healthy/README.md` has the rule by which they were chosen and written, blind. `measure`
runs each that has no record yet and writes the record, `now` says what the checks report today,
`table` what they did at first.
"""

from __future__ import annotations

import msgspec

from tests.blind import ROOT, Measured, Programs, Reported, alarms, found


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a writer says of a program: the public source, what it does, what is not as there.

    `fault` says what is wrong with it after all, as found after the measurement.
    """

    source: str
    title: str
    round: int = 1
    note: str = ""
    fault: str = ""


class Healthy(Programs[Program]):
    """Programs of which nothing is to be reported."""

    folder = ROOT / "fixtures" / "healthy"
    record = ROOT / "tests" / "data" / "healthy.json"
    said = Program

    def shown(self, name: str, measured: Measured) -> str:
        """Returns what was reported of a program."""
        reported = measured.good
        is_reported = reported.findings or reported.stopped
        head = f"round {self.case(name).round}  {'reported' if is_reported else 'silent'}"
        return "\n    ".join([head, *found("good", reported)])

    def total(self, measured: dict[str, Measured]) -> str:
        """Returns a line for each round."""
        rounds: dict[int, list[Reported]] = {}
        for name, one in measured.items():
            rounds.setdefault(self.case(name).round, []).append(one.good)
        return "\n".join(
            f"round {number}: {alarms(reported)}" for number, reported in sorted(rounds.items())
        )


PROGRAMS = Healthy()

if __name__ == "__main__":
    PROGRAMS.command()
