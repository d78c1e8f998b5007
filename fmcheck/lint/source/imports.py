"""Imports: the names that a module's import statements make, read off its text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.lint.source.cuts import Cuts

#: An import where a statement may start; what it imports may stand in brackets, over many lines.
_STATEMENT = regex(
    r"(?:^|(?<=[;:]))(?P<indent>[ \t\f]*)"
    r"(?:from[ \t]+(?P<module>[.\w]+(?:[ \t]*\.[ \t]*\w+)*)[ \t]*\bimport\b[ \t]*"
    r"(?P<names>\((?:[^)#]|#[^\n]*)*\)|[^\n;]*)"
    r"|import[ \t]+(?P<modules>[^\n;]*))",
    re.MULTILINE,
)
_CONTINUED = regex(r"\\\n[ \t]*")
_COMMENT = regex(r"#[^\n]*")


class Import(Struct, frozen=True):
    """A name that an import makes: what it stands for, and how far the statement is indented.

    `module` is what a `from` names, with the dots of a relative import; "" for a plain import.
    """

    name: str
    target: str
    module: str
    indent: int

    @property
    def is_relative(self) -> bool:
        """Tells whether it is of the package that the module is in."""
        return self.module.startswith(".")


def imports(text: str, cuts: Cuts) -> Iterator[Import]:
    """Yields every name that an import of a module makes, wherever it stands."""
    if "\\\n" in text:
        text = _CONTINUED.sub(lambda found: " " * len(found[0]), text)  # offsets stay
    for match in _statements(text):
        if cuts.is_in_string(match.start("indent")):
            continue
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if '"' in before or "'" in before or "#" in before:
            continue
        indent, module = len(match["indent"]), "".join((match["module"] or "").split())
        listed = _COMMENT.sub("", match["names"] or match["modules"] or "").strip("() \t\n")
        for one in listed.split(","):
            name, _, other = (part.strip() for part in one.strip().partition(" as "))
            if not name or name == "*":
                continue
            if module:
                yield Import(other or name, f"{module}.{name}", module, indent)
            elif other:
                yield Import(other, name, "", indent)
            else:
                top = name.partition(".")[0]
                yield Import(top, top, "", indent)


def _statements(text: str) -> Iterator[re.Match[str]]:
    """Yields the imports of a text, of which only the lines that hold the word are looked at."""
    done, at = 0, text.find("import")
    while at >= 0:
        start = max(done, text.rfind("\n", 0, at) + 1)
        done = text.find("\n", at)
        done = done if done >= 0 else len(text)
        for match in _STATEMENT.finditer(text, start, done):
            if (match["names"] or "").startswith("("):
                # The bracket may be closed on another line.
                whole = _STATEMENT.match(text, match.start())
                match = whole if whole is not None else match
                done = max(done, match.end())
            yield match
        at = text.find("import", done)
