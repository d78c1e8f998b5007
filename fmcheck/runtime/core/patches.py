"""Patches: how a class or a function of the engine is instrumented, and given back as it was.

Nothing here raises into the engine: what goes wrong is kept as a problem.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from fmcheck.contract import applies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from fmcheck.contract import Contract

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
    """Sets an attribute of a class; returns what puts the old one back, unless another one came."""
    own = class_.__dict__.get(name)
    _set(class_, name, value)

    def undo() -> None:
        if class_.__dict__.get(name) is not value:
            return
        if own is None:
            _delete(class_, name)
        else:
            _set(class_, name, own)

    return undo


def patch_own(
    class_: type, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any] | None]
) -> Iterator[Undo]:
    """Puts what `wrapped` makes of a class's method, unless it is None, in its place.

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
    elif isinstance(class_, type):
        function = method_of(class_, name)
    made = wrapped(function)
    if made is not None:
        yield patch(class_, name, type(kept)(made) if is_bound else in_place_of(kept, made))


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


def _set_state(instance: Any, state: Any) -> None:
    """Gives an object the state that it was copied or pickled with, as Python itself does."""
    of_slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, of_slots = state
    if state:
        instance.__dict__.update(state)
    for name, value in (of_slots or {}).items():
        setattr(instance, name, value)


#: What Python does itself where no class has such a method.
_LAST: dict[str, Callable[..., Any]] = {"__setstate__": _set_state}


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


def _delete(class_: type, name: str) -> None:
    """Deletes an attribute of a class as `_set` sets it."""
    try:
        type.__delattr__(class_, name)
    except TypeError:
        delattr(class_, name)


def patch_compile(
    torch: ModuleType, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]], asked: str = ""
) -> Undo:
    """Puts what `wrapped` makes of it in the place of each function that `torch.compile` makes.

    `asked` is an option: only what is compiled with it is wrapped.
    """
    original = torch.compile

    def made_of(compiled: Any) -> Any:
        if not isinstance(compiled, torch.nn.Module):
            return wrapped(compiled)
        compiled.forward = wrapped(compiled.forward)
        return compiled

    @functools.wraps(original)
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        made = original(model, *args, **kwargs)
        if asked and not kwargs.get(asked):
            return made
        if model is None:  # a decorator, still waiting for its function
            return lambda function: made_of(made(function))
        return made_of(made)

    torch.compile = compile  # type: ignore[attr-defined]

    def undo() -> None:
        torch.compile = original  # type: ignore[attr-defined]

    return undo


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


def function_of(module: ModuleType, name: str) -> Callable[..., Any] | None:
    """Returns a function or method, None where there is no such; a class is none."""
    found = attribute(module, name)
    return found if callable(found) and not isinstance(found, type) else None


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
