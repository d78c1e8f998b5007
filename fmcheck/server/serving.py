"""The server: documents are checked as they are opened and changed; hovers and fixes on request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from fmcheck import __version__
from fmcheck.errors import UsageError
from fmcheck.lint.source.tree import KEPT, Kept
from fmcheck.server import checking, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pygls.workspace import TextDocument

    from fmcheck.finding import Finding

#: Seconds of silence after which what was typed is checked.
PAUSE = 0.15


class Server(LanguageServer):
    """What the server knows of the documents that are open."""

    def __init__(self) -> None:
        # pygls makes single changes by lines that end at form feeds and the like too.
        super().__init__(
            "fmcheck", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Full
        )
        self.found: dict[str, Sequence[Finding]] = {}
        self._kept = Kept()
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def check(self, uri: str) -> None:
        """Checks a document and publishes what is found."""
        document = self.workspace.get_text_document(uri)
        self.found[uri] = ()
        KEPT.set(self._kept)
        try:
            with checking.uncollected():
                self.found[uri] = checking.findings(document.path, document.source)
            diagnostics = [translated.diagnostic(one, document) for one in self.found[uri]]
        except UsageError as err:
            diagnostics = [translated.problem(str(err))]
        self.publish(uri, diagnostics, document.version)

    def check_soon(self, uri: str) -> None:
        """Checks a document once nobody has typed for a moment."""
        self.forget(uri)
        self._waiting[uri] = asyncio.ensure_future(self._check_later(uri))

    async def _check_later(self, uri: str) -> None:
        await asyncio.sleep(PAUSE)
        self._waiting.pop(uri, None)
        self.check(uri)

    def current(self, uri: str) -> Sequence[Finding]:
        """Returns the findings of a document as it is now, though it is about to be checked."""
        if uri in self._waiting:
            self.forget(uri)
            self.check(uri)
        return self.found.get(uri, ())

    def forget(self, uri: str) -> None:
        """Drops a check that is waiting."""
        waiting = self._waiting.pop(uri, None)
        if waiting is not None:
            waiting.cancel()

    def publish(
        self, uri: str, diagnostics: list[types.Diagnostic], version: int | None = None
    ) -> None:
        """Sends the client the diagnostics of a document."""
        params = types.PublishDiagnosticsParams(uri, diagnostics, version)
        self.text_document_publish_diagnostics(params)


def _near(server: Server, uri: str, first: int, last: int) -> Iterator[Finding]:
    """Yields the findings on some lines, counted from 0."""
    for one in server.current(uri):
        if one.span.line - 1 <= last and one.span.end_line - 1 >= first:
            yield one


def opened(server: Server, params: types.DidOpenTextDocumentParams) -> None:
    """Checks a document that was opened."""
    server.check(params.text_document.uri)


def changed(server: Server, params: types.DidChangeTextDocumentParams) -> None:
    """Checks a document that is being typed in."""
    server.check_soon(params.text_document.uri)


def saved(server: Server, params: types.DidSaveTextDocumentParams) -> None:
    """Checks all documents: a contract, or settings, may have been saved."""
    for uri in list(server.found):
        server.forget(uri)
        server.check(uri)


def closed(server: Server, params: types.DidCloseTextDocumentParams) -> None:
    """Forgets a document, and takes its diagnostics away."""
    uri = params.text_document.uri
    server.forget(uri)
    server.found.pop(uri, None)
    server.publish(uri, [])


def hovered(server: Server, params: types.HoverParams) -> types.Hover | None:
    """Returns the pages of the rules that found something on a line."""
    line = params.position.line
    codes = dict.fromkeys(one.code for one in _near(server, params.text_document.uri, line, line))
    pages = [text for code in codes if (text := checking.page(code))]
    if not pages:
        return None
    markdown = types.MarkupContent(types.MarkupKind.Markdown, "\n\n---\n\n".join(pages))
    return types.Hover(markdown)


def actions(server: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
    """Returns the fixes on some lines, and the one of the whole document."""
    uri = params.text_document.uri
    document = server.workspace.get_text_document(uri)
    offered: list[types.CodeAction] = []
    for one in _near(server, uri, params.range.start.line, params.range.end.line):
        if one.edits:
            offered.append(translated.fix(one, document))
        suppression = translated.suppression(one, document)
        offered += [suppression] if suppression is not None else []
    if any(one.edits and one.safe for one in server.current(uri)):
        offered.append(_fix_all(document))
    return offered


def _fix_all(document: TextDocument) -> types.CodeAction:
    whole = types.TextEdit(
        translated.whole(document), checking.fixed(document.path, document.source)
    )
    return types.CodeAction(
        title="Fix all that fmcheck can fix safely",
        kind=types.CodeActionKind.SourceFixAll,
        edit=types.WorkspaceEdit(changes={document.uri: [whole]}),
    )


def make_server() -> Server:
    """Returns the server, with all that it answers to."""
    server = Server()
    kinds = [types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]
    server.feature(types.TEXT_DOCUMENT_DID_OPEN)(opened)
    server.feature(types.TEXT_DOCUMENT_DID_CHANGE)(changed)
    server.feature(types.TEXT_DOCUMENT_DID_SAVE)(saved)
    server.feature(types.TEXT_DOCUMENT_DID_CLOSE)(closed)
    server.feature(types.TEXT_DOCUMENT_HOVER)(hovered)
    server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=kinds)
    )(actions)
    return server
