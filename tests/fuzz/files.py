"""Mutated real files, and what the rules must not do to them."""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.contract import load_contract
from fmcheck.lint.engine import lint_text
from fmcheck.lint.own import RULE_FAILED
from fmcheck.lint.run.fix import UNPARSED, fix_text
from fmcheck.lint.source.file import File
from fmcheck.registry import contract_files, rules
from tests.corpus import cache_folder
from tests.fuzz.crash import where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.contract import Contract
    from fmcheck.lint.rule import Rule
    from tests.fuzz.draw import Draw

ROOT = Path(__file__).parent.parent.parent
#: Larger files take too long for what they tell.
MOST_BYTES = 60_000
TREES = ("sglang-0.5.23", "sglang-0.5.12", "vllm-0.20.2")
PATHS = (
    "sglang/srt/managers/overlap_utils.py",
    "sglang/srt/speculative/eagle_worker.py",
    "sglang/srt/model_executor/cuda_graph_runner.py",
    "vllm/v1/worker/gpu_input_batch.py",
    "fixtures/engine/runners/draft.py",
    "x.py",
)
ODD = (
    *("\0", "\ufeff", "\r\n", "\r", "\x0c", "\t", "\\", '"""', "'", "(", ")", "[", "]", "{", "}"),
    *(
        ":",
        ";",
        ",",
        "=",
        ":=",
        "*",
        "**",
        "@",
        "#",
        "é",
        "\U0001d518",
        "\u2028",
        "\ud800",
        "lambda x:",
    ),
    "\U0001d518",
    *("yield ", "await ", "async ", "del ", "global x\n", "return\n", "else:\n", "try:\n", "not "),
    *(
        "match x:\n",
        "case _:\n",
        "with (a as b, c):\n",
        'f"{x!r:>{y}}"',
        "# fmcheck: ignore[FM201]",
    ),
    *("# coding: latin-1\n", "# fmcheck: ignore-file[FM2] x\n", "if x:", "-1", "...", "None", "0"),
)
HEADS = (
    *("if x:", "for x in y:", "while x:", "with x as y:", "def f(self, *a, **k):", "class C(x):"),
    *("async def f():", "try:\n    x\nexcept X:", "match x:\n  case [*_, y]:"),
)
_NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*")
_ATTRIBUTE = re.compile(r"\.[A-Za-z_]\w*")
_TOKEN = re.compile(r"\w+|[^\w\s]")


@cache
def contracts() -> tuple[Contract, ...]:
    own = ROOT / "fixtures" / "engine" / "fmcheck.toml"
    return tuple(load_contract(path) for path in (*contract_files().values(), own))


@cache
def all_rules() -> tuple[Rule, ...]:
    return tuple(rule(contracts()) for rule in rules().values())


@cache
def seeds(*, trees: bool = True) -> tuple[str, ...]:
    """The rules' own examples, the museum, the engine; and files of wheels that rules look at."""
    found = [one.code for rule in rules().values() for one in (*rule.bad, *rule.good)]
    fixtures = [*ROOT.glob("fixtures/museum/*/*.py"), *ROOT.glob("fixtures/engine/**/*.py")]
    found += [path.read_text(encoding="utf-8") for path in sorted(fixtures)]
    for tree in TREES if trees else ():
        for path in sorted((cache_folder() / "wheels" / tree).rglob("*.py")):
            if path.stat().st_size > MOST_BYTES:
                continue
            text = path.read_bytes().decode("utf-8", errors="replace")
            file = File(str(path), text)
            if sum(rule.applies(file) and file.holds_all(rule.words) for rule in all_rules()) >= 3:
                found.append(text)
    return tuple(found)


def mutated(draw: Draw, texts: Sequence[str]) -> bytes:
    """Returns a real file with a few edits, and now and then in an odd encoding."""
    text = draw.one_of(texts)
    # Most files stay Python: what does not parse is looked at by few lines of the linter.
    edits = EDITS if draw.chance(3) else TAME
    for _ in range(draw.integer(0, 6)):
        text = draw.one_of(edits)(draw, text, draw.one_of(texts))
    return encoded(draw, text)


def encoded(draw: Draw, text: str) -> bytes:
    way = draw.integer(0, 24)
    if way == 0:
        return text.encode("utf-16", errors="replace")
    if way == 1:
        return text.encode("utf-8-sig", errors="replace")
    if way == 2:
        return text.encode("latin-1", errors="replace")
    if way == 3:
        return b"# coding: latin-1\n" + text.encode("latin-1", errors="replace")
    if way == 4:
        return text.replace("\n", "\r\n").encode("utf-8", errors="replace")
    if way == 5:
        raw = bytearray(text.encode("utf-8", errors="replace"))
        if raw:
            raw[draw.integer(0, len(raw) - 1)] = draw.integer(0, 255)
        return bytes(raw)
    return text.encode("utf-8", errors="surrogatepass" if way == 6 else "replace")


def _lines(draw: Draw, text: str) -> tuple[list[str], int, int]:
    lines = text.splitlines(keepends=True) or ["\n"]
    start = draw.integer(0, len(lines) - 1)
    return lines, start, min(len(lines), start + draw.integer(1, 8))


def drop_lines(draw: Draw, text: str, other: str) -> str:
    lines, start, end = _lines(draw, text)
    return "".join(lines[:start] + lines[end:])


def repeat_lines(draw: Draw, text: str, other: str) -> str:
    lines, start, end = _lines(draw, text)
    at = draw.integer(0, len(lines))
    return "".join(lines[:at] + lines[start:end] + lines[at:])


