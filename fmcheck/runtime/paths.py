"""Paths: `self.buffers`, `forward_batch.batch_size`, `io[bs].rows`, looked up when a call is made.

The contract has checked their form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

Bindings: TypeAlias = Mapping[str, Any]
RETURN = "return"
ANY = "*"

_STEP = re.compile(r"\.?(?P<name>[A-Za-z_]\w*)|\[(?P<key>[\w.]+|\*)\]")


class NothingThereError(LookupError):
    """A path leads through None: the engine has not made, or does not use, what it leads to."""


def look_up(path: str, bindings: Bindings) -> Any:
    """Returns what `path` leads to from the names in `bindings`.

    Raises:
        NothingThereError: if it leads through None.
        LookupError: naming the path and the step that is not there.
    """
    found: Any = None
    for number, (name, key) in enumerate(_steps(path)):
        try:
            if number == 0:
                found = bindings[name]
            elif name:
                found = getattr(found, name)
            else:
                found = found[_key(key, found, bindings)]
        except (KeyError, AttributeError, IndexError, TypeError, ValueError):
            if number and found is None:
                raise NothingThereError(f"path `{path}`: nothing before `{name or key}`") from None
            raise LookupError(f"path `{path}`: there is no `{name or key}`") from None
    return found


def _key(text: str, container: Any, bindings: Bindings) -> Any:
    if text == ANY:
        return max(container)
    return int(text) if text.isdigit() else look_up(text, bindings)


def root(path: str) -> str:
    """Returns the name that a path starts at."""
    return _steps(path)[0][0]


def last(path: str) -> str:
    """Returns the last attribute of a path."""
    return next(name for name, _ in reversed(_steps(path)) if name)


@cache
def _steps(path: str) -> tuple[tuple[str, str], ...]:
    return tuple((m["name"] or "", m["key"] or "") for m in _STEP.finditer(path))
