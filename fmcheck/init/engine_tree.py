"""The tree that a contract is proposed for: its modules, and the functions in which words occur."""

from __future__ import annotations

import os
import re
from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.lint.model.function import functions
from fmcheck.lint.source import source_in
from fmcheck.lint.source.file import File
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.module import CutError, Module

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.words import Words

#: Folders and files that drive an engine, and are none of it.
_BESIDE = re.compile(
    r"(^|/)(tests?|testing|benchmarks?|examples?|docs?|scripts)/|(^|/)(test_[^/]*|conftest)\.py$"
)
_DEFINED = re.compile(r"^(?:async )?def[ \t]+(\w+)", re.MULTILINE)
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)
_CLASS = re.compile(r"^class[ \t]+(\w+)", re.MULTILINE)
#: One of them is in each file that says anything about tensors, streams or rows.
_WORDS = ("torch", "triton", "range(")


class FunctionPlace:
    """A function of the tree, with the class that it is a method of."""

    def __init__(self, source: EngineModule, function: Function) -> None:
        self.source = source
        self.function = function
        part = function.part
        family = part.stretch.family
        self.owner = family.name if part.is_nested and family is not None else ""

    @property
    def name(self) -> str:
        """How a contract names it: `module:Class.method`."""
        return f"{self.source.name}:{self.qualname}"

    @property
    def qualname(self) -> str:
        """Its name in the module."""
        return f"{self.owner}.{self.function.name}" if self.owner else self.function.name

    @property
    def class_(self) -> str:
        """The class that it is a method of, as `module:Class`."""
        return f"{self.source.name}:{self.owner}"

    def at(self, node: cst.CSTNode) -> str:
        """Returns the file and line of a node of the function."""
        return f"{self.source.shown}:{self.function.part.span(node).line}"

    def code(self, node: cst.CSTNode) -> str:
        """Returns the source of a node, on one line."""
        bare = isinstance(node, cst.Tuple) and not node.elements  # needs its brackets
        code = cst.Module(()).code_for_node(node) if bare else self.function.part.code(node)
        return " ".join(code.split())


class EngineModule:
    """One module of the tree."""

    def __init__(self, path: Path, name: str, text: str) -> None:
        self.path = path
        self.shown = _shown(path)
        self.name = name
        self.text = text
        self._module = Module(File(str(path), text))
        self._places: dict[Function, FunctionPlace] = {}
        self.is_broken = False  # so far: what nobody asked for was not parsed

    @property
    def module(self) -> Module:
        """The module as the linter reads it."""
        return self._module

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """All words of the text that may be names."""
        return frozenset(re.findall(r"[^\W\d]\w*", self.text))

    def places(self, words: Words = ()) -> Iterator[FunctionPlace]:
        """Yields the functions in whose text the words occur: of each group, one."""
        if not all(any(word in self.text for word in group) for group in words):
            return
        try:
            parts = list(self._parts(words))
        except CutError:
            self._module = Module(File(self.shown, self.text), whole=True)
            try:
                parts = list(self._parts(words))
            except CutError:
                self.is_broken = True
                return
        for function in parts:
            if function not in self._places:
                self._places[function] = FunctionPlace(self, function)
            yield self._places[function]

    def _parts(self, words: Words) -> Iterator[Function]:
        for part in self._module.parts_with(words):
            yield from functions(part)


def _shown(path: Path) -> str:
    """Returns a path as comments name it: from the current folder, if it lies there."""
    full, here = os.path.abspath(path), os.getcwd()
    near = os.path.relpath(full, here)
    return path.as_posix() if near.startswith("..") else near.replace(os.sep, "/")


