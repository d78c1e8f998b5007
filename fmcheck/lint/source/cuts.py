"""Slices: a module cut into stretches of whole statements, without parsing it.

A line outside of strings that starts with `def`, `class`, `async def` or a decorator starts a
statement. Strings in triple quotes are paired from the top; where that is not certain, nothing is
cut. A wrong cut would leave a bracket open, which no parser accepts: then the module is parsed
whole.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OFFSET = attrgetter("offset")
_ASYNC = regex(r"async[ \t]+\Z")
#: A decorator's sign after a continued line is a product of matrices.
_CONTINUED_AT = regex(r"\\\n[ \t]*@")
#: What holds quotes: a comment, or a string with its prefix. `lone` is a quote that nothing closes.
_QUOTING = regex(
    r"""\#[^\n]*|(?P<prefix>[A-Za-z]*)(?:(?P<triple>\"{3}|'{3})
      |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(?P<lone>["']))""",
    re.VERBOSE | re.DOTALL,
)


class TooDeepError(Exception):
    """Source that nests too deeply, from `at` on, or is too long for libcst to be asked."""

    def __init__(self, why: str, at: int = 0) -> None:
        super().__init__(why)
        self.at = at


class BlockStart(Struct, frozen=True):
    """Where a `def`, a `class` or a decorator stands outside of strings, and how far indented."""

    offset: int
    indent: str
    is_class: bool
    is_decorator: bool


class Slice(Struct, frozen=True):
    """A stretch of a module's text, by offsets; `is_class` tells that a class starts it."""

    start: int
    end: int
    is_class: bool = False


class Cuts:
    """The places at which a module's text may be cut. `certain` is False if none is known."""

    def __init__(self, text: str) -> None:
        self._text = text
        #: Strings in triple quotes, as offsets of their first and last quotes' ends.
        self.strings: list[tuple[int, int]] = []
        self.certain = _CONTINUED_AT.search(text) is None and self._pair()

    def _pair(self) -> bool:
        """Pairs the quotes of strings; tells whether that is certain."""
        text, last_end = self._text, 0
        double, single = text.find('"""'), text.find("'''")
        while double >= 0 or single >= 0:
            is_double = double >= 0 and not 0 <= single < double
            opening = double if is_double else single
            line = text.rfind("\n", 0, opening) + 1
            before = text[max(line, last_end) : opening]
            if text.endswith("\\\n", 0, line):
                return False
            opens = opening
            if '"' in before or "'" in before or "#" in before:
                opens = _opening(text, max(line, last_end), opening)
            if opens == opening:
                last_end = _closing(text, opening + 3, text[opening : opening + 3])
                self.strings.append((opening, last_end))
            else:
                last_end = opens
            if last_end < 0:
                return False
            if 0 <= double < last_end:
                double = text.find('"""', last_end)
            if 0 <= single < last_end:
                single = text.find("'''", last_end)
        return True

    def is_in_string(self, offset: int) -> bool:
        """Tells whether an offset lies in a string in triple quotes."""
        number = bisect_right(self.strings, (offset, len(self._text))) - 1
        return number >= 0 and offset < self.strings[number][1]

    @cached_property
    def _starts(self) -> Sequence[BlockStart]:
        """Where statements start by a word that tells it, outside of strings."""
        found = [one for word in ("def", "class", "@") for one in self._starting_with(word)]
        found.sort(key=_OFFSET)
        if not self.strings:
            return found
        opened = [start for start, _ in self.strings]
        ended = [0, *(end for _, end in self.strings)]
        return [one for one in found if ended[bisect_right(opened, one.offset)] <= one.offset]

    def _starting_with(self, word: str) -> Iterator[BlockStart]:
        """Yields the starts of lines whose first word is this one, or the second after `async`."""
        text, at = self._text, self._text.find(word)
        while at >= 0:
            end = at + len(word)
            after = text[end : end + 1]
            if word == "@" or not (after.isalnum() or after == "_"):
                line = text.rfind("\n", 0, at) + 1
                before = text[line:at]
                first = before.lstrip(" \t\f")
                if not first or (word == "def" and _ASYNC.match(first)):
                    # A form feed starts the count of columns again.
                    indent = before[: len(before) - len(first)].rpartition("\f")[2]
                    yield BlockStart(line, indent, word == "class", word == "@")
            at = text.find(word, end)

    def top_level(self) -> Sequence[Slice]:
        """Returns slices of whole top-level statements that cover the module, in order."""
        return list(self._between(0, len(self._text), ""))

    def methods(self, outer: Slice, indent: str) -> Sequence[Slice]:
        """Returns slices of a class by the statements of its body, which is indented by `indent`.

        The first is the head: the class line and what stands before the first method.
        """
        return list(self._between(outer.start, outer.end, indent))

    def first_indent(self, outer: Slice) -> str | None:
        """Returns the least indentation of what is defined in a class, None if nothing is."""
        within = (one.indent for one in self._starting_in(outer.start, outer.end))
        return min(filter(None, within), key=len, default=None)

    def _starting_in(self, start: int, end: int) -> Sequence[BlockStart]:
        first, last = (bisect_left(self._starts, at, key=_OFFSET) for at in (start, end))
        return self._starts[first:last]

    def _between(self, start: int, end: int, indent: str) -> Iterator[Slice]:
        at, is_class, decorated = start, False, False
        for one in self._starting_in(start, end):
            if one.indent != indent:
                continue
            if not decorated:
                if one.offset > at:
                    yield Slice(at, one.offset, is_class)
                at, is_class = one.offset, False
            decorated = one.is_decorator
            is_class = is_class or one.is_class
        if end > at:
            yield Slice(at, end, is_class)


def _opening(text: str, outside: int, quotes: int) -> int:
    """Returns `quotes` if they open a string, else the end of the string or comment they are in.

    `outside` is an offset before them that is in no string. -1 where none of it is certain.
    """
    for match in _QUOTING.finditer(text, outside):
        if match["triple"]:
            return match.start("triple")
        # The field of a newer f-string may hold the quotes that seem to end it.
        is_open = "f" in (match["prefix"] or "").lower() and match[0].count("{") != match[0].count(
            "}"
        )
        if match["lone"] or is_open:
            return -1
        if match.end() > quotes:
            return match.end()
    return -1


def _closing(text: str, position: int, quotes: str) -> int:
    """Returns the offset after the quotes that close a string, -1 if nothing does."""
    while (found := text.find(quotes, position)) >= 0:
        before = text[position:found]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return found + 3
        position = found + 1
    return -1
