"""The museum: historic faults, each as a small bad case and its good one.

A case is a folder of `fixtures/museum/` with a `case.toml` and one or both of two pairs. `bad.py`
and `good.py` are linted: in `bad.py` a trailing `# expect: FM201` marks each line on which a
finding has to start. All rules look at both, whether or not they are on by default, with the
registered contracts and the case's own. `bad_run.py` and `good_run.py` are run under a watch:
`museum_runs` says how.

`python -m tests.museum` prints how many of the entries that source, or a run on a CPU, can show are
covered by a case, and caught, and `--page` writes `fixtures/museum/README.md`. Exit status 1 if
too few are caught.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fmcheck.config import Located, Settings
from fmcheck.contract import load_contract
from fmcheck.files.strict import convert, read_toml
from fmcheck.lint.engine import lint_text
from fmcheck.registry import contracts_for, rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmcheck.contract import Contract
    from fmcheck.lint.rule import Rule

ROOT = Path(__file__).resolve().parent.parent
MUSEUM = ROOT / "fixtures" / "museum"
DATA = Path(__file__).parent / "data" / "museum.json"

_EXPECTED = re.compile(r"#\s*expect:\s*([A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)\s*$")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the museum.

    `detectable` says whether source can show it: "yes", "partly" (a part of its forms) or "no";
    `at_run_time` whether a run can, and `on_cpu` whether it can without a GPU. `lint_rules` and
    `checks` are the kinds of rules and checks that see it.
    """

    id: str
    class_: str
    lint_rules: tuple[str, ...]
    detectable: str
    checks: tuple[str, ...]
    at_run_time: str
    on_cpu: str

    @property
    def can_be_linted(self) -> bool:
        """Tells whether a rule can see it in source."""
        return bool(self.lint_rules) and self.detectable != "no"

    @property
    def can_be_run(self) -> bool:
        """Tells whether a check can see it in a run on a CPU."""
        return self.at_run_time == "yes" and self.on_cpu != "no"

    @property
    def link(self) -> str:
        """The public thread; "" for what was found by reading released wheels."""
        repository, mark, number = self.id.partition("#")
        if not mark:
            repository, _, commit = self.id.partition("@")
            return f"https://github.com/{repository}/commit/{commit}"
        return f"https://github.com/{repository}/pull/{number}" if number.isdigit() else ""


class CaseFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `case.toml`.

    `id` is the museum's, `rules` are the codes that catch the bad form. Both sources are linted
    as `path`, and with the contract file `contract` of the same folder. `why_not` says why no rule
    catches a case that source could show.

    `checks` are the codes that catch the bad run, and `watch` is the contract file of both runs,
    from the folder. `missed` says why no check catches what a run could show.
    """

    id: str
    title: str
    class_: str = msgspec.field(name="class")
    rules: tuple[str, ...] = ()
    path: str = ""
    contract: str = ""
    why_not: str = ""
    checks: tuple[str, ...] = ()
    watch: str = ""
    missed: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One folder of the museum."""

    folder: Path
    file: CaseFile

    @property
    def is_linted(self) -> bool:
        """Tells whether there is a form for the linter."""
        return (self.folder / "bad.py").is_file()

    @property
    def is_run(self) -> bool:
        """Tells whether there is a form to be run."""
        return (self.folder / "bad_run.py").is_file()

    @property
    def expected(self) -> list[tuple[int, str]]:
        """The (line, code) pairs that `bad.py` asks for, sorted."""
        return expectations((self.folder / "bad.py").read_text(encoding="utf-8"))

    def given(self, name: str) -> list[tuple[int, str]]:
        """Returns the (line, code) pairs that the rules give for a file of the folder, sorted."""
        return list(_given(self, name))

    @property
    def is_caught(self) -> bool:
        """Tells whether the bad form is flagged just where it says, and the good one is not."""
        expected = self.expected
        return bool(expected) and self.given("bad.py") == expected and not self.given("good.py")

    def _contracts(self) -> tuple[Contract, ...]:
        own = (load_contract(self.folder / self.file.contract),) if self.file.contract else ()
        return (*contracts_for(Located(Settings(), None)), *own)


@cache
def _given(case: Case, name: str) -> tuple[tuple[int, str], ...]:
    text = (case.folder / name).read_bytes()
    path = case.file.path or f"fixtures/museum/{case.folder.name}/{name}"
    found = lint_text(text, path, _rules(case._contracts()))
    return tuple(sorted((finding.span.line, finding.code) for finding in found))


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
    """Returns the museum's entries, by id."""
    return {
        one["id"]: Entry(
            one["id"],
            one["class"],
            tuple(one["lint_rules"]),
            one["static_detectable"],
            tuple(one["runtime_checks"]),
            one["runtime_detectable"],
            one["cpu_detectable"],
        )
        for one in json.loads(DATA.read_text(encoding="utf-8"))
    }


def cases(folder: Path = MUSEUM) -> list[Case]:
    """Returns every case, in the order of the folders."""
    files = sorted(folder.glob("*/case.toml"))
    return [Case(path.parent, convert(read_toml(path), CaseFile, str(path))) for path in files]


def _rules(contracts: Sequence[Contract]) -> list[Rule]:
    return [rule(contracts) for rule in rules().values()]


if __name__ == "__main__":
    if sys.argv[1:] == ["--page"]:
        from tests.museum_page import PAGE, page

        PAGE.write_text(page(), encoding="utf-8")
    else:
        from tests.museum_table import main

        sys.exit(main())
