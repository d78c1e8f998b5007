"""Words in source text, for the stages that do not parse it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re


def has_word(pattern: re.Pattern[str], text: str) -> bool:
    """Tells whether a pattern matches where a word starts.

    A pattern that starts with a letter is searched for ten times as fast as one with `\\b` before.
    """
    for match in pattern.finditer(text):
        before = text[match.start() - 1 : match.start()]
        if not (before.isalnum() or before == "_"):
            return True
    return False
