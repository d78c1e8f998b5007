"""TOML read into typed, frozen structs, with errors that name the file, the key and what fits."""

from __future__ import annotations

import copy
import json
import re
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fmcheck.errors import UsageError, nearest
from fmcheck.files.reading import MOST_SETTINGS, read_regular
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

#: More dotted parts than this in a key: each costs the parser a look at all before it.
MOST_PARTS = 100

#: The tokens of TOML, as far as it takes to tell the dots of a key from others.
_TOKEN = regex(
    r'''"""(?:[^\\]|\\.)*?"""|'''
    r"'{3}.*?'{3}"
    r"""|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|[\w-]+|\.|[ \t]+|.""",
    re.DOTALL,
)
_LACKS = regex(r"Object missing required field `(.+)`")
_MISTYPED = regex(r"Expected `(?P<wanted>[a-z |]+)`, got `(?P<got>[a-z]+)`")
_NO_DATE = "Invalid RFC3339 encoded date"
_STEP = regex(r"\.(?P<name>[^.\[]+)|\[(?P<key>\d+|\.\.\.)\]")
#: msgspec's words for values, in the words of whoever writes the file.
_WORDS = {
    "array": "a list",
    "object": "a table",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "date": "a date",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the tables of a TOML file; UsageError if it is missing, unreadable or not TOML."""
    try:
        content = read_regular(path, MOST_SETTINGS)
    except FileNotFoundError:
        raise UsageError(str(path), "no such file") from None
    except OSError as err:
        raise UsageError(str(path), f"cannot be read: {err.strerror or err}") from err
    return parse_toml(content, str(path))


def parse_toml(content: str | bytes, where: str) -> dict[str, Any]:
    """Returns the tables of a TOML file's content; UsageError names `where` if it is not TOML."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        _reject_long_keys(text, where)
        return tomllib.loads(text)
    except UnicodeDecodeError as err:
        raise UsageError(where, f"is not UTF-8 (byte {err.start})") from err
    except ValueError as err:  # TOMLDecodeError is one; a number of 5,000 digits is another
        raise UsageError(where, f"is not valid TOML: {err}") from err
    except RecursionError as err:
        raise UsageError(where, "is not valid TOML: it nests too deeply") from err


def _reject_long_keys(text: str, where: str) -> None:
    """Raises UsageError for a key of so many parts that the parser would take minutes over it."""
    if not any(line.count(".") > MOST_PARTS for line in text.split("\n")):
        return
    dots, was_part = 0, False
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word == ".":
            dots, was_part = (dots + 1 if was_part else 0), False
        elif word[0] in "\"'" or word[0] in "-_" or word[0].isalnum():
            dots, was_part = (0 if was_part else dots), True
        elif not word.isspace() or "\n" in word:
            dots, was_part = 0, False
        if dots > MOST_PARTS:
            line = text.count("\n", 0, token.start()) + 1
            raise UsageError(
                where,
                f"line {line}: expected a key of at most {MOST_PARTS} parts, got a longer one",
            )


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
        raise UsageError(where, _misfit(what, path.rstrip("`"), table, into, where, at)) from err


def _misfit(
    what: str, path: str, table: Mapping[str, Any], into: type[Any], where: str, at: str
) -> str:
    """Returns msgspec's complaint, with the key as the file has it and how the value is written."""
    named = _with_keys(table, path, into)
    lacks = _LACKS.fullmatch(what)
    if lacks:
        path, named = f"{path}.{lacks[1]}", f"{named}.{lacks[1]}"
    key = f"{at}{named}".lstrip(".")
    heading = "" if where.endswith(".json") else re.sub(r"\[[^]]*\]", "", key)
    wanted = _written(_kind_at(into, path), heading)
    if lacks:
        return f"key `{key}` is missing: expected {wanted}"
    mistyped = _MISTYPED.fullmatch(what)
    if mistyped:
        # Of alternatives msgspec knows best which of them would do.
        kinds = [one for one in mistyped["wanted"].split(" | ") if one != "null"]
        if len(kinds) > 1 or not wanted:
            wanted = " or ".join(map(_in_words, kinds))
        return f"key `{key}`: expected {wanted}, got {_in_words(mistyped['got'])}"
    if what == _NO_DATE:
        return f"key `{key}`: expected a date like 2027-01-31, got a string that is none"
    # A length or a bound: msgspec says it well, but for what it calls the value.
    plain = re.sub(r"`([a-z]+)`", lambda word: _in_words(word[1]), what)
    return f"key `{key}`: {plain[0].lower()}{plain[1:]}"


def _with_keys(table: Mapping[str, Any], path: str, into: type[Any]) -> str:
    """Returns msgspec's path with the key of each table whose keys are free, where it has `[...]`.

    msgspec does not say which of them it was, so each is tried alone.
    """
    named, tried = path, copy.deepcopy(table)
    found: Any = tried
    for step in _STEP.finditer(path):
        if step["key"] != "...":
            found = found.get(step["name"]) if step["name"] else found[int(step["key"])]
            continue
        entries = dict(found)
        for key, value in entries.items():
            found.clear()
            found[key] = value
            try:
                msgspec.convert(tried, into)
            except msgspec.ValidationError as err:
                if str(err).endswith(f" - at `${path}`"):
                    named = named.replace("[...]", f".{_as_key(key)}", 1)
                    break
        found = value
    return named


def _as_key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key, ensure_ascii=False)


