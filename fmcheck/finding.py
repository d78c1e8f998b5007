"""What was found: the words that the linter, the pytest plugin and the reports share."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(str, enum.Enum):
    """How sure and how bad: `note` never fails a run, `warning` and `error` do."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A stretch of source text: lines and columns count from 1, the end column is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces the text of `span` by `text`."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnostic of the linter at one place in one file.

    `help` is the way out, in a sentence. `related` names other places that explain the finding.
    """

    path: str
    span: Span
    code: str
    severity: Severity
    message: str
    help: str = ""
    related: tuple[tuple[Span, str], ...] = ()
    edits: tuple[Edit, ...] = ()

    @property
    def sort_key(self) -> tuple[str, Span, str]:
        """Orders findings as a reader walks the tree: by file, place, code."""
        return (self.path, self.span, self.code)


@dataclass(frozen=True, slots=True)
class Site:
    """A line of code that touched a relay buffer: `path:line` in `function`."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"
