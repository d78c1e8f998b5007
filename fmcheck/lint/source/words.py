"""Words in source text: what a rule declares, and the engine looks for before it parses.

What a rule declares is an AND of ORs. A word may hold a `*`, which is anything on the same line:
`[:*] =`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: An AND of ORs: of each group of words one has to stand there.
Words = tuple[tuple[str, ...], ...]
_WORD = re.compile(r"\w+")


def stand(words: Words, text: str, start: int, end: int) -> bool:
    """Tells whether of each group one word stands between two offsets of a text."""
    return all(any(_stands(word, text, start, end) for word in group) for group in words)


def _stands(word: str, text: str, start: int, end: int) -> bool:
    if "*" not in word:
        return text.find(word, start, end) >= 0
    return _pattern(word).search(text, start, end) is not None


def may_stand(word: str, raw: bytes) -> bool:
    """Tells whether a word may stand in bytes: of one with a `*`, whether its pieces do."""
    if "*" not in word:
        return word.encode() in raw
    return all(piece.encode() in raw for piece in word.split("*"))


@lru_cache(maxsize=512)
def _pattern(word: str) -> re.Pattern[str]:
    return re.compile("[^\\n]*?".join(map(re.escape, word.split("*"))))


def whole_words(word: str, text: str) -> Iterator[int]:
    """Yields where a word stands in a text that is not a part of another one."""
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        if not is_of_word(text[end : end + 1]) and not (at and is_of_word(text[at - 1])):
            yield at
        at = text.find(word, end)


def may_define(name: str, text: str) -> bool:
    """Tells whether source text may define a function of this name."""
    return any(text[:at].rstrip(" \t\f\n\\").endswith("def") for at in whole_words(name, text))


def words_around(part: str, text: str) -> set[str]:
    """Returns the words of a text that hold a part, which is one word or less, or nothing."""
    if not part:
        return {*_WORD.findall(text)}
    found: set[str] = set()
    start = text.find(part)
    while start >= 0:
        end = start + len(part)
        while start > 0 and is_of_word(text[start - 1]):
            start -= 1
        while is_of_word(text[end : end + 1]):
            end += 1
        found.add(text[start:end])
        start = text.find(part, end)
    return found


def is_of_word(sign: str) -> bool:
    """Tells whether a sign, or none at all, may stand in a word."""
    return sign.isalnum() or sign == "_"
