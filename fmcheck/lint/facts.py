"""Facts about a whole module that a rule needs while it looks at one block of it."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.lint.identity import identity_of
from fmcheck.lint.imports import imported_names, scan_imports
from fmcheck.lint.module import defines
from fmcheck.lint.nodes import walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from fmcheck.lint.block import Block
    from fmcheck.lint.grow import Tree
    from fmcheck.lint.module import Module
    from fmcheck.lint.newer import Copied
    from fmcheck.lint.outline import Outline
    from fmcheck.lint.resets import Resetting


#: The fields of statements in which other ones stand.
_HOLDING = frozenset(("body", "cases", "finalbody", "handlers", "orelse"))
_LAST_WORD = re.compile(r"\w+\Z")
_WORD = re.compile(r"[^\W\d]\w*")


class ModuleFacts:
    """What can be read off a module. Made once a file, shared by the rules.

    Asking for `tree` or `names` has the whole file parsed; the rest does without where it can.
    """

    def __init__(self, module: Module, path: str) -> None:
        self.module = module
        self.path = path
        self._mentioned: dict[ast.AST, set[str]] = {}
        self._renamed: dict[str, bool] = {}
        self._reads: dict[frozenset[str], bool] = {}
        #: Blocks that rules were handed, by first and last line: each grows its tree once.
        self.blocks: dict[tuple[int, int], Block] = {}
        #: The outlines of functions, as `outline.py` makes them.
        self.outlined: dict[ast.AST, Outline] = {}
        #: The same by the statement that holds them.
        self.outlines_in: dict[ast.AST, Sequence[Outline]] = {}
        #: Who resets a buffer, by its name, as `resets.py` finds it.
        self.resetting: dict[str, Resetting] = {}
        #: Whether functions are used behind tests for CUDA only, as FM604 finds it.
        self.on_cuda_alone: dict[str, bool] = {}
        #: The trees that blocks of the module have grown: each is a ring of nodes, for `forget`.
        self.grown: list[Tree | Copied] = []

    def forget(self) -> None:
        """Takes the trees of blocks apart, so that they go without the garbage collector."""
        self.blocks.clear()
        for one in self.grown:
            one.order.clear()
            one.order.owner = None

    @cached_property
    def identity(self) -> str:
        """Which file of an engine this is, for the contracts: see `identity.py`."""
        return identity_of(self.path)

    @property
    def tree(self) -> ast.Module:
        """The whole module's syntax tree; `module.missed` tells that a definition is not in it."""
        if any(map(defines, self.module.unparsed)):
            self.module.missed = True
        return self.module.tree

    @cached_property
    def calls(self) -> Sequence[ast.Call]:
        """The calls of the whole module, looked for once however many blocks ask."""
        return [node for node in walk(self.tree) if isinstance(node, ast.Call)]

    @cached_property
    def imported(self) -> dict[str, str]:
        """Local names of imports, to the dotted name each stands for, wherever they are made.

        `from torch.cuda import Event as E` gives `{"E": "torch.cuda.Event"}`.
        """
        names: dict[str, str] = {}
        torn = {
            name for name, target in self.may_import if names.setdefault(name, target) != target
        }
        if torn:
            # Two of one name: how deep they stand decides which of them holds.
            by_depth = imported_names(self._statements_by_depth(torn))
            names.update((name, target) for name, target in by_depth if name in torn)
        return names

    def _statements_by_depth(self, names: Collection[str]) -> Iterator[ast.AST]:
        """Yields statements that may import one of some names, outer ones first."""
        layer: list[ast.AST] = list(
            self.module.statements_with(names, lambda text: "import" in text)
        )
        while layer:
            yield from layer
            layer = [
                inner
                for node in layer
                for name in node._fields
                if name in _HOLDING
                for inner in getattr(node, name)
            ]

    @cached_property
    def may_import(self) -> Sequence[tuple[str, str]]:
        """Local names with what an import of each, anywhere, makes it stand for."""
        return list(imported_names(self.import_statements))

    @cached_property
    def import_statements(self) -> Sequence[ast.Import | ast.ImportFrom]:
        """Every import statement of the module; their lines are not those of the file."""
        found: Iterable[ast.AST] | None = None
        if "tree" not in vars(self.module):
            found = scan_imports(self.module.text, self.module.cuts)
        if found is None:
            found = walk(self.tree)
        return [node for node in found if isinstance(node, (ast.Import, ast.ImportFrom))]

    @cached_property
    def import_aliases(self) -> Sequence[ast.alias]:
        """Every name that a `from` import makes."""
        return [
            alias
            for node in self.import_statements
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ]

    def may_rename(self, word: str) -> bool:
        """Tells whether an import may give another name to something called like `word`."""
        found = self._renamed.get(word)
        if found is None:
            found = self._renamed[word] = any(word in name for name in self._given_up)
        return found

    @cached_property
    def _given_up(self) -> set[str]:
        """What stands before each `as` of the module, where a name may end."""
        found: set[str] = set()
        text = self.module.text
        for sign in (" as", "\tas") if "\t" in text else (" as",):
            at = text.find(sign)
            while at >= 0:
                after = text[at + 3 : at + 4]
                if not (after.isalnum() or after == "_"):
                    line = text.rfind("\n", 0, at) + 1
                    before = _LAST_WORD.search(text[line:at].rstrip(" \t"))
                    if before is not None:
                        found.add(before[0])
                at = text.find(sign, at + 3)
        return found

    @cached_property
    def names(self) -> frozenset[str]:
        """Every identifier that the module reads, as a name or an attribute."""
        found = set(_names(self.module.tree))
        for text in self.module.unparsed:
            found.update(_WORD.findall(text))
        return frozenset(found)

    def reads(self, names: Collection[str]) -> bool:
        """Tells whether the module reads one of these identifiers, as a name or an attribute.

        The same as asking `names`, but only statements that hold the words are parsed.
        """
        if "names" in vars(self):
            return not self.names.isdisjoint(names)
        wanted = frozenset(names)
        if wanted not in self._reads:
            self._reads[wanted] = self._may_read(wanted)
        return self._reads[wanted]

    def _may_read(self, names: Collection[str]) -> bool:
        # What cannot be parsed is read as text here: nothing is missed.
        missed = self.module.missed
        try:
            return self._may_read_parsed(names)
        finally:
            self.module.missed = missed

    def _may_read_parsed(self, names: Collection[str]) -> bool:
        present = [name for name in names if name in self.module.text]
        if not present:
            return False
        return any(
            not set(names).isdisjoint(_names(node)) for node in self.module.statements_with(present)
        ) or any(name in text for text in self.module.unparsed for name in present)

    def mentioned(self, node: ast.AST) -> set[str]:
        """Returns the dotted names that stand below `node`, imports included, each resolved."""
        found = self._mentioned.get(node)
        if found is None:
            found = self._mentioned[node] = self._mentions(node)
        return found

    def _mentions(self, node: ast.AST) -> set[str]:
        found: set[str] = set()
        imported = self.imported
        for inner in walk(node):
            if isinstance(inner, ast.Name):
                found.add(imported.get(inner.id, inner.id))
            elif isinstance(inner, ast.Attribute):
                name = _dotted(inner)
                if name is not None:
                    found.add(self.resolve(name))
            elif isinstance(inner, ast.ImportFrom):
                found.update(f"{inner.module}.{alias.name}" for alias in inner.names)
        return found

    def resolve(self, dotted: str) -> str:
        """Returns what `dotted` stands for after imports: `Event` may be `torch.cuda.Event`."""
        head, dot, rest = dotted.partition(".")
        return self.imported.get(head, head) + dot + rest


def _names(node: ast.AST) -> Iterator[str]:
    for inner in walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])
