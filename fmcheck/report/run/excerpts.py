"""Excerpts of source code around the sites of a violation, read when the report is made."""

from __future__ import annotations

import io
import tokenize
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.files.reading import MOST_SOURCE, read_regular

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.finding import Site

#: How many lines are shown above and below.
AROUND = 3


class Excerpt(Struct, frozen=True):
    """A few lines of a file, the one in question between those `above` and those `below`.

    `first` is the number of the first line shown. Where nothing can be shown, `why` says why not.
    """

    first: int = 0
    above: tuple[str, ...] = ()
    line: str = ""
    below: tuple[str, ...] = ()
    why: str = ""


class Sources:
    """Source files, each read once. What is there now may not be what ran: a line may be gone."""

    def __init__(self) -> None:
        self._files: dict[str, Sequence[str] | str] = {}

    def excerpt(self, site: Site) -> Excerpt:
        """Returns the lines around a site."""
        lines = self._lines(site.path)
        if isinstance(lines, str):
            return Excerpt(why=lines)
        if not 0 < site.line <= len(lines):
            return Excerpt(
                why=f"{site.path} has {len(lines):,} lines here: it is not the file that ran"
            )
        index = site.line - 1
        start = max(index - AROUND, 0)
        return Excerpt(
            first=start + 1,
            above=tuple(lines[start:index]),
            line=lines[index],
            below=tuple(lines[index + 1 : index + 1 + AROUND]),
        )

    def line(self, site: Site) -> str:
        """Returns the text of a site's line; "" if there is none."""
        return self.excerpt(site).line

    def _lines(self, path: str) -> Sequence[str] | str:
        if path not in self._files:
            self._files[path] = _read(path)
        return self._files[path]


def _read(path: str) -> Sequence[str] | str:
    try:
        content = read_regular(path, MOST_SOURCE)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding).expandtabs(4).splitlines()
    except OSError:
        return f"{path} is not on the machine that made this report"
    except (SyntaxError, LookupError, ValueError):
        return f"{path} cannot be decoded"
