"""Paths: where in a call of an engine's function something stands.

The contract checks their form.

A path starts at `return`, a parameter or `self`, and goes on by attributes and by `[key]`, where
the key is a number, a path of its own, or `*` for the last one: `io[bs].rows`, `self.buffers[*]`.
One of a module, `package.module:name.attribute`, starts at a variable of the module.
With `[]` for each item of a sequence it leads to several things: `reqs[].kv.req_pool_idx`. There a
key that a mapping lacks leads nowhere: `self.row_of[rid]`.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Mapping, Sequence, Set
from functools import cache
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from fmcheck.errors import nearest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Bindings: TypeAlias = Mapping[str, Any]
RETURN = "return"
ANY = "*"

_PART = re.compile(r"\.?(?P<name>[A-Za-z_]\w*)|\[(?P<key>-?[\w.]*)\]")
_STEP = re.compile(r"\.?(?P<name>[A-Za-z_]\w*)|\[(?P<key>-?[\w.]+|\*)\]")
_NUMBER = re.compile(r"-?\d+")


class NothingThereError(LookupError):
    """A path leads through None, or starts in a module that nobody has imported.

    The engine has not made, or does not use, what it leads to.
    """

    def __init__(self, path: str, name: str) -> None:
        super().__init__(f"path `{path}`: nothing before `{name}`")
        self.path = path


class NotThereError(LookupError):
    """A path names what is not there. What is, is looked at only if anybody wants to know."""

    def __init__(self, path: str, name: str, found: object) -> None:
        super().__init__(path, name)
        self.path, self.name, self.found = path, name, found

    @property
    def is_set_elsewhere(self) -> bool:
        """Tells whether the class of the object sets such an attribute: this one is half built.

        So is a class whose class methods set it, or a module of which a function does.
        """
        found = self.found
        if isinstance(found, ModuleType):
            functions = [one for one in vars(found).values() if isinstance(one, FunctionType)]
            return any(_sets(self.name, function) for function in functions)
        return any(
            self.name in getattr(class_, "__annotations__", ())
            or any(_sets(self.name, function) for function in vars(class_).values())
            for class_ in (found if isinstance(found, type) else type(found)).__mro__
        )

    def __str__(self) -> str:
        found = self.found
        names = found if isinstance(found, Mapping) else dir(found)
        public = [str(one) for one in names if not str(one).startswith("__")]
        known = nearest(self.name, public) if self.name.isidentifier() else ""
        where = f" in module `{found.__name__}`" if isinstance(found, ModuleType) else ""
        return f"path `{self.path}`: there is no `{self.name}`{where}{known}"


def _sets(name: str, function: Any) -> bool:
    """Tells whether a function assigns an attribute, or a global variable, of that name."""
    is_one = callable(function) or isinstance(function, classmethod)
    code = getattr(inspect.unwrap(function), "__code__", None) if is_one else None
    if code is None or name not in code.co_names:
        return False
    return any(
        step.opname in ("STORE_ATTR", "STORE_GLOBAL") and step.argval == name
        for step in dis.get_instructions(code)
    )


def look_up(path: str, bindings: Bindings) -> Any:
    """Returns what `path` leads to from the names in `bindings`, or in the module that it names.

    Raises:
        NothingThereError: if it leads through None, or nobody has imported the module.
        NotThereError: naming the path and the step that is not there.
    """
    module, _, names = path.rpartition(":")
    found: Any = sys.modules.get(module) if module else bindings
    for number, (name, key) in enumerate(_steps(names)):
        try:
            if number == 0:
                # Not by `getattr`: a module may import what it is asked for.
                found = vars(found)[name] if module else found[name]
            elif name:
                found = getattr(found, name)
            else:
                found = found[_key(key, found, bindings)]
        except (KeyError, AttributeError, IndexError, TypeError, ValueError):
            if found is None:
                raise NothingThereError(path, name or key) from None
            raise NotThereError(path, name or key, found) from None
    return found


def _key(text: str, container: Any, bindings: Bindings) -> Any:
    if text == ANY:
        return max(container)
    return int(text) if _NUMBER.fullmatch(text) else look_up(text, bindings)


def root(path: str) -> str:
    """Returns the name that a path starts at."""
    return _steps(path)[0][0]


def last(path: str) -> str:
    """Returns the last attribute of a path."""
    return next(name for name, _ in reversed(_steps(path)) if name)


@cache
def _steps(path: str) -> tuple[tuple[str, str], ...]:
    return tuple((m["name"] or "", m["key"] or "") for m in _STEP.finditer(path))


def follow(path: str, names: Bindings) -> list[Any]:
    """Returns what a path leads to, from parameters and `return` by name; None leads nowhere.

    Raises:
        NotThereError: if something on the way lacks the attribute.
    """
    found = [names[root(path)]]
    for number, part in enumerate(_PART.finditer(path)):
        found = [value for value in found if value is not None]
        if part["name"]:
            found = [_attribute(value, part["name"], path) for value in found] if number else found
        elif part["key"]:
            key = _key(part["key"], None, names)
            found = [one for value in found for one in _item(value, key, path)]
        else:
            found = [item for value in found for item in _items(value, path)]
    return [value for value in found if value is not None]


def by_row(path: str, names: Bindings) -> dict[int, str]:
    """Returns who has each row by what a path leads to, rows that nobody has left out.

    That is a sequence by row, where None, "" and negative numbers stand for nobody, or a mapping
    from names to rows, or from rows to names that are texts.

    Raises:
        LookupError: if it leads to anything else, or something on the way lacks the attribute.
    """
    start, _, rest = path.partition("[]")
    found = follow(start, names)
    table = found[0] if found else ()
    if isinstance(table, Mapping):
        held = {one: value for one, value in table.items() if value is not None}
        if any(isinstance(value, str) for value in held.values()):
            return {row: name for row, name in held.items() if not _is_nobody(name)}
        rows = {name: as_rows([row]).tolist() for name, row in held.items()}
        return {row: str(name) for name, its in rows.items() for row in its if row >= 0}
    table = table.tolist() if hasattr(table, "tolist") else table
    if not isinstance(table, Sequence):
        kind = type(table).__name__
        raise LookupError(
            f"path `{path}`: expected a list by row, or a mapping from names to rows, got `{kind}`"
        )
    try:
        named = [follow(f"item{rest}", {"item": item}) for item in table]
    except NotThereError as err:
        raise NotThereError(path, err.name, err.found) from None
    return {row: str(name) for row, its in enumerate(named) for name in its if not _is_nobody(name)}


def _is_nobody(name: Any) -> bool:
    return name == "" or (isinstance(name, int) and name < 0)


def _items(value: Any, path: str) -> Any:
    if hasattr(value, "__next__"):
        raise LookupError(f"path `{path}`: an iterator, which only the engine may use up")
    return value


def _item(value: Any, key: Any, path: str) -> list[Any]:
    """Returns what stands under a key, nothing where a mapping has no such key."""
    if hasattr(value, "keys"):
        return [value[key]] if key in value else []
    try:
        return [value[key]]
    except (LookupError, TypeError):
        raise NotThereError(path, str(key), value) from None


def _attribute(value: Any, name: str, path: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError:
        raise NotThereError(path, name, value) from None


def as_rows(found: list[Any]) -> npt.NDArray[np.int64]:
    """Returns the numbers in what a path led to.

    Integers, sequences, sets and mappings of them, slices with both ends, arrays and tensors; a
    mask stands for the places where it is true.
    """
    import numpy as np  # loaded with the engine: a session that imports none needs it not

    parts = [np.asarray(_on_host(value)).reshape(-1) for value in found]
    parts = [
        np.flatnonzero(one) if one.dtype == np.bool_ else one.astype(np.int64) for one in parts
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _on_host(value: Any) -> Any:
    if isinstance(value, slice):
        return range(value.start, value.stop)
    if isinstance(value, (Set, Mapping)):
        return list(value)
    if not hasattr(value, "detach"):
        return value
    if value.is_cpu and type(value) is sys.modules["torch"].Tensor:
        from fmcheck.runtime.core.rows import array_over

        return array_over(value)
    return value.detach().cpu()
