"""Headlines: one line of fewer than 100 characters, however long the names in it are."""

from __future__ import annotations

import re

#: The most characters of a headline, with all that stands before and after it on its line.
MOST = 99
#: What is left of a name that is cut in its middle.
_LEAST = 16
_CUT = "..."
_TOKEN = re.compile(r"`[^`]*`|[^\s`]+")


def fitted(text: str, most: int = MOST) -> str:
    """Returns a text of at most `most` characters: its longest names are cut, then its end."""
    while len(text) > most:
        longest = max(_TOKEN.finditer(text), key=lambda match: len(match[0]), default=None)
        if longest is None or len(longest[0]) <= _LEAST:
            return text[: most - len(_CUT)] + _CUT
        left = max(len(longest[0]) - (len(text) - most), _LEAST)
        text = text[: longest.start()] + _middle_cut(longest[0], left) + text[longest.end() :]
    return text


def _middle_cut(name: str, most: int) -> str:
    kept = most - len(_CUT)
    return name[: kept - kept // 2] + _CUT + name[len(name) - kept // 2 :]
