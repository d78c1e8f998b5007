"""Patterns of paths, in the language of `.gitignore`, read relative to one folder."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A pattern that is nothing but a name, of anything or of a folder: most are, and a set is quick.
PLAIN = re.compile(r"[\w.+~ -]*[\w.+~-]/?")


class Patterns:
    """Lines of a `.gitignore` that stands, or might stand, in `folder`.

    A walk asks for each folder before it goes in, so only the entry itself is matched here, and
    of several lines that match the last one counts.
    """

    def __init__(self, lines: Iterable[str], folder: str) -> None:
        self.folder = folder
        self._prefix = folder.rstrip(os.sep) + os.sep
        self._names: dict[str, int] = {}
        self._others: list[tuple[int, bool, re.Pattern[str]]] = []
        for number, line in enumerate(lines):
            pattern = line.strip()
            if PLAIN.fullmatch(pattern):
                self._names[pattern] = number
            elif pattern and not pattern.startswith("#"):
                self._compile(number, pattern)
        self._others.reverse()

    def __bool__(self) -> bool:
        return bool(self._names or self._others)

    def _compile(self, number: int, pattern: str) -> None:
        # Here, not above: most runs meet no such pattern.
        from pathspec import GitIgnoreSpec

        try:
            (compiled,) = GitIgnoreSpec.from_lines([pattern]).patterns
        except ValueError as err:
            raise UsageError(self.folder, f"`{pattern}` is not a .gitignore pattern") from err
        if compiled.include is not None and compiled.regex is not None:
            self._others.append((number, compiled.include, compiled.regex))

    def verdict(self, path: str, is_folder: bool) -> bool | None:
        """Tells whether the entry at the absolute `path` is matched (True) or taken back (False).

        None: no line says anything about it. What stands above it is not looked at.
        """
        if not path.startswith(self._prefix):
            return None
        name = path[path.rfind(os.sep) + 1 :]
        at = self._names.get(name, -1)
        if is_folder:
            at = max(at, self._names.get(f"{name}/", -1))
        if self._others:
            relative = path[len(self._prefix) :].replace(os.sep, "/") + "/" * is_folder
            for number, include, regex in self._others:
                if number < at:
                    break
                if regex.fullmatch(relative):
                    return include
        return True if at >= 0 else None

    def sparing(self, folder: str) -> Patterns:
        """Returns these patterns less those that match the absolute `folder` or one above it."""
        spared = Patterns((), self.folder)
        spared._names = self._names  # these match an entry's own name only
        relative = folder[len(self._prefix) :].replace(os.sep, "/") + "/"
        inside = folder.startswith(self._prefix)
        spared._others = [one for one in self._others if not (inside and one[2].match(relative))]
        return spared

    def match(self, path: str, is_folder: bool = False) -> bool:
        """Tells whether the entry at the absolute `path`, or a folder above it, is matched."""
        if not path.startswith(self._prefix):
            return False
        parts = path[len(self._prefix) :].split(os.sep)
        above = (self._prefix + os.sep.join(parts[:end]) for end in range(1, len(parts)))
        return any(self.verdict(one, True) for one in above) or bool(self.verdict(path, is_folder))
