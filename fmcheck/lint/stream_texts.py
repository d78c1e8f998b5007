"""Stream texts: what source text may hold of streams, told without parsing it.

It clears files and blocks before anything else. So it errs to one side, as `stream_words.py` does.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from fmcheck.lint.stream_words import IN_PLACE
from fmcheck.lint.words import is_of_word

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_OPENS = re.compile(r"[\s\\)]*\(")
#: What may stand between a function and the bracket of its call, with white space.
_BEFORE_CALL = " \n\\)"
#: A longer text is most of a class, which has all sorts of calls.
_LONG = 10_000
_WITH = re.compile(r"[ \t\f]*(?:async\b[\s\\]*)?with\b")
#: What may hide a bracket, or continue a line without one.
_UNCLEAR = re.compile(r"[\"'#\\]")
_ASSIGNED = re.compile(r"[\s\\)]*(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=(?!=)")
_RECORDS = re.compile(r"record(?:_event)?[\s\\)]*\(")


def may_enter(text: str) -> bool:
    """Tells whether source text may hold a stream's context."""
    return next(_entered(text), None) is not None


def _entered(text: str) -> Iterator[int]:
    """Yields the offsets at which a stream, or a context of one, may be named in a `with`."""
    at = text.find("tream")
    while at >= 0:
        if (
            text.startswith(("_c", "Context"), at + 5)
            or (_OPENS.match(text, at + 5) and not is_of_word(text[max(at - 2, 0) : at - 1]))
        ) and _may_be_in_head(text, at):
            yield at
        at = text.find("tream", at + 5)


def may_call_before_body(text: str, words: Collection[str]) -> bool:
    """Tells whether one of some functions may be called before the last body of a stream's context.

    `to` counts only if a device may be what is meant.
    """
    called = _called_before_body(text)
    return called is None or not called.isdisjoint(words)


@lru_cache(maxsize=16)
def _called_before_body(text: str) -> frozenset[str] | None:
    """Returns the last names of what is called there; None if that is too much to look at."""
    end = max(_entered(text), default=0)
    if end > _LONG:
        return None
    before = text[:end]
    found = frozenset(called(before))
    return found if "device" in before else found - {"to"}


def _may_be_in_head(text: str, at: int) -> bool:
    """Tells whether what stands at an offset may be in the head of a `with`, on several lines."""
    if _WITH.match(text, text.rfind("\n", 0, at) + 1):
        return True
    start = text.rfind("with", 0, at)
    while start >= 0 and not _WITH.match(text, text.rfind("\n", 0, start) + 1):
        start = text.rfind("with", 0, start)
    opened = 0
    while 0 <= start < at:
        end = text.find("\n", start) + 1
        line = text[start:end]
        if _UNCLEAR.search(line):
            return True
        opened += sum((sign in "([{") - (sign in ")]}") for sign in line)
        if not opened:
            return False
        start = end
    return start >= 0


def may_record(text: str) -> tuple[str, str] | None:
    """Returns what stands before the last record of an event, and after the first; None for none.

    A record may be anything of that name.
    """
    found = [
        match.start()
        for match in _RECORDS.finditer(text)
        if not is_of_word(text[match.start() - 1 : match.start()])
    ]
    return (text[: found[-1]], text[found[0] :]) if found else None


def may_write(text: str) -> bool:
    """Tells whether source text may write a tensor in place, or a part of one."""
    if any(word in text for word in IN_PLACE):
        return True
    at = text.find("]")
    while at >= 0:
        if _ASSIGNED.match(text, at + 1):
            return True
        at = text.find("]", at + 1)
    return False


def called(text: str) -> Iterator[str]:
    """Yields the last names of what may be called in source text."""
    at = text.find("(")
    while at >= 0:
        end = at
        while end and (text[end - 1] in _BEFORE_CALL or text[end - 1].isspace()):
            end -= 1
        start = end
        while start and is_of_word(text[start - 1]):
            start -= 1
        if start < end:
            yield text[start:end]
        at = text.find("(", at + 1)
