"""`python -m tests.corpus_first_sight COMMAND`: the linter's precision on trees that nobody opened.

sight     lint fresh trees with the default rules and write every finding into a record
show      print the findings that a reader has not judged, and nothing of the other reader
verdict   write one verdict of one reader
disagree  list the findings on which the readers differ
table     print right/all by tree
status    print what is fresh, recorded and read (the default)

A tree is linted once: neither a second run nor changed rules make a second figure. Verdicts are
taken only on a record that is committed, so that the figure stood before anybody read a finding.
`docs/first-sight.md` has the procedure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests import trees
from tests.corpus import CorpusError, cache_folder
from tests.sight_records import (
    READERS,
    VERDICTS,
    Found,
    Record,
    RecordError,
    Verdict,
    digest_of_files,
    give_verdict,
    is_test,
    judged,
    load_reading,
    load_record,
    record_path,
    records,
    write_record,
)
from tests.sight_table import disagreements, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.trees import Fresh

#: What the linter's findings depend on, in a checkout.
LINTER = ("fmcheck", "rules", "plugin.py")
#: Isolated, so that no file of the tree stands in for a module of Python.
START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from fmcheck.__main__ import main; "
LONGEST = 1800  # seconds for one tree
CONTEXT = 8  # lines shown before and after a finding


class Place(NamedTuple):
    """The checkout whose linter runs, where records are kept, and the list of trees."""

    root: Path = Path(__file__).resolve().parent.parent
    records: Path = Path(__file__).resolve().parent / "data" / "sight"
    trees: Path = trees.DATA


def main(arguments: Sequence[str] | None = None, place: Place | None = None) -> int:
    """Runs a command; 1 if there is something left to read or settle, 2 if it is refused."""
    asked = _parser().parse_args(arguments or ["status"])
    try:
        return int(asked.run(asked, place or Place()))
    except (CorpusError, RecordError, trees.TreesError) as err:
        print(err, file=sys.stderr)
        return 2


def sight(asked: argparse.Namespace, place: Place) -> int:
    """Lints fresh trees and writes their records; says how many findings, and not which."""
    fresh = trees.load(place.trees).fresh
    commit, rules = linter(place.root)
    failed = False
    for tree in _wanted(asked, fresh, place):
        refuse_known(tree, rules, place)
        try:
            record = first_sight(tree, commit, rules)
        except CorpusError as err:
            print(f"{tree.name}: {err}", file=sys.stderr)
            failed = True
            continue
        path = write_record(place.records, record)
        codes = Counter(one.code for one in record.found)
        print(f"{tree.name} {tree.version[:12]}: {dict(sorted(codes.items()))}, in {path.name}")
    print(f"commit {place.records.name}/ before anybody reads it")
    return 2 if failed else 0


def refuse_known(tree: Fresh, rules: str, place: Place) -> None:
    """Raises RecordError if a tree has its figure."""
    path = record_path(place.records, tree.name)
    if not path.exists():
        return
    record = load_record(path)
    changed = "" if record.rules == rules else "; the rules have changed since, and it never counts"
    raise RecordError(
        f"{tree.name} was linted on {record.date} by {record.linter[:12]}{changed}: a tree counts "
        "once, take another"
    )


def first_sight(tree: Fresh, commit: str, rules: str) -> Record:
    """Lints a tree with the default rules and returns its record.

    Raises:
        CorpusError: if the tree cannot be had, or the linter did not end as it should.
    """
    folder = trees.source(tree)
    files, lines = trees.count(folder)
    status, found = lint(folder)
    return Record(
        tree=tree.name,
        version=tree.version,
        kind=tree.kind,
        related=tree.related,
        date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        linter=commit,
        rules=rules,
        source=digest_of_files(folder, (one for one in folder.rglob("*.py") if one.is_file())),
        files=files,
        lines=lines,
        status=status,
        found=tuple(found),
    )


def lint(folder: Path, *options: str) -> tuple[int, list[Found]]:
    """Returns the exit status and the findings on a folder, of the default rules if no option
    selects others.
    """
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-I", "-c", f"{START}sys.exit(main())", root]
    command += ["lint", ".", "--format", "json", "--no-cache", *options]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=LONGEST
        )
    except subprocess.TimeoutExpired as err:
        raise CorpusError(f"the linter took more than {LONGEST} s on {folder}") from err
    if done.returncode not in (0, 1, 2) or not done.stdout.startswith("["):
        raise CorpusError(
            f"the linter ended with status {done.returncode} on {folder}:\n"
            f"{done.stderr.strip()[-2000:]}"
        )
    return done.returncode, [
        Found(
            number=number,
            path=one["path"],
            line=one["line"],
            code=one["code"],
            severity=one["severity"],
            message=one["message"],
            in_tests=is_test(one["path"]),
        )
        for number, one in enumerate(json.loads(done.stdout), 1)
    ]


def linter(root: Path) -> tuple[str, str]:
    """Returns the commit of a checkout's linter, and a hash of its rules.

    Raises:
        RecordError: if the linter has changes that no commit names.
    """
    changed = _git(root, "status", "--porcelain", "--", *LINTER)
    if changed:
        raise RecordError(
            "a record names the commit that linted, and the linter has changes that are not "
            f"committed:\n{changed}"
        )
    parts = [line for line in _git(root, "ls-tree", "HEAD", "--", *LINTER).splitlines() if line]
    return _git(root, "rev-parse", "HEAD"), " ".join(one.split()[2][:12] for one in parts)


def show(asked: argparse.Namespace, place: Place) -> int:
    """Prints the findings that a reader has not judged, with the source around them."""
    record = _committed(place, asked.tree)
    reading = load_reading(place.records, record, asked.reader)
    done = {one.number for one in reading.verdicts}
    left = [one for one in judged(record) if one.number not in done]
    folder = _folder(record, place)
    for one in left[: asked.most]:
        where = ", in tests" if one.in_tests else ""
        print(f"\n[{one.number}] {one.path}:{one.line} {one.code} {one.severity}{where}")
        print(f"    {one.message}")
        print("\n".join(excerpt(folder / one.path, one.line)))
    print(f"\n{record.tree}: {len(left)} findings to read, files in {folder}")
    return int(bool(left))


def excerpt(path: Path, line: int) -> Iterator[str]:
    """Yields the lines around a line, that one marked."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as err:
        yield f"    {path} cannot be read: {err.strerror}"
        return
    for number in range(max(1, line - CONTEXT), min(len(text), line + CONTEXT) + 1):
        yield f"{'>' if number == line else ' '} {number:5} {text[number - 1]}"


