"""Neighbours: other files of the package that a file is in, read when it imports a name from them.

A file's folders say which package it is in: only what lies in that package is read. What was looked
for is noted with its state, found or not, for a cache: the findings of the file hang on it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fmcheck.lint.source.decoding import read_with_state, source_of
from fmcheck.lint.source.file import File
from fmcheck.lint.source.module import Module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.lint.source.imports import Import

#: How many imports of one name are followed, one from another.
_MOST_IMPORTS = 3
#: Files of more bytes than this are generated, and cost more to read than they tell.
_MOST_BYTES = 1 << 20


def neighbours_of(module: Module) -> Neighbours:
    """Returns the neighbours of a module, those of its neighbours among them."""
    known: Neighbours = module.memo.get("neighbours") or Neighbours(module)
    module.memo["neighbours"] = known
    return known


class Neighbours:
    """What is read for the sake of one module, each file once."""

    def __init__(self, module: Module) -> None:
        self._kept = module.neighbours
        self._consulted = module.file.consulted
        self._modules: dict[str, Module | None] = {}

    def defining(self, asking: Module, name: str) -> tuple[Module, str] | None:
        """Returns the module that defines an imported name, and the name there; None if unknown.

        `name` is as `asking` writes it, dotted or not. A name that the other module imports in
        turn is followed there.
        """
        for _ in range(_MOST_IMPORTS):
            found = self._imported(asking, name)
            if found is None:
                return None
            asking, name = found
            if not asking.imports_of(name.partition(".")[0]):
                return found
        return None

    def _imported(self, asking: Module, name: str) -> tuple[Module, str] | None:
        head, _, rest = name.partition(".")
        made = asking.imports_of(head)
        if len({(one.module, one.target) for one in made}) != 1:
            return None  # of a choice of two it is unknown which one holds
        folder, parts = _base(asking, made[0])
        return self._walk(folder, [*parts, *rest.split(".")] if rest else parts) if parts else None

    def _walk(self, folder: str, parts: Sequence[str]) -> tuple[Module, str] | None:
        """Returns the module that dotted names lead to from a folder, and what is left of them."""
        for at, part in enumerate(parts):
            inner = os.path.join(folder, part)
            if os.path.isdir(inner):
                folder = inner
                continue
            module = self._module(f"{inner}.py")
            if module is None:
                self._consulted.setdefault(inner, None)
                module, at = self._module(os.path.join(folder, "__init__.py")), at - 1
            left = ".".join(parts[at + 1 :])
            return (module, left) if module is not None and left else None
        return None

    def _module(self, path: str) -> Module | None:
        if path not in self._modules:
            self._modules[path] = self._read(path)
        return self._modules[path]

    def _read(self, path: str) -> Module | None:
        try:
            raw, self._consulted[path] = read_with_state(path)
        except OSError:
            self._consulted[path] = None
            return None
        if len(raw) > _MOST_BYTES:
            return None
        try:
            text = source_of(raw)
        except (SyntaxError, UnicodeDecodeError, LookupError):
            return None
        made = Module(File(path, text), is_neighbour=True)
        made.memo["neighbours"] = self
        self._kept.append(made)
        return made


def _base(asking: Module, one: Import) -> tuple[str, list[str]]:
    """Returns the folder that an import starts from and the names from there, none if unknown."""
    folders = asking.identity.split("/")[:-1]
    if one.is_relative:
        # Of the module: `from . import b` stands for `..b`, and is of this folder.
        dots = len(one.module) - len(one.module.lstrip("."))
        above = folders[: len(folders) - dots + 1]
        return "/".join(above), one.target.lstrip(".").split(".")
    parts = one.target.split(".")
    if parts[0] not in folders:
        return "", []  # of another package
    root = len(folders) - 1 - folders[::-1].index(parts[0])
    return "/".join(folders[:root]) or "/", parts
