"""`python -m tests.historic`: recall on historic faults, in real files before and after the fix.

`tests/data/historic.toml`, `historic2.toml` and `historic3.toml` list three sets of faults, each
with the rule by which they were chosen; the third is meant where none is named. `fetch` copies
their files, as they were before and after, from clones in the cache (`tests/clones.py`) into the
cache; none of them is in this repository. `measure` lints both forms with the default rules, or
with all of them.

A fault is *seen* if a finding of the files before is gone after the fix: nothing but the fix lies
between. Whether that finding is about the fault is for two readers to say. A fixed form is
*flagged* if it has a finding in a function that the fix touched, or one that was not there before.
The first measurement is recorded and read as fresh trees are (`tests/corpus_first_sight.py`, a tree
named after the set, with `-all` for all rules); later ones are printed only.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from fmcheck.files.strict import convert, read_toml
from tests.clones import file_at
from tests.corpus import CorpusError, cache_folder
from tests.corpus_first_sight import Place, lint, linter
from tests.sight_records import (
    Found,
    Record,
    RecordError,
    digest_of_files,
    load_record,
    record_path,
    verdicts,
    write_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DATA = Path(__file__).parent / "data"
SETS = ("historic", "historic2", "historic3")
NAME = "historic"  # the folder in the cache
FORMS = ("before", "after")
#: The least share of visible faults to be seen, and the most fixed forms to be flagged.
LEAST_SEEN, MOST_FLAGGED = 0.60, 0.05


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A historic fault: `before` and `after` are the commits on both sides of its fix.

    `visible` says whether source shows it, and `because` why or why not.
    """

    thread: str
    class_: Literal["A", "B", "C", "D", "E", "F"] = msgspec.field(name="class")
    date: str
    before: str
    after: str
    paths: tuple[str, ...]
    what: str
    visible: bool
    because: str
    clone: str = ""

    @property
    def repository(self) -> str:
        """The repository whose clone has the commits."""
        return self.clone or self.thread.partition("#")[0]

    @property
    def folder(self) -> Path:
        """Where the cache keeps its files."""
        return cache_folder() / NAME / self.thread.replace("/", "+").replace("#", "-")


class Outcome(NamedTuple):
    """What the linter says of a fault: findings that are gone, findings that flag the fix."""

    fault: Fault
    gone: tuple[Found, ...]
    flags: tuple[Found, ...]


def faults(name: str) -> list[Fault]:
    """Returns the faults of a set."""
    path = DATA / f"{name}.toml"
    return list(convert(read_toml(path), _List, str(path)).fault)


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fault: tuple[Fault, ...]


def fetch(fault: Fault) -> None:
    """Copies the files of a fault into the cache, unless they are there.

    Raises:
        CorpusError: if no clone has the commits.
    """
    for form, commit in zip(FORMS, (fault.before, fault.after), strict=True):
        for path in fault.paths:
            target = fault.folder / form / path
            if target.exists():
                continue
            content = file_at(fault.repository, commit, path)
            if content is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)


def measured(fault: Fault, *options: str) -> Outcome:
    """Lints a fault before and after its fix.

    Raises:
        CorpusError: if its files are not in the cache.
    """
    found = {}
    for form in FORMS:
        if not (fault.folder / form).is_dir():
            raise CorpusError(
                f"{fault.thread}: its files are not in {fault.folder / form}: `python -m "
                "tests.historic fetch` copies them from clones in the cache"
            )
        _, found[form] = lint(fault.folder / form, *options)
    before, after = ([one for one in found[form] if not one.is_diagnostic] for form in FORMS)
    folders = [fault.folder / form for form in FORMS]
    touched = set(_touched(fault))
    new = set(map(id, _without(after, before, _Keys(*reversed(folders)))))
    return Outcome(
        fault,
        tuple(_without(before, after, _Keys(*folders))),
        tuple(one for one in after if (one.path, one.line) in touched or id(one) in new),
    )


