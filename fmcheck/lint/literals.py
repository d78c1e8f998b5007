"""String literals in source: the pieces of a concatenated one, and what formatted ones hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PIECE = re.compile(
    r"""
    [A-Za-z]{0,2}
    (?: \"{3} (?: [^"\\] | \\. | "(?!"") )* \"{3} | '{3} (?: [^'\\] | \\. | '(?!'') )* '{3}
      | " (?: [^"\\\n] | \\. )* " | ' (?: [^'\\\n] | \\. )* ' )
    """,
    re.VERBOSE | re.DOTALL,
)
_BETWEEN = re.compile(r"(?:\s|\\\n|\#[^\n]*)*")
_OPENING = re.compile(r"([A-Za-z]*)(\"\"\"|'''|\"|')")
#: What may close an expression: a conversion, a format, its own echo, or the brace.
_CLOSING = re.compile(r"=\s*(?=[!:}])|!(?!=)|:|\}")
_QUOTED = re.compile(r"\"\"\"|'''|\"|'")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What stands in the braces of formatted text, by offsets in it; `spec` follows the colon."""

    code: str
    start: int
    spec: str | None = None
    spec_start: int = 0


def pieces(text: str) -> Sequence[tuple[int, str]]:
    """Returns the literals of a (concatenated) string with their offsets; none if unsure."""
    found, at = [], 0
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            return ()
        found.append((at, match[0]))
        between = _BETWEEN.match(text, match.end())
        at = between.end() if between else match.end()
    return found


def opening(literal: str) -> tuple[str, int, int]:
    """Returns a literal's prefix in small letters, and where its content starts and ends."""
    match = _OPENING.match(literal)
    assert match is not None
    return match[1].lower(), match.end(), len(literal) - len(match[2])


def placeholders(text: str, is_raw: bool) -> Iterator[str | Placeholder]:
    """Yields formatted text by its parts: what stands as it is, and what stands in braces."""
    at = plain = 0
    while at < len(text):
        if not is_raw and text.startswith("\\N{", at):
            at = text.find("}", at) + 1 or len(text)
        elif text.startswith(("{{", "}}"), at):
            at += 2
        elif text[at] != "{":
            at += 1
        else:
            if at > plain:
                yield text[plain:at]
            end = _expression_end(text, at + 1)
            code, spec, spec_start = text[at + 1 : end], None, 0
            closing = _CLOSING.match(text, end)
            if closing is not None and closing[0].startswith("="):
                end = closing.end()
            if text.startswith("!", end):
                end = min(
                    found for found in (text.find(":", end), text.find("}", end)) if found > 0
                )
            if text.startswith(":", end):
                spec_start = end + 1
                end = _spec_end(text, spec_start)
                spec = text[spec_start:end]
            yield Placeholder(code, at + 1, spec, spec_start)
            at = plain = end + 1
    if at > plain:
        yield text[plain:]


def _expression_end(text: str, at: int) -> int:
    """Returns where the expression that starts here ends."""
    depth = 0
    while at < len(text):
        quoted = _QUOTED.match(text, at)
        if quoted is not None:
            at = text.find(quoted[0], quoted.end()) + len(quoted[0])
            continue
        if depth == 0 and _CLOSING.match(text, at) and text[at - 1 : at + 1] not in _ORDERING:
            return at
        depth += (text[at] in "([{") - (text[at] in ")]}")
        at += 1
    return at


#: The ends of these signs close nothing.
_ORDERING = ("==", "<=", ">=", "!=")


def _spec_end(text: str, at: int) -> int:
    depth = 0
    while at < len(text) and (depth or text[at] != "}"):
        depth += (text[at] == "{") - (text[at] == "}")
        at += 1
    return at
