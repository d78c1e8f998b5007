"""`python -m tests.unseen`: historic faults that no check was written for, under a watch.

`fixtures/unseen/README.md` has the rule by which they were chosen and written, blind. `measure`
runs each that has no record yet, both forms, and writes the record. `now` prints what the checks
say today, `table` what they said at first, and `show CASE` what was reported then.

A fault is *seen* if an access of a finding lies on a line of `bad_run.py` that is marked `# fault`,
and nothing is reported of `good_run.py`. What names a function as a whole, by the line of its
`def`, counts for every line of it: that is how a graph input's fill is reported.
"""

from __future__ import annotations

import ast

import msgspec

from tests.blind import ROOT, Measured, Programs, alarms, found

CASES = ROOT / "fixtures" / "unseen"


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """What a writer says of a case: the public thread, what goes wrong, its class and its round."""

    thread: str
    title: str
    class_: str
    round: int = 1


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


class Unseen(Programs[Case]):
    """Faults, each in a bad form and a good one."""

    folder = CASES
    record = ROOT / "tests" / "data" / "unseen.json"
    said = Case
    forms = ("bad", "good")

    def shown(self, name: str, measured: Measured) -> str:
        """Returns a case's class, whether it is seen, and what was reported of both forms."""
        bad, good = (
            ", ".join(sorted({found.code for found in form.findings})) or "-"
            for form in (measured.bad, measured.good)
        )
        seen = "seen" if is_seen(name, measured) else "not seen"
        flags = " problems" * bool(measured.bad.problems or measured.good.problems)
        return f"{self.case(name).class_:3}{seen:10}{bad:24}{good}{flags}"

    def total(self, measured: dict[str, Measured]) -> str:
        """Returns a line for each round."""
        rounds: dict[int, dict[str, Measured]] = {}
        for name, one in measured.items():
            rounds.setdefault(self.case(name).round, {})[name] = one
        return "\n".join(
            f"round {number}: {sum(is_seen(*one) for one in cases.items())} of {len(cases)} seen; "
            f"good forms: {alarms([one.good for one in cases.values()])}"
            for number, cases in sorted(rounds.items())
        )


def _show(name: str) -> None:
    one = PROGRAMS.records()[name]
    print(f"marked: {sorted(marked(name))}")
    print("\n".join([*found("bad", one.bad), *found("good", one.good)]))


PROGRAMS = Unseen()

if __name__ == "__main__":
    PROGRAMS.command({"show": _show})
