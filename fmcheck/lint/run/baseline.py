"""The baseline: findings that were there when the linter was switched on, and may only get fewer.

A JSON file. An entry names path (from the file's own folder), code, a fingerprint of the line's
text, and how often these meet, so that code may move and the entry still holds.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from fmcheck.errors import UsageError
from fmcheck.files.atomic import replace_file
from fmcheck.files.reading import MOST_RECORD, read_regular
from fmcheck.files.strict import convert
from fmcheck.finding import Finding, Span
from fmcheck.lint.own import GONE_ENTRY, OWN_CODES, UNCHECKED
from fmcheck.report.printable import well_formed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

VERSION = 1


class BaselineEntry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, order=True
):
    """Findings of one code on lines of one text in one file."""

    path: str
    code: str
    fingerprint: str
    count: int = 1


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    findings: tuple[BaselineEntry, ...]


Key = tuple[str, str, str]


class Baseline:
    """A baseline file in memory: how many findings it still allows, by path, code and text."""

    def __init__(self, path: Path, allowed: Counter[Key]) -> None:
        self.path = path
        self._allowed = allowed
        self._left = Counter(allowed)
        self._places: dict[Key, int] | None = None
        self._folder = os.path.realpath(path.parent)

    @classmethod
    def load(cls, path: Path) -> Baseline:
        """Reads a baseline.

        Raises:
            UsageError: naming the file, and what does not fit.
        """
        try:
            table = json.loads(read_regular(path, MOST_RECORD))
        except FileNotFoundError:
            raise UsageError(
                str(path), "no such baseline; make it with `--update-baseline`"
            ) from None
        except OSError as err:
            raise UsageError(str(path), f"cannot be read: {err.strerror or err}") from err
        except ValueError as err:
            raise UsageError(str(path), f"is not valid JSON: {err}") from err
        except RecursionError as err:
            raise UsageError(str(path), "is not a baseline: it nests too deeply") from err
        if not isinstance(table, dict):
            raise UsageError(str(path), "expected a baseline: a JSON object with `findings`")
        file = convert(table, _File, str(path))
        if file.version != VERSION:
            raise UsageError(str(path), f"key `version`: expected {VERSION}, got {file.version}")
        allowed: Counter[Key] = Counter()
        for number, entry in enumerate(file.findings):
            if entry.count < 1:
                raise UsageError(
                    str(path),
                    f"key `findings[{number}].count`: expected at least 1, got {entry.count}",
                )
            allowed[(entry.path, entry.code, entry.fingerprint)] += entry.count
        return cls(path, allowed)

    def take(self, findings: Iterable[Finding], lines: Sequence[str]) -> list[Finding]:
        """Returns the findings of one file that this baseline does not allow, and counts the rest.

        What kept a file from being checked is never allowed.
        """
        new = []
        for finding in findings:
            key = self._key(finding, lines)
            if finding.code not in UNCHECKED and self._left[key] > 0:
                self._left[key] -= 1
            else:
                new.append(finding)
        return new

    def add(self, findings: Iterable[Finding], lines: Sequence[str]) -> list[Finding]:
        """Allows further findings of one file from now on, and returns those that it cannot."""
        refused = []
        for finding in findings:
            if finding.code in UNCHECKED:
                refused.append(finding)
            else:
                self._allowed[self._key(finding, lines)] += 1
        return refused

    def gone(self, judged: Callable[[str, str], bool]) -> list[Key]:
        """Returns the entries that stand for more than was found, sorted.

        `judged` tells of an absolute path and a code whether this run looked for it there.
        """
        return sorted(
            key
            for key, left in self._left.items()
            if left > 0 and judged(os.path.normpath(os.path.join(self._folder, key[0])), key[1])
        )

    def shrink(self, keys: Iterable[Key]) -> int:
        """Takes out what the entries stand for beyond what was found, and returns how much."""
        out = 0
        for key in keys:
            out += self._left[key]
            self._allowed[key] -= self._left.pop(key)
        return out

    def save(self) -> None:
        """Writes the file: sorted, an entry a line, so that a diff says what came and went.

        Raises:
            UsageError: if it cannot be written; it is then as it was.
        """
        try:
            replace_file(self.path, self._text().encode())
        except OSError as err:
            raise UsageError(str(self.path), f"cannot be written: {err.strerror or err}") from err

    def finding_for(self, key: Key, command: str) -> Finding:
        """Returns what is said of an entry that is gone; `command` takes it out."""
        path, code, digits = key
        line = self._line_of(key)
        return Finding(
            path=str(self.path),
            span=Span(line, 1, line, 2),
            code=GONE_ENTRY,
            severity=OWN_CODES[GONE_ENTRY].severity,
            message=f"stale baseline entry: {code} in {path}",
            note=f"fingerprint {digits}: {self._allowed[key]} allowed, "
            f"{self._allowed[key] - self._left[key]} found",
            help=f"remove it with `{command}`",
        )

    def _key(self, finding: Finding, lines: Sequence[str]) -> Key:
        where = os.path.join(os.path.realpath(os.path.dirname(finding.path) or "."), "")
        where = os.path.relpath(where + os.path.basename(finding.path), self._folder)
        return well_formed(where.replace(os.sep, "/")), finding.code, finding.fingerprint(lines)

    def _line_of(self, key: Key) -> int:
        """Returns the line of an entry, in a file that has one a line, as `save` writes it."""
        if self._places is None:
            self._places = {}
            for number, line in enumerate(self._text_on_disk().splitlines(), 1):
                if found := _entry_in(line):
                    self._places.setdefault(found, number)
        return self._places.get(key, 1)

    def _text_on_disk(self) -> str:
        try:
            return read_regular(self.path, MOST_RECORD).decode("utf-8", "replace")
        except OSError:
            return ""

    def _text(self) -> str:
        entries = [
            _written({"path": path, "code": code, "fingerprint": digits, "count": n})
            for (path, code, digits), n in sorted(self._allowed.items())
            if n > 0
        ]
        body = "".join(f"\n  {entry}," for entry in entries).rstrip(",")
        return f'{{"version": {VERSION}, "findings": [{body}\n]}}\n'


def _written(entry: dict[str, Any]) -> str:
    """Returns an entry as JSON; the path of a file whose name is no UTF-8 in escapes."""
    text = json.dumps(entry, ensure_ascii=False)
    return text if well_formed(text) == text else json.dumps(entry)


def _entry_in(line: str) -> Key | None:
    """Returns the entry that a line of a baseline holds, None if it holds none."""
    try:
        entry = json.loads(line.strip().removesuffix(","))
        return entry["path"], entry["code"], entry["fingerprint"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
