"""Naming: what the engine calls an object, by the attribute that holds it."""

from __future__ import annotations

import gc
from typing import Any

# What torch's own context managers call any stream.
_PASSING = frozenset({"stream", "prev_stream"})


def holder_of(held: Any) -> str:
    """Returns the name of an attribute that holds an object, "" if there is none.

    It looks through all that refers to the object, once; attributes of slots are found too.
    """
    if held is None:
        return ""
    for holder in gc.get_referrers(held):
        names = vars(holder) if hasattr(holder, "__dict__") else {}
        if isinstance(holder, dict):
            names = holder
        found = [name for name, value in list(names.items()) if value is held]
        found += [name for name in slots_of(type(holder)) if getattr(holder, name, None) is held]
        for name in found:
            if isinstance(name, str) and name not in _PASSING and name[0] != "_":
                return name
    return ""


def slots_of(class_: type) -> list[str]:
    """Returns the names of the slots of a class and its bases, those of Python's own aside."""
    return [
        name
        for base in class_.__mro__
        for name in _listed(vars(base).get("__slots__", ()))
        if not name.startswith("__")
    ]


def _listed(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)
