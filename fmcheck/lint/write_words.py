"""Words of writes: what source text may fill or reset, for the stages that do not parse it."""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from fmcheck.lint.front_words import (
    ANYTHING,
    FRONT,
    OTHER,
    argument_at,
    bare,
    ending_at,
    is_commented,
    may_be_front,
    may_cut,
    may_end_name,
    opened,
    stripped,
)
from fmcheck.lint.words import GAP, has_word, is_of_word

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A call of something with `copy` in its name, that is handed something.
_COPY = re.compile(r"copy\w*[\s\\)]*\((?![\s\\]*\))")
_COPY_INTO = re.compile(r"copy_\W")
_ZERO = re.compile(r"zero_[\s\\)]*\(")
_FILL = re.compile(r"fill_?[\s\\)]*\(")
_OUT = re.compile(r"out[\s\\]*=(?!=)")
_STORE = re.compile(r"\][\s\\)]*=(?!=)")
#: What ends in a bracket and is written, with comments between.
_PART = re.compile(rf"\]{GAP}(?:=(?!=)|\.[\s\\]*(?:copy|fill|zero)_(?!\w))")


def may_reset(text: str) -> bool:
    """Tells whether source text may set a buffer to one value: all that `resets` finds."""
    if "foreach_" in text or has_word(_ZERO, text) or has_word(_FILL, text):
        return True
    return any(stored is not _Stored.UP_TO for stored in _stores(text))


def may_fill(text: str) -> bool:
    """Tells whether source text may fill a buffer's front, by itself or by a name for it."""
    names: set[str] = set()
    for site in _written(text):
        if site is FRONT:
            return True
        if site is not OTHER:
            names.add(site)
    if not names or not may_cut(text):
        return False
    return ANYTHING in names or may_be_front(names, text)


@lru_cache(maxsize=16)
def may_reset_and_fill(text: str) -> bool:
    """Tells whether source text may do both; two rules ask it of the same texts."""
    return may_reset(text) and may_fill(text)


def may_write_part(text: str) -> bool:
    """Tells whether source text may write a slice of what a local name stands for."""
    for match in _PART.finditer(text):
        start = opened(text, match.start())
        if start is None or (":" in text[start : match.start()] and may_end_name(text, start)):
            return True
    return False


class _Stored(enum.Enum):
    """Which part of a buffer an assignment to a slice is to: its front, the rest or all, both."""

    UP_TO = enum.auto()
    FROM = enum.auto()
    UNKNOWN = enum.auto()


def _stores(text: str) -> Iterator[_Stored]:
    """Yields what is assigned to slices in a text."""
    for match in _STORE.finditer(text):
        start = opened(text, match.start())
        if start is None:
            yield _Stored.UNKNOWN
        elif ":" in text[start : match.start()]:
            yield _stored(text[start + 1 : match.start()])


def _stored(inside: str) -> _Stored:
    """Returns which part of a buffer a subscript is of, by what stands in its brackets."""
    plain = bare(inside)
    if plain is None:
        return _Stored.UNKNOWN
    parts = [part.split(":") for part in plain.split(",") if ":" in part]
    has_lower = any(lower.strip() for lower, *_ in parts)
    has_upper = any(upper.strip() for _, upper, *_ in parts)
    if has_lower and has_upper:
        return _Stored.UNKNOWN
    return _Stored.UP_TO if has_upper else _Stored.FROM


def _written(text: str) -> Iterator[str]:
    """Yields what is copied to in a text: local names, or signs for what is none."""
    for match in _STORE.finditer(text):
        yield ending_at(text, match.start() + 1)
    for match in _COPY.finditer(text):
        dot = stripped(text, match.start()) - 1
        is_method = text[dot : dot + 1] == "." and _COPY_INTO.match(match[0]) is not None
        # Any other one may be handed a list of fronts.
        yield ending_at(text, dot) if is_method else ANYTHING
    for match in _OUT.finditer(text):
        if _is_argument(text, match.start()):
            yield from argument_at(text, match.end())


def _is_argument(text: str, start: int) -> bool:
    """Tells whether a name with `=` after it, at an offset, may be that of an argument."""
    if is_of_word(text[start - 1 : start]):
        return False
    end = stripped(text, start)
    return text[end - 1 : end] in ("(", ",", "") or is_commented(text, end)
