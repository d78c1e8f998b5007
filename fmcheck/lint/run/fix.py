"""Applies the edits of findings to a file's text: all of a finding's or none, to the end."""

from __future__ import annotations

import io
from bisect import bisect_right, insort
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.own import UNUSED_SUPPRESSION
from fmcheck.lint.source import decode, split_lines
from fmcheck.lint.source.lazy import cst
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fmcheck.finding import Edit, Finding

#: Why a file is left alone that the linter, which parses parts, had no reason to parse as a whole.
UNPARSED = "it does not parse as it is"
#: One fix may make room for another. A chain longer than this is a fix that never ends.
ROUNDS = 10


class Fixed(Struct, frozen=True):
    """What came of fixing a text: the new one, and how many findings were fixed.

    With a reason in `refused`, the text is the one from before.
    """

    text: bytes
    count: int = 0
    refused: str = ""


def fix_text(
    text: bytes,
    lint: Callable[[bytes], Sequence[Finding]],
    wanted: Callable[[Sequence[Finding], bytes], Iterable[Finding]],
) -> Fixed:
    """Applies the fixes of the findings of `text` that are `wanted`, and of those found then.

    `lint` gives the findings of a text that can be decoded, `wanted` picks among those of a text.
    Line ends and encoding stay as they are. A result that does not parse, or that holds a finding
    which was not there before, is refused, and so are fixes that never come to an end.
    """
    now, left, count, codes = text, lint(text), 0, ""
    for _ in range(ROUNDS):
        fixing = [one for one in wanted(left, now) if one.edits]
        if not fixing:
            return Fixed(now, count)
        decoded = decode(now)
        if decoded.encode(decoded.raw) != now:
            return Fixed(text, 0, f"{decoded.encoding} gives other bytes for the same text")
        source, applied = _apply(decoded.raw, fixing)
        codes = ", ".join(sorted({one.code for one in applied}))
        try:
            now = decoded.encode(source)
        except UnicodeEncodeError:
            return Fixed(text, 0, f"the fix of {codes} cannot be written in {decoded.encoding}")
        if not _parses(source):
            is_ours = _parses(decoded.raw)
            why = f"the fix of {codes} gives source that does not parse" if is_ours else UNPARSED
            return Fixed(text, 0, why)
        before, left = left, lint(now)
        if new := _new(before, left):
            return Fixed(text, 0, f"the fix of {codes} introduces a new finding, {new}")
        count += len(applied)
    return Fixed(text, 0, f"the fix of {codes} never settles")


def fixed_source(source: str, findings: Iterable[Finding]) -> str:
    """Returns `source` with each finding's edits applied, in order, where they do not overlap."""
    return _apply(source, findings)[0]


def unified_diff(path: str, before: bytes, after: bytes) -> bytes:
    """Returns the difference of two texts of a file as `diff -u` shows it, for `patch` to take."""
    import difflib

    # Only `\n` ends a line of a patch.
    old, new = (list(io.BytesIO(text)) for text in (before, after))
    shown = printable(path)  # on one line, whatever the file is called
    # By a tab `patch` sees where a name with spaces ends.
    name = f"{shown}\t".encode() if " " in shown else shown.encode()
    out = []
    for line in difflib.diff_bytes(difflib.unified_diff, old, new, name, name):
        out.append(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
    return b"".join(out)


def _apply(source: str, findings: Iterable[Finding]) -> tuple[str, list[Finding]]:
    """Returns the edited source, and the findings whose edits are in it."""
    starts = [0]
    for line in split_lines(source):
        starts.append(starts[-1] + len(line))
    newline = "\r\n" if "\r\n" in source else "\n"
    taken: list[tuple[int, int, str]] = []
    applied: list[Finding] = []
    for finding in findings:
        edits = [_placed(edit, starts, newline) for edit in finding.edits]
        if edits and not any(_overlaps(edit, taken) for edit in edits):
            for edit in edits:
                insort(taken, edit)
            applied.append(finding)
    # Put together once: to cut the source again for each edit takes hours for thousands of them.
    parts, done = [], 0
    for start, end, text in taken:
        parts += [source[done:start], text]
        done = end
    return "".join([*parts, source[done:]]), applied


def _placed(edit: Edit, starts: Sequence[int], newline: str) -> tuple[int, int, str]:
    span = edit.span
    start = starts[span.line - 1] + span.column - 1
    end = starts[span.end_line - 1] + span.end_column - 1
    return start, end, edit.text.replace("\n", newline)


def _overlaps(edit: tuple[int, int, str], taken: Sequence[tuple[int, int, str]]) -> bool:
    """Tells whether an edit touches one of those taken, which are in order and apart."""
    start, end, _ = edit
    at = bisect_right(taken, end, key=lambda one: one[0])
    return at > 0 and start <= taken[at - 1][1]


def _parses(source: str) -> bool:
    """Asks libcst, whose grammar does not depend on this interpreter's."""
    from fmcheck.lint.source.tree import too_deep_at

    if too_deep_at(source) is not None:
        return False
    try:
        cst.parse_module(source)
    except cst.ParserSyntaxError:
        return False
    return True


def _new(before: Iterable[Finding], after: Iterable[Finding]) -> str:
    """Returns the code of a finding that was not there before, or "".

    A comment that suppressed what is now fixed is no fault of the fix: the next round removes it.
    """
    grown = Counter(one.code for one in after) - Counter(one.code for one in before)
    return next((code for code in grown if code != UNUSED_SUPPRESSION), "")