def touched_lines(before: str, after: str) -> set[int]:
    """Returns the lines of the second text that lie in a function that the change touched.

    Where a line outside of every function was changed, those are the lines next to it.
    """
    old, new = before.splitlines(), after.splitlines()
    changed: set[int] = set()
    for tag, _, _, start, end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if tag != "equal":
            # A deletion has no lines of its own: what stands around it was touched.
            changed |= set(range(start + 1, end + 1)) or {start, start + 1}
    lines = {near for line in changed for near in (line - 1, line, line + 1)}
    for first, last in _functions(after):
        if any(first <= line <= last for line in changed):
            lines |= set(range(first, last + 1))
    return lines


def main(arguments: Sequence[str] | None = None, place: Place | None = None) -> int:
    """Runs a command; 1 if the figures are not good enough, 2 if it is refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.historic")
    parser.add_argument("command", choices=("fetch", "measure", "table"))
    parser.add_argument("set", nargs="?", choices=SETS, default=SETS[-1])
    parser.add_argument("--all-rules", action="store_true", help="not only the default rules")
    asked = parser.parse_args(arguments)
    listed = faults(asked.set)
    known = record_path((place or Place()).records, asked.set + ("-all" if asked.all_rules else ""))
    try:
        if asked.command == "fetch":
            for fault in listed:
                fetch(fault)
            print(f"{len(listed)} faults, files in {cache_folder() / NAME}")
            return 0
        if asked.command == "measure":
            options = ("--select", "ALL") if asked.all_rules else ()
            return measure(listed, place or Place(), known, options)
        return table(listed, load_record(known), place)
    except (CorpusError, RecordError) as err:
        print(err, file=sys.stderr)
        return 2


def measure(listed: Sequence[Fault], place: Place, known: Path, options: Sequence[str]) -> int:
    """Lints all faults, prints what is seen, and records the first measurement."""
    commit, rules = ("", "") if known.exists() else linter(place.root)
    outcomes = [measured(fault, *options) for fault in listed]
    for line in reported(outcomes):
        print(line)
    if known.exists():
        print(f"not recorded: the first measurement stands in {known.name} (`table` prints it)")
    else:
        path = write_record(place.records, recorded(known.stem, outcomes, commit, rules))
        print(f"recorded in {path.name}: commit it before anybody reads it")
    return _verdict(
        [bool(one.gone) for one in outcomes], [bool(one.flags) for one in outcomes], listed
    )


def reported(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yields a line for each fault, and the totals."""
    for fault, gone, flags in outcomes:
        seen = ", ".join(sorted({one.code for one in gone})) or "-"
        flagged = ", ".join(sorted({one.code for one in flags})) or "-"
        visible = "visible" if fault.visible else "not visible"
        yield f"{fault.thread:40.40} {fault.class_} {visible:12} seen {seen:16} flagged {flagged}"
    yield from _totals(
        [one.fault for one in outcomes],
        [bool(one.gone) for one in outcomes],
        [bool(one.flags) for one in outcomes],
    )


def recorded(tree: str, outcomes: Sequence[Outcome], commit: str, rules: str) -> Record:
    """Returns the record of a measurement; paths begin with the thread and the form."""
    found: list[Found] = []
    for fault, *sides in outcomes:
        for form, side in zip(FORMS, sides, strict=True):
            for one in side:
                path = f"{fault.folder.name}/{form}/{one.path}"
                found.append(msgspec.structs.replace(one, path=path, number=len(found) + 1))
    root = cache_folder() / NAME
    folders = [one.fault.folder for one in outcomes]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    return Record(
        tree=tree,
        version=f"{len(outcomes)} faults",
        kind="historic",
        related="",
        date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        linter=commit,
        rules=rules,
        source=digest_of_files(root, files),
        files=len(files),
        lines=sum(path.read_bytes().count(b"\n") for path in files),
        status=0,
        found=tuple(found),
    )


