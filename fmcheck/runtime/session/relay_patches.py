"""Patches: how a session instruments what a contract names, and lets go of it again.

Nothing here raises into an engine's import: what goes wrong is kept as a problem.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import weakref
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from fmcheck.contract import Buffer, Contract, Relay, applies
from fmcheck.contract.validation import SERVES
from fmcheck.errors import SLIP, nearest
from fmcheck.runtime.core import paths
from fmcheck.runtime.core.containment import contained, is_on_purpose
from fmcheck.runtime.core.declared import follow_subclasses, patch_method
from fmcheck.runtime.core.patches import (
    attribute,
    classes_of,
    installed_version,
    method_of,
    patch,
)
from fmcheck.runtime.relay.scope import CHECK, Scope, scoped
from fmcheck.runtime.session import instances

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.relay.adoption import Bind, BufferServices
    from fmcheck.runtime.relay.owners import Owners
    from fmcheck.runtime.relay.pools import Pools
    from fmcheck.runtime.session.instances import Held


#: What is patched in a declared class, its own or not.
_PATCHED = ("__setattr__", "__init__", "__setstate__")


@dataclass(eq=False)
class RelayPatch:
    """One declared relay class: what was made of it, and what could not be reached.

    `pools` are those of the contract, whether or not this release hands their rows out.
    """

    contract: Contract
    relay: Relay
    tally: Tally
    pools: Pools
    services: BufferServices
    version: str | None = None
    class_: type | None = None
    instances: int = 0
    made: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _known: dict[str, Buffer | None] = field(default_factory=dict)
    _owners_of: dict[int, Owners] = field(default_factory=dict)
    _taken: list[type] = field(default_factory=list)
    _cached: set[str] = field(default_factory=set)
    _replacements: list[Any] = field(default_factory=list)
    _undo: list[Undo] = field(default_factory=list)
    _initialising: set[tuple[int, int]] = field(default_factory=set)
    _restoring: set[tuple[int, int]] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The class as the contract writes it."""
        return self.relay.class_

    def install(self, module: ModuleType) -> Iterator[Undo]:
        """Instruments the class in a module that was just imported, yielding how to let go."""
        self.version = installed_version(self.contract)
        if not applies(self.relay.releases, self.version):
            return
        found = attribute(module, self.relay.qualname)
        if not isinstance(found, type):
            self._problem(
                f"the module has no class `{self.relay.qualname}`"
                f"{nearest(self.relay.qualname, classes_of(module))}"
            )
            return
        self.class_ = found
        yield self._unpatch
        self._patch_class(found)

    def _patch_class(self, class_: type) -> None:
        """Instruments a class, its subclasses and the instances that there are of them."""
        self._taken.append(class_)
        self._patch_cached(class_)
        setattribute, init, restore = (method_of(class_, name) for name in _PATCHED)
        self._undo.append(patch(class_, "__setattr__", self._watch_setattr(setattribute)))
        self._undo.append(patch(class_, "__init__", self._watch_init(init, True)))
        self._undo.append(patch(class_, "__setstate__", self._watch_setstate(restore)))
        self._undo.append(follow_subclasses(class_, self.tally, self._patch_subclass))
        for names, kind in (
            (self.relay.peeks, Scope.PEEK),
            (self.relay.consumes_at_return, Scope.AT_RETURN),
            (self.relay.takes, Scope.TAKE),
        ):
            watched = functools.partial(_scoped, kind, self.tally)
            for name in (one for one in names if ":" not in one):
                if callable(getattr(class_, name, None)):
                    self._undo += patch_method(class_, name, self.tally, watched, watched)
        for instance in instances.instances_of(class_):
            self._patch_instance(instance)

    def _patch_subclass(self, class_: type) -> None:
        """Instruments what a subclass defines itself: it need not call what it overrides."""
        own = class_.__dict__
        self._patch_cached(class_)
        if "__setattr__" in own:
            self._undo.append(patch(class_, "__setattr__", self._watch_setattr(class_.__setattr__)))
        if "__init__" in own:
            self._undo.append(patch(class_, "__init__", self._watch_init(class_.__init__, False)))  # type: ignore[misc]
        if "__setstate__" in own:
            watched = self._watch_setstate(own["__setstate__"])
            self._undo.append(patch(class_, "__setstate__", watched))

    def _patch_cached(self, class_: type) -> None:
        """Instruments buffers that are made when somebody asks: no `__setattr__` sees them."""
        for name, member in list(vars(class_).items()):
            buffer = self.relay.buffer_for(name, self.version)
            if buffer is not None and isinstance(member, functools.cached_property):
                self._cached.add(buffer.name)
                made = functools.cached_property(self._watch_cached(name, buffer, member.func))
                made.__set_name__(class_, name)
                self._undo.append(patch(class_, name, made))

    def _watch_cached(
        self, name: str, buffer: Buffer, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(instance: Any) -> Any:
            value = original(instance)
            if self.tally.active and _has_rows(value):
                with contained(self.tally, CHECK):
                    return self._adopt(instance, name, buffer, value, has_values=False)
            return value

        return make

    def _patch_instance(self, instance: Any) -> None:
        """Instruments an instance that was created before the watch: its rows keep their values."""
        self.instances += 1
        own = instance, *instances.names_of(instance)
        for name, value, put in list(self._held_by(instance)):
            buffer = self.relay.buffer_for(name, self.version)
            if buffer is None or not _has_rows(value):
                continue
            for kind in instances.others_that_hold(value, own):
                self.tally.untrack(
                    "references",
                    f"a `{kind}` created before the watch holds buffer "
                    f"`{self.relay.qualname}.{name}`",
                )
            adopted = self._adopt(instance, name, buffer, value, has_values=True)
            if adopted is not value:
                put(adopted)
                self._undo.append(functools.partial(_put_back, instance, name, adopted, value, put))

    def _unpatch(self) -> None:
        while self._undo:
            self._undo.pop()()

    # --- what became of the class ---

    def look(self) -> None:
        """Looks whether the name of the class means another one by now."""
        if self.class_ is None or not self.tally.active:
            return
        now = attribute(sys.modules.get(self.relay.module), self.relay.qualname)
        if now is None or any(now is one for one in (*self._taken, *self._replacements)):
            return
        if isinstance(now, type) and issubclass(now, self.class_):
            return
        self._replacements.append(now)
        if isinstance(now, type) and _file_of(now) == _file_of(self.class_):
            self._problem(
                "the class was replaced after it was instrumented, by code of the same file: "
                "instances of the new one were not watched until then"
            )
            self._patch_class(now)
            return
        named = now if isinstance(now, type) else type(now)
        where = f" in {self.tally.test}" if self.tally.test else ""
        self.tally.untrack(
            "classes",
            f"`{self.name}` was replaced by `{named.__module__}:{named.__qualname__}`{where}",
        )

    def look_for_twins(self) -> None:
        """Looks for the class in modules that are the declared one by another name."""
        for name, module in self._twins():
            found = attribute(module, self.relay.qualname)
            if not isinstance(found, type) or any(found is one for one in self._taken):
                continue
            if found.__module__ != name:
                continue  # imported from elsewhere
            self.tally.untrack(
                "classes",
                f"`{name}:{self.relay.qualname}` is `{self.name}` by another module name, and was "
                "not watched before it was found",
            )
            self.version = installed_version(self.contract)
            self.class_ = self.class_ or found
            self._patch_class(found)

    def _twins(self) -> Iterator[tuple[str, ModuleType]]:
        """Yields the modules that are the declared one by another name."""
        declared = self.relay.module
        original = _module_file(sys.modules.get(declared)) or ""
        base, last = os.path.basename(original), declared.rpartition(".")[2]
        # Not imported by its own name: one that ends alike is taken to be it.
        parts = declared.split(".")
        tails = {".".join(parts[first:]) for first in range(1, len(parts))}
        for name, module in list(sys.modules.items()):
            if name == declared:
                continue
            # Names first: a path of each module that is loaded would be resolved without end.
            file = _module_file(module) if original else ""
            if not file:
                if name in tails or name.endswith(f".{declared}"):
                    yield name, module
            elif file.endswith(base) or name.endswith(last):
                is_like = base == os.path.basename(file) or last == name.rpartition(".")[2]
                if is_like and os.path.realpath(original) == os.path.realpath(file):
                    yield name, module

    @property
    def patched(self) -> tuple[type, ...]:
        """The classes that are instrumented: the declared one, by whichever names it has."""
        return tuple(self._taken)

    def look_for_strays(self, alive: Iterable[Any]) -> None:
        """Looks for instances, among all that are alive, with a buffer that came past the watch."""
        for instance in alive:
            if issubclass(type(instance), self.patched):
                self._report_strays(instance)

    def _report_strays(self, instance: Any) -> None:
        for name, value, put in self._held_by(instance):
            buffer = self.relay.buffer_for(name, self.version)
            if buffer is None or type(value).__name__ not in ("Tensor", "ndarray"):
                continue
            if not _has_rows(value):
                continue
            adopted = self._adopt(instance, name, buffer, value, has_values=True)
            if adopted is value:
                continue
            put(adopted)
            self.tally.untrack(
                "buffers",
                f"`{self.relay.qualname}.{name}` was set without `__init__`, `__setattr__` or "
                "`__setstate__`",
            )

    def close(self) -> None:
        """Looks at the end of a session for what went by unseen."""
        self.look()
        if self.class_ is None:
            self._look_for_an_import_unseen()
            return
        now = attribute(sys.modules.get(self.relay.module), self.relay.qualname)
        if isinstance(now, type) and not any(issubclass(now, one) for one in self._taken):
            self._problem(
                "the class was replaced after it was instrumented, so that instances of the new "
                f"one, `{now.__module__}:{now.__qualname__}`, were not watched"
            )
        if not self.instances:
            return
        for buffer in self.relay.expected_after_init(self.version):
            if buffer.name in self.made or buffer.name in self._cached:
                continue
            if buffer.name in self._known:
                self._problem(
                    f"buffer `{buffer.name}`: `__init__` left it without a tensor: if it is "
                    "created later, or never, set `lazy = true`"
                )
            else:
                known = nearest(buffer.name, self._known)
                self._problem(f"buffer `{buffer.name}`: `__init__` did not create it{known}")

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
            self._problem(
                "its module was loaded without the import system: the class was not watched"
            )

    def _watch_setattr(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __setattr__(instance: Any, name: str, value: Any) -> None:  # noqa: N807
            with contained(self.tally, CHECK):
                if name in self._known:
                    buffer = self._known[name]
                else:
                    buffer = self._known[name] = self.relay.buffer_for(name, self.version)
                if buffer is not None and self.tally.active and _has_rows(value):
                    value = self._adopt(instance, name, buffer, value)
            original(instance, name, value)

        return __setattr__

    def _watch_init(self, original: Callable[..., None], declared: bool) -> Callable[..., None]:
        """Returns an `__init__` after which the instance is watched; `declared` is the contract's.

        A subclass's own may or may not call that of its base: the outermost one counts.
        """

        @functools.wraps(original)
        def __init__(instance: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if declared and self.tally.active and self.relay.pool:
                with contained(self.tally, CHECK):
                    self._find_pool(instance, original, args, kwargs)
            key = (threading.get_ident(), id(instance))
            is_inner = key in self._initialising
            self._initialising.add(key)
            try:
                original(instance, *args, **kwargs)
            finally:
                if not is_inner:
                    self._initialising.discard(key)
            if self.tally.active and not is_inner:
                with contained(self.tally, CHECK):
                    self._is_made(instance)

        return __init__

    def _is_made(self, instance: Any) -> None:
        """Instruments an instance whose `__init__` is done."""
        from fmcheck.runtime.relay import device_checks

        self.instances += 1
        self._adopt_the_rest(instance)
        self._settle_sinks(instance)
        names = self.contract.device.device_modules
        device_checks.compare_kept_modules(instance, names, self.tally)
        if self.tally.keeper is not None:
            self.tally.keeper.milestone()

    def _watch_setstate(self, original: Callable[..., None]) -> Callable[..., None]:
        """Returns a `__setstate__` after which a copy, or what was unpickled, is watched."""

        @functools.wraps(original)
        def __setstate__(instance: Any, state: Any) -> None:  # noqa: N807
            key = (threading.get_ident(), id(instance))
            self._restoring.add(key)
            try:
                original(instance, state)
            finally:
                self._restoring.discard(key)
            if self.tally.active:
                with contained(self.tally, CHECK):
                    self.instances += 1
                    self._adopt_the_rest(instance, has_values=True)

        return __setstate__

    def _held_by(self, instance: Any) -> Iterator[Held]:
        """Yields what an instance holds, entries of dicts and lists too where any is declared."""
        return instances.held_by(instance, any("." in one.name for one in self.relay.buffer))

    def _adopt_the_rest(self, instance: Any, has_values: bool = False) -> None:
        """Instruments buffers that were set past `__setattr__`, as frozen data classes do."""
        for name, value, put in self._held_by(instance):
            buffer = self.relay.buffer_for(name, self.version)
            if "." in name:
                self._known.setdefault(name, buffer)
            if buffer is None or not _has_rows(value):
                continue
            adopted = self._adopt(instance, name, buffer, value, has_values)
            if adopted is not value:
                put(adopted)

    def _adopt(
        self,
        instance: Any,
        name: str,
        buffer: Buffer,
        value: Any,
        has_values: bool | None = None,
    ) -> Any:
        """Returns the alias that is to stand in the tensor's place.

        `has_values` tells whether the engine has written it; None, that `__setattr__` binds it now.
        """
        from fmcheck.runtime.relay import adoption

        self.made.add(buffer.name)
        try:
            bind = adoption.Bind.AGAIN if has_values else adoption.Bind.IN_INIT
            if has_values is None:
                bind = self._bind(instance, name)
            owners = self._owners(instance) if buffer.owned else None
            sinks = self._sinks(instance)
            adopted = adoption.adopt(
                value, name, buffer, self.relay, self.tally, bind, self.services, owners, sinks
            )
            self._declare_sinks(owners, adopted)
            if any(fnmatchcase(name, glob) for glob in self.contract.launches.host_values):
                adoption.declare_host(adopted)
            if has_values is None and bind is adoption.Bind.AGAIN:
                self._bound_over(instances.bound_to(instance, name), adopted)
            return adopted
        except Exception as err:
            if is_on_purpose(self.tally, err):
                raise
            self._problem(f"buffer `{name}`: could not be instrumented: {err!r}")
            return value

    def _bound_over(self, old: Any, adopted: Any) -> None:
        """Judges a buffer that is bound in place of another one."""
        from fmcheck.runtime.relay import device_checks

        before, after = device_checks.buffer_of(old), device_checks.buffer_of(adopted)
        if before is None or after is None or before is after:
            return
        if after.ledger.is_live(slice(None)).any():  # else it is memory that nobody has filled
            after.bound_over(before)

    def _sinks(self, instance: Any) -> list[int]:
        """Returns the sink rows of an instance: those that it has said so far, while it is made."""
        if self.relay.sink_rows is None:
            owners = self._owners(instance)
            return [] if owners is not None and owners.generation(0) else [0]
        sinks = []
        for row in self.relay.sink_rows:
            if isinstance(row, int):
                sinks.append(row)
                continue
            try:
                sinks.append(int(paths.look_up(row, {"self": instance})))
            except (LookupError, TypeError, ValueError) as err:
                if (threading.get_ident(), id(instance)) not in self._initialising:
                    what = err if isinstance(err, LookupError) else f"`{row}` is no row: {err}"
                    self._problem(f"sink_rows: {what}")
        return sinks

    def _settle_sinks(self, instance: Any) -> None:
        """Says to the buffers of an instance which rows are sinks, now that it knows them all."""
        from fmcheck.runtime.relay import device_checks

        if all(isinstance(row, int) for row in self.relay.sink_rows or ()):
            return
        sinks = self._sinks(instance)
        for name, value, _ in self._held_by(instance):
            if self.relay.buffer_for(name, self.version) is not None:
                known = device_checks.buffer_of(value)
                if known is not None and known.tally is self.tally:
                    known.learn_sinks(sinks)
                    self._declare_sinks(self._owners(instance), value)

    def _declare_sinks(self, owners: Owners | None, value: Any) -> None:
        """Says to the owners which of a buffer's sinks the contract has: others are a guess."""
        from fmcheck.runtime.relay import device_checks

        known = device_checks.buffer_of(value)
        if owners is not None and known is not None and self.relay.sink_rows is not None:
            owners.declared_sinks.update(unit // known.per_row for unit in known.sink_rows)

    def _bind(self, instance: Any, name: str) -> Bind:
        """Returns when an attribute is being assigned."""
        from fmcheck.runtime.relay.adoption import Bind

        key = (threading.get_ident(), id(instance))
        if key in self._restoring or _has_rows(instances.bound_to(instance, name)):
            return Bind.AGAIN
        return Bind.IN_INIT if key in self._initialising else Bind.LATER

    def _owners(self, instance: Any) -> Owners | None:
        """Returns the owners if the contract says who hands this relay's rows out."""
        covered = (
            part.covers(self.relay, self.version)
            for part in self.contract.owners
            if part.does != SERVES
        )
        return self._owners_of.get(id(instance), self.pools.of(None)) if any(covered) else None

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


def _scoped(kind: Scope, tally: Tally, _: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return scoped(function, kind, tally)


def _has_rows(value: Any) -> bool:
    """Tells whether a value is a tensor, or an array of NumPy's."""
    if hasattr(value, "untyped_storage"):
        return True
    numpy = sys.modules.get("numpy")  # who has no array has no need of it
    return numpy is not None and isinstance(value, numpy.ndarray)


def _put_back(instance: Any, name: str, ours: Any, value: Any, put: Callable[[Any], None]) -> None:
    """Gives an instance its own tensor again, unless it has let go of ours."""
    held_by = instances.held_by(instance, with_entries="." in name)
    if any(one == name and held is ours for one, held, _ in held_by):
        put(value)


def _file_of(class_: type) -> str:
    module = sys.modules.get(class_.__module__)
    return os.path.realpath(getattr(module, "__file__", None) or "")


def _module_file(module: ModuleType | None) -> str | None:
    """Returns a module's file as it says, without asking one that is made on demand."""
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else None
