"""Functions and modules that a contract names, found again in the files that define them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint.source.identity import is_module

if TYPE_CHECKING:
    from collections.abc import Iterable


class DeclaredFunctions:
    """Functions and methods by reference, `module:function` or `module:Class.method`.

    A method is known by its own name alone: its class is out of sight of a rule that is handed
    one function at a time.
    """

    def __init__(self, references: Iterable[str]) -> None:
        parts = [reference.partition(":") for reference in references]
        self._functions = [(module, name.rpartition(".")[2]) for module, _, name in parts]
        self._files: dict[str, frozenset[str]] = {}
        self._stems = {module.rpartition(".")[2] for module, _ in self._functions}
        self.names = sorted({name for _, name in self._functions})

    def words(self) -> tuple[str, ...]:
        """Returns what stands where one of them is defined."""
        return tuple(f"def {name}(" for name in self.names)

    def of_file(self, identity: str) -> frozenset[str]:
        """Returns the names of the functions that the file of this identity may define."""
        stem = identity.removesuffix("/__init__.py").rpartition("/")[2].removesuffix(".py")
        if stem not in self._stems:
            return frozenset()
        found = self._files.get(identity)
        if found is None:
            names = (name for module, name in self._functions if is_module(identity, module))
            found = self._files[identity] = frozenset(names)
        return found
