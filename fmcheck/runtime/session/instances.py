"""Instances: the objects of a class that exist, and where an object holds what."""

from __future__ import annotations

import functools
import gc
from types import FrameType
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.core.naming import plainly, slots_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    #: The name of an attribute, what it holds, and what puts another value there.
    Held = tuple[str, Any, Callable[[Any], None]]


def with_subclasses(class_: type) -> list[type]:
    """Returns a class and all of its subclasses, each once."""
    subclasses: list[type] = type.__subclasses__(class_)
    every = [class_, *(found for one in subclasses for found in with_subclasses(one))]
    return list(dict.fromkeys(every))


def instances_of(*classes: type) -> list[Any]:
    """Returns the objects of classes and of their subclasses that are alive, by one look at all."""
    every = [one for class_ in classes for one in with_subclasses(class_)]
    if not every:
        return []
    kinds = {id(one) for one in every}
    found = {id(one): one for one in gc.get_referrers(*every) if id(type(one)) in kinds}
    return list(found.values())


def held_by(instance: Any) -> Iterator[Held]:
    """Yields what an object's attributes hold: its own, those in slots, a module's buffers."""
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


def method_of(class_: type, name: str) -> Callable[..., Any]:
    """Returns a class's own method, or one that goes on to the next class that has it.

    Which that is the class of the object says: a mixin that has no `__init__` stands in front of
    another base that has one.
    """
    found: Any = getattr(class_, name, _LAST.get(name))
    if name in class_.__dict__:
        return found  # type: ignore[no-any-return]

    def goes_on(instance: Any, *args: Any, **kwargs: Any) -> Any:
        kind: Any = type(instance)
        following: Any = getattr(super(class_, kind), name, _LAST.get(name))
        if following is object.__init__ and kind.__new__ is not object.__new__:
            # Python passes over it where there is no other: `__new__` has taken the arguments.
            return following(instance)
        return following(instance, *args, **kwargs)

    return functools.wraps(found)(goes_on)


def set_state(instance: Any, state: Any) -> None:
    """Gives an object the state that it was copied or pickled with, as Python itself does."""
    of_slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, of_slots = state
    if state:
        instance.__dict__.update(state)
    for name, value in (of_slots or {}).items():
        setattr(instance, name, value)


def others_that_hold(value: Any, but: Iterable[Any]) -> list[str]:
    """Returns the types of what else refers to a value; frames and `but` are left out."""
    known = {id(one) for one in but}
    return [
        type(one).__name__
        for one in gc.get_referrers(value)
        if id(one) not in known and not isinstance(one, (FrameType, tuple))
    ]


#: What Python does itself where no class has such a method.
_LAST: dict[str, Callable[..., Any]] = {"__setstate__": set_state}
