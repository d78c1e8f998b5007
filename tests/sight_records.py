"""What the linter said of a fresh tree at first sight, and what two readers say of each finding.

A record is written once, with a digest, before anybody reads a finding: `TREE.json`. Each reader
writes a separate file beside it, `TREE.first.json` or `TREE.second.json`, and is never shown the
other's. A finding counts as right where both say so; "debatable" counts as wrong.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

Reader = Literal["first", "second"]
READERS: tuple[Reader, ...] = ("first", "second")
VERDICTS = ("right", "wrong", "debatable")
_TEST_FOLDER = re.compile(r"(^|/)(tests?|testing|unit_?tests?|\w*_tests?|conformance)/")
_TEST_FILE = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")


class RecordError(Exception):
    """A record or verdict that does not count, and why."""


class Found(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding: its number in the record, and what the linter said."""

    number: int
    path: str
    line: int
    code: str
    severity: str
    message: str
    in_tests: bool

    @property
    def is_diagnostic(self) -> bool:
        """Tells whether it is about a file or a setting, as an unreadable file is (FM0)."""
        return self.code.startswith("FM0")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The findings of one tree at first sight.

    `linter` is the commit that linted, `rules` the hash of its rules, `source` that of the tree's
    Python files, and `digest` that of all the rest.
    """

    tree: str
    version: str
    kind: str
    related: str
    date: str
    linter: str
    rules: str
    source: str
    files: int
    lines: int
    status: int
    found: tuple[Found, ...]
    digest: str = ""

    def signed(self) -> Record:
        """Returns this record with its digest."""
        return msgspec.structs.replace(self, digest=_digest(self))


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one reader says of one finding."""

    number: int
    verdict: Literal["right", "wrong", "debatable"]
    reason: str


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The verdicts of one reader on one record, which `record` names by its digest."""

    tree: str
    reader: Reader
    by: str
    record: str
    verdicts: tuple[Verdict, ...] = ()


def is_test(path: str) -> bool:
    """Tells whether a path is that of a test."""
    return bool(_TEST_FOLDER.search(path) or _TEST_FILE.search(path))


def record_path(folder: Path, tree: str) -> Path:
    """Returns where the record of a tree is kept."""
    return folder / f"{tree.replace('/', '+')}.json"


def load_record(path: Path) -> Record:
    """Returns a record.

    Raises:
        RecordError: if it is missing, no record, or changed since it was written.
    """
    if not path.is_file():
        raise RecordError(f"no record {path}: lint the tree with `sight` first")
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except msgspec.MsgspecError as err:
        raise RecordError(f"{path} is no record: {err}") from err
    if record.digest != _digest(record):
        raise RecordError(f"{path} was changed after it was written: its digest does not match")
    return record


def records(folder: Path) -> list[Record]:
    """Returns the records of a folder.

    Raises:
        RecordError: if one does not count, or if one source was recorded under two names, but for
            historic faults, which are measured with two sets of rules.
    """
    paths = sorted(path for path in folder.glob("*.json") if not _is_reading(path))
    all_of_them = [load_record(path) for path in paths]
    by_source: dict[str, str] = {}
    for record in all_of_them:
        other = by_source.setdefault(record.source, record.tree)
        if other != record.tree and record.kind != "historic":
            raise RecordError(
                f"{record.tree} has the same files as {other}: a tree counts once; remove a record"
            )
    return all_of_them


def write_record(folder: Path, record: Record) -> Path:
    """Writes a record where none is, and returns its path.

    Raises:
        RecordError: if there is one already.
    """
    path = record_path(folder, record.tree)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as file:
            file.write(_pretty(record.signed()))
    except FileExistsError:
        raise RecordError(f"{path} exists: a tree is linted at first sight once") from None
    return path


def load_reading(folder: Path, record: Record, reader: Reader) -> Reading:
    """Returns the verdicts of one reader, none if they have not begun.

    Raises:
        RecordError: if they are about another record.
    """
    path = _reading_path(folder, record.tree, reader)
    if not path.is_file():
        return Reading(tree=record.tree, reader=reader, by="", record=record.digest)
    try:
        reading = msgspec.json.decode(path.read_bytes(), type=Reading)
    except msgspec.MsgspecError as err:
        raise RecordError(f"{path} holds no verdicts: {err}") from err
    if reading.record != record.digest:
        raise RecordError(f"{path} is about another record of {record.tree}")
    return reading


def give_verdict(folder: Path, record: Record, reader: Reader, by: str, verdict: Verdict) -> None:
    """Writes one verdict into the file of its reader.

    Raises:
        RecordError: if there is no such finding, or this reader gave a verdict on it, or the
            readers are one person.
    """
    if verdict.number not in {one.number for one in judged(record)}:
        raise RecordError(f"{record.tree} has no finding {verdict.number}")
    for other in READERS:
        if other != reader and load_reading(folder, record, other).by == by:
            raise RecordError(f"`{by}` is the {other} reader of {record.tree}: another has to read")
    reading = load_reading(folder, record, reader)
    if reading.by not in ("", by):
        raise RecordError(f"the {reader} reader of {record.tree} is `{reading.by}`, not `{by}`")
    if verdict.number in {one.number for one in reading.verdicts}:
        raise RecordError(f"`{by}` has given a verdict on finding {verdict.number}: it stays")
    kept = sorted((*reading.verdicts, verdict), key=lambda one: one.number)
    path = _reading_path(folder, record.tree, reader)
    path.write_bytes(_pretty(msgspec.structs.replace(reading, by=by, verdicts=tuple(kept))))


def verdicts(folder: Path, record: Record) -> Mapping[int, tuple[Verdict | None, Verdict | None]]:
    """Returns by number what the first and the second reader say."""
    first, second = (
        {one.number: one for one in load_reading(folder, record, reader).verdicts}
        for reader in READERS
    )
    return {one.number: (first.get(one.number), second.get(one.number)) for one in judged(record)}


def judged(record: Record) -> Iterator[Found]:
    """Yields the findings that are to be read: those of rules."""
    return (one for one in record.found if not one.is_diagnostic)


def digest_of_files(root: Path, paths: Iterable[Path]) -> str:
    """Returns a hash of files, with their names."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.relative_to(root).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _digest(record: Record) -> str:
    return hashlib.sha256(_pretty(msgspec.structs.replace(record, digest=""))).hexdigest()


def _pretty(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _reading_path(folder: Path, tree: str, reader: Reader) -> Path:
    return record_path(folder, tree).with_suffix(f".{reader}.json")


def _is_reading(path: Path) -> bool:
    return path.name.endswith(tuple(f".{reader}.json" for reader in READERS))
