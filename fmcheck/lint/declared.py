"""Functions that a contract names, found again in the file that defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint.relays import is_module

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
        self.names = sorted({name for _, name in self._functions})

    def needles(self) -> tuple[bytes, ...]:
        """Returns the names to look for; one that holds another would find nothing new."""
        return tuple(
            one.encode()
            for one in self.names
            if not any(one != other and other in one for other in self.names)
        )

    def of_file(self, path: str) -> frozenset[str]:
        """Returns the names of the functions that this file may define."""
        found = self._files.get(path)
        if found is None:
            names = (name for module, name in self._functions if is_module(path, module))
            found = self._files[path] = frozenset(names)
        return found
