"""A summary in Markdown, for the page of a CI job: lint and tests in one."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.report.printable import printable
from fmcheck.report.run.by_check import ACCEPTED, ADVISORY, by_check, by_site
from fmcheck.report.run.closing import closing_line_of, endings, gaps, left_unchecked, not_watched
from fmcheck.report.run.violation import headline, short_path
from fmcheck.report.run.violation import render as render_violation
from fmcheck.report.text import summary as lint_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fmcheck.finding import Finding
    from fmcheck.record.record import Run

#: What is shown in full; GitHub takes one megabyte in all.
MOST_VIOLATIONS, MOST_FINDINGS = 20, 50
_REMARK = {ADVISORY: " (advisory)", ACCEPTED: " (expected or allowed)"}


@dataclass(frozen=True, slots=True)
class LintHalf:
    """What the linter came to: `allowed` counts what the baseline knows."""

    findings: Sequence[Finding]
    files: int
    rules: int
    allowed: int


@dataclass(frozen=True, slots=True)
class PytestHalf:
    """What the tests came to: pytest's exit status, and the record, None if it wrote none."""

    status: int
    run: Run | None


def render(
    linted: LintHalf | None,
    tested: PytestHalf | None,
    status: int,
    link: Callable[[str, int], str] = lambda path, line: "",
) -> str:
    """Returns the summary; what was not asked for is None.

    `link` gives the address of a line of a file, "" for none.
    """
    verdict = {0: "clean", 1: "findings"}.get(status, "some checks could not run")
    if status == 0 and tested is not None and tested.run and left_unchecked(tested.run.coverage):
        verdict = "no findings, but some checks could not run"
    parts = [f"## fmcheck: {verdict}", "\n".join(_overview(linted, tested))]
    if tested is not None and tested.run is not None:
        parts += _violations(tested.run, link)
    if linted is not None and linted.findings:
        parts.append("\n".join(_findings(linted, link)))
    return "\n\n".join(parts) + "\n"


def _overview(linted: LintHalf | None, tested: PytestHalf | None) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    if linted is None:
        yield "| lint | not run |"
    else:
        more = f", {linted.allowed:,} more in the baseline" if linted.allowed else ""
        sentence = lint_summary(linted.findings, linted.files, linted.rules)
        yield f"| lint | {_cell(sentence + more)} |"
    if tested is None:
        yield "| tests | not run |"
    elif tested.run is None:
        yield f"| tests | pytest ended with {tested.status} and wrote no record |"
    else:
        run = tested.run
        sentence = closing_line_of(run)
        yield f"| watch | {_cell(sentence.removeprefix('fmcheck: '))} |"
        yield f"| pytest | exit status {tested.status} |"


def _violations(run: Run, link: Callable[[str, int], str]) -> Iterator[str]:
    root = Path(run.root)
    for problem in not_watched(run):
        yield f"**Not watched:** {_cell(problem)}"
    lines = by_check(run)
    if lines:
        table = ["| check | sites | times | tests | most often |", "|---|--:|--:|--:|---|"]
        for line in lines:
            site = line.first.access.site
            place = _place(short_path(site.path, root), site.line, link(site.path, site.line))
            table.append(
                f"| **{line.code}** {line.name}{_REMARK.get(line.kind, '')} | {line.sites:,} | "
                f"{line.times:,} | {line.tests:,} | {_cell(line.first.buffer)} at {place} |"
            )
        yield "\n".join(table)
    shown = by_site(run.violations)
    for one, *_ in shown[:MOST_VIOLATIONS]:
        title = html.escape(printable(headline(one).removeprefix("FMCHECK: ")))
        text = _fenced(render_violation(one, root))
        yield f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"
    if len(shown) > MOST_VIOLATIONS:
        yield f"… and {len(shown) - MOST_VIOLATIONS:,} more, in the report."
    remarks = [*endings(run.processes), *gaps(run.coverage)]
    if remarks:
        yield "\n".join(f"- {_cell(one)}" for one in remarks)


def _findings(linted: LintHalf, link: Callable[[str, int], str]) -> Iterator[str]:
    yield from ("| rule | where | what |", "|---|---|---|")
    for one in linted.findings[:MOST_FINDINGS]:
        place = _place(one.path, one.span.line, link(one.path, one.span.line))
        message = f"{one.whole}. {one.help}" if one.help else one.whole
        yield f"| **{one.code}** {one.severity.value} | {place} | {_cell(message)} |"
    more = len(linted.findings) - MOST_FINDINGS
    if more > 0:
        yield f"| | | … and {more:,} more, in the report |"


def _place(path: str, line: int, address: str) -> str:
    shown = f"<code>{_cell(path)}:{line}</code>"
    return f'<a href="{html.escape(address)}">{shown}</a>' if address else shown


def _cell(text: str) -> str:
    """Returns a text for one cell: `code` stays code, and nothing else in it becomes markup."""
    parts = printable(" ".join(text.split())).split("`")
    if len(parts) % 2 == 0:  # a backtick without its fellow
        return _plain("`".join(parts))
    cells = [_plain(one) if number % 2 == 0 else _code(one) for number, one in enumerate(parts)]
    return "".join(cells)


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`" if text else ""


def _plain(text: str) -> str:
    escaped = html.escape(text, quote=False)
    return re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", lambda mark: f"&#{ord(mark[0])};", escaped)


def _fenced(text: str) -> str:
    text = printable(text, keep="\t\n")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