def _in_words(kind: str) -> str:
    return _WORDS.get(kind, f"`{kind}`")


def _kind_at(into: object, path: str) -> msgspec.inspect.Type:
    """Returns the type of what stands at a path of msgspec's."""
    kind = msgspec.inspect.type_info(into)
    for step in _STEP.finditer(path):
        kind = _some(kind)
        if isinstance(kind, msgspec.inspect.StructType) and step["name"]:
            kind = next(one.type for one in kind.fields if one.encode_name == step["name"])
        elif isinstance(kind, msgspec.inspect.DictType):
            kind = kind.value_type
        elif isinstance(kind, msgspec.inspect.TupleType):
            kind = kind.item_types[int(step["key"])]
        elif isinstance(kind, (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)):
            kind = kind.item_type
    return _some(kind)


def _some(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Returns what a value that may be left out is, where it is there."""
    if not isinstance(kind, msgspec.inspect.UnionType):
        return kind
    there = [one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)]
    return there[0] if len(there) == 1 else kind


def _written(kind: msgspec.inspect.Type, heading: str) -> str:
    """Returns how a value of this type is written, "" where that is not one thing."""
    if isinstance(kind, (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)):
        item = _some(kind.item_type)
        if isinstance(item, msgspec.inspect.StructType):
            headed = f", each headed `[[{heading}]]`" if heading else ""
            return f"a list of tables{headed}"
        if isinstance(item, msgspec.inspect.StrType):
            return 'a list of strings, `["..."]`'
        return "a list, `[...]`"
    if isinstance(kind, msgspec.inspect.StructType):
        needed = [field.encode_name for field in kind.fields if field.required]
        return f"a table{' with ' + ', '.join(f'`{one}`' for one in needed) if needed else ''}"
    if isinstance(kind, msgspec.inspect.DictType):
        inner = _written(_some(kind.value_type), heading)
        return f"a table of tables{inner[7:]}" if inner.startswith("a table") else "a table"
    words = {
        msgspec.inspect.StrType: "a string",
        msgspec.inspect.IntType: "a whole number",
        msgspec.inspect.FloatType: "a number",
        msgspec.inspect.BoolType: "true or false",
        msgspec.inspect.DateType: "a date, as 2027-01-31",
    }
    return words.get(type(kind), "")


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
                    f"unknown key `{dotted}`{nearest(key, fields, 0.6)} (known here: {known})",
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
    elif isinstance(kind, msgspec.inspect.DictType) and isinstance(value, dict):
        for key, item in value.items():
            _walk(item, kind.value_type, where, f"{at}.{_as_key(key)}")
