"""Words of writes: what source text may fill or reset, for the stages that do not parse it."""

from __future__ import annotations

import enum
import keyword
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from fmcheck.lint.words import has_word

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A call of something with `copy` in its name, that is handed something.
_COPY = re.compile(r"copy\w*[\s\\)]*\((?![\s\\]*\))")
_COPY_INTO = re.compile(r"copy_\W")
_ZERO = re.compile(r"zero_[\s\\)]*\(")
_FILL = re.compile(r"fill_?[\s\\)]*\(")
_OUT = re.compile(r"out[\s\\]*=(?!=)")
_STORE = re.compile(r"\][\s\\)]*=(?!=)")
#: A slice that starts at the front and has an upper bound, or an entry of a dict.
_FRONT_SLICE = re.compile(r"[\[,](?:[\s\\(]|#.*\n)*(?:0(?:[\s\\)]|#.*\n)*)?:(?!\s*[\],:])")
#: A name, its attributes, and the sign after it.
_DOTTED = re.compile(r"[\s\\]*([^\W\d]\w*)((?:[\s\\]*\.[\s\\]*\w+)*)[\s\\]*(.?)", re.DOTALL)
_LAST_WORD = re.compile(r"\w+\Z")
#: Calls that return another view of the whole buffer.
VIEWS = frozenset({"view", "reshape", "flatten", "squeeze", "unsqueeze", "t", "detach", "numpy"})
#: Attributes under which a wrapper hands out what it holds: `seq_lens.gpu` is `seq_lens`.
HELD = frozenset({"data", "T", "gpu", "cpu", "np"})
#: Brackets that are further apart than this are not looked at closely.
_LONGEST = 400
_SPACE = " \t\r\n\\"
_NESTED = re.compile(r"\[[^\[\]]*\]|\([^()]*\)|\{[^{}]*\}")
#: What may hold a bracket or a colon that is none.
_UNCLEAR = re.compile(r"[#\"'\[\](){}]|\blambda\b")


def may_reset(text: str) -> bool:
    """Tells whether source text may set a buffer to one value: all that `resets` finds."""
    if "foreach_" in text or has_word(_ZERO, text) or has_word(_FILL, text):
        return True
    return any(stored is not _Stored.UP_TO for stored in _stores(text))


def may_fill(text: str) -> bool:
    """Tells whether source text may fill a buffer's front, by itself or by a name for it."""
    is_named = False
    for site in _written(text):
        if site is _Site.FRONT:
            return True
        is_named = is_named or site is _Site.NAMED
    return is_named and ("narrow" in text or _FRONT_SLICE.search(text) is not None)


@lru_cache(maxsize=1)
def may_reset_and_fill(text: str) -> bool:
    """Tells whether source text may do both; two rules ask it of the same files."""
    return may_reset(text) and may_fill(text)


class _Stored(enum.Enum):
    """Which part of a buffer an assignment to a slice is to: its front, the rest or all, both."""

    UP_TO = enum.auto()
    FROM = enum.auto()
    UNKNOWN = enum.auto()


class _Site(enum.Enum):
    """What is copied to: a buffer's front, what a name or a list may stand for, or neither."""

    FRONT = enum.auto()
    NAMED = enum.auto()
    OTHER = enum.auto()


def _stores(text: str) -> Iterator[_Stored]:
    """Yields what is assigned to slices in a text."""
    for match in _STORE.finditer(text):
        opened = _opened(text, match.start())
        if opened is None:
            yield _Stored.UNKNOWN
        elif ":" in text[opened : match.start()]:
            yield _stored(text[opened + 1 : match.start()])


def _opened(text: str, closed: int) -> int | None:
    """Returns where the bracket that is closed at an offset was opened, None if that is unsure."""
    closing = text[closed]
    opening = "[" if closing == "]" else "("
    depth = 0
    for at in range(closed, max(closed - _LONGEST, 0) - 1, -1):
        sign = text[at]
        depth += (sign == closing) - (sign == opening)
        if not depth:
            return at
    return None


def _bare(inside: str) -> str | None:
    """Returns what stands in brackets, each inner pair of them an `x`; None if that is unsure."""
    bare, found = "", inside
    while bare != found:
        bare, found = found, _NESTED.sub("x", found)
    return None if _UNCLEAR.search(bare) else bare


