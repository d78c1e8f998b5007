"""TOML read into typed, frozen structs, with errors that name the file, the key and what fits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the tables of a TOML file; UsageError if it is missing, unreadable or not TOML."""
    try:
        return parse_toml(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise UsageError(str(path), "no such file") from None
    except OSError as err:
        raise UsageError(str(path), f"cannot be read: {err.strerror}") from err


def parse_toml(content: str | bytes, where: str) -> dict[str, Any]:
    """Returns the tables of a TOML file's content; UsageError names `where` if it is not TOML."""
    try:
        return tomllib.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except UnicodeDecodeError as err:
        raise UsageError(where, f"is not UTF-8 (byte {err.start})") from err
    except tomllib.TOMLDecodeError as err:
        raise UsageError(where, f"is not valid TOML: {err}") from err


def convert(table: Mapping[str, Any], into: type[T], where: str, at: str = "") -> T:
    """Returns `table` as the struct `into`; UsageError names `where`, the key and what fits.

    `at` is the dotted key of `table` itself in its file. Every struct is to forbid unknown fields.
    """
    try:
        return msgspec.convert(table, into)
    except msgspec.ValidationError as err:
        # Only now: to look at the types takes longer than to lint a small file.
        _reject_unknown_keys(table, into, where, at)
        what, _, path = str(err).partition(" - at `$")
        key = (at + path.rstrip("`")).lstrip(".") or "the file's root"
        raise UsageError(where, f"key `{key}`: {what[0].lower()}{what[1:]}") from err


def _reject_unknown_keys(value: object, into: object, where: str, at: str) -> None:
    """Walks value and type together, for msgspec's own message has no nearest name."""
    kind = msgspec.inspect.type_info(into)
    if isinstance(kind, msgspec.inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, inner in value.items():
            dotted = f"{at}.{key}".lstrip(".")
            if key not in fields:
                known = ", ".join(f"`{name}`" for name in fields)
                raise UsageError(
                    where,
                    f"unknown key `{dotted}`{nearest(key, fields)} (known here: {known})",
                )
            _walk(inner, fields[key], where, dotted)


def _walk(value: object, kind: msgspec.inspect.Type, where: str, at: str) -> None:
    if isinstance(kind, msgspec.inspect.StructType):
        _reject_unknown_keys(value, kind.cls, where, at)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for member in kind.types:
            _walk(value, member, where, at)
    elif isinstance(kind, (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)) and isinstance(
        value, list
    ):
        for number, item in enumerate(value):
            _walk(item, kind.item_type, where, f"{at}[{number}]")
