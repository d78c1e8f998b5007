"""Patches: how a class or a function of the engine is instrumented, and given back as it was.

Nothing here raises into the engine: what goes wrong is kept as a problem.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import types
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from fmcheck.contract import applies
from fmcheck.errors import nearest
from fmcheck.runtime.core.containment import contained

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from types import ModuleType

    from fmcheck.contract import Contract, Functions
    from fmcheck.runtime.core.tally import Tally

    Undo = Callable[[], None]
    #: What makes of a function, by its reference `module:name`, one that is watched, or None.
    Watched: TypeAlias = Callable[[str, Callable[..., Any]], Callable[..., Any] | None]


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
            type.__delattr__(class_, name)
        else:
            _set(class_, name, own)

    return undo


def patch_named(
    module: ModuleType,
    name: str,
    tally: Tally,
    watched: Watched,
    around: Watched | None = None,
    declared: Container[str] = (),
) -> Iterator[Undo]:
    """Puts what `watched` makes of a function, or of a method and its overrides, in its place."""
    owner, _, last = name.rpartition(".")
    reference = f"{module.__name__}:{name}"
    if owner:
        class_ = attribute(module, owner)
        yield from patch_method(class_, last, tally, watched, around, declared, reference)
        return
    function = attribute(module, name)
    made = watched(reference, function)
    if made is not None:
        made = in_place_of(function, made)
        rebind(function, made)
        tally.placed.append(functools.partial(_look, module, name, reference, [made], tally))
        yield functools.partial(rebind, made, function)


def patch_method(
    class_: type,
    name: str,
    tally: Tally,
    watched: Watched,
    around: Watched | None = None,
    declared: Container[str] = (),
    reference: str = "",
) -> Iterator[Undo]:
    """Puts what `watched` makes of a method in its place, and in that of each override of it.

    An override that goes on to what it overrides is a call of that one, which is watched: in its
    place comes what `around` makes of it, if there is such. One that is `declared` by its own
    reference is left to that. Subclasses may be defined later.
    """
    made: list[Any] = []
    undo: list[Undo] = []

    def take(one: type, watched: Watched, reference: str = "") -> None:
        before = inspect.getattr_static(one, name, None)
        reference = reference or _reference(one, name)
        undo.extend(_patch_own(one, name, functools.partial(watched, reference)))
        now = inspect.getattr_static(one, name, None)
        if now is not before:
            made.append(getattr(now, "__func__", now))
            tally.placed.append(functools.partial(_look, one, name, reference, made, tally))

    def take_override(one: type) -> None:
        home = next((kind for kind in one.__mro__ if name in vars(kind)), class_)
        kept = vars(home).get(name)
        if home in class_.__mro__ or (home is not one and issubclass(home, class_)):
            return  # inherited: watched there
        bases = [kind for kind in one.__mro__ if kind is not class_ and issubclass(kind, class_)]
        if any(_reference(kind, name) in declared for kind in bases):
            return
        is_ours = any(chained is known for chained in _chain(kept) for known in made)
        if is_ours or not callable(getattr(one, name)):
            return
        instead = around if _goes_on(home, name) else watched
        if instead is not None:
            take(one, instead)

    yield functools.partial(_let_go, undo)
    take(class_, watched, reference)
    if isinstance(class_, type):
        undo.append(follow_subclasses(class_, tally, take_override))


def _reference(class_: type, name: str) -> str:
    return f"{class_.__module__}:{class_.__qualname__}.{name}"


def follow_subclasses(class_: type, tally: Tally, take: Callable[[type], None]) -> Undo:
    """Calls `take` with each subclass, bases first, those that are defined from now on too."""
    known: dict[int, type] = {}
    undo: list[Undo] = []

    def meet(one: type) -> None:
        if id(one) not in known:
            known[id(one)] = one
            if "__init_subclass__" in vars(one):  # it may not go on to that of its base
                listen(one)
            take(one)

    def listen(base: type) -> None:
        own: Any = vars(base).get("__init_subclass__")

        def __init_subclass__(made: type, /, **kwargs: Any) -> None:  # noqa: N807
            if own is not None:
                own.__get__(None, made)(**kwargs)
            else:
                super(base, made).__init_subclass__(**kwargs)  # type: ignore[arg-type]
            if tally.active:
                with contained(tally, "overrides in subclasses"):
                    meet(made)

        undo.append(patch(base, "__init_subclass__", classmethod(__init_subclass__)))

    listen(class_)
    for one in with_subclasses(class_)[1:]:
        meet(one)
    return functools.partial(_let_go, undo)


def _look(holder: Any, name: str, reference: str, made: list[Any], tally: Tally) -> None:
    """Says so if others have put something in the place of what was `made` of a function."""
    now = inspect.getattr_static(holder, name, None)
    if not any(one is known for one in _chain(now) for known in made):
        made.append(getattr(now, "__func__", now))
        by = f"{getattr(now, '__module__', '')}:{getattr(now, '__qualname__', repr(now))}"
        tally.untrack(
            "functions", f"`{reference}` was replaced by `{by}` after it was instrumented"
        )


def _let_go(undo: list[Undo]) -> None:
    while undo:
        undo.pop()()


def with_subclasses(class_: type) -> list[type]:
    """Returns a class and all of its subclasses, bases first, each once."""
    subclasses: list[type] = type.__subclasses__(class_)
    every = [class_, *(found for one in subclasses for found in with_subclasses(one))]
    return sorted(dict.fromkeys(every), key=lambda one: len(one.__mro__))


def _goes_on(class_: type, name: str) -> bool:
    """Tells whether a class has a method that calls what its own `name` overrides.

    It need not be that one: what is given back late is given back by another.
    """
    functions = (one for member in vars(class_).values() for one in _chain(member))
    return any(
        _calls_overridden(one.__code__, name, class_, one.__globals__)
        for one in functions
        if isinstance(one, types.FunctionType)
    )


def _calls_overridden(code: types.CodeType, name: str, class_: type, names: dict[str, Any]) -> bool:
    bases = class_.__mro__[1:-1]
    known = {base.__name__ for base in bases}
    known.update(one for one in code.co_names if any(names.get(one) is base for base in bases))
    before, of_super = None, _NOT
    for step in dis.get_instructions(code):
        loaded = step.argval
        if isinstance(loaded, types.CodeType) and _calls_overridden(loaded, name, class_, names):
            return True
        if step.opname in _SILENT:
            continue
        is_of_super = of_super is _CALLED or step.opname.startswith("LOAD_SUPER")
        if loaded == name and (is_of_super or before in known):
            return True
        if loaded == "super":
            of_super = _NAMED
        elif is_of_super:  # an argument of its own, or another attribute
            of_super = _NAMED if step.opname.startswith("LOAD_FAST") else _NOT
        elif of_super is _NAMED and step.opname.startswith("CALL"):
            of_super = _CALLED
        before = loaded
    return False


#: How far a `super()` has come.
_NOT, _NAMED, _CALLED = range(3)
#: Instructions that load nothing and call nothing.
_SILENT = frozenset({"CACHE", "PRECALL", "NOP", "PUSH_NULL", "EXTENDED_ARG"})


def _chain(function: Any) -> Iterator[Any]:
    """Yields a function, and what it was made of by decorators."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        function = getattr(function, "__func__", function)
        yield function
        function = getattr(function, "__wrapped__", None)


