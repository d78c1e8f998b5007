"""Texts that any reader of JSON takes: names of files need not be UTF-8, and JSON has to be."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from fmcheck.report.printable import well_formed

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


def encoded(value: Any) -> bytes:
    """Returns a value as JSON; bytes of a file's name that are no text are escaped in it."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(escaped(msgspec.to_builtins(value)))


def as_text(value: _Struct) -> _Struct:
    """Returns a struct whose texts are well-formed: itself, unless a file's name is none."""
    try:
        _encode(value)
    except UnicodeEncodeError:
        return msgspec.convert(escaped(msgspec.to_builtins(value)), type(value))
    return value


def escaped(value: Any) -> Any:
    """Returns a value of plain types with what is no text in its strings escaped."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {escaped(key): escaped(one) for key, one in value.items()}
    return [escaped(one) for one in value] if isinstance(value, (list, tuple)) else value
