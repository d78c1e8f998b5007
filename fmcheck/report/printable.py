"""Printable: text from outside as it may be shown, with what a terminal would obey escaped."""

from __future__ import annotations

from fmcheck.regex import regex

#: Control characters, marks that turn the direction of text, line separators, lone surrogates (the
#: bytes of a file name that is not UTF-8), and the invisible tags.
_OBEYED = regex(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
_SURROGATE = regex("[\ud800-\udfff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, keep: str = "\t") -> str:
    """Returns a text in which nothing but what it says reaches the reader, by default on one line.

    The characters of `keep` stay as they are: give "\\t\\n" for a text of several lines.
    """
    return _OBEYED.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python could not decode
        return f"\\x{code - 0xDC00:02x}"
    if char in _NAMED:
        return _NAMED[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def well_formed(text: str) -> str:
    """Returns a text that any reader of JSON takes: without lone surrogates, else as it is."""
    return _SURROGATE.sub(lambda found: _escaped(found[0]), text)
