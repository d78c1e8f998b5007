"""Suppression comments: `# fmcheck: ignore[FM201] reason`, in one file's text.

A comment counts for findings that start on its own line, and for those of a statement that starts
or ends there; of a compound statement, its header. `# fmcheck: ignore-file[FM201] reason` counts
for the whole file; it stands above the first statement, a docstring aside.
"""

from __future__ import annotations

import re
import tokenize
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fmcheck.errors import nearest, nearest_code
from fmcheck.finding import Edit, Finding, Span
from fmcheck.lint.own import (
    MALFORMED_SUPPRESSION,
    OWN_CODES,
    REMOVED,
    UNCHECKED,
    UNUSED_SUPPRESSION,
)
from fmcheck.lint.source import decode, split_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.lint.scope.selection import Codes

#: A comment of ours, or one that was meant to be: without its colon.
COMMENT = re.compile(
    r"#\s*fmcheck(?P<sign>:|[\s:=-]+(?=ignore(?:-file)?\s*\[))\s*(?P<rest>.*?)\s*(?=\s#|$)"
)
FORM = re.compile(r"(?P<verb>[\w-]*)\s*(?P<brackets>\[(?P<codes>[^\]]*)\])?[\s:-]*(?P<reason>.*)")
VERBS = ("ignore", "ignore-file")
SEPARATED = re.compile(r"[\s;]")
VISIBLE = re.compile(r"\S")
WORD = re.compile(r"\w")
BLANK = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class _Suppression(Struct):
    """One well-formed comment. `line` is None for the whole file; `used` grows as it suppresses."""

    line: int | None
    codes: tuple[str, ...]
    reason: str
    span: Span
    text: str
    used: set[str] = set()


class _Scan(Struct):
    """What the tokens of a file tell: its comments, and the first and last line of each statement.

    `body` is the line of the first statement that is no docstring.
    """

    comments: list[tuple[int, int, str]] = []
    around: dict[int, tuple[int, int]] = {}
    body: int | None = None


def apply(text: bytes, path: str, findings: Sequence[Finding], codes: Codes) -> list[Finding]:
    """Returns a file's findings, sorted; those that a comment suppresses give its reason.

    `text` is the file's bytes. A comment that suppresses nothing, or says too little, is a finding
    of its own.
    """
    try:
        lines = split_lines(decode(text).source)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return list(findings)  # one of which says so
    scan = _scan(lines)
    suppressions: list[_Suppression] = []
    own: list[Finding] = []
    for suppression, problems in _read(scan, path, codes):
        own += problems
        if suppression is not None:
            suppressions.append(suppression)
    found = [_marked(one, suppressions, scan) for one in findings]
    if not any(one.code in UNCHECKED for one in findings):
        own += _unused(suppressions, path, lines, codes)
    found += [one for one in own if one.code in codes.checked]
    return sorted(found, key=lambda one: one.sort_key)


def last_line(lines: Sequence[str], line: int) -> int | None:
    """Returns the line on which a comment may stand for this one: the last of its statement."""
    around = _scan(lines).around.get(line)
    return around[1] if around else None


def _scan(lines: Sequence[str]) -> _Scan:
    """Reads the tokens, as far as they are Python: one that stops short is reported elsewhere."""
    scan = _Scan()
    start, kinds = 0, set[int]()
    try:
        for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
            if token.type == tokenize.COMMENT:
                if "fmcheck" in token.string:
                    scan.comments.append((*token.start, token.string))
            elif token.type == tokenize.NEWLINE:
                for line in range(start, token.start[0] + 1):
                    scan.around.setdefault(line, (start, token.start[0]))
                if scan.body is None and kinds != {tokenize.STRING}:
                    scan.body = start
                start, kinds = 0, set()
            elif token.type not in BLANK:
                start = start or token.start[0]
                kinds.add(token.type)
    except (tokenize.TokenError, SyntaxError):
        pass
    return scan


