"""Missing in source: what a contract names and source text lacks, without running it."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.contract import applies
from fmcheck.contract.references import files, references, variables, words
from fmcheck.contract.row_conditions import condition
from fmcheck.errors import nearest
from fmcheck.lint.model.expressions import targets
from fmcheck.lint.source import source_in
from fmcheck.lint.source.globs import lies_in, literal
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import below, children
from fmcheck.lint.source.words import may_define, whole_words, words_around

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fmcheck.contract import Contract, Fill, Opaque, OwnerFunctions

#: How near a name has to be to be offered, and to be taken for what one of several is a slip of.
_NEAR, _SAME = 0.75, 0.9
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
#: Of a path, what it starts at and what it takes for a key.
_PARAMETER = re.compile(r"(?:^|\[)([^\W\d]\w*)")


class SourceFiles:
    """The text of some files. A file that cannot be read or decoded has none."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = [os.path.abspath(path).replace(os.sep, "/") for path in paths]
        self._texts: dict[str, str] = {}
        self._bound: dict[str, dict[str, frozenset[str]]] = {}

    def text(self, path: str) -> str:
        """Returns the text of one of the paths."""
        if path not in self._texts:
            self._texts[path], _ = source_in(path)
        return self._texts[path]

    def lacks(self, names: Collection[str]) -> set[str]:
        """Returns the names, or globs, that are no word of any text."""
        left = set(names)
        for path in self.paths if left else ():
            left -= {name for name in left if _stands(name, self.text(path))}
        return left

    def bound(self, path: str) -> Mapping[str, frozenset[str]]:
        """Returns what a module binds, functions with the names of their parameters.

        That is names, `Class.method`, and `Class.*` of one with bases. "*" is anything: of a module
        that does not parse, or takes over all of another one.
        """
        if path not in self._bound:
            found = self._bound[path] = {}
            try:
                for name, parameters in _bound(cst.parse_module(self.text(path)).body, ""):
                    found[name] = found.get(name, frozenset()) | parameters
            except cst.ParserSyntaxError:
                found["*"] = frozenset()
        return self._bound[path]

    def parameters(self, reference: str) -> frozenset[str]:
        """Returns the parameters of `module:name`, nothing where its definition is not seen."""
        module, _, name = reference.partition(":")
        path = self.module(module)
        return frozenset() if path is None else self.bound(path).get(name, frozenset())

    def defines(self, name: str) -> bool:
        """Tells whether a function or method of this name may be defined in any text."""
        return any(may_define(name, self.text(path)) for path in self.paths)

    @cached_property
    def identifiers(self) -> set[str]:
        """All words that may be names."""
        return {word for path in self.paths for word in _IDENTIFIER.findall(self.text(path))}

    def module(self, name: str) -> str | None:
        """Returns the path of a module, None if there is none."""
        part = "/" + name.replace(".", "/")
        ends = (f"{part}.py", f"{part}/__init__.py", f"{part}.pyi")
        return next((path for path in self.paths if path.endswith(ends)), None)


def missing_in_source(
    contract: Contract, version: str | None, source: SourceFiles
) -> Iterator[tuple[str, str]]:
    """Yields each key that names what is not there, and a sentence about it."""
    for key, alternatives in references(contract, version):
        yield from _missing_functions(key, alternatives, source)
    for key, alternatives in variables(contract, version):
        yield from _missing_functions(key, alternatives, source, gone=True)
    for opaque in contract.opaque:
        if applies(opaque.releases, version):
            yield from _of_opaque(opaque, source)
    for owners in contract.owners:
        if applies(owners.releases, version):
            yield from _of_owners(owners, source)
    for fill in contract.graph_inputs.fill:
        if applies(fill.releases, version):
            yield from _of_fill(fill, source)
    for key, globs in files(contract):
        for glob in globs:
            if not applies(contract.only_in.get(glob, ""), version):
                continue
            if not any(lies_in(path, (glob,)) for path in source.paths):
                yield key, f"`{glob}` matches no file{_nearest_path(glob, globs, source)}"
    asked = list(words(contract, version))
    declared = {name for one in asked for name in one.names}
    lacked = source.lacks(declared)
    free = source.identifiers - declared if lacked else set()
    for one in asked:
        missing = [
            name
            for name in one.names
            if name in lacked and applies(contract.only_in.get(name, ""), version)
        ]
        is_met = one.alternatives and len(missing) < len(one.names)
        for name in missing:
            names = source.identifiers if one.of_path else free
            known = _nearest(name, names, _SAME if is_met else _NEAR)
            if known or not is_met:
                yield one.key, f"`{name}` not found in any file{known}"


def _of_opaque(opaque: Opaque, source: SourceFiles) -> Iterator[tuple[str, str]]:
    """Yields what a release lacks of a kernel: the function, or parameters that are named."""
    yield from _missing_functions("opaque.functions", opaque.functions, source, gone=True)
    named = [("rows", opaque.rows)]
    named += [(key, name) for key in ("reads", "writes") for name in getattr(opaque, key)]
    named += [("rows_where", name) for text in opaque.rows_where for name in condition(text).names]
    for function in opaque.functions:
        known = source.parameters(function)
        for key, name in named if known else ():
            if name not in known:
                yield f"opaque.{key}", f"`{function}` has no `{name}`{nearest(name, known)}"


def _of_owners(owners: OwnerFunctions, source: SourceFiles) -> Iterator[tuple[str, str]]:
    """Yields the parameters that paths start at, or take for a key, and no alternative has."""
    paths = (("owners.rows", owners.rows), ("owners.owner", owners.owner))
    yield from _of_paths(paths, owners.functions, source)


