"""The lint half of the museum: historic faults, each as a small bad case and its good one.

A case is a folder of `fixtures/museum/`: `bad.py`, `good.py` and `case.toml`. In `bad.py` a
trailing `# expect: FM201` marks each line on which a finding has to start. All rules look at both,
whether or not they are on by default, with the registered contracts and the case's own.

`python -m tests.museum` prints how many of the entries that have a lint rule are covered by a
case, and caught. Exit status 1 if fewer than 90 % of those that source can show are caught.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fmcheck.config import Located, Settings
from fmcheck.contract import load_contract
from fmcheck.lint.engine import lint_text
from fmcheck.registry import contracts_for, rules
from fmcheck.strict import convert, read_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fmcheck.contract import Contract
    from fmcheck.lint.rule import Rule

ROOT = Path(__file__).resolve().parent.parent
MUSEUM = ROOT / "fixtures" / "museum"
DATA = Path(__file__).parent / "data" / "museum.json"
LEAST_CAUGHT = 0.90

_EXPECTED = re.compile(r"#\s*expect:\s*([A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)\s*$")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the museum that has a lint rule.

    `detectable` says whether source can show it: "yes", "partly" (a part of its forms) or "no".
    """

    id: str
    class_: str
    lint_rules: tuple[str, ...]
    detectable: str


class CaseFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `case.toml`.

    `id` is the museum's, `rules` are the codes that catch the bad form. Both sources are linted
    as `path`, and with the contract file `contract` of the same folder. `why_not` says why no rule
    catches a case that source could show.
    """

    id: str
    title: str
    class_: str = msgspec.field(name="class")
    rules: tuple[str, ...] = ()
    path: str = ""
    contract: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One folder of the museum."""

    folder: Path
    file: CaseFile

    @property
    def expected(self) -> list[tuple[int, str]]:
        """The (line, code) pairs that `bad.py` asks for, sorted."""
        return expectations((self.folder / "bad.py").read_text(encoding="utf-8"))

    def given(self, name: str) -> list[tuple[int, str]]:
        """Returns the (line, code) pairs that the rules give for a file of the folder, sorted."""
        text = (self.folder / name).read_bytes()
        path = self.file.path or f"fixtures/museum/{self.folder.name}/{name}"
        found = lint_text(text, path, _rules(self._contracts()))
        return sorted((finding.span.line, finding.code) for finding in found)

    @property
    def is_caught(self) -> bool:
        """Tells whether the bad form is flagged just where it says, and the good one is not."""
        expected = self.expected
        return bool(expected) and self.given("bad.py") == expected and not self.given("good.py")

    def _contracts(self) -> tuple[Contract, ...]:
        own = (load_contract(self.folder / self.file.contract),) if self.file.contract else ()
        return (*contracts_for(Located(Settings(), None)), *own)


def expectations(source: str) -> list[tuple[int, str]]:
    """Returns the (line, code) pairs that the `# expect:` comments of a source ask for."""
    return sorted(
        (number, code.strip())
        for number, line in enumerate(source.splitlines(), 1)
        for marked in [_EXPECTED.search(line)]
        if marked
        for code in marked[1].split(",")
    )


@cache
def entries() -> Mapping[str, Entry]:
    """Returns the museum's entries that have a lint rule, by id."""
    return {
        one["id"]: Entry(
            one["id"], one["class"], tuple(one["lint_rules"]), one["static_detectable"]
        )
        for one in json.loads(DATA.read_text(encoding="utf-8"))
    }


def cases(folder: Path = MUSEUM) -> list[Case]:
    """Returns every case, in the order of the folders."""
    files = sorted(folder.glob("*/case.toml"))
    return [Case(path.parent, convert(read_toml(path), CaseFile, str(path))) for path in files]


def _rules(contracts: Sequence[Contract]) -> list[Rule]:
    return [rule(contracts) for rule in rules().values()]


@dataclass(slots=True)
class Row:
    """One line of the table: entries of one class or rule that source can show."""

    name: str
    detectable: int = 0
    covered: int = 0
    caught: int = 0

    def __str__(self) -> str:
        share = f"{self.caught / self.detectable:.0%}" if self.detectable else "-"
        counts = f"{self.detectable:10}  {self.covered:7}  {self.caught:6}"
        return f"{self.name:32}  {counts}  {share:>5}"


def main() -> int:
    """Prints the table, what is missed and why, and what has no case."""
    by_id: dict[str, list[Case]] = defaultdict(list)
    for case in cases():
        by_id[case.file.id].append(case)
    wanted = [entry for entry in entries().values() if entry.detectable != "no"]
    caught = {entry.id for entry in wanted if any(one.is_caught for one in by_id[entry.id])}
    print(f"{'':32}  detectable  covered  caught  share")
    total = _row("all", wanted, by_id, caught)
    for row in (*_rows(wanted, by_id, caught), total):
        print(row)
    print()
    for entry in wanted:
        if entry.id not in caught:
            print(f"{_missing(by_id[entry.id])}: {entry.id} ({', '.join(entry.lint_rules)})")
    return int(total.caught < LEAST_CAUGHT * total.detectable)


def _rows(
    wanted: Sequence[Entry], by_id: Mapping[str, list[Case]], caught: set[str]
) -> Iterator[Row]:
    for name in sorted({entry.class_ for entry in wanted}):
        part = [entry for entry in wanted if entry.class_ == name]
        yield _row(f"class {name}", part, by_id, caught)
    for name in sorted({rule for entry in wanted for rule in entry.lint_rules}, key=_number):
        yield _row(name, [entry for entry in wanted if name in entry.lint_rules], by_id, caught)


def _row(
    name: str, part: Iterable[Entry], by_id: Mapping[str, list[Case]], caught: set[str]
) -> Row:
    row = Row(name)
    for entry in part:
        row.detectable += 1
        row.covered += bool(by_id[entry.id])
        row.caught += entry.id in caught
    return row


def _number(rule: str) -> int:
    return int(rule.split()[0].lstrip("L"))


def _missing(own: Sequence[Case]) -> str:
    if not own:
        return "no case"
    return next(
        (f"not caught, {one.file.why_not}" for one in own if one.file.why_not), "NOT CAUGHT"
    )


if __name__ == "__main__":
    sys.exit(main())
