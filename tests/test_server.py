"""The language server, driven by pygls's own client over stdio, as an editor would."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient
from pygls.workspace import PositionCodec, TextDocument

from fmcheck.cli import main
from fmcheck.finding import Span
from fmcheck.lint.source import split_lines
from fmcheck.server import translated
from fmcheck.server.serving import make_server
from tests.sources import DEAD_ASSERT, STRAY_EVENT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

#: A server that does not answer fails the test.
PATIENCE = 60.0


class Editor:
    """A client with one document, and the diagnostics that came last."""

    def __init__(self, path: Path) -> None:
        self.client = LanguageClient("editor", "1")
        self.uri = path.as_uri()
        self.text = ""
        self.version = 0
        self._reported: asyncio.Queue[list[types.Diagnostic]] = asyncio.Queue()

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def _(params: types.PublishDiagnosticsParams) -> None:
            self._reported.put_nowait(list(params.diagnostics))

    @property
    def _document(self) -> types.TextDocumentIdentifier:
        return types.TextDocumentIdentifier(self.uri)

    async def reported(self) -> list[types.Diagnostic]:
        return await asyncio.wait_for(self._reported.get(), PATIENCE)

    async def open(self, text: str) -> list[types.Diagnostic]:
        self.text, self.version = text, 1
        document = types.TextDocumentItem(self.uri, "python", 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(document))
        return await self.reported()

    async def type(self, text: str) -> list[types.Diagnostic]:
        self.text, self.version = text, self.version + 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self.version, self.uri),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )
        return await self.reported()

    async def actions(self, at: types.Range) -> list[types.CodeAction]:
        params = types.CodeActionParams(self._document, at, types.CodeActionContext([]))
        found = await asyncio.wait_for(
            self.client.text_document_code_action_async(params), PATIENCE
        )
        return [one for one in found or () if isinstance(one, types.CodeAction)]

    async def hover(self, at: types.Position) -> str:
        params = types.HoverParams(self._document, at)
        found = await asyncio.wait_for(self.client.text_document_hover_async(params), PATIENCE)
        return found.contents.value if found else ""

    def save(self) -> None:
        params = types.DidSaveTextDocumentParams(self._document)
        self.client.text_document_did_save(params)

    async def close(self) -> list[types.Diagnostic]:
        params = types.DidCloseTextDocumentParams(self._document)
        self.client.text_document_did_close(params)
        return await self.reported()

    def apply(self, action: types.CodeAction) -> str:
        """Returns the text with the edits of an action made, as an editor makes them."""
        lines = split_lines(self.text)
        starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
        text = self.text
        for edit in sorted(
            action.edit.changes[self.uri], key=lambda one: one.range.start.line, reverse=True
        ):
            first, last = edit.range.start, edit.range.end
            start = starts[first.line] + first.character
            end = min(starts[min(last.line, len(lines))] + last.character, len(text))
            text = text[:start] + edit.new_text + text[end:]
        return text


@asynccontextmanager
async def _editor(path: Path) -> AsyncIterator[Editor]:
    editor = Editor(path)
    await editor.client.start_io(sys.executable, "-P", "-m", "fmcheck", "server")
    params = types.InitializeParams(
        types.ClientCapabilities(), root_uri=path.parent.as_uri(), process_id=None
    )
    await asyncio.wait_for(editor.client.initialize_async(params), PATIENCE)
    editor.client.initialized(types.InitializedParams())
    try:
        yield editor
    finally:
        await asyncio.wait_for(editor.client.shutdown_async(None), PATIENCE)
        editor.client.exit(None)
        await editor.client.stop()


@pytest.fixture
def edit(tmp_path: Path) -> Callable[[Callable[[Editor], Awaitable[None]]], None]:
    def run(steps: Callable[[Editor], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with _editor(tmp_path / "relay.py") as editor:
                await steps(editor)

        asyncio.run(whole())

    return run


def test_a_finding_appears_on_opening_and_goes_when_it_is_fixed_by_typing(edit) -> None:
    async def steps(editor: Editor) -> None:
        (found,) = await editor.open(STRAY_EVENT)
        assert (found.code, found.source) == ("FM301", "fmcheck")
        assert found.severity is types.DiagnosticSeverity.Warning
        assert found.range.start == types.Position(4, 12)
        assert await editor.type(STRAY_EVENT.replace("torch.cuda.Event", "module.Event")) == []
        assert await editor.close() == []

    edit(steps)


def test_a_quick_fix_makes_the_finding_go(edit) -> None:
    async def steps(editor: Editor) -> None:
        (found,) = await editor.open(DEAD_ASSERT)
        offered = {one.title: one for one in await editor.actions(found.range)}
        assert "Fix FM601" in offered
        assert offered["Fix FM601"].is_preferred
        assert await editor.type(editor.apply(offered["Fix FM601"])) == []

    edit(steps)


def test_all_safe_fixes_are_one_action(edit) -> None:
    async def steps(editor: Editor) -> None:
        twice = DEAD_ASSERT + DEAD_ASSERT.partition("\n")[2].replace("def ", "def other_")
        assert len(await editor.open(twice)) == 2
        nowhere = types.Range(types.Position(0, 0), types.Position(0, 0))
        (action,) = await editor.actions(nowhere)
        assert action.kind == types.CodeActionKind.SourceFixAll
        assert await editor.type(editor.apply(action)) == []

    edit(steps)


SUPPRESS = "Suppress {} here, for a reason to be written"
CALL = "torch._assert_async((values >= 0).all())"


@pytest.mark.parametrize(
    ("written", "ended"),
    [
        (CALL, CALL),
        (f"x = {CALL} \\\n        or values", "or values"),
        (CALL.replace("values", 'values["""\n"""]'), ").all())"),
        ("with torch._assert_async((values >= 0).all(\n    )):\n        pass", "    )):"),
        (f"{CALL}  # noqa: X", "# noqa: X"),
    ],
    ids=["one line", "continued", "string", "header", "comment"],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_finding_can_be_suppressed_with_a_reason(edit, written, ended, newline) -> None:
    async def steps(editor: Editor) -> None:
        text = DEAD_ASSERT.replace(CALL, written).replace("\n", newline)
        (found,) = await editor.open(text)
        offered = {one.title: one for one in await editor.actions(found.range)}
        suppressed = editor.apply(offered[SUPPRESS.format("FM601")])
        comment = "  # fmcheck: ignore[FM601]"
        assert f"{ended}{comment}{newline}" in suppressed
        # Without a reason it does not count.
        assert [one.code for one in await editor.type(suppressed)] == ["FM601", "FM004"]
        assert await editor.type(suppressed.replace(comment, f"{comment} a test")) == []

    edit(steps)


def test_what_cannot_be_suppressed_is_not_offered_to_be(edit) -> None:
    async def steps(editor: Editor) -> None:
        comments = "  # fmcheck: ignore[FM601]\n    values.sum()  # fmcheck: ignore[FM301] why"
        found = await editor.open(DEAD_ASSERT.replace(CALL, f"{CALL}{comments}"))
        assert {one.code for one in found} == {"FM601", "FM004", "FM003"}
        whole = types.Range(found[0].range.start, types.Position(9, 0))
        offered = [one.title for one in await editor.actions(whole)]
        assert [one for one in offered if "Suppress" in one] == [SUPPRESS.format("FM601")]

    edit(steps)


ENDS = "\f\v\x1c\x1d\x1e\x85\u2028\u2029"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_only_line_feeds_and_carriage_returns_end_lines(edit, newline) -> None:
    async def steps(editor: Editor) -> None:
        text = DEAD_ASSERT.replace("torch\n", f"torch  # {ENDS}\n\f\n", 1)
        (found,) = await editor.open(text.replace("\n", newline))
        assert found.range == types.Range(types.Position(5, 4), types.Position(5, 4 + len(CALL)))
        fix, suppress, fix_all = await editor.actions(found.range)
        for action in (fix, fix_all):
            fixed = text.replace(".all())", '.all(), "check: (values >= 0).all()")')
            assert editor.apply(action) == fixed.replace("\n", newline)
        assert f"{CALL}  # fmcheck" in editor.apply(suppress)

    edit(steps)


def test_the_client_sends_whole_texts(tmp_path: Path) -> None:
    assert make_server()._text_document_sync_kind is types.TextDocumentSyncKind.Full


@pytest.mark.parametrize(
    ("encoding", "start"),
    [
        (types.PositionEncodingKind.Utf8, 12),
        (types.PositionEncodingKind.Utf16, 8),
        (types.PositionEncodingKind.Utf32, 7),
    ],
)
def test_places_are_those_of_the_encoding(encoding, start) -> None:
    codec = PositionCodec(encoding)
    text = "x = 1\f\n'🚀\u2028'; ab"
    document = TextDocument("file:///a.py", text, position_codec=codec)
    found = translated.range_of(Span(2, 7, 2, 9), document)
    assert found == types.Range(types.Position(1, start - 1), types.Position(1, start + 1))
    assert translated.whole(document).end == found.end
    ended = TextDocument("file:///a.py", f"{text}\n", position_codec=codec)
    assert translated.whole(ended).end == types.Position(2, 0)


def test_hovering_shows_the_page_of_the_rule_and_nothing_elsewhere(edit) -> None:
    async def steps(editor: Editor) -> None:
        (found,) = await editor.open(STRAY_EVENT)
        assert (await editor.hover(found.range.start)).startswith("# FM301 cuda-api\n")
        assert await editor.hover(types.Position(0, 0)) == ""

    edit(steps)


def test_columns_are_counted_as_the_client_does(edit) -> None:
    async def steps(editor: Editor) -> None:
        text = STRAY_EVENT.replace("ready = ", 'ready = "\N{ROCKET}", ')
        (found,) = await editor.open(text)
        line = text.splitlines()[4]
        at = len(line[: line.index("torch.cuda")].encode("utf-16-le")) // 2
        assert found.range.start.character == at

    edit(steps)


def test_columns_are_those_of_the_text_whatever_its_encoding(edit) -> None:
    async def steps(editor: Editor) -> None:
        text = "# coding: latin-1\n" + DEAD_ASSERT.replace("    torch", '    "é"; torch')
        (found,) = await editor.open(text)
        assert found.range.start.character == 9
        *_, fix_all = await editor.actions(found.range)
        assert '"é"; torch._assert_async' in editor.apply(fix_all)

    edit(steps)


def test_half_a_surrogate_pair_is_one_diagnostic(edit) -> None:
    async def steps(editor: Editor) -> None:
        (problem,) = await editor.open(DEAD_ASSERT + "# \ud800\n")
        assert problem.message.startswith("file cannot be decoded")

    edit(steps)


def test_an_editor_that_ends_the_server_gets_no_error(tmp_path: Path) -> None:
    async def whole() -> None:
        async with _editor(tmp_path / "relay.py") as editor:
            server = editor.client._server
        assert await asyncio.wait_for(server.wait(), PATIENCE) == 0

    asyncio.run(whole())


def test_source_that_does_not_parse_yet_is_one_diagnostic(edit) -> None:
    async def steps(editor: Editor) -> None:
        (found,) = await editor.open(f"{STRAY_EVENT}def half(:\n    torch.cuda.Event(\n")
        assert found.code == "FM001"
        assert [one.code for one in await editor.type(STRAY_EVENT)] == ["FM301"]

    edit(steps)


def test_settings_that_do_not_fit_are_shown_in_the_file_and_saving_checks_again(
    edit, tmp_path: Path
) -> None:
    settings = tmp_path / "pyproject.toml"
    settings.write_text("[tool.fmcheck]\nselec = []\n")

    async def steps(editor: Editor) -> None:
        (found,) = await editor.open(STRAY_EVENT)
        assert "not checked" in found.message
        assert "tool.fmcheck.selec" in found.message
        settings.write_text("[tool.fmcheck]\nselect = []\n")
        editor.save()
        assert [one.code for one in await editor.reported()] == ["FM301"]

    edit(steps)


def test_an_excluded_file_is_not_checked(edit, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.fmcheck]\nextend-exclude = ["relay.py"]\n')

    async def steps(editor: Editor) -> None:
        assert await editor.open(STRAY_EVENT) == []

    edit(steps)


def test_a_server_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fmcheck.cli.server.find_spec", lambda name: None)
    assert main(["server"]) == 2
    assert capsys.readouterr().err == (
        "fmcheck: server: needs pygls: pip install 'fmcheck[server]'\n"
    )


def test_all_that_a_check_needs_is_loaded_before_the_first_document_is_opened() -> None:
    program = (
        "import sys\n"
        "from fmcheck.server.checking import findings, get_ready\n"
        "get_ready()\n"
        "loaded = set(sys.modules)\n"
        f"assert findings('runner.py', {STRAY_EVENT + DEAD_ASSERT!r})\n"
        "print(*(one for one in {*sys.modules} - loaded if one.startswith(('fmcheck', 'libcst'))))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def measure(path: Path, text: str) -> list[float]:
    """Returns the seconds from typing in a file to its diagnostics, ten times."""
    seconds: list[float] = []

    async def whole() -> None:
        async with _editor(path) as editor:
            await editor.open(text)
            for number in range(10):
                start = time.perf_counter()
                await editor.type(f"{text}# {number}\n")
                seconds.append(time.perf_counter() - start)

    asyncio.run(whole())
    return seconds
