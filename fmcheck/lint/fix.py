"""Applies the edits of findings to a file: all of a finding's or none, atomically."""

from __future__ import annotations

import ast
import errno
import os
import tempfile
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError
from fmcheck.lint.source import decode, read, split_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fmcheck.finding import Finding, Span


def fixed_source(source: str, findings: Iterable[Finding]) -> str:
    """Returns `source` with each finding's edits applied, in order, where they do not overlap."""
    lines = split_lines(source)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    taken: list[tuple[int, int, str]] = []
    for finding in findings:
        edits = [(*_offsets(edit.span, starts), edit.text) for edit in finding.edits]
        if edits and not any(_overlap(edit, other) for edit in edits for other in taken):
            taken += edits
    for start, end, text in sorted(taken, reverse=True):
        source = source[:start] + text + source[end:]
    return source


def fix_file(path: Path, findings: Sequence[Finding]) -> bool:
    """Rewrites `path` with the findings' fixes; returns whether anything changed.

    Line ends and encoding stay as they are. A result that would not parse is not written.

    Raises:
        UsageError: if the file cannot be rewritten; it is then as it was.
    """
    text = decode(read(path))
    fixed = fixed_source(text.raw, findings)
    if fixed == text.raw or not _parses(fixed):
        return False
    try:
        _replace(path, text.encode(fixed))
    except OSError as err:
        raise UsageError(str(path), f"cannot be rewritten: {err.strerror or err}") from err
    return True


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _offsets(span: Span, starts: Sequence[int]) -> tuple[int, int]:
    return (
        starts[span.line - 1] + span.column - 1,
        starts[span.end_line - 1] + span.end_column - 1,
    )


def _overlap(one: tuple[int, int, str], other: tuple[int, int, str]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _replace(path: Path, content: bytes) -> None:
    """Writes beside `path` and renames, so that a reader or a crash sees the old or the new."""
    target = path.resolve()
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, target.stat().st_mode)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
