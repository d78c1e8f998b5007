"""An outline: which buffers each function of a module may fill and reset, by name and by `ast`.

It clears most functions before a tree is needed, and tells a block what the rest of its module
resets. So it errs to one side: a name is listed if there is any chance.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from fmcheck.lint.block import Block
from fmcheck.lint.nodes import FUNCTIONS, children, gather, indices
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.rule import Scope
from fmcheck.lint.words import may_define

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fmcheck.lint.facts import ModuleFacts

#: Parts of the name of a function that resets what it is handed.
RESET_WORDS = ("zero", "reset", "clear", "scrub")
_RESETS = frozenset({"zero_", "fill_", "fill"})
#: What stands in the text of every function that fills or resets: a method's name, the argument
#: `out`, or an assignment to what ends in a bracket.
_TELLS = re.compile(r"copy|zero_|fill|foreach_|\bout\b|\][\s\\)]*=(?!=)")

#: Names, each with lines of the file.
Places: TypeAlias = "dict[str, set[int]]"


class Outline:
    """What one function, nested ones included, may do to the buffers whose names are listed.

    `line` is that of the `def`, `end_line` the last. Each list is made when it is first asked for.
    """

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> None:
        self.function = function
        self.name = function.name
        self.line = function.lineno
        self.end_line = function.end_lineno or function.lineno
        #: Whether its text has anything in it that fills or resets.
        self.may_write = _TELLS.search(text) is not None
        #: Whether it may show padding, by the lines of the functions that reset beside it.
        self.shows_padding: dict[str, bool] = {}

    def block(self, facts: ModuleFacts) -> Block:
        """Returns the block of the function, decorators left out."""
        function = self.function
        parsed = None if function.decorator_list else function
        return Block.at(facts, self.line, self.end_line, parsed)

    @cached_property
    def nodes(self) -> Mapping[type[ast.AST], Sequence[Any]]:
        """The nodes that tell something of it, by class."""
        return gather(self.function, TELLING)

    @cached_property
    def _told(self) -> _Told:
        return _Told(self.nodes)

    @property
    def fills(self) -> Mapping[str, set[int]]:
        """The names of what is copied to up to a length, with the lines that may do it."""
        return self._told.fills if self.may_write else {}

    @property
    def resets(self) -> Mapping[str, set[int]]:
        """The names of what is set to one value, with the lines that may do it."""
        return self._told.resets if self.may_write else {}

    @property
    def tails(self) -> Mapping[str, set[int]]:
        """The names of what is reset in a rarer way: a tail that is copied to, a helper's argument.

        "" is an object that holds all of them.
        """
        return self._told.tails if self.may_write else {}

    @property
    def calls(self) -> set[str]:
        """The names of what it calls."""
        return self._told.calls

    @property
    def lists(self) -> set[str]:
        """The attributes that it makes Python lists."""
        return self._told.lists

    @property
    def resets_any(self) -> bool:
        """Tells whether it may reset buffers that it does not name, as in a loop over fields."""
        return any(name in self.resets for name in ("getattr", "values", "items"))


def outlines(facts: ModuleFacts) -> Sequence[Outline]:
    """Returns the outlines of a module's functions and methods."""
    return [one for node in facts.tree.body for one in outlines_of(node, facts)]


def outlines_with(facts: ModuleFacts, word: str) -> Iterator[Outline]:
    """Yields the outlines of functions in statements that hold a word."""
    for node in facts.module.statements_with((word,)):
        yield from outlines_of(node, facts)


def outlines_defining(facts: ModuleFacts, name: str) -> Iterator[Outline]:
    """Yields the outlines of the module's functions and methods of this name."""
    if not may_define(name, facts.module.text):
        return
    for node in facts.module.nodes(Scope.FUNCTION, (name,), partial(may_define, name)):
        if isinstance(node, ast.AST):
            yield from (one for one in outlines_of(node, facts) if one.name == name)


def outlines_at(block: Block) -> Sequence[Outline]:
    """Returns the outlines of a block's functions; the rest of its module is not parsed."""
    first, last = block.first_line, block.last_line
    around = block.facts.module.statements_at(first, last)
    found = [one for node in around for one in outlines_of(node, block.facts)]
    return [one for one in found if first <= one.line <= last]


def outlines_of(node: ast.AST, facts: ModuleFacts) -> Sequence[Outline]:
    """Returns the outlines of the functions in `node`, a top-level statement of a module."""
    known = facts.outlines_in.get(node)
    if known is not None:
        return known
    found = []
    for function in _functions([node]):
        outline = facts.outlined.get(function)
        if outline is None:
            last = function.end_lineno or function.lineno
            text = facts.module.text_of_lines(function.lineno, last)
            outline = facts.outlined[function] = Outline(function, text)
        found.append(outline)
    facts.outlines_in[node] = found
    return found


def _functions(body: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, FUNCTIONS):
            yield node
        else:
            for name in ("body", "orelse", "finalbody", "handlers"):
                yield from _functions(getattr(node, name, ()))


#: What tells of writes, of the sizes that they are cut to, and of tests between sizes.
TELLING = (
    *(ast.Call, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.arg),
    *(ast.For, ast.AsyncFor, ast.comprehension),
    *(ast.List, ast.Tuple, ast.Set, ast.Slice, ast.Compare, ast.If, ast.IfExp),
)


