"""Functions that a contract declares: each is watched, with the overrides of a method.

An override is in a subclass, which may be defined while the watch is on.
"""

from __future__ import annotations

import abc
import dis
import functools
import inspect
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fmcheck.contract import applies
from fmcheck.errors import nearest
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.patches import (
    attribute,
    function_of,
    functions_of,
    in_place_of,
    installed_version,
    patch,
    patch_own,
    rebind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from types import ModuleType

    from fmcheck.contract import Contract, Functions
    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally

    #: What makes of a function, by its reference `module:name`, one that is watched, or None.
    Watched: TypeAlias = Callable[[str, Callable[..., Any]], Callable[..., Any] | None]


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
        undo.extend(patch_own(one, name, functools.partial(watched, reference)))
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
    is_kept = False  # a `super()` in a variable: which of them is asked for `name` is not followed
    for step in dis.get_instructions(code):
        loaded = step.argval
        if isinstance(loaded, types.CodeType) and _calls_overridden(loaded, name, class_, names):
            return True
        if step.opname in _SILENT:
            continue
        is_of_super = of_super is _CALLED or step.opname.startswith("LOAD_SUPER")
        if loaded == name and (is_of_super or is_kept or before in known):
            return True
        is_kept |= of_super is _CALLED and not step.opname.startswith(("LOAD_", "CALL"))
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


@dataclass(eq=False)
class CallPatch(abc.ABC):
    """The functions of one table, alternatives of each other: each that exists is wrapped."""

    contract: Contract
    part: Functions
    tally: Tally
    #: What such a table is, in messages.
    table: ClassVar[str] = "functions"
    #: Whether all of an override counts that goes on to what it overrides, not that one alone.
    surrounds: ClassVar[bool] = False
    #: The functions that tables of this kind name.
    named: frozenset[str] = frozenset()
    #: Whether it is a slip of the contract if a release has none of them.
    is_required: bool = field(default=True, kw_only=True)
    _found: bool = False
    _missing: list[str] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)

    @property
    def functions(self) -> tuple[str, ...]:
        """What is declared for the installed release."""
        version = installed_version(self.contract)
        return self.part.functions if applies(self.part.releases, version) else ()

    def installers(self) -> Iterator[tuple[str, Callable[[ModuleType], Iterator[Undo]]]]:
        """Yields each module that the functions are looked for in, and what instruments them."""
        for module in dict.fromkeys(one.partition(":")[0] for one in self.part.functions):
            yield module, self.install

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

    @property
    def problems(self) -> list[str]:
        """What went wrong up to now, and that modules which were imported have no such function."""
        if not self._missing or self._found or not self.is_required:
            return self._problems
        none = f"found none of its functions: no {', no '.join(self._missing)}"
        return [*self._problems, self._sentence(none)]

    @abc.abstractmethod
    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Returns `function` with its calls followed, None if the contract does not fit it."""

    def _misfit(self, reference: str, text: str) -> None:
        """Says that the contract does not fit a function; an override it need not have in mind."""
        if reference in self.part.functions:
            self._problem(text)
        else:
            self.tally.untrack("overrides", text)

    def _problem(self, text: str) -> None:
        sentence = self._sentence(text)
        if sentence not in self._problems:
            self._problems.append(sentence)

    def _sentence(self, text: str) -> str:
        first = self.part.functions[0]
        return f"contract `{self.contract.engine.name}`, {self.table} `{first}`: {text}"