def table(listed: Sequence[Fault], record: Record, place: Place | None = None) -> int:
    """Prints the first measurement: a fault counts as seen where both readers say that a finding
    which the fix removed is about it, and a fixed form as flagged where it has a finding at all.
    """
    said = verdicts((place or Place()).records, record)
    right = {
        number
        for number, two in said.items()
        if all(one is not None and one.verdict == "right" for one in two)
    }
    seen, flagged = [], []
    for fault in listed:
        before, after = (f"{fault.folder.name}/{form}/" for form in FORMS)
        seen.append(
            any(one.path.startswith(before) and one.number in right for one in record.found)
        )
        flagged.append(any(one.path.startswith(after) for one in record.found))
    unread = sum(None in two for two in said.values())
    print(
        f"first measurement, {record.date}, linter {record.linter[:12]}: {unread} unread findings"
    )
    print("\n".join(_totals(listed, seen, flagged)))
    return _verdict(seen, flagged, listed)


def _totals(
    listed: Sequence[Fault], seen: Sequence[bool], flagged: Sequence[bool]
) -> Iterator[str]:
    rows = list(zip(listed, seen, flagged, strict=True))
    for name, part in (
        ("visible", [row for row in rows if row[0].visible]),
        *(
            (
                f"visible, class {class_}",
                [r for r in rows if r[0].visible and r[0].class_ == class_],
            )
            for class_ in sorted({fault.class_ for fault in listed if fault.visible})
        ),
        ("not visible", [row for row in rows if not row[0].visible]),
    ):
        count = sum(row[1] for row in part)
        yield f"{name}: {count} of {len(part)} seen"
    yield f"fixed forms flagged: {sum(flagged)} of {len(listed)}"


def _verdict(seen: Sequence[bool], flagged: Sequence[bool], listed: Sequence[Fault]) -> int:
    visible = [was for was, fault in zip(seen, listed, strict=True) if fault.visible]
    too_few = sum(visible) < LEAST_SEEN * len(visible)
    return int(too_few or sum(flagged) > MOST_FLAGGED * len(flagged))


def _without(some: Sequence[Found], others: Sequence[Found], keys: _Keys) -> Iterator[Found]:
    """Yields the findings that have no counterpart among the others."""
    left = Counter(map(keys.theirs, others))
    for one in some:
        key = keys.ours(one)
        left[key] -= 1
        if left[key] < 0:
            yield one


class _Keys:
    """What makes two findings counterparts: the rule, and a line that the fix left alone; on a
    line that it changed, the rule and the line's text without its indentation.
    """

    def __init__(self, ours: Path, theirs: Path) -> None:
        self._roots = (ours, theirs)
        self._lines: dict[tuple[Path, str], list[str]] = {}
        self._kept: dict[str, dict[int, int]] = {}

    def ours(self, found: Found) -> tuple[str, str, object]:
        kept = self._same_lines(found.path)
        return self._key(found, 0, kept.get(found.line))

    def theirs(self, found: Found) -> tuple[str, str, object]:
        kept = self._same_lines(found.path).values()
        return self._key(found, 1, found.line if found.line in kept else None)

    def _key(self, found: Found, side: int, line: int | None) -> tuple[str, str, object]:
        if line is not None:
            return found.path, found.code, line
        lines = self._read(self._roots[side], found.path)
        text = lines[found.line - 1].strip() if found.line <= len(lines) else ""
        return found.path, found.code, text

    def _same_lines(self, path: str) -> dict[int, int]:
        """Returns by the number here the number there of each line that is in both."""
        if path not in self._kept:
            ours, theirs = (self._read(root, path) for root in self._roots)
            blocks = difflib.SequenceMatcher(None, ours, theirs, False).get_matching_blocks()
            self._kept[path] = {
                block.a + offset + 1: block.b + offset + 1
                for block in blocks
                for offset in range(block.size)
            }
        return self._kept[path]

    def _read(self, root: Path, path: str) -> list[str]:
        if (root, path) not in self._lines:
            self._lines[root, path] = _text(root / path).splitlines()
        return self._lines[root, path]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def _touched(fault: Fault) -> Iterator[tuple[str, int]]:
    for path in fault.paths:
        before, after = (_text(fault.folder / form / path) for form in FORMS)
        yield from ((path, line) for line in touched_lines(before, after))


def _functions(text: str) -> Iterator[tuple[int, int]]:
    """Yields the first and the last line of each function; of none in what cannot be parsed."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.end_lineno or node.lineno


if __name__ == "__main__":
    sys.exit(main())
