"""Holds: how a session takes hold of what a contract names, and lets go of it again.

Nothing here raises into an engine's import: what goes wrong is kept as a problem.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fmcheck.contract import Buffer, Contract, Opaque, Relay, applies
from fmcheck.errors import SLIP, nearest
from fmcheck.runtime import paths
from fmcheck.runtime.containment import contained
from fmcheck.runtime.scope import Scope, scoped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from fmcheck.runtime.owners import Owners, Pools
    from fmcheck.runtime.tally import Tally

    Undo = Callable[[], None]

#: The check that an error of our own is counted for.
CHECK = "relay buffers"


@dataclass(eq=False)
class RelayHold:
    """One declared relay class: what was made of it, and what could not be reached.

    `pools` are those of the contract, whether or not this release hands their rows out.
    """

    contract: Contract
    relay: Relay
    tally: Tally
    pools: Pools
    version: str | None = None
    class_: type | None = None
    instances: int = 0
    made: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _known: dict[str, Buffer | None] = field(default_factory=dict)
    _owners_of: dict[int, Owners] = field(default_factory=dict)
    _in_init: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The class as the contract writes it."""
        return self.relay.class_

    def take(self, module: ModuleType) -> Iterator[Undo]:
        """Takes hold of the class in a module that was just imported, yielding how to let go."""
        self.version = installed_version(self.contract)
        if not applies(self.relay.releases, self.version):
            return
        found = attribute(module, self.relay.qualname)
        if not isinstance(found, type):
            self._problem(
                f"the module has no class `{self.relay.qualname}`"
                f"{nearest(self.relay.qualname, _classes(module))}"
            )
            return
        self.class_ = found
        yield patch(found, "__setattr__", self._watch_setattr(found.__setattr__))
        yield patch(found, "__init__", self._watch_init(found.__init__))  # type: ignore[misc]
        for names, kind in (
            (self.relay.peeks, Scope.PEEK),
            (self.relay.consumes_at_return, Scope.AT_RETURN),
        ):
            for name in names:
                method = found.__dict__.get(name)
                if callable(method):
                    yield patch(found, name, scoped(method, kind))

    def close(self) -> None:
        """Looks at the end of a session for what went by unseen."""
        if self.class_ is None:
            self._look_for_an_import_unseen()
            return
        now = attribute(sys.modules.get(self.relay.module), self.relay.qualname)
        if isinstance(now, type) and now is not self.class_:
            self._problem(
                "the class was replaced after it was taken hold of (by importlib.reload?), so that "
                "instances of the new one were not watched"
            )
        if not self.instances:
            return
        for buffer in self.relay.expected_after_init(self.version):
            if buffer.name in self.made:
                continue
            if buffer.name in self._known:
                self._problem(
                    f"buffer `{buffer.name}`: `__init__` left it without a tensor: if it is made "
                    "later, or never, say `lazy = true`"
                )
            else:
                known = nearest(buffer.name, self._known)
                self._problem(f"buffer `{buffer.name}`: `__init__` did not make it{known}")

    def slips(self) -> Iterator[str]:
        """Yields a sentence for each lazy buffer that no instance had, but one of such a name."""
        undeclared = [name for name, buffer in self._known.items() if buffer is None]
        for buffer in self.relay.buffer:
            if buffer.lazy and not buffer.is_glob and buffer.name not in self._known:
                known = nearest(buffer.name, undeclared, SLIP)
                if known and applies(buffer.releases, self.version):
                    yield f"{self._where}: buffer `{buffer.name}`: no instance ever had it{known}"

    def _look_for_an_import_unseen(self) -> None:
        module = sys.modules.get(self.relay.module)
        spec = getattr(module, "__spec__", None)
        if module is None or getattr(spec, "_initializing", False) or self.problems:
            return
        version = installed_version(self.contract)
        if not self.relay.optional and applies(self.relay.releases, version):
            self._problem("its module came in past the import system: the class was not watched")

    def _watch_setattr(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __setattr__(instance: Any, name: str, value: Any) -> None:  # noqa: N807
            with contained(self.tally, CHECK):
                if name in self._known:
                    buffer = self._known[name]
                else:
                    buffer = self._known[name] = self.relay.buffer_for(name, self.version)
                if buffer is not None and self.tally.active and hasattr(value, "untyped_storage"):
                    value = self._adopt(instance, name, buffer, value)
            original(instance, name, value)

        return __setattr__

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(instance: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if self.tally.active and self.relay.pool:
                with contained(self.tally, CHECK):
                    self._find_pool(instance, original, args, kwargs)
            self._in_init.append(id(instance))
            try:
                original(instance, *args, **kwargs)
                if self.tally.active:
                    with contained(self.tally, CHECK):
                        self._is_made(instance)
            finally:
                self._in_init.remove(id(instance))

        return __init__

    def _is_made(self, instance: Any) -> None:
        """Takes hold of an instance whose `__init__` is done."""
        from fmcheck.runtime import devices

        self.instances += 1
        self._adopt_the_rest(instance)
        names = self.contract.device.device_modules
        devices.compare_kept_modules(instance, names, self.tally)
        if self.tally.keeper is not None:
            self.tally.keeper.milestone()

    def _adopt_the_rest(self, instance: Any) -> None:
        """Takes hold of buffers that were set past `__setattr__`, as frozen data classes do."""
        for name, value in list(getattr(instance, "__dict__", {}).items()):
            buffer = self.relay.buffer_for(name, self.version)
            if buffer is None or not hasattr(value, "untyped_storage"):
                continue
            adopted = self._adopt(instance, name, buffer, value, past_setattr=True)
            if adopted is not value:
                instance.__dict__[name] = adopted

    def _adopt(
        self, instance: Any, name: str, buffer: Buffer, value: Any, past_setattr: bool = False
    ) -> Any:
        """Returns the alias that is to stand in the tensor's place."""
        from fmcheck.runtime import adoption

        self.made.add(buffer.name)
        try:
            before = None if past_setattr else getattr(instance, name, None)
            bind = adoption.Bind.LATER
            if hasattr(before, "untyped_storage"):
                bind = adoption.Bind.AGAIN
            elif id(instance) in self._in_init:
                bind = adoption.Bind.IN_INIT
            return adoption.adopt(
                value, name, buffer, self.relay, self.tally, bind, self._owners(instance)
            )
        except Exception as err:
            self._problem(f"buffer `{name}`: could not be taken hold of: {err!r}")
            return value

    def _owners(self, instance: Any) -> Owners | None:
        """Returns the owners if the contract says who hands this relay's rows out."""
        told = (part.covers(self.relay, self.version) for part in self.contract.owners)
        return self._owners_of.get(id(instance), self.pools.of(None)) if any(told) else None

    def _find_pool(self, instance: Any, init: Callable[..., None], args: Any, kwargs: Any) -> None:
        """Notes whose rows an instance that is about to be made will have."""
        try:
            bound = inspect.signature(init).bind(instance, *args, **kwargs)
            weakref.finalize(instance, self._owners_of.pop, id(instance), None)
        except (TypeError, ValueError):
            return  # the call is wrong, which it will say itself, or nothing tells of its end
        bound.apply_defaults()
        for path in self.relay.pool:
            if paths.root(path) in bound.arguments:
                try:
                    pool = paths.look_up(path, bound.arguments)
                except LookupError as err:
                    self._problem(f"pool: {err}")
                    return
                self._owners_of[id(instance)] = self.pools.of(pool)
                return
        known = nearest(self.relay.pool[0], bound.arguments)
        self._problem(f"pool: `__init__` has none of {', '.join(self.relay.pool)}{known}")

    @property
    def _where(self) -> str:
        release = f" (installed: {self.version})" if self.version else ""
        return f"contract `{self.contract.engine.name}`, relay `{self.relay.class_}`{release}"

    def _problem(self, text: str) -> None:
        sentence = f"{self._where}: {text}"
        if sentence not in self.problems:
            self.problems.append(sentence)


@dataclass(eq=False)
class OpaqueHold:
    """One declared kernel function."""

    contract: Contract
    opaque: Opaque
    reference: str
    problems: list[str] = field(default_factory=list)

    @property
    def module(self) -> str:
        """The module that defines the function."""
        return self.reference.partition(":")[0]

    def take(self, module: ModuleType) -> Iterator[Undo]:
        """Takes hold of the function wherever it is bound, yielding how to let go."""
        from fmcheck.runtime.opaque import missing_parameters, opaque_call

        where = f"contract `{self.contract.engine.name}`, opaque `{self.reference}`"
        name = self.reference.partition(":")[2]
        function = attribute(module, name)
        if not callable(function):
            self.problems.append(
                f"{where}: the module has no such function{nearest(name, vars(module))}"
            )
            return
        missing = missing_parameters(function, self.opaque)
        self.problems += [f"{where}: {sentence}" for sentence in missing]
        if missing:
            return
        watched = opaque_call(function, self.opaque)
        rebind(function, watched)
        yield lambda: rebind(watched, function)


def rebind(old: Any, new: Any) -> None:
    """Puts `new` wherever a loaded module has a global name bound to `old`."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if value is old:
                names[name] = new


def installed_version(contract: Contract) -> str | None:
    """Returns the installed release of the engine, None where there is no telling."""
    if not contract.engine.distribution:
        return None
    try:
        return metadata.version(contract.engine.distribution)
    except metadata.PackageNotFoundError:
        return None


def patch(class_: type, name: str, value: Any) -> Undo:
    """Sets an attribute of a class; returns what puts the old one back."""
    own = class_.__dict__.get(name)
    setattr(class_, name, value)

    def undo() -> None:
        if own is None:
            delattr(class_, name)
        else:
            setattr(class_, name, own)

    return undo


def attribute(module: ModuleType | None, dotted: str) -> Any:
    """Returns what a dotted name stands for in a module, None if it has no such thing."""
    found: Any = module
    for part in dotted.split("."):
        found = getattr(found, part, None)
    return found


def _classes(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, type)]
