"""The file: its text and its name, before anybody has parsed it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.lint.source.identity import identity_of
from fmcheck.lint.source.words import pieces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmcheck.lint.source.words import Words

    #: The state of each file: times of content and inode in ns, size, inode; None if it is missing.
    Consulted = dict[str, tuple[int, ...] | None]


class File:
    """The text of one file. Nothing is looked for in it twice, however many rules ask."""

    def __init__(self, path: str, text: str, consulted: Consulted | None = None) -> None:
        self.path = path
        self.text = text
        #: The files that were looked for beside it: see `neighbours.py`.
        self.consulted: Consulted = {} if consulted is None else consulted
        self._held: dict[str, bool] = {}
        self._held_pieces: dict[str, bool] = {}

    @cached_property
    def identity(self) -> str:
        """Which file of an engine this is, for the contracts: see `identity.py`."""
        return identity_of(self.path)

    def holds(self, words: Iterable[str]) -> bool:
        """Tells whether one of the words may stand in the file: all that is plain in it does."""
        # By plain loops: every word of every rule comes by here for every file.
        known = self._held
        for word in words:
            found = known.get(word)
            if found is None:
                found = known[word] = self._holds(word)
            if found:
                return True
        return False

    def is_known_to_lack(self, word: str) -> bool:
        """Tells whether a word was looked for before, and does not stand in the file."""
        return self._held.get(word) is False

    def _holds(self, word: str) -> bool:
        known = self._held_pieces
        for piece in pieces(word):
            found = known.get(piece)
            if found is None:
                found = known[piece] = piece in self.text
            if not found:
                return False
        return True

    def holds_all(self, words: Words) -> bool:
        """Tells whether of each group one word does."""
        return all(map(self.holds, words))