def _of_fill(fill: Fill, source: SourceFiles) -> Iterator[tuple[str, str]]:
    """Yields the same of what a fill's method is called with."""
    key = "graph_inputs.fill"
    paths = [(f"{key}.inputs", fill.inputs), *((f"{key}.outputs", one) for one in fill.outputs)]
    for name, axis in fill.axis.items():
        counts = ("raw", axis.raw), ("padded", axis.padded), ("capacity", axis.capacity)
        paths += [(f"{key}.axis.{name}.{part}", path) for part, path in counts]
    methods = [f"{fill.class_}.{method}" for method in fill.methods]
    yield from _of_paths(paths, methods, source)


def _of_paths(
    paths: Iterable[tuple[str, str]], functions: Sequence[str], source: SourceFiles
) -> Iterator[tuple[str, str]]:
    known = {name for function in functions for name in source.parameters(function)}
    for key, path in paths if known else ():
        for name in _PARAMETER.findall(path) if ":" not in path else ():
            if name not in {*known, "return"}:
                yield key, f"`{functions[0]}` has no `{name}`{nearest(name, known)}"


def _missing_functions(
    key: str, alternatives: Sequence[str], source: SourceFiles, gone: bool = False
) -> Iterator[tuple[str, str]]:
    """Yields what is said of alternatives none of which is there, or that are slips of one.

    Where another one is there, a name that is missing may be that of another release; of what may
    be `gone` a module that is missing, too.
    """
    missing = [one for one in alternatives if not _defines(one, source)]
    is_met = len(missing) < len(alternatives)
    for one in missing:
        module, _, name = one.partition(":")
        own = {other.partition(":")[2] for other in alternatives if other.startswith(f"{module}:")}
        path = source.module(module)
        if path is None and module.partition(".")[0] == "torch":
            continue  # no name of the engine's
        if path is not None:
            known = nearest(name, source.bound(path).keys() - own, _SAME if is_met else _NEAR)
            if known or not is_met:
                yield key, f"there is no `{one}`{known}"
        elif not is_met:
            names = _module_names(source, module.count(".") + 1)
            known = nearest(module, names, _SAME if gone else _NEAR)
            if gone and not known:
                continue
            yield key, f"there is no module `{module}` (named for `{name}`){known}"


def _defines(reference: str, source: SourceFiles) -> bool:
    """Tells whether the source may have what `module:name` or `module:Class.method` is."""
    module, _, name = reference.partition(":")
    path = source.module(module)
    if path is None:
        return False
    defined = source.bound(path)
    owner, _, method = name.rpartition(".")
    # What a class inherits, or a module takes from another one by `*`, is defined elsewhere.
    is_inherited = f"{owner}.*" in defined and source.defines(method)
    return name in defined or "*" in defined or is_inherited


def _bound(body: Iterable[cst.CSTNode], prefix: str) -> Iterator[tuple[str, frozenset[str]]]:
    nothing: frozenset[str] = frozenset()
    for node in body:
        if isinstance(node, cst.FunctionDef):
            # A module's own `__getattr__` may give anything (PEP 562).
            name = prefix + node.name.value
            yield "*" if name == "__getattr__" else name, _parameters(node)
            for declared in below(node, cst.Global):
                yield from ((item.name.value, nothing) for item in declared.names)
        elif isinstance(node, cst.ClassDef):
            yield prefix + node.name.value, nothing
            if node.bases:
                yield f"{prefix}{node.name.value}.*", nothing
            yield from _bound(node.body.body, f"{prefix}{node.name.value}.")
        elif isinstance(node, (cst.Import, cst.ImportFrom)):
            if isinstance(node.names, cst.ImportStar):
                yield prefix + "*", nothing
            else:
                for one in node.names:
                    yield prefix + (one.evaluated_alias or one.evaluated_name), nothing
        elif isinstance(node, (cst.Assign, cst.AnnAssign)):
            for target in targets(node):
                if isinstance(target, cst.Name):
                    yield prefix + target.value, nothing
        elif not isinstance(node, cst.BaseSmallStatement):
            yield from _bound(children(node), prefix)


def _parameters(function: cst.FunctionDef) -> frozenset[str]:
    held = function.params
    listed = (*held.posonly_params, *held.params, *held.kwonly_params)
    return frozenset(one.name.value for one in listed)


def _stands(name: str, text: str) -> bool:
    """Tells whether a name, or one that a glob means, is a word of a text."""
    known = literal(name)
    if known == name:
        return next(whole_words(name, text), None) is not None
    return any(fnmatchcase(word, name) for word in words_around(known, text))


def _nearest(name: str, known: Collection[str], cutoff: float) -> str:
    """Does what `nearest` does, of many names: only of those that share two signs in a row."""
    parts = {name[at : at + 2] for at in range(len(name) - 1)}
    most = len(name) * (2 - cutoff) / cutoff
    return nearest(
        name,
        [one for one in known if len(one) <= most and any(part in one for part in parts)],
        cutoff,
    )


def _module_names(source: SourceFiles, parts: int) -> Iterator[str]:
    """Yields the names of modules from so many folders up, for nobody says where packages start."""
    for path in source.paths:
        whole = path.removesuffix("/__init__.py").removesuffix(".py")
        yield ".".join(whole.split("/")[-parts:])


def _nearest_path(glob: str, globs: Sequence[str], source: SourceFiles) -> str:
    """Returns the nearest of the files and folders of the same package that no glob means yet."""
    top = f"/{glob.partition('/')[0]}/"
    found: set[str] = set()
    for path in source.paths:
        _, is_there, rest = path.partition(top)
        if is_there:
            file = top[1:] + rest
            found |= {file, f"{file.rpartition('/')[0]}/*.py"}
    return nearest(glob, found.difference(globs), _SAME)
