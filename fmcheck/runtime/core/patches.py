"""Patches: how a class or a function of the engine is instrumented, and given back as it was.

Nothing here raises into the engine: what goes wrong is kept as a problem.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from fmcheck.contract import applies
from fmcheck.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from fmcheck.contract import Contract, Functions
    from fmcheck.runtime.core.tally import Tally

    Undo = Callable[[], None]


class Patch(Protocol):
    """What instruments the modules that a contract names, and keeps what went wrong."""

    contract: Contract

    @property
    def problems(self) -> list[str]:
        """What went wrong."""

    def installers(self) -> Iterator[tuple[str, Callable[[ModuleType], Iterator[Undo]]]]:
        """Yields each module to wait for, and what instruments it."""


def patch(class_: type, name: str, value: Any) -> Undo:
    """Sets an attribute of a class; returns what puts the old one back."""
    own = class_.__dict__.get(name)
    _set(class_, name, value)

    def undo() -> None:
        if own is None:
            type.__delattr__(class_, name)
        else:
            _set(class_, name, own)

    return undo


def patch_method(
    class_: type, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any] | None]
) -> Iterator[Undo]:
    """Puts what `wrapped` makes of a method, unless it is None, in its place.

    Static methods and class methods stay what they are.
    """
    kept: Any = inspect.getattr_static(class_, name, None) or getattr(class_, name)
    function = getattr(class_, name)
    is_bound = isinstance(kept, (classmethod, staticmethod))
    if is_bound:
        function = kept.__func__
    elif type(kept) not in _FUNCTIONS and hasattr(type(kept), "__get__"):
        # What it makes of a call depends on the object that it is bound to.
        @functools.wraps(function)
        def bound(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return kept.__get__(instance, type(instance))(*args, **kwargs)

        function = bound
    made = wrapped(function)
    if made is not None:
        yield patch(class_, name, type(kept)(made) if is_bound else in_place_of(kept, made))


def in_place_of(kept: Any, made: Callable[..., Any]) -> Any:
    """Returns a function that is to stand in the place of something that can be called.

    What is no plain function has more to it, such as `cache_clear` or `kernel[grid]`: it keeps it.
    """
    return made if type(kept) in _FUNCTIONS else _InPlace(made, kept)


class _InPlace:
    """Is called as a function of ours, and is in all else what it stands for."""

    def __init__(self, made: Callable[..., Any], kept: Any) -> None:
        functools.update_wrapper(self, kept, updated=())
        self._made = made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or not hasattr(type(self.__wrapped__), "__get__"):
            return self
        return types.MethodType(self._made, instance)

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self.__wrapped__, name)
        except AttributeError:
            return getattr(self._made, name)

    def __getitem__(self, key: Any) -> Any:
        return self.__wrapped__[key]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)


#: What is nothing but what it does when it is called.
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def _set(class_: type, name: str, value: Any) -> None:
    """Sets an attribute of a class past its metaclass, which may refuse, or take it for its own."""
    try:
        type.__setattr__(class_, name, value)
    except TypeError:  # some written in C insist on their own
        setattr(class_, name, value)


def beneath(func: Any, class_: type) -> Any:
    """Returns the method of a class's base where a program has put a function in front of it.

    torch tells a mode or a subclass of a call by what the name stands for now. That function has
    been called already: it goes on to the method by itself.
    """
    home = getattr(func, "__module__", None) or ""
    if type(func) is not types.FunctionType or home.partition(".")[0] in ("torch", "fmcheck"):
        return func
    names = [name for name, one in vars(class_).items() if one is func]
    return getattr(class_.__base__, names[0], func) if names else func


def rebind(old: Any, new: Any) -> None:
    """Puts `new` wherever a loaded module has a global name bound to `old`."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if value is old:
                names[name] = new


def attribute(module: ModuleType | None, dotted: str) -> Any:
    """Returns what a dotted name stands for in a module, None if it has no such thing.

    One that is made on demand may fail to make it, by any error.
    """
    found: Any = module
    for part in dotted.split("."):
        try:
            found = getattr(found, part, None)
        except Exception:
            return None
    return found


def classes_of(module: ModuleType) -> list[str]:
    """Returns the names of the classes in a module."""
    return [name for name, value in vars(module).items() if isinstance(value, type)]


def functions_of(module: ModuleType) -> Iterator[str]:
    """Yields functions and methods as a contract names them."""
    for name, value in vars(module).items():
        if isinstance(value, type):
            yield from (f"{name}.{method}" for method, one in vars(value).items() if callable(one))
        elif callable(value):
            yield name


def installed_version(contract: Contract) -> str | None:
    """Returns the installed release of the engine, None where there is no telling."""
    for distribution in contract.engine.distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


def untried_release(contract: Contract) -> Iterator[str]:
    """Yields a sentence if the contract was not tried on the installed release."""
    version, tried = installed_version(contract), contract.engine.releases
    if version is not None and not applies(tried, version):
        yield (
            f"contract `{contract.engine.name}` was tried on {tried}, but {version} is "
            "installed: entries for other releases are left out, the rest is checked, and names "
            "missing from this release are listed"
        )


@dataclass(eq=False)
class CallPatch:
    """The functions of one table, alternatives of each other: each that exists is wrapped."""

    contract: Contract
    part: Functions
    tally: Tally
    problems: list[str] = field(default_factory=list)
    _found: bool = False
    _missing: list[str] = field(default_factory=list)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the functions are looked for in."""
        return tuple(dict.fromkeys(one.partition(":")[0] for one in self.part.functions))

    def install(self, module: ModuleType) -> Iterator[Undo]:
        """Instruments the functions in a module that was just imported."""
        if not applies(self.part.releases, installed_version(self.contract)):
            return
        for reference in self.part.functions:
            name = reference.partition(":")[2]
            if reference.partition(":")[0] != module.__name__:
                continue
            function = attribute(module, name)
            if not callable(function):
                self._missing.append(f"`{reference}`{nearest(name, functions_of(module))}")
                continue
            self._found = True
            yield from self._wrap(module, reference, name, function)

    def close(self) -> None:
        """Looks at the end of a session for functions that no release of the engine has."""
        if self._missing and not self._found:
            self._problem(f"found none of its functions: no {', no '.join(self._missing)}")

    def begin_test(self) -> None:
        """Another test begins."""

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Returns `function` with its calls followed, None if the contract does not fit it."""
        raise NotImplementedError

    def _wrap(
        self, module: ModuleType, reference: str, name: str, function: Callable[..., Any]
    ) -> Iterator[Undo]:
        class_name, dot, method = name.rpartition(".")
        if dot:
            class_ = attribute(module, class_name)
            yield from patch_method(class_, method, functools.partial(self.watched, reference))
            return
        made = self.watched(reference, function)
        if made is None:
            return
        made = in_place_of(function, made)
        rebind(function, made)
        yield lambda: rebind(made, function)

    def _problem(self, text: str) -> None:
        where = f"contract `{self.contract.engine.name}`, {self._table}"
        sentence = f"{where}: {text}"
        if sentence not in self.problems:
            self.problems.append(sentence)

    @property
    def _table(self) -> str:
        return f"functions `{self.part.functions[0]}`"
