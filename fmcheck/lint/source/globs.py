"""Globs of contracts: whether a name, or the path of a file, is meant by one."""

from __future__ import annotations

import fnmatch
import os
from functools import lru_cache
from typing import TYPE_CHECKING

from fmcheck.regex import regex

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence

#: Where what a glob says stops being what it means.
_WILD = regex(r"[*?\[]")
#: Parts of a glob that stand for others.
_MARKS = regex(r"[*?]|\[.*?\]")


def fits(name: str, globs: Iterable[str]) -> bool:
    """Tells whether one of the globs means `name`."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def literal(glob: str) -> str:
    """Returns the longest part of a glob that a name must have literally, "" if there is none."""
    return max(_MARKS.split(glob), key=len)


def lies_in(path: str, globs: Iterable[str]) -> bool:
    """Tells whether a glob means this path; globs start at a package's root, paths may not."""
    path = f"/{path}".replace("\\", "/")
    return any(
        start in path and whole.match(path) is not None for start, whole in _any_of(tuple(globs))
    )


@lru_cache(maxsize=32)
def _any_of(globs: tuple[str, ...]) -> Sequence[tuple[str, re.Pattern[str]]]:
    """Returns of each glob what it starts with, as it is, and the whole of it."""
    names = [os.path.normcase(glob) for glob in globs]
    return [(_WILD.split(name)[0], regex(fnmatch.translate(f"*/{name}"))) for name in names]