def _stored(inside: str) -> _Stored:
    """Returns which part of a buffer a subscript is of, by what stands in its brackets."""
    bare = _bare(inside)
    if bare is None:
        return _Stored.UNKNOWN
    parts = [part.split(":") for part in bare.split(",") if ":" in part]
    has_lower = any(lower.strip() for lower, *_ in parts)
    has_upper = any(upper.strip() for _, upper, *_ in parts)
    if has_lower and has_upper:
        return _Stored.UNKNOWN
    return _Stored.UP_TO if has_upper else _Stored.FROM


def _written(text: str) -> Iterator[_Site]:
    """Yields what is copied to in a text."""
    for match in _STORE.finditer(text):
        yield _site(text, match.start() + 1)
    for match in _COPY.finditer(text):
        dot = _stripped(text, match.start()) - 1
        is_method = text[dot : dot + 1] == "." and _COPY_INTO.match(match[0]) is not None
        # Any other one may be handed a list of fronts.
        yield _site(text, dot) if is_method else _Site.NAMED
    for match in _OUT.finditer(text):
        if _is_argument(text, match.start()):
            yield _argument(text, match.end())


def _site(text: str, end: int) -> _Site:
    """Returns what the expression is that ends at an offset."""
    end = _stripped(text, end)
    if "#" in text[text.rfind("\n", 0, end) + 1 : end]:
        return _Site.NAMED
    last = text[end - 1 : end]
    if last in ("]", ")"):
        opened = _opened(text, end - 1)
        if opened is None:
            return _Site.NAMED
        if last == ")":
            return _called(text, opened)
        return _subscript(text, opened, text[opened + 1 : end - 1])
    word = _LAST_WORD.search(text[max(end - _LONGEST, 0) : end])
    if word is None:
        return _Site.OTHER
    start = _stripped(text, end - len(word[0]))
    if text[start - 1 : start] != ".":
        return _Site.NAMED
    return _site(text, start - 1) if word[0] in HELD else _Site.OTHER


def _subscript(text: str, opened: int, inside: str) -> _Site:
    """Returns what a subscript is whose bracket is opened at an offset."""
    if not (":" in inside or "..." in inside or "Ellipsis" in inside):
        return _Site.OTHER
    bare = _bare(inside)
    if bare is None:
        return _Site.FRONT
    parts = [part.strip(_SPACE) for part in bare.split(",")]
    for part in parts:
        lower, colon, upper = part.partition(":")
        upper = upper.partition(":")[0].strip(_SPACE)
        lower = lower.strip(_SPACE)
        if colon and (upper or lower not in ("", "0")):
            # An `x` may be a zero in brackets.
            return _Site.FRONT if upper and lower in ("", "0", "x") else _Site.OTHER
    # `buf[:]` is what `buf` is.
    is_all = all(":" in part or part in ("...", "Ellipsis", "") for part in parts)
    return _site(text, opened) if is_all else _Site.OTHER


def _called(text: str, opened: int) -> _Site:
    """Returns what a call is, or an expression in brackets, by what stands before them."""
    end = _stripped(text, opened)
    word = _LAST_WORD.search(text[max(end - _LONGEST, 0) : end])
    if word is None or keyword.iskeyword(word[0]):
        return _Site.NAMED
    start = _stripped(text, end - len(word[0]))
    if word[0] not in VIEWS or text[start - 1 : start] != ".":
        return _Site.FRONT if word[0] == "narrow" else _Site.OTHER
    return _site(text, start - 1)


def _is_argument(text: str, start: int) -> bool:
    """Tells whether a name with `=` after it, at an offset, may be that of an argument."""
    if text[start - 1 : start].isalnum() or text[start - 1 : start] == "_":
        return False
    end = _stripped(text, start)
    return text[end - 1 : end] in ("(", ",", "") or "#" in text[text.rfind("\n", 0, end) + 1 : end]


def _argument(text: str, start: int) -> _Site:
    """Returns what an argument is that starts at an offset."""
    match = _DOTTED.match(text, start)
    if match is None or match[3] not in (",", ")"):
        return _Site.NAMED
    parts = [part.strip(_SPACE) for part in match[2].split(".")[1:]]
    if any(part not in HELD for part in parts) or match[1] in ("None", "self"):
        return _Site.OTHER
    return _Site.NAMED


def _stripped(text: str, end: int) -> int:
    """Returns where the text up to an offset ends without its white space."""
    while end > 0 and text[end - 1] in _SPACE:
        end -= 1
    return end
