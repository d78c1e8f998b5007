"""Host words: names that say that their value lives on the host."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Words of a name, between underscores, that say where its value lives.
HOST_WORDS = frozenset({"cpu", "host", "np", "numpy", "list", "pinned", "reqs", "req"})


def is_named_host(name: str, host_values: Iterable[str] = (), holder: str = "") -> bool:
    """Tells whether a name says that its value lives on the host, by itself or by a glob.

    A glob of two parts, `holder.name`, is of what is an attribute of a holder with such a name.
    """
    for glob in host_values:
        of, dot, like = glob.rpartition(".")
        if fnmatch.fnmatchcase(name, like) and (not dot or fnmatch.fnmatchcase(holder, of)):
            return True
    return not HOST_WORDS.isdisjoint(words(name))


def words(name: str) -> list[str]:
    """Returns the words of a name."""
    return name.lower().split("_")
