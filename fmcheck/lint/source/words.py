"""Words in source text: what a rule declares, and the engine looks for before it parses.

What a rule declares is an AND of ORs. A word may hold signs:

| sign | what stands there |
|---|---|
| `*` | anything on the same line |
| `?` | a letter, a digit, `_` or an opening bracket: `[:?*] =` is not `x[:, 0] =` |
| `~` | a name without dots |
| `^` | nothing that belongs to the name behind it: `^int(` is not `print(`, nor `x.int(` |
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain, product
from typing import TYPE_CHECKING

from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

#: An AND of ORs: of each group of words one has to stand there.
Words = tuple[tuple[str, ...], ...]
_WORD = regex(r"\w+")
#: What the signs in words stand for, but for `^`.
_SIGNS = {"*": "[^\\n]*?", "?": r"[\w(\[{]", "~": r"\w+"}
_SIGN = regex(r"([*?~]|\^[^*?~^]*)")


def either(*choices: Words) -> Words:
    """Returns the words of what needs those of one choice or of another."""
    return tuple(tuple(dict.fromkeys(chain(*groups))) for groups in product(*choices))


def stand(words: Words, text: str, start: int, end: int) -> bool:
    """Tells whether of each group one word stands between two offsets of a text."""
    for group in words:
        for word in group:
            if _stands(word, text, start, end):
                break
        else:
            return False
    return True


def _stands(word: str, text: str, start: int, end: int) -> bool:
    pattern = _pattern(word)
    if pattern is None:
        return text.find(word, start, end) >= 0
    # To find plain text is fifty times as fast, and tells most of what lacks the word.
    for piece in pieces(word):
        if text.find(piece, start, end) < 0:
            return False
    return pattern.search(text, start, end) is not None


@lru_cache(maxsize=1024)
def renamable(word: str) -> str:
    """Returns the part of a word that an import may give another name: `cuda` of `@*cuda*Event`."""
    return word[_lead(word) :].partition("*")[0]


def renamed(word: str, name: str, target: str) -> str | None:
    """Returns the word as a module has it that imports `target` as `name`; None if it is the same.

    `cuda*Event` is `tc*Event` after `import torch.cuda as tc`, and `Event` where that is imported.
    """
    lead, plain = word[: _lead(word)], renamable(word)
    if not plain or plain not in target or plain in name:
        return None
    rest = word[len(lead) + len(plain) :]
    is_all = not rest or _stands(plain + rest, target, 0, len(target))
    return lead + (name if is_all else name + rest)


def _lead(word: str) -> int:
    """Returns how many signs stand before the first letter of a word."""
    return len(word) - len(word.lstrip("@*.^~?:[( "))


@lru_cache(maxsize=1024)
def pieces(word: str) -> tuple[str, ...]:
    """Returns what is plain in a word: the word itself, if there are no signs in it."""
    return tuple(piece for piece in re.split(r"[*?~^]", word) if piece)


@lru_cache(maxsize=1024)
def _pattern(word: str) -> re.Pattern[str] | None:
    """Returns what finds a word with signs, None for a plain one."""
    if not _SIGN.search(word):
        return None
    pattern = ""
    for one in _SIGN.split(word):
        plain = re.escape(one.lstrip("^"))
        # Looked at last: what is plain is found first, and fast.
        pattern += rf"{plain}(?<![\w.]{plain})" if one.startswith("^") else _SIGNS.get(one, plain)
    return re.compile(pattern)


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