class _Told:
    """What the telling nodes of a function say for its outline."""

    def __init__(self, nodes: Mapping[type[ast.AST], Sequence[Any]]) -> None:
        self.fills: Places = defaultdict(set)
        self.resets: Places = defaultdict(set)
        self.tails: Places = defaultdict(set)
        self.calls: set[str] = set()
        self.lists: set[str] = set()
        self._copies: set[int] = set()
        listed: list[ast.expr] = []
        bound: list[tuple[ast.expr, ast.expr]] = []
        for call in nodes[ast.Call]:
            self._note_call(call, listed)
        for assign in chain(nodes[ast.Assign], nodes[ast.AnnAssign], nodes[ast.NamedExpr]):
            if assign.value is not None:
                for target in getattr(assign, "targets", None) or [assign.target]:
                    self._note_store(target)
                    if isinstance(target, ast.Attribute) and _is_list(assign.value):
                        self.lists.add(target.attr)
                    bound.append((target, assign.value))
        bound += [(loop.target, loop.iter) for loop in chain(nodes[ast.For], nodes[ast.AsyncFor])]
        bound += [(loop.target, loop.iter) for loop in nodes[ast.comprehension]]
        if self._copies:
            for display in chain(nodes[ast.List], nodes[ast.Tuple]):
                listed += display.elts
            for element in listed:
                lines = {element.lineno, *self._copies}
                _add(self.fills, _cut(element), lines)
                _add(self.tails, _cut(element, "lower"), lines)
        if self.fills or self.resets:
            self._follow(bound)

    def _follow(self, bound: Sequence[tuple[ast.expr, ast.expr]]) -> None:
        """Adds what the names that are written stand for."""
        stands_for: dict[str, set[str]] = {
            name: set() for places in (self.fills, self.resets, self.tails) for name in places
        }
        for target, value in bound:
            _stand(target, value, stands_for)
        for places in (self.fills, self.resets, self.tails):
            for name, lines in list(places.items()):
                _add(places, stands_for[name], lines)

    def _note_call(self, call: ast.Call, listed: list[ast.expr]) -> None:
        word = getattr(call.func, "attr", getattr(call.func, "id", ""))
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        here = {call.lineno}
        self.calls.add(word)
        if "copy" in word:
            self._copies |= here
        if receiver is not None and word in _RESETS:
            _add(self.resets, leaves(receiver), here)
        elif "foreach_" in word and call.args:
            _add(self.resets, leaves(call.args[0]), here)
        elif any(part in word for part in RESET_WORDS):
            for handed in (*call.args, *(one.value for one in call.keywords), receiver):
                if handed is not None:
                    # What holds everything is no name of its own.
                    _add(self.tails, leaves(handed) or {""}, here)
        if receiver is not None and word == "copy_":
            # A plain name may stand for a slice.
            is_name = isinstance(receiver, ast.Name)
            _add(self.fills, leaves(receiver) if is_name else _cut(receiver), here)
            _add(self.tails, leaves(receiver) if is_name else _cut(receiver, "lower"), here)
        elif word in ("append", "extend"):
            listed += call.args
        for keyword in call.keywords:
            if keyword.arg == "out":
                _add(self.fills, leaves(keyword.value), here)
                _add(self.tails, leaves(keyword.value), here)

    def _note_store(self, target: ast.expr) -> None:
        """Notes `buffer[:n] = ...`, `buffer[n:] = ...` and `buffer[:] = ...`."""
        if isinstance(target, ast.Subscript):
            slices = [one for one in indices(target) if isinstance(one, ast.Slice)]
            uppers = [one for one in slices if one.upper]
            if uppers:
                _add(self.fills, leaves(target.value), {target.lineno})
            if slices and (any(one.lower for one in slices) or not uppers):
                _add(self.resets, leaves(target.value), {target.lineno})


def _add(places: Places, names: Iterable[str], lines: set[int]) -> None:
    for name in names:
        places[name] |= lines


def _is_list(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_list(value.left) or _is_list(value.right)
    return isinstance(value, (ast.List, ast.ListComp))


def _cut(node: ast.expr, bound: str = "upper") -> set[str]:
    """Returns the names of what is cut to a length in an expression, views of it included."""
    found: set[str] = set()
    for inner in all_below(node):
        is_narrow = isinstance(inner, ast.Attribute) and inner.attr == "narrow"
        if is_narrow or (isinstance(inner, ast.Slice) and getattr(inner, bound)):
            found |= leaves(node)
    return found


def leaves(node: ast.AST) -> set[str]:
    """Returns the names by which an expression is reached: of the buffer and of what holds it."""
    found: set[str] = set()
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name):
            if node.id != "self":
                found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
            stack.append(node.value)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                found.add(node.value)
        elif isinstance(node, ast.Subscript):
            stack.append(node.value)
            # The bounds of a slice are sizes, not buffers.
            if isinstance(node.slice, (ast.Constant, ast.Name)):
                stack.append(node.slice)
        else:
            stack += children(node)
    return found


def _stand(target: ast.AST, value: ast.expr, stands_for: dict[str, set[str]]) -> None:
    """Adds what a value mentions to those of a target's names that are asked for."""
    below = (target,) if isinstance(target, ast.Name) else all_below(target)
    names = [one.id for one in below if isinstance(one, ast.Name) and one.id in stands_for]
    if names:
        mentioned = leaves(value)
        for name in names:
            stands_for[name] |= mentioned