def _read(
    scan: _Scan, path: str, codes: Codes
) -> Iterator[tuple[_Suppression | None, list[Finding]]]:
    """Yields each comment as a suppression, if it is one, and what is wrong with it."""
    for line, column, comment in scan.comments:
        for match in COMMENT.finditer(comment):
            first, last = column + match.start() + 1, column + match.end() + 1
            span = Span(line, first, line, last)
            form = FORM.fullmatch(match["rest"])
            assert form is not None  # each of its parts may be empty
            named = _named(form)
            wrong = list(_problems(form, named, codes))
            whole_file = form["verb"] == "ignore-file"
            if match["sign"] != ":":
                yield None, [_malformed(path, span, f"expected `fmcheck:` before `{form['verb']}`")]
                continue
            if whole_file and scan.body is not None and line > scan.body:
                wrong.append("`ignore-file` counts only above the first statement of the file")
            elif form["verb"] in VERBS and WORD.search(form["reason"]):
                good = tuple(filter(codes.knows, named))
                at = None if whole_file else line
                yield _Suppression(at, good, form["reason"], span, match[0]), []
            yield None, [_malformed(path, span, problem) for problem in wrong]


def _named(form: re.Match[str]) -> tuple[str, ...]:
    parts = (part.strip() for part in (form["codes"] or "").split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _problems(form: re.Match[str], named: Sequence[str], codes: Codes) -> Iterator[str]:
    """Yields what keeps a comment from being a suppression, or one of its codes from counting."""
    verb = form["verb"]
    if verb not in VERBS:
        yield f"expected `ignore` or `ignore-file`, got `{verb}`{nearest(verb, VERBS)}"
        return
    if not named:
        yield f"`{verb}` names no code, so it suppresses nothing"
        return
    for code in named:
        if code in OWN_CODES:
            yield f"`{code}` cannot be suppressed"
        elif SEPARATED.search(code):
            yield f"expected codes separated by commas, got `{code}`"
        elif not codes.knows(code):
            yield f"there is no rule `{code}`{nearest_code(code, codes.known)}"
    if not WORD.search(form["reason"]):
        yield f"no reason is given, so it suppresses nothing: write why after `[{form['codes']}]`"


def _marked(finding: Finding, suppressions: Sequence[_Suppression], scan: _Scan) -> Finding:
    """Returns the finding, with the reason of the nearest comment if one suppresses it."""
    line = finding.span.line
    for at in (line, *scan.around.get(line, ()), None):
        for one in suppressions:
            if one.line == at and finding.code in one.codes:
                one.used.add(finding.code)
                return replace(finding, suppressed=one.reason)
    return finding


def _unused(
    suppressions: Sequence[_Suppression], path: str, lines: Sequence[str], codes: Codes
) -> Iterator[Finding]:
    for one in suppressions:
        idle = [code for code in one.codes if codes.judges(code) and code not in one.used]
        if not idle:
            continue
        where = "in this file" if one.line is None else "here"
        named = ", ".join(f"`{code}`" for code in idle)
        removed = [code for code in idle if code in REMOVED]
        yield Finding(
            path=path,
            span=one.span,
            code=UNUSED_SUPPRESSION,
            severity=OWN_CODES[UNUSED_SUPPRESSION].severity,
            message=f"unused suppression: no {named} {where}",
            note=f"removed rules: {', '.join(removed)}" if removed else "",
            help="take it out",
            edits=(_without(one, idle, lines),),
        )


def _without(one: _Suppression, idle: Sequence[str], lines: Sequence[str]) -> Edit:
    """Returns the edit that takes the idle codes out, and the comment or the line if none is left.

    What stands beside the comment, another comment too, stays.
    """
    left = [code for code in one.codes if code not in idle]
    span = one.span
    if left:
        return Edit(span, re.sub(r"\[[^\]]*\]", f"[{', '.join(left)}]", one.text, count=1))
    # The line is not copied: it may hold thousands of comments.
    line, start = lines[span.line - 1], span.column - 1
    after = VISIBLE.search(line, span.end_column - 1)
    if after:
        return Edit(Span(span.line, span.column, span.line, after.start() + 1), "")
    while start and line[start - 1].isspace():
        start -= 1
    if not start and line.endswith("\n"):
        return Edit(Span(span.line, 1, span.line + 1, 1), "")
    return Edit(Span(span.line, start + 1, span.line, span.end_column), "")


def _malformed(path: str, span: Span, problem: str) -> Finding:
    return Finding(
        path=path,
        span=span,
        code=MALFORMED_SUPPRESSION,
        severity=OWN_CODES[MALFORMED_SUPPRESSION].severity,
        message=f"suppression: {problem}",
        help="write `# fmcheck: ignore[FM201] why this is right`",
    )
