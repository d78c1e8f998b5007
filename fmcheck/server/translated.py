"""Findings in the words of the language server protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from fmcheck.finding import Severity
from fmcheck.lint.own import OWN_CODES
from fmcheck.lint.run.suppression_comments import last_line
from fmcheck.lint.source import split_lines

if TYPE_CHECKING:
    from pygls.workspace import TextDocument

    from fmcheck.finding import Finding, Span

SOURCE = "fmcheck"
_SEVERITY = {
    Severity.NOTE: types.DiagnosticSeverity.Information,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.ERROR: types.DiagnosticSeverity.Error,
}


def range_of(span: Span, document: TextDocument) -> types.Range:
    """Returns a span in the units that the client counts columns in."""
    start = types.Position(span.line - 1, span.column - 1)
    end = types.Position(span.end_line - 1, span.end_column - 1)
    codec = document.position_codec
    # Not by `document.lines`, which ends them at form feeds and the like too.
    return codec.range_to_client_units(split_lines(document.source), types.Range(start, end))


def whole(document: TextDocument) -> types.Range:
    """Returns the range of all of a document."""
    # A last line without an end is one, and behind an end begins another.
    lines = split_lines(f"{document.source}\0")
    units = document.position_codec.client_num_units(lines[-1][:-1])
    return types.Range(types.Position(0, 0), types.Position(len(lines) - 1, units))


def diagnostic(finding: Finding, document: TextDocument) -> types.Diagnostic:
    """Returns a finding as editors show it."""
    parts = [finding.message, finding.note, f"help: {finding.help}" if finding.help else ""]
    related = [
        types.DiagnosticRelatedInformation(
            types.Location(document.uri, range_of(span, document)), text
        )
        for span, text in finding.related
    ]
    return types.Diagnostic(
        range=range_of(finding.span, document),
        message="\n".join(filter(None, parts)),
        severity=_SEVERITY[finding.severity],
        code=finding.code,
        source=SOURCE,
        related_information=related or None,
    )


def problem(message: str) -> types.Diagnostic:
    """Returns what keeps a file from being checked, at its start."""
    start = types.Range(types.Position(0, 0), types.Position(0, 1))
    error = types.DiagnosticSeverity.Error
    return types.Diagnostic(start, f"not checked: {message}", error, source=SOURCE)


def fix(finding: Finding, document: TextDocument) -> types.CodeAction:
    """Returns the quick fix of a finding."""
    edits = [types.TextEdit(range_of(one.span, document), one.text) for one in finding.edits]
    marks = "" if finding.safe else " (may change what the program does)"
    return types.CodeAction(
        title=f"Fix {finding.code}{marks}",
        kind=types.CodeActionKind.QuickFix,
        diagnostics=[diagnostic(finding, document)],
        edit=types.WorkspaceEdit(changes={document.uri: edits}),
        is_preferred=finding.safe,
    )


def suppression(finding: Finding, document: TextDocument) -> types.CodeAction | None:
    """Returns the action that writes a comment for a finding at the end of its statement.

    The reason is left to write: without it nothing is suppressed. None where no comment can be.
    """
    lines = [line.rstrip("\r\n") for line in split_lines(document.source)]
    number = last_line([f"{line}\n" for line in lines], finding.span.line)
    if finding.code in OWN_CODES or number is None:
        return None
    units = document.position_codec.client_num_units(lines[number - 1])
    at = types.Position(number - 1, units)
    edit = types.TextEdit(types.Range(at, at), f"  # fmcheck: ignore[{finding.code}]")
    return types.CodeAction(
        title=f"Suppress {finding.code} here, for a reason to be written",
        kind=types.CodeActionKind.QuickFix,
        diagnostics=[diagnostic(finding, document)],
        edit=types.WorkspaceEdit(changes={document.uri: [edit]}),
    )
