"""Naming: what the engine calls an object, by the attribute that holds it."""

from __future__ import annotations

import functools
import gc
import sys
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator
    from types import FrameType

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


#: Frames outwards, and objects in all, that are searched for a name.
_FRAMES, _OBJECTS = 32, 2000
_NO_HOLDERS = (type, ModuleType, FunctionType, str, bytes, int, float)


def names_of(tensor: Any, frame: FrameType | None, like: re.Pattern[str]) -> Iterator[str]:
    """Yields names like a pattern under which a frame, or who called it, holds a tensor's memory.

    Looked at are locals and globals, attributes and items of the locals, and those of these.
    """
    key = tensor.untyped_storage()._cdata
    seen: set[int] = set()
    for _ in range(_FRAMES):
        if frame is None:
            return
        yield from _named(frame.f_globals, key, like)
        levels: list[dict[Any, Any]] = [frame.f_locals]
        for _ in range(3):
            for names in levels:
                yield from _named(names, key, like)
            levels = [inner for names in levels for inner in _inner(names, seen)]
        frame = frame.f_back


def _named(names: dict[Any, Any], key: int, like: re.Pattern[str]) -> Iterator[str]:
    """Yields the names in a namespace, like a pattern, whose tensor has this storage."""
    torch = sys.modules["torch"]
    # Namespaces of one class have the same names: the pattern is tried on them once.
    for name in _matching(like, tuple([name for name in names if type(name) is str])):
        value = names.get(name)
        if isinstance(value, torch.Tensor):
            with suppress(RuntimeError, NotImplementedError):  # some have no storage
                if value.untyped_storage()._cdata == key:
                    yield name


@functools.lru_cache(maxsize=4096)
def _matching(like: re.Pattern[str], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if like.match(name))


def _inner(names: dict[Any, Any], seen: set[int]) -> Iterator[dict[Any, Any]]:
    """Yields the namespaces of what a namespace holds, each object once."""
    for value in list(names.values()):
        class_ = type(value)
        slots = _slots.get(class_)
        if slots is None:
            slots = _slots[class_] = _slots_of_holder(class_)
        if slots is _NOTHING or id(value) in seen or len(seen) >= _OBJECTS:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            yield value
            continue
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            yield held
        if slots:
            yield {name: getattr(value, name, None) for name in slots}


#: By class: the slots that its objects have, or that they hold nothing by a name.
_slots: dict[type, tuple[str, ...]] = {}
_NOTHING = ("",)


def _slots_of_holder(class_: type) -> tuple[str, ...]:
    if issubclass(class_, _NO_HOLDERS):
        return _NOTHING
    slots = tuple(slots_of(class_))
    has_names = slots or issubclass(class_, dict) or class_.__dictoffset__
    return slots if has_names else _NOTHING


def forget_classes() -> None:
    """Forgets what is known of classes: one that a test made is not to live on here."""
    _slots.clear()
