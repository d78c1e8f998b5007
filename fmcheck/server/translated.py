"""Findings in the words of the language server protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from fmcheck.finding import Severity

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
    return codec.range_to_client_units(document.lines, types.Range(start, end))


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


def suppression(finding: Finding, document: TextDocument) -> types.CodeAction:
    """Returns the action that suppresses a finding on its line, with a reason to fill in."""
    line = document.lines[finding.span.line - 1].rstrip("\r\n")
    comment = f"  # fmcheck: ignore[{finding.code}] why this is right"
    at = types.Position(finding.span.line - 1, document.position_codec.client_num_units(line))
    return types.CodeAction(
        title=f"Suppress {finding.code} on this line",
        kind=types.CodeActionKind.QuickFix,
        diagnostics=[diagnostic(finding, document)],
        edit=types.WorkspaceEdit(
            changes={document.uri: [types.TextEdit(types.Range(at, at), comment)]}
        ),
    )