class EngineTree:
    """All modules of an engine that may say something about its contract."""

    def __init__(
        self, sources: Sequence[EngineModule], files: int, unread: Mapping[Path, str]
    ) -> None:
        self.sources = sources
        self.files = files
        self._unread = unread

    @property
    def left_out(self) -> dict[Path, str]:
        """The files that could not be read or did not parse up to now, each with the reason."""
        broken = {one.path: "does not parse" for one in self.sources if one.is_broken}
        return {**self._unread, **broken}

    def places(self, words: Words = ()) -> Iterator[FunctionPlace]:
        """Yields the functions in whose text the words occur, of all modules."""
        for source in self.sources:
            yield from source.places(words)

    def methods(self, class_: str) -> Sequence[FunctionPlace]:
        """Returns the methods of a class, named `module:Class`."""
        module, _, owner = class_.partition(":")
        found = [one for one in self.sources if one.name == module]
        return [one for source in found for one in source.places() if one.owner == owner]

    def defining(self, name: str) -> Iterator[FunctionPlace]:
        """Yields the functions beside classes that have this name."""
        for source in self._defined.get(name, ()):
            for place in source.places(((f"def {name}",),)):
                if place.function.name == name and not place.owner:
                    yield place

    @cached_property
    def _defined(self) -> dict[str, list[EngineModule]]:
        """The modules by the functions beside classes that they define."""
        found: dict[str, list[EngineModule]] = {}
        for source in self.sources:
            for name in dict.fromkeys(_DEFINED.findall(source.text)):
                found.setdefault(name, []).append(source)
        return found

    @cached_property
    def classes(self) -> dict[str, list[EngineModule]]:
        """The modules by the classes that they define at their top."""
        found: dict[str, list[EngineModule]] = {}
        for source in self.sources:
            for name in dict.fromkeys(_CLASS.findall(source.text)):
                found.setdefault(name, []).append(source)
        return found

    @cached_property
    def package(self) -> str:
        """The package that most modules are of."""
        tops = [source.name.partition(".")[0] for source in self.sources]
        return max(sorted(set(tops)), key=tops.count) if tops else "engine"


def read_tree(
    files: Iterable[Path], named: Sequence[Path], progress: Callable[[int], None]
) -> EngineTree:
    """Reads the files that may say something; the tree knows which of them could not be read."""
    contents: list[tuple[Path, str]] = []
    unread: dict[Path, str] = {}
    count = 0
    for count, path in enumerate(files, 1):
        progress(count)
        if path.suffix != ".py" and path in named:
            unread[path] = "is no file of Python's (.py)"
        if _BESIDE.search(_below(path, named)) or path.suffix != ".py":
            continue
        text, why = source_in(path)
        if why:
            unread[path] = why
        elif path in named or any(word in text for word in _WORDS):
            contents.append((path, text))
    imported = {name for _, text in contents for name in _IMPORTED.findall(text)}
    roots = Roots(named, imported)
    modules = [EngineModule(path, roots.module(path), text) for path, text in contents]
    for one in modules:
        if one.path in named:
            list(one.places())  # whatever it says, it is to parse
    return EngineTree(modules, count, unread)


class Roots:
    """Where packages start.

    Above the topmost folder, from what was named on, that the tree's own files import by its name;
    else above the topmost folder with an `__init__.py`; else at what was named.
    """

    def __init__(self, named: Sequence[Path], imported: Collection[str]) -> None:
        self._named = [os.path.realpath(one) for one in named]
        self._imported = imported
        self._tops: dict[str, str] = {}

    def module(self, path: Path) -> str:
        """Returns the dotted name of the module at a path."""
        full = os.path.realpath(path)
        folder, name = os.path.split(full)
        if folder not in self._tops:
            self._tops[folder] = self._root(folder)
        inside = os.path.relpath(folder, self._tops[folder])
        parts = [one for one in inside.split(os.sep) if one != "."]
        stem = name.removesuffix(".py")
        return ".".join(parts if stem == "__init__" and parts else [*parts, stem])

    def _root(self, folder: str) -> str:
        for one in self._named:
            if folder == one or folder.startswith(one + os.sep):
                above = os.path.dirname(one)
                for part in os.path.relpath(folder, above).split(os.sep):
                    if part in self._imported and not _has_package_above(above):
                        return above
                    above = os.path.join(above, part)
        top, above = "", folder
        while not _starts_project(above):
            if os.path.exists(os.path.join(above, "__init__.py")):
                top = above
            last, above = above, os.path.dirname(above)
            if last == above:
                break
        if top:
            return os.path.dirname(top)
        for one in self._named:
            if folder == one or folder.startswith(one + os.sep):
                return one
        return folder


def _has_package_above(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "__init__.py"))


def _starts_project(folder: str) -> bool:
    marks = (".git", "pyproject.toml", "setup.py")
    return any(os.path.lexists(os.path.join(folder, mark)) for mark in marks) and not (
        os.path.exists(os.path.join(folder, "__init__.py"))
    )


def _below(path: Path, named: Sequence[Path]) -> str:
    """Returns a path from the folder that was named: `tests/engine` may be what is asked for."""
    for one in named:
        if path.is_relative_to(one) and path != one:
            return path.relative_to(one).as_posix()
    return path.name