def splice_lines(draw: Draw, text: str, other: str) -> str:
    lines, start, end = _lines(draw, text)
    others, first, last = _lines(draw, other)
    return "".join(lines[:start] + others[first:last] + lines[end:])


def splice_statement(draw: Draw, text: str, other: str) -> str:
    """Puts a statement of one file into a block of another, at that block's indentation."""
    places, given = statements(text), statements(other)
    if not places or not given:
        return text
    at, _, column = draw.one_of(places)
    start, end, _ = draw.one_of(given)
    lines, others = text.splitlines(keepends=True), other.splitlines(keepends=True)
    block = textwrap.dedent("".join(others[start - 1 : end])).rstrip("\n") + "\n"
    moved = textwrap.indent(block, " " * column)
    return "".join(lines[: at - 1]) + moved + "".join(lines[at - 1 :])


def drop_statement(draw: Draw, text: str, other: str) -> str:
    places = statements(text)
    if not places:
        return text
    start, end, column = draw.one_of(places)
    lines = text.splitlines(keepends=True)
    return "".join(lines[: start - 1]) + " " * column + "pass\n" + "".join(lines[end:])


def wrap_statement(draw: Draw, text: str, other: str) -> str:
    """Puts a statement below a head: a condition, a loop, a function, a class."""
    places = statements(text)
    if not places:
        return text
    start, end, column = draw.one_of(places)
    lines = text.splitlines(keepends=True)
    head = draw.one_of(HEADS)
    block = textwrap.indent("".join(lines[start - 1 : end]), "    ")
    return (
        "".join(lines[: start - 1])
        + textwrap.indent(head, " " * column)
        + "\n"
        + block
        + "".join(lines[end:])
    )


def change_token(draw: Draw, text: str, other: str) -> str:
    here = [found.span() for found in _TOKEN.finditer(text)]
    there = _TOKEN.findall(other)
    if not here or not there:
        return text
    start, end = draw.one_of(here)
    what = draw.integer(0, 3)
    if what == 0:
        return text[:start] + text[end:]
    if what == 1:
        return text[:end] + " " + text[start:]
    return text[:start] + draw.one_of(there) + text[end:]


def change_name(draw: Draw, text: str, other: str) -> str:
    """Puts a word of another file where a word stands, an attribute for an attribute."""
    pattern = draw.one_of((_NAME, _ATTRIBUTE, _ATTRIBUTE))
    here = [found.span() for found in pattern.finditer(text)]
    there = [one for one in pattern.findall(other) if not iskeyword(one.lstrip("."))]
    if not here or not there:
        return text
    start, end = draw.one_of(here)
    if iskeyword(text[start:end]):
        return text
    return text[:start] + draw.one_of(there) + text[end:]


def insert_odd(draw: Draw, text: str, other: str) -> str:
    at = draw.integer(0, len(text))
    return text[:at] + draw.one_of(ODD) + text[at:]


def truncate(draw: Draw, text: str, other: str) -> str:
    return text[: draw.integer(0, len(text))]


def shift(draw: Draw, text: str, other: str) -> str:
    lines, start, end = _lines(draw, text)
    inner = [f" {line}" if draw.chance(2) else line[1:] for line in lines[start:end]]
    return "".join(lines[:start] + inner + lines[end:])


EDITS = (
    *(drop_lines, repeat_lines, splice_lines, splice_statement, splice_statement, drop_statement),
    *(wrap_statement, wrap_statement, change_token, change_token, insert_odd, truncate, shift),
)
#: Those that mostly leave a file Python.
TAME = (
    splice_statement,
    splice_statement,
    drop_statement,
    wrap_statement,
    change_name,
    change_name,
)


@cache
def statements(text: str) -> tuple[tuple[int, int, int], ...]:
    """First line, last line and column of each statement; none of a text that does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, node.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
    )


def broken(text: bytes, path: str = PATHS[0], with_rules: Sequence[Rule] | None = None) -> str:
    """Says in a line what the linter does to a file that it must not, "" if it does well."""
    checked = all_rules() if with_rules is None else with_rules
    try:
        found = lint_text(text, path, checked)
    except Exception as err:
        return where(err)
    failed = [one for one in found if one.code == RULE_FAILED]
    if failed:
        return f"{failed[0].message} ({failed[0].help.partition(',')[0]})"
    last = text.count(b"\n") + text.count(b"\r") + 2
    for one in found:
        span = one.span
        if not 1 <= span.line <= span.end_line <= last or span.column < 1:
            return f"{one.code} has a place outside of the file: {span}"
    return _badly_fixed(text, path, checked) if any(one.edits for one in found) else ""


def _badly_fixed(text: bytes, path: str, checked: Sequence[Rule]) -> str:
    try:
        fixed = fix_text(text, lambda now: lint_text(now, path, checked), lambda left, now: left)
    except Exception as err:
        return f"while fixing: {where(err)}"
    return f"refused: {fixed.refused}" if fixed.refused not in ("", UNPARSED) else ""


def differs(text: bytes, path: str = PATHS[0]) -> str:
    """Says whether the cheap stages hide a finding, or make one."""
    try:
        staged, whole = (
            {(one.code, one.span) for one in lint_text(text, path, all_rules(), whole=way)}
            for way in (False, True)
        )
    except Exception as err:
        return where(err)
    if {code for code, _ in staged | whole} & {"FM001", "FM002"}:
        return ""
    odd = sorted({code for code, _ in staged ^ whole})
    return f"the stages change what is found: {', '.join(odd)}" if odd else ""
