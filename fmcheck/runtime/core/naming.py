"""Naming: what the engine calls an object, by the attribute that holds it, and its functions.

A function's qualified name, `Class.method`, is known to Python from 3.11 on. 3.10 knows the plain
name alone, and the rest is read off the source: reports and contracts say the same on each.
"""

from __future__ import annotations

import ast
import functools
import gc
import linecache
import re
import sys
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import CodeType, FrameType

# What torch's own context managers call any stream.
_PASSING = frozenset({"self", "stream", "prev_stream"})
#: Nodes that are compiled to code of their own, though nobody named it.
_UNNAMED = {
    ast.Lambda: "<lambda>",
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}


def holder_of(held: Any) -> str:
    """Returns the name of an attribute that holds an object, "" if there is none.

    It looks through all that refers to the object, once; attributes of slots are found too.
    """
    if held is None:
        return ""
    for holder in gc.get_referrers(held):
        names = holder if issubclass(type(holder), dict) else plainly(holder, "__dict__") or {}
        found = [name for name, value in dict(names).items() if value is held]
        found += [name for name in slots_of(type(holder)) if plainly(holder, name) is held]
        for name in found:
            if isinstance(name, str) and name not in _PASSING and name[0] != "_":
                return name
    return ""


def plainly(held: Any, name: str) -> Any:
    """Returns an attribute as Python itself finds it, None if it is not there.

    A class may answer for its objects' attributes itself, with any error or effect.
    """
    try:
        return object.__getattribute__(held, name)
    except Exception:
        return None


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


#: Frames outwards, namespaces deep from each, and objects in all, that are searched for a name.
_FRAMES, _DEPTH, _OBJECTS = 32, 3, 2000
#: Items of a list or a dict with such a name that are looked at.
_ITEMS = 256
_NO_HOLDERS = (type, ModuleType, FunctionType, str, bytes, int, float)
#: Whose frames hold nothing that the engine's do not: ours, and those of who runs tests.
_NO_ENGINE = re.compile(r"(fmcheck|_pytest|pluggy)(\.|$)")
_STRINGS = {str}
_NO_NAMES: frozenset[str] = frozenset()


def names_of(tensor: Any, frame: FrameType | None, like: re.Pattern[str]) -> Iterator[str]:
    """Yields names like a pattern under which a frame, or who called it, holds a tensor's memory.

    Looked at are locals and globals, attributes and items of the locals, and those of these. What
    an object of such a name holds by itself is yielded as `object.attribute`.
    """
    key = tensor.untyped_storage()._cdata
    seen: set[int] = set()
    for _ in range(_FRAMES):
        if frame is None:
            return
        if not _is_foreign(frame.f_globals.get("__name__")):
            yield from _held_by(frame, key, like, seen)
        frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def _is_foreign(module: object) -> bool:
    return isinstance(module, str) and _NO_ENGINE.match(module) is not None


def _held_by(frame: FrameType, key: int, like: re.Pattern[str], seen: set[int]) -> Iterator[str]:
    yield from _named(frame.f_globals, key, like)
    levels: list[dict[Any, Any]] = [frame.f_locals]
    for depth in range(_DEPTH):
        if depth:
            # What holds no such name itself matters only for what is a level further in.
            passed = _unlike(like) if depth == _DEPTH - 1 else _NO_NAMES
            levels = [inner for names in levels for inner in _inner(names, seen, passed)]
        for names in levels:
            yield from _named(names, key, like)


def _named(names: dict[Any, Any], key: int, like: re.Pattern[str]) -> Iterator[str]:
    """Yields the names in a namespace, like a pattern, whose tensor has this storage.

    The name of a list or a dict is that of each tensor in it, and the name of an object goes before
    those of its attributes.
    """
    strings: Iterable[str] = names
    if not _STRINGS.issuperset(map(type, names)):
        strings = [name for name in names if type(name) is str]
    unlike = _unlike(like)
    # Nearly all namespaces have no such name: they are passed over without a loop in Python.
    if unlike.issuperset(strings):
        return
    for name in list(strings):
        if not like.match(name):
            unlike.add(name)
            continue
        value = names.get(name)
        if any(_shows(one, key) for one in (value, *_items(value))):
            yield name
        for inner in _inner({name: value}, set(), _NO_NAMES):
            yield from (f"{name}.{word}" for word, one in [*inner.items()] if _shows(one, key))


def _shows(value: Any, key: int) -> bool:
    """Tells whether a value is a tensor of the storage with this key."""
    if isinstance(value, sys.modules["torch"].Tensor):
        with suppress(RuntimeError, NotImplementedError):  # some have no storage
            return bool(value.untyped_storage()._cdata == key)
    return False


def _items(value: Any) -> list[Any]:
    """Returns what a plain list, tuple or dict holds, the first of it."""
    if type(value) is dict:
        value = [*value.values()]
    return list(value[:_ITEMS]) if type(value) in (list, tuple) else []


@functools.lru_cache(maxsize=64)
def _unlike(like: re.Pattern[str]) -> set[str]:
    """Returns names that a pattern does not match, as far as they were met."""
    return set()


def _inner(
    names: dict[Any, Any], seen: set[int], passed: set[str] | frozenset[str]
) -> Iterator[dict[Any, Any]]:
    """Yields the namespaces of what a namespace holds, each object once.

    Slots are read only of an object that has one whose name is not among the passed.
    """
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
        held = plainly(value, "__dict__")
        if isinstance(held, dict) and held:  # that of a tensor is empty
            yield held
        if not passed.issuperset(slots):
            yield {name: plainly(value, name) for name in slots}


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


def qualified_name(code: CodeType) -> str:
    """Returns a function's qualified name, its plain name where its source cannot be had."""
    known: str | None = getattr(code, "co_qualname", None)
    return name_in_source(code) if known is None else known


def name_in_source(code: CodeType) -> str:
    """Returns the qualified name that the source gives to a function, else its plain name."""
    return _names_of(code.co_filename).get((code.co_firstlineno, code.co_name), code.co_name)


@functools.cache
def _names_of(path: str) -> Mapping[tuple[int, str], str]:
    """Returns the qualified names of a file, by the line that each begins on and its plain name."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return dict(_names_in(tree))


def _names_in(tree: ast.AST) -> Iterator[tuple[tuple[int, str], str]]:
    left: list[tuple[ast.AST, str]] = [(tree, "")]
    while left:
        node, prefix = left.pop()
        within: list[ast.AST] = []  # decorators, bases and defaults are not
        inner = prefix
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield (line, node.name), prefix + node.name
            inner = prefix + node.name + ("." if isinstance(node, ast.ClassDef) else ".<locals>.")
            within = [*node.body]
        elif (name := _UNNAMED.get(type(node))) is not None:
            assert isinstance(node, ast.expr)
            yield (node.lineno, name), prefix + name
            inner = f"{prefix}{name}.<locals>."
            within = [node.body] if isinstance(node, ast.Lambda) else [*ast.iter_child_nodes(node)]
        left += [
            (child, inner if child in within else prefix) for child in ast.iter_child_nodes(node)
        ]
