"""Instances: the objects of a class that exist, and where an object holds what."""

from __future__ import annotations

import functools
import gc
from types import FrameType
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.core.declared import with_subclasses
from fmcheck.runtime.core.naming import plainly, slots_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    #: The name of an attribute, what it holds, and what puts another value there.
    Held = tuple[str, Any, Callable[[Any], None]]


def instances_of(*classes: type) -> list[Any]:
    """Returns the objects of classes and of their subclasses that are alive, by one look at all."""
    every = [one for class_ in classes for one in with_subclasses(class_)]
    if not every:
        return []
    kinds = {id(one) for one in every}
    found = {id(one): one for one in gc.get_referrers(*every) if id(type(one)) in kinds}
    return list(found.values())


def held_by(instance: Any, with_entries: bool = False) -> Iterator[Held]:
    """Yields what an object's attributes hold: its own, those in slots, a module's buffers.

    `with_entries`, what dicts and lists in them hold as well, as `inputs.lens` or `pools.0`.
    """
    for name, value, put in _attributes(instance):
        yield name, value, put
        if with_entries and isinstance(value, (dict, list)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in list(items):
                yield f"{name}.{key}", item, functools.partial(value.__setitem__, key)


def _attributes(instance: Any) -> Iterator[Held]:
    for kept in names_of(instance):
        for name, value in list(kept.items()):
            yield name, value, functools.partial(kept.__setitem__, name)
    for name in slots_of(type(instance)):
        value = plainly(instance, name)
        yield name, value, functools.partial(object.__setattr__, instance, name)


def names_of(instance: Any) -> list[dict[str, Any]]:
    """Returns the dictionaries that an object keeps attributes in, those of a torch module too."""
    names = plainly(instance, "__dict__")
    if not isinstance(names, dict):
        return []
    buffers = names.get("_buffers")
    return [names, buffers] if isinstance(buffers, dict) else [names]


def bound_to(instance: Any, name: str) -> Any:
    """Returns an attribute as the engine finds it, None if it is not there."""
    try:
        return getattr(instance, name, None)
    except Exception:
        return None


def others_that_hold(value: Any, but: Iterable[Any]) -> list[str]:
    """Returns the types of what else refers to a value; frames and `but` are left out."""
    known = {id(one) for one in but}
    return [
        type(one).__name__
        for one in gc.get_referrers(value)
        if id(one) not in known and not isinstance(one, (FrameType, tuple))
    ]
