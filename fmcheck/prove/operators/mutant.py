"""A mutant: one fault, planted at one place of one file as a few edits of its text."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.lint.source import split_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmcheck.finding import Edit, Span


@dataclass(frozen=True, slots=True)
class Fault:
    """What an operator wants to plant: the code at fault, what becomes of it, and the edits."""

    span: Span
    code: str
    title: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault in one file. `file` is the path as it is shown, `id` the same in every run.

    `function` is the one that it stands in, `Class.method`, and `code` the source at fault with its
    white space made single: they tell the mutant again when lines above it have moved. `lines` are
    those of the file that the fault changes; `text` is the whole mutated file.
    """

    operator: str
    file: str
    line: int
    column: int
    function: str
    code: str
    title: str
    lines: tuple[int, ...]
    text: str

    @property
    def id(self) -> str:
        """The mutant's name: operator, file, line, column."""
        return f"{self.operator}@{self.file}:{self.line}:{self.column}"


def changed_lines(edits: Iterable[Edit]) -> tuple[int, ...]:
    """Returns the lines that edits change, or that they put something ahead of."""
    spans = [edit.span for edit in edits]
    lines = {line for span in spans for line in range(span.line, span.end_line + 1)}
    return tuple(sorted(lines))


def applied(source: str, edits: Iterable[Edit]) -> str:
    """Returns `source` with all edits made. Of two at one place, the first comes first."""
    starts = [0]
    for line in split_lines(source):
        starts.append(starts[-1] + len(line))
    placed = [
        (
            starts[edit.span.line - 1] + edit.span.column - 1,
            starts[edit.span.end_line - 1] + edit.span.end_column - 1,
            edit.text,
        )
        for edit in edits
    ]
    for start, end, text in sorted(placed, key=lambda one: one[:2], reverse=True):
        source = source[:start] + text + source[end:]
    return source


def parses(source: str) -> bool:
    """Tells whether a text is Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