def verdict(asked: argparse.Namespace, place: Place) -> int:
    """Writes one verdict of one reader."""
    record = _committed(place, asked.tree)
    said = Verdict(number=asked.number, verdict=asked.verdict, reason=asked.reason)
    give_verdict(place.records, record, asked.reader, asked.by, said)
    return 0


def disagree(asked: argparse.Namespace, place: Place) -> int:
    """Prints the findings on which the readers differ; 1 if there are any."""
    lines = [line for one in records(place.records) for line in disagreements(place.records, one)]
    print("\n".join(lines) or "the readers agree on every finding that both have read")
    return int(bool(lines))


def print_table(asked: argparse.Namespace, place: Place) -> int:
    """Prints right/all by tree; 1 while a finding is unread."""
    lines, unread = table(place.records, trees.load(place.trees).fresh)
    print("\n".join(lines))
    return int(unread > 0)


def status(asked: argparse.Namespace, place: Place) -> int:
    """Prints how many trees are fresh, recorded and read."""
    fresh = trees.load(place.trees).fresh
    known = {record.tree for record in records(place.records) if record.kind != "historic"}
    left = [tree.name for tree in fresh if tree.name not in known]
    print(f"{len(fresh)} trees listed, {len(known)} linted at first sight, {len(left)} fresh")
    print(f"next: {', '.join(left[:5]) or 'none'}")
    return 0


def _wanted(asked: argparse.Namespace, fresh: Sequence[Fresh], place: Place) -> list[Fresh]:
    by_name = {tree.name: tree for tree in fresh}
    unknown = [name for name in asked.trees if name not in by_name]
    if unknown:
        raise RecordError(f"not listed as fresh in {place.trees}: {', '.join(unknown)}")
    if asked.trees:
        return [by_name[name] for name in asked.trees]
    left = [tree for tree in fresh if not record_path(place.records, tree.name).exists()]
    return left if asked.all else left[: asked.next]


def _committed(place: Place, tree: str) -> Record:
    """Returns a record that is committed as it is: its figure stood before it was read."""
    path = record_path(place.records, tree)
    record = load_record(path)
    name = str(path.relative_to(place.root))
    if not _git(place.root, "ls-tree", "HEAD", "--", name) or _git(
        place.root, "status", "--porcelain", "--", name
    ):
        raise RecordError(f"{name} is not committed: commit it before anybody reads a finding")
    return record


def _folder(record: Record, place: Place) -> Path:
    for tree in trees.load(place.trees).fresh:
        if tree.name == record.tree:
            return trees.source(tree)
    return cache_folder() / record.kind


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RecordError(f"git {words[0]} failed in {root}: {done.stderr.strip()}")
    return done.stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.corpus_first_sight",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("sight", help="lint fresh trees and record every finding")
    one.set_defaults(run=sight)
    one.add_argument("trees", nargs="*", metavar="TREE")
    one.add_argument("--next", type=int, default=1, metavar="N", help="the next N trees in order")
    one.add_argument("--all", action="store_true", help="every tree that has no figure yet")
    one = commands.add_parser("show", help="print the findings that a reader has not judged")
    one.set_defaults(run=show)
    one.add_argument("tree", metavar="TREE")
    one.add_argument("reader", choices=READERS)
    one.add_argument("--most", type=int, default=None, metavar="N", help="at most N findings")
    one = commands.add_parser("verdict", help="write one verdict of one reader")
    one.set_defaults(run=verdict)
    one.add_argument("tree", metavar="TREE")
    one.add_argument("number", type=int, metavar="NUMBER")
    one.add_argument("reader", choices=READERS)
    one.add_argument("verdict", choices=VERDICTS)
    one.add_argument("reason")
    one.add_argument("--by", required=True, metavar="NAME", help="who reads")
    for name, run, what in (
        ("disagree", disagree, "list the findings on which the readers differ"),
        ("table", print_table, "print right/all by tree"),
        ("status", status, "print what is fresh, recorded and read"),
    ):
        commands.add_parser(name, help=what).set_defaults(run=run)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
