"""Patterns of paths, in the language of `.gitignore`, read relative to one folder.

They come with the linted tree, so what one costs is bounded: a name is held against a pattern with
one step back, to the last star, and never by a regular expression, whose stars multiply.
"""

from __future__ import annotations

import os
import string
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fmcheck.errors import UsageError
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    #: What one character has to be.
    Token = str | Callable[[str], bool]
    #: What a name has to be: a plain one, or a sequence of tokens in which None is a star.
    Part = str | tuple[Token | None, ...]


#: A pattern that is nothing but a name, of anything or of a folder: most are, and a set is quick.
PLAIN = regex(r"[\w.+~ -]*[\w.+~-]/?")
#: More patterns than this that have to be tried, one by one, are a mistake, or an attack.
MOST_MATCHED = 2_000
#: The classes of characters, as `[[:alpha:]]`. Git knows those of ASCII.
_CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, (*range(32), 127))),
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": string.whitespace,
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}


class Patterns:
    """Lines of a `.gitignore` that stands, or might stand, in `folder`.

    A walk asks for each folder before it goes in, so only the entry itself is matched here, and
    of several lines that match the last one counts. Lines that are no pattern match nothing, as
    for git; in what a user gave (at `place`, a setting or an option) they are an error.
    """

    def __init__(self, lines: Iterable[str], folder: str, place: str = "") -> None:
        self.folder = folder
        self._prefix = folder.rstrip(os.sep) + os.sep
        self._names: dict[str, int] = {}
        self._paths: dict[str, list[tuple[int, _Pattern]]] = {}
        self._others: list[tuple[int, _Pattern]] = []
        for number, line in enumerate(lines):
            pattern = _trimmed(line)
            if PLAIN.fullmatch(pattern):
                self._names[pattern] = number
            elif pattern and not pattern.startswith("#"):
                self._add(number, pattern, place)
        self._others.reverse()

    def __bool__(self) -> bool:
        return bool(self._names or self._paths or self._others)

    def _add(self, number: int, pattern: str, place: str) -> None:
        compiled = _compiled(pattern)
        if compiled is None:
            if place:
                raise UsageError(place, f"expected a .gitignore pattern, got `{pattern}`")
        elif all(isinstance(part, str) for part in compiled.parts):
            path = "/".join(map(str, compiled.parts))
            self._paths.setdefault(path, []).append((number, compiled))
        else:
            self._others.append((number, compiled))
            if len(self._others) > MOST_MATCHED:
                # Each is tried with each name: a long list is a run that does not end.
                wanted = f"expected at most {MOST_MATCHED:,} patterns that are no plain paths"
                raise UsageError(self.folder, f"{wanted}, got more")

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
        found = True if at >= 0 else None
        if not (self._paths or self._others):
            return found
        relative = path[len(self._prefix) :].replace(os.sep, "/")
        for number, pattern in self._paths.get(relative, ()):
            if number > at and (is_folder or not pattern.folders_only):
                at, found = number, pattern.include
        parts = relative.split("/")
        for number, pattern in self._others:
            if number < at:
                break
            if pattern.matches(parts, is_folder):
                return pattern.include
        return found

    def sparing(self, folder: str) -> Patterns:
        """Returns these patterns less those that match the absolute `folder` or one above it."""
        spared = Patterns((), self.folder)
        spared._names = self._names  # these match an entry's own name only
        spared._paths, spared._others = dict(self._paths), self._others
        if folder.startswith(self._prefix):
            parts = folder[len(self._prefix) :].split(os.sep)
            above = [parts[:end] for end in range(1, len(parts) + 1)]
            for at in above:
                spared._paths.pop("/".join(at), None)
            spared._others = [
                one for one in self._others if not any(one[1].matches(at, True) for at in above)
            ]
        return spared

    def match(self, path: str, is_folder: bool = False) -> bool:
        """Tells whether the entry at the absolute `path`, or a folder above it, is matched."""
        if not path.startswith(self._prefix):
            return False
        parts = path[len(self._prefix) :].split(os.sep)
        above = (self._prefix + os.sep.join(parts[:end]) for end in range(1, len(parts)))
        return any(self.verdict(one, True) for one in above) or bool(self.verdict(path, is_folder))


class _Pattern(Struct, frozen=True):
    """One pattern: its parts from the folder on, None for `**`.

    `include` tells whether what it matches is left out, or taken back in.
    """

    parts: Sequence[Part | None]
    include: bool
    folders_only: bool

    def matches(self, names: Sequence[str], is_folder: bool) -> bool:
        """Tells whether the entry that these names lead to is matched."""
        if self.folders_only and not is_folder:
            return False
        parts = self.parts
        if len(parts) == 2 and parts[0] is None and parts[1] is not None:  # at any depth
            return _fits(parts[1], names[-1])
        return _held(parts, names, _fits)


