"""The first import: what has to happen before, or after, a module is imported, if it ever is.

Every process of a run imports this one at its start: it takes a little of the standard library.
"""

from __future__ import annotations

import functools
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType


class FirstImport:
    """A finder that calls back, once, before the first of some modules is imported."""

    def __init__(self, names: Iterable[str], call: Callable[[], None]) -> None:
        self._names = frozenset(names)
        self._call = call

    def wait(self) -> None:
        """Waits from now on; calls back at once if one of the modules is loaded."""
        self.arrive_if_loaded()
        if self._names:
            sys.meta_path.insert(0, self)

    def arrive_if_loaded(self) -> None:
        """Calls back if one of the modules is loaded, as by another way than the import system."""
        if not self._names.isdisjoint(sys.modules):
            self.arrive()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds what the other finders find, those included that were added by the call."""
        if name not in self._names:
            return None
        self.arrive()
        # The import walks `sys.meta_path` by number: a finder put in before us would be skipped.
        return _found_by_others(self, name, path, target)

    def arrive(self) -> None:
        """Calls back, unless that was done."""
        if self._names:
            self.end()
            self._call()

    def end(self) -> None:
        """Waits no longer. The finder stays: another thread may be walking the list."""
        self._names = frozenset()


class NextImports:
    """A finder that calls back with a module each time that it was imported again, or reloaded."""

    def __init__(self, call: Callable[[ModuleType], None]) -> None:
        self._names: set[str] = set()
        self._call = call

    def wait(self, name: str) -> None:
        """Waits for a module that has been imported."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._names.add(name)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds what the other finders find, with a loader that calls back."""
        if name not in self._names:
            return None
        spec = _found_by_others(self, name, path, target)
        if hasattr(getattr(spec, "loader", None), "exec_module"):
            spec.loader = _CallsBack(spec.loader, self._call)  # type: ignore[union-attr]
        return spec

    def end(self) -> None:
        """Waits no longer. The finder stays: another thread may be walking the list."""
        self._names = set()


class _CallsBack:
    """A loader that calls back when a module has run, and which the module does not see."""

    def __init__(self, loader: Any, call: Callable[[ModuleType], None]) -> None:
        self._loader, self._call = loader, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._call(module)


def _found_by_others(
    finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for other in list(sys.meta_path):
        find = getattr(other, "find_spec", None)
        spec: ModuleSpec | None = None
        if other is not finder and find is not None:
            spec = find(name, path, target)
        if spec is not None:
            return spec
    return None


class _KeptModules:
    """A finder of fmcheck's own modules that are loaded, and are in `sys.modules` no more.

    `mock.patch.dict(sys.modules)` and pytest's `pytester` put that back as it was: what a watch
    imported in the meantime would be imported again, and have two states.
    """

    def __init__(self, module: ModuleType | None = None) -> None:
        self._module = module
        self._spec = getattr(module, "__spec__", None)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module that its package still has."""
        package, _, last = name.rpartition(".")
        kept = vars(sys.modules[package]).get(last) if package.split(".")[0] == "fmcheck" else None
        if target is not None or getattr(kept, "__name__", None) != name:
            return None
        return ModuleSpec(name, _KeptModules(kept))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Returns the module as it is."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Runs nothing: that was done."""
        module.__spec__ = self._spec


_kept_modules = _KeptModules()


def keep_modules() -> None:
    """Lets no module of fmcheck be imported twice from now on."""
    if _kept_modules not in sys.meta_path:
        sys.meta_path.insert(0, _kept_modules)


def after_import(name: str, hook: Callable[[ModuleType], object]) -> None:
    """Calls `hook` with a module once it is imported, or at once if it is.

    It is wrapt's hook, and wrapt, whose import takes as long as the rest of an empty session's,
    is not imported before it is needed. Hooks of one module are called in any order.
    """
    if "wrapt" in sys.modules:
        in_turn(name, hook)
    else:
        FirstImport((name,), functools.partial(in_turn, name, hook)).wait()


def in_turn(name: str, hook: Callable[[ModuleType], object]) -> None:
    """Does the same by wrapt at once: hooks of one module are called in the order given here."""
    import wrapt

    wrapt.register_post_import_hook(hook, name)
