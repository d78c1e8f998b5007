"""Lint findings for people: what, where, the source line with a caret, and the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.finding import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fmcheck.finding import Finding, Span

#: Longer stretches than this are shown by their first lines.
MOST_LINES = 3


def render(finding: Finding, lines_of: Callable[[str], Sequence[str]]) -> str:
    """Returns one finding as a block of text; `lines_of` gives a file's lines."""
    lines = lines_of(finding.path)
    span = finding.span
    margin = " " * len(str(max([span.end_line, *(at.line for at, _ in finding.related)])))
    out = [
        f"{finding.severity.value}[{finding.code}]: {finding.message}",
        f"{margin}--> {finding.path}:{span.line}:{span.column}",
    ]
    if span.line <= len(lines):
        out += [f"{margin} |", *_excerpt(span, lines, margin, "^"), f"{margin} |"]
    for at, text in finding.related:
        out.append(f"{margin} = note: {text}, line {at.line}")
        if at.line <= len(lines):
            out.append(_numbered(at.line, lines, margin))
    if finding.help:
        out.append(f"{margin} = help: {finding.help}")
    return "\n".join(out) + "\n"


def summary(findings: Sequence[Finding], files: int, rules: int) -> str:
    """Returns the closing line: how much was checked, and how much was found."""
    checked = f"{_count(files, 'file')} checked with {_count(rules, 'rule')}"
    counts = [
        _count(number, severity.value)
        for severity in reversed(Severity)
        if (number := sum(finding.severity is severity for finding in findings))
    ]
    return f"{checked}: {', '.join(counts) if counts else 'no findings'}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _excerpt(span: Span, lines: Sequence[str], margin: str, mark: str) -> Iterator[str]:
    last = min(span.end_line, span.line + MOST_LINES - 1, len(lines))
    for number in range(span.line, last + 1):
        yield _numbered(number, lines, margin)
        text = lines[number - 1].rstrip("\n")
        start = span.column - 1 if number == span.line else len(text) - len(text.lstrip())
        end = span.end_column - 1 if number == span.end_line else len(text)
        # Tabs are kept, so that the caret stands where the reader's terminal put the text.
        lead = "".join("\t" if char == "\t" else " " for char in text[:start])
        yield f"{margin} | {lead}{mark * max(end - start, 1)}"


def _numbered(number: int, lines: Sequence[str], margin: str) -> str:
    return f"{number:>{len(margin)}} | {lines[number - 1]}".rstrip()