def _compiled(pattern: str) -> _Pattern | None:
    """Returns a pattern, None for one that cannot match anything."""
    include = not pattern.startswith("!")
    text = pattern if include else pattern[1:]
    folders_only = text.endswith("/")
    text = text.removesuffix("/")
    pieces = text.removeprefix("/").split("/")
    if not {"", ".", ".."}.isdisjoint(pieces):
        return None
    # Without a slash in it, a pattern is for names at any depth.
    parts: list[Part | None] = [] if "/" in text else [None]
    for piece in pieces:
        part = None if piece == "**" else _part(piece)
        if part == ():
            return None
        if not (part is None and parts[-1:] == [None]):
            parts.append(part)
    if parts[-1] is None:  # `a/**` is what lies in a, not a
        parts.append((None,))
    return _Pattern(parts, include, folders_only)


def _part(piece: str) -> Part:
    """Returns a part between two slashes; () for one that matches nothing."""
    tokens: list[Token | None] = []
    at = 0
    while at < len(piece):
        char = piece[at]
        at += 1
        if char == "*":
            if tokens[-1:] != [None]:
                tokens.append(None)
        elif char == "?":
            tokens.append(_anything)
        elif char == "[":
            found = _bracket(piece, at)
            if found is None:
                return ()
            token, at = found
            tokens.append(token)
        elif char != "\\":
            tokens.append(char)
        elif at < len(piece):
            tokens.append(piece[at])
            at += 1
        else:
            return ()  # there is nothing for the backslash to escape
    plain = [one for one in tokens if isinstance(one, str)]
    return "".join(plain) if len(plain) == len(tokens) else tuple(tokens)


def _bracket(piece: str, at: int) -> tuple[Token, int] | None:
    """Returns what a bracket that opens before `at` stands for, and where it has ended."""
    negated = piece[at : at + 1] in ("!", "^")
    first = at = at + negated
    singles: set[str] = set()
    ranges: list[tuple[str, str]] = []
    while at < len(piece) and (piece[at] != "]" or at == first):
        if piece.startswith("[:", at):
            name, colon, _ = piece[at + 2 :].partition(":]")
            if not colon or name not in _CLASSES:
                return None
            singles.update(_CLASSES[name])
            at += len(name) + 4
            continue
        low, at = _char(piece, at)
        if piece[at : at + 1] == "-" and piece[at + 1 : at + 2] not in ("", "]"):
            high, at = _char(piece, at + 1)
            ranges.append((low, high))
        else:
            singles.add(low)
    if at >= len(piece):
        return None

    def fits(char: str) -> bool:
        inside = char in singles or any(low <= char <= high for low, high in ranges)
        return inside is not negated

    return fits, at + 1


def _char(piece: str, at: int) -> tuple[str, int]:
    """Returns the character at a place in a bracket, escaped or not, and the place behind it."""
    at += piece[at] == "\\" and at + 1 < len(piece)
    return piece[at], at + 1


def _anything(char: str) -> bool:
    return True


def _fits(part: Part, name: str) -> bool:
    """Tells whether a name is one that a part stands for."""
    if isinstance(part, str):
        return part == name
    if isinstance(part[-1], str) and part[-1] != name[-1]:
        return False  # most names, for `*.so`
    return _held(part, name, _is_char)


def _is_char(token: Token, char: str) -> bool:
    return token == char if isinstance(token, str) else token(char)


def _held(wanted: Sequence[Any], given: Sequence[str], fits: Callable[[Any, str], bool]) -> bool:
    """Tells whether a sequence fits one in which None stands for any number of items.

    Only the last None is ever tried with one item more: what fitted before it fits once and for
    all, so that no number of them makes this slower than the product of the lengths.
    """
    if len(wanted) - wanted.count(None) > len(given):
        return False
    at = item = 0
    star = tried = -1
    while item < len(given):
        is_over = at == len(wanted)
        one = None if is_over else wanted[at]
        if one is not None and fits(one, given[item]):
            at += 1
            item += 1
        elif one is None and not is_over:
            star, tried = at, item
            at += 1
        elif star >= 0:
            tried += 1
            at, item = star + 1, tried
        else:
            return False
    return all(one is None for one in wanted[at:])


def _trimmed(line: str) -> str:
    """Returns a line without the spaces at its end, but for an escaped one."""
    line = line.removesuffix("\r")
    trimmed = line.rstrip(" ")
    # An odd number of backslashes escapes the first of the spaces.
    slashes = len(trimmed) - len(trimmed.rstrip("\\"))
    return line[: len(trimmed) + 1] if slashes % 2 else trimmed