def _patch_own(
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


@dataclass(eq=False)
class CallPatch:
    """The functions of one table, alternatives of each other: each that exists is wrapped."""

    contract: Contract
    part: Functions
    tally: Tally
    problems: list[str] = field(default_factory=list)
    #: Whether all of an override counts that goes on to what it overrides, not that one alone.
    surrounds: ClassVar[bool] = False
    #: The functions that tables of this kind name.
    named: frozenset[str] = frozenset()
    _found: bool = False
    _missing: list[str] = field(default_factory=list)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the functions are looked for in."""
        return tuple(dict.fromkeys(one.partition(":")[0] for one in self.part.functions))

    @property
    def functions(self) -> tuple[str, ...]:
        """What is declared for the installed release."""
        version = installed_version(self.contract)
        return self.part.functions if applies(self.part.releases, version) else ()

    def install(self, module: ModuleType) -> Iterator[Undo]:
        """Instruments the functions in a module that was just imported."""
        for reference in self.functions:
            name = reference.partition(":")[2]
            if reference.partition(":")[0] != module.__name__:
                continue
            if function_of(module, name) is None:
                self._missing.append(f"`{reference}`{nearest(name, functions_of(module))}")
                continue
            self._found = True
            around = self.watched if self.surrounds else None
            yield from patch_named(module, name, self.tally, self.watched, around, self.named)

    def close(self) -> None:
        """Looks at the end of a session for functions that no release of the engine has."""
        if self._missing and not self._found:
            self._problem(f"found none of its functions: no {', no '.join(self._missing)}")

    def begin_test(self) -> None:
        """Another test begins."""

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Returns `function` with its calls followed, None if the contract does not fit it."""
        raise NotImplementedError

    def _misfit(self, reference: str, text: str) -> None:
        """Says that the contract does not fit a function; an override it need not have in mind."""
        if reference in self.part.functions:
            self._problem(text)
        else:
            self.tally.untrack("overrides", text)

    def _problem(self, text: str) -> None:
        where = f"contract `{self.contract.engine.name}`, {self._table}"
        sentence = f"{where}: {text}"
        if sentence not in self.problems:
            self.problems.append(sentence)

    @property
    def _table(self) -> str:
        return f"functions `{self.part.functions[0]}`"
