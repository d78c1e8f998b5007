"""Words in source text: what a rule declares, and the engine looks for before it parses.

What a rule declares is an AND of ORs. A word may hold a `*`, which is anything on the same line,
and a `?`, which is a letter, a digit, `_` or an opening bracket: `[:?*] =` is not `x[:, 0] =`.
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
    pattern = _pattern(word)
    if pattern is None:
        return text.find(word, start, end) >= 0
    return pattern.search(text, start, end) is not None


def may_stand(word: str, raw: bytes) -> bool:
    """Tells whether a word may stand in bytes: of one with a `*` or `?`, whether its pieces do."""
    return all(piece in raw for piece in _pieces(word))


def renamed(word: str, name: str, target: str) -> str | None:
    """Returns the word as a module has it that imports `target` as `name`; None if it is the same.

    `cuda*Event` is `tc*Event` after `import torch.cuda as tc`, and `Event` where that is imported.
    """
    head, sign, rest = word.partition("*")
    if head not in target or head in name:
        return None
    return name + sign + rest if sign and not _stands(word, target, 0, len(target)) else name


@lru_cache(maxsize=1024)
def _pieces(word: str) -> tuple[bytes, ...]:
    return tuple(piece.encode() for piece in re.split(r"[*?]", word) if piece)


@lru_cache(maxsize=1024)
def _pattern(word: str) -> re.Pattern[str] | None:
    """Returns what finds a word with signs of its own, None for a plain one."""
    if "*" not in word and "?" not in word:
        return None
    signs = {"*": "[^\\n]*?", "?": r"[\w(\[{]"}
    return re.compile("".join(signs.get(one) or re.escape(one) for one in word))


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
