"""Fronts by words: which expressions in source text may be the front of a buffer."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING

from fmcheck.lint.words import whole_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Calls that return another view of the whole buffer.
VIEWS = frozenset({"view", "reshape", "flatten", "squeeze", "unsqueeze", "t", "detach", "numpy"})
#: Attributes under which a wrapper hands out what it holds: `seq_lens.gpu` is `seq_lens`.
HELD = frozenset({"data", "T", "gpu", "cpu", "np"})
#: What an expression is, where it is no local name: a buffer's front, anything, or neither.
FRONT, ANYTHING, OTHER = "[:", "", "/"
#: Brackets that are further apart than this are not looked at closely.
_LONGEST = 400
_SPACE = " \t\r\n\\"
#: A slice that starts at the front and has an upper bound, or an entry of a dict.
_FRONT_SLICE = re.compile(r"[\[,](?:[\s\\(]|#.*\n)*(?:0(?:[\s\\)]|#.*\n)*)?:(?!\s*[\],:])")
_NESTED = re.compile(r"\[[^\[\]]*\]|\([^()]*\)|\{[^{}]*\}")
#: What may hold a bracket or a colon that is none.
_UNCLEAR = re.compile(r"[#\"'\[\](){}]|\blambda\b")
_STRING = re.compile(r"""(["'])\w*\1""")
#: What an expression has that is one of several, or more than one.
_SEVERAL = re.compile(r"[,;=]|\b(?:if|or|and|for|in|lambda)\b")
_LAST_WORD = re.compile(r"\w+\Z")
_PLAIN_WORD = re.compile(r"(?<![\w.])[^\W\d]\w*")
_SIGN = re.compile(r"[\[\](){}\n,]")
#: An assignment's sign, or that of an argument.
_ASSIGN = re.compile(r"(?<![=!<>])=(?!=)")
_IN = re.compile(r"\bin\b")
#: The end of a target, or the last bracket of several.
_TARGET_END = re.compile(r"[)\]][\s\\]*(?:=(?!=)|in\b)")


def may_cut(text: str) -> bool:
    """Tells whether something may be cut to its front in a text."""
    return "narrow" in text or _FRONT_SLICE.search(text) is not None


def opened(text: str, closed: int) -> int | None:
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


def bare(inside: str) -> str | None:
    """Returns what stands in brackets, each inner pair of them an `x`; None if that is unsure."""
    before, found = "", inside
    while before != found:
        before, found = found, _NESTED.sub("x", found)
    return None if _UNCLEAR.search(found) else found


def stripped(text: str, end: int) -> int:
    """Returns where the text up to an offset ends without its white space."""
    while end > 0 and text[end - 1] in _SPACE:
        end -= 1
    return end


def is_commented(text: str, end: int) -> bool:
    """Tells whether a comment may stand before an offset, on its line."""
    return "#" in text[text.rfind("\n", 0, end) + 1 : end]


def ending_at(text: str, end: int) -> str:
    """Returns what the expression is that ends at an offset: a local name, or a sign above."""
    end = stripped(text, end)
    if is_commented(text, end):
        return ANYTHING
    last = text[end - 1 : end]
    if last in ("]", ")"):
        start = opened(text, end - 1)
        if start is None:
            return ANYTHING
        if last == ")":
            return _called(text, start)
        return _subscript(text, start, text[start + 1 : end - 1])
    word = _LAST_WORD.search(text[max(end - _LONGEST, 0) : end])
    if word is None:
        return OTHER
    start = stripped(text, end - len(word[0]))
    if text[start - 1 : start] != ".":
        return word[0]
    return ending_at(text, start - 1) if word[0] in HELD else OTHER


def may_end_name(text: str, end: int) -> bool:
    """Tells whether a local name, and no attribute, may end at an offset."""
    end = stripped(text, end)
    if is_commented(text, end) or text[end - 1 : end] == ")":
        return True
    word = _LAST_WORD.search(text[max(end - _LONGEST, 0) : end])
    return word is not None and not text.endswith(".", 0, stripped(text, end - len(word[0])))


def _subscript(text: str, start: int, inside: str) -> str:
    """Returns what a subscript is whose bracket is opened at an offset."""
    if not (":" in inside or "..." in inside or "Ellipsis" in inside):
        return OTHER
    plain = bare(inside)
    if plain is None:
        return FRONT
    parts = [part.strip(_SPACE) for part in plain.split(",")]
    for part in parts:
        lower, colon, upper = part.partition(":")
        upper = upper.partition(":")[0].strip(_SPACE)
        lower = lower.strip(_SPACE)
        if colon and (upper or lower not in ("", "0")):
            # An `x` may be a zero in brackets.
            return FRONT if upper and lower in ("", "0", "x") else OTHER
    # `buf[:]` is what `buf` is.
    is_all = all(":" in part or part in ("...", "Ellipsis", "") for part in parts)
    return ending_at(text, start) if is_all else OTHER


def _called(text: str, start: int) -> str:
    """Returns what a call is, or an expression in brackets, by what stands before them."""
    end = stripped(text, start)
    word = _LAST_WORD.search(text[max(end - _LONGEST, 0) : end])
    if word is None or keyword.iskeyword(word[0]):
        return ANYTHING
    start = stripped(text, end - len(word[0]))
    if word[0] not in VIEWS or text[start - 1 : start] != ".":
        return FRONT if word[0] == "narrow" else OTHER
    return ending_at(text, start - 1)


def argument_at(text: str, start: int) -> Iterable[str]:
    """Returns what an argument may be that starts at an offset."""
    return _kinds(_value(text, start, ","))


def may_be_front(names: Iterable[str], text: str) -> bool:
    """Tells whether one of these local names may stand for a front, by what it is bound to.

    A name that is bound to others stands for what they do; what a loop binds may be anything.
    """
    if _has_long_target(text):
        return True
    asked, seen = list(names), set(names)
    while asked:
        for kind in _bound(asked.pop(), text):
            if kind in (FRONT, ANYTHING):
                return True
            if kind != OTHER and kind not in seen:
                seen.add(kind)
                asked.append(kind)
    return False


def _has_long_target(text: str) -> bool:
    """Tells whether a target of several names may end on another line than it starts on."""
    for match in _TARGET_END.finditer(text):
        start = opened(text, match.start())
        if start is None:
            return True
        # What follows a name is its subscript, or the arguments of a call.
        word = _LAST_WORD.search(text[max(start - _LONGEST, 0) : stripped(text, start)])
        is_target = word is None or keyword.iskeyword(word[0])
        if is_target and "\n" in text[start : match.start()]:
            return True
    return False


def _bound(name: str, text: str) -> Iterator[str]:
    """Yields what may be bound to a name, in an assignment on its line or a loop."""
    for at in whole_words(name, text):
        if text[at - 1 : at] == ".":
            continue  # an attribute
        end = at + len(name)
        stop = text.find("\n", end)
        while stop > 0 and text[stop - 1] == "\\":
            stop = text.find("\n", stop + 1)
        rest = text[end : stop if stop >= 0 else len(text)]
        assigned = _ASSIGN.search(rest)
        if assigned is not None:
            yield from _kinds(_value(text, end + assigned.end(), "\n"))
        if _IN.search(rest) is not None:
            yield ANYTHING


def _value(text: str, start: int, sign: str) -> str | None:
    """Returns the expression from an offset to a sign outside of brackets, None if unsure."""
    depth = 0
    for match in _SIGN.finditer(text, start, start + _LONGEST):
        depth += (match[0] in "[({") - (match[0] in "])}")
        if depth < 0 or (not depth and match[0] == sign):
            return text[start : match.start()]
    return text[start:] if not depth and start + _LONGEST > len(text) else None


def _kinds(value: str | None) -> Iterable[str]:
    """Returns what an expression may be: the names that it may be, or signs above."""
    if value is None:
        return (ANYTHING,)
    value = _STRING.sub("x", value)
    plain = bare(value)
    if plain is not None and not _SEVERAL.search(plain):
        return (ending_at(value, len(value)),)
    # A bracket in a string or a comment is none.
    if plain is None or may_cut(value):
        return (ANYTHING,)
    return [word for word in _PLAIN_WORD.findall(value) if not keyword.iskeyword(word)]
