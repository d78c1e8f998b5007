"""Lint findings for people: what, where, the source line with a caret, and the way out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.report.colour import plain
from fmcheck.report.headline import MOST, fitted
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fmcheck.finding import Finding, Span
    from fmcheck.report.colour import Paint
    from fmcheck.report.contents import Contents

#: Longer stretches than this are shown by their first lines.
MOST_LINES = 3
#: Longer lines than this are shown by what is around the caret.
MOST_COLUMNS = 240
#: How much of a cut line is shown before the caret.
_BEFORE = 80
_CUT = "[...]"


def render(
    finding: Finding,
    lines_of: Callable[[str], Sequence[str]],
    paint: Paint = plain,
) -> str:
    """Returns one finding as a block of text; `lines_of` gives a file's lines."""
    lines = lines_of(finding.path)
    span, level = finding.span, finding.severity.value
    margin = " " * len(str(max([span.end_line, *(at.line for at, _ in finding.related)])))
    bar, equals = (paint(f"{margin} {mark}", "margin") for mark in "|=")
    label = f"suppressed {level}" if finding.suppressed else level
    message, marks = printable(finding.message), _fixable(finding)
    headline = fitted(message, MOST - len(f"{label}[{finding.code}]: {marks}"))
    out = [
        f"{paint(f'{label}[{finding.code}]', level)}: {paint(headline, 'strong')}{marks}",
        f"{margin}{paint('-->', 'margin')} {printable(finding.path)}:{span.line}:{span.column}",
    ]
    if span.line <= len(lines):
        excerpt = _excerpt(span, lines, margin, lambda mark: paint(mark, level), paint)
        out += [bar, *excerpt, bar]
    whole = message if headline != message else ""
    out += [f"{equals} note: {one}" for one in (whole, printable(finding.note)) if one]
    for at, text in finding.related:
        out.append(f"{equals} note: {printable(text)}, line {at.line}")
        if at.line <= len(lines):
            line = lines[at.line - 1]
            end = at.end_column - 1 if at.end_line == at.line else len(line)
            text = "".join(_window(line, at.column - 1, end))
            out.append(_numbered(at.line, text, margin, paint))
    if finding.help:
        out.append(f"{equals} {paint('help', 'help')}: {printable(finding.help)}")
    if finding.suppressed:
        out.append(f"{equals} suppressed: {printable(finding.suppressed)}")
    return "\n".join(out) + "\n"


def summary(findings: Sequence[Finding], files: int, rules: int) -> str:
    """Returns the closing line: how much was checked, and how much was found."""
    checked = f"{count(files, 'file')} checked with {count(rules, 'rule')}"
    counts = [
        count(number, severity.value)
        for severity in reversed(Severity)
        if (number := sum(finding.severity is severity for finding in findings))
    ]
    return f"{checked}: {', '.join(counts) if counts else 'no findings'}"


def fixable(findings: Iterable[Finding]) -> str:
    """Returns how many findings a fix is offered for, as a sentence; "" for none."""
    kinds = Counter(finding.safe for finding in findings if finding.edits)
    parts = []
    if kinds[True]:
        parts.append(f"{kinds[True]:,} can be fixed with `--fix`")
    if kinds[False]:
        parts.append(f"{kinds[False]:,}{' more' * bool(parts)} with `--fix --unsafe-fixes`")
    return ", ".join(parts)


def not_fixable(findings: Iterable[Finding], kept: Mapping[str, str]) -> str:
    """Returns how many fixes are refused for their file's sake, as a sentence; "" for none."""
    left = Counter(one.path for one in findings if one.edits and one.path in kept)
    if not left:
        return ""
    named = [f"{path} ({kept[path]})" for path in list(left)[:3]]
    more = f" and {count(len(left) - 3, 'more file')}" if len(left) > 3 else ""
    fixes = "1 fix" if left.total() == 1 else f"{left.total():,} fixes"
    return printable(f"{fixes} refused: {', '.join(named)}{more}")


def statistics(contents: Contents) -> str:
    """Returns a table: how often each code was found, the most frequent first."""
    counts = Counter(finding.code for finding in contents.findings)
    width = len(f"{max(counts.values(), default=0):,}")
    return "\n".join(
        f"{number:>{width},}  {code}  {contents.codes[code].name}"
        for code, number in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    )


def _fixable(finding: Finding) -> str:
    if not finding.edits:
        return ""
    return " [fixable]" if finding.safe else " [fixable, unsafe]"


def count(number: int, noun: str) -> str:
    """Returns a number and what it counts, in the plural if need be."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _excerpt(
    span: Span, lines: Sequence[str], margin: str, mark: Callable[[str], str], paint: Paint
) -> Iterator[str]:
    last = min(span.end_line, span.line + MOST_LINES - 1, len(lines))
    bar = paint(f"{margin} |", "margin")
    for number in range(span.line, last + 1):
        text = lines[number - 1]
        start = span.column - 1 if number == span.line else len(text) - len(text.lstrip())
        end = span.end_column - 1 if number == span.end_line else len(text)
        before, marked, after = _window(text, start, max(end, start + 1))
        yield _numbered(number, before + marked + after, margin, paint)
        # Tabs are kept, so that the caret stands where the reader's terminal put the text.
        lead = "".join("\t" if char == "\t" else " " for char in before)
        yield f"{bar} {lead}{mark('^' * max(len(marked), 1))}"


def _window(text: str, start: int, end: int) -> tuple[str, str, str]:
    """Returns what to show of a line, printable: before a stretch, the stretch, and after it."""
    first, last = 0, len(text) - text.endswith("\n")
    if last > MOST_COLUMNS:
        first = max(start - _BEFORE, 0)
        last = min(first + MOST_COLUMNS, last)
    end = min(end, last)
    before, after = (_CUT if first else ""), (_CUT if text[last:].strip() else "")
    return (
        before + printable(text[first:start]),
        printable(text[start:end]),
        printable(text[end:last]) + after,
    )


def _numbered(number: int, text: str, margin: str, paint: Paint) -> str:
    place = paint(f"{number:>{len(margin)}} |", "margin")
    return f"{place} {text.rstrip()}".rstrip()
