"""Stream words: the vocabulary of streams, and what of it one `ast` block contains.

It clears most blocks before a tree is needed. So it errs to one side: by names, not by paths.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.lint.front_words import HELD
from fmcheck.lint.nodes import FUNCTIONS
from fmcheck.lint.nodes import walk as all_below

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

#: Names of functions that order work for their caller, or wait for it.
ORDERING = re.compile(
    r"(^|_)(sync|synchronize|wait|fence|barrier)(_|$)|(^|_)join_|_join(_|$)", re.IGNORECASE
)
#: Methods that wait for the stream or event that they name.
WAITS = frozenset({"query", "synchronize", "wait", "wait_event", "wait_stream"})
#: Names of classes.
CLASS = re.compile(r"_?[A-Z]\w*[a-z]\w*$")
#: Names of tensors on the host, and of what is computed there.
ON_HOST = re.compile(r"(^|_|\b)(cpu|host|pin|pinned|np|numpy|list)(_|\b|$)")
#: What an asynchronous copy's call is named.
COPIES = frozenset({"copy_", "to"})
#: Functions and methods that launch work and return a tensor. Containers have none of them.
LAUNCHES = frozenset(
    {
        "arange",
        "argmax",
        "bmm",
        "cat",
        "clone",
        "concat",
        "contiguous",
        "cumsum",
        "einsum",
        "full",
        "gather",
        "index_select",
        "linear",
        "masked_fill",
        "matmul",
        "mm",
        "ones",
        "repeat_interleave",
        "softmax",
        "stack",
        "topk",
        "where",
        "zeros",
        "zeros_like",
    }
)
#: Methods of a tensor that write it in place.
IN_PLACE = frozenset(
    {
        "add_",
        "copy_",
        "fill_",
        "index_copy_",
        "index_fill_",
        "index_put_",
        "masked_fill_",
        "mul_",
        "scatter_",
        "sub_",
        "zero_",
    }
)
_EVENT = re.compile(
    r"(event|evt|fence|(\b|_)(ready|done|finished|copied|published))s?(\[.*\]|\(\))?$",
    re.IGNORECASE,
)
_CONTEXT = re.compile(r"stream_(ctx|context)$")


def looks_like_event(code: str) -> bool:
    """Tells whether an expression is an event by its name: other things have `record()` too."""
    return bool(_EVENT.search(code))


def looks_like_context(name: str) -> bool:
    """Tells whether a name is that of a stream's context manager."""
    return bool(_CONTEXT.search(name))


_TELLING = frozenset({ast.Call, ast.With, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr})


class StreamWords:
    """The calls of one block by their last name, and its stream contexts, in no order."""

    def __init__(self, node: ast.AST) -> None:
        self.calls: dict[str, list[ast.Call]] = defaultdict(list)
        self.contexts: list[ast.With] = []
        self.assigns: list[ast.Assign] = []
        #: Elements and slices that are assigned to, and what `+=` changes.
        self.stores: list[ast.expr] = []
        for inner in all_below(node):
            if inner.__class__ not in _TELLING:
                continue
            if isinstance(inner, ast.Call):
                self.calls[last_name(inner.func)].append(inner)
            elif isinstance(inner, ast.With):
                if any(_enters_stream(item.context_expr) for item in inner.items):
                    self.contexts.append(inner)
            elif isinstance(inner, ast.Assign):
                self.assigns.append(inner)
                self.stores += [one for one in inner.targets if isinstance(one, ast.Subscript)]
            elif isinstance(inner, (ast.AnnAssign, ast.NamedExpr)) and inner.value is not None:
                self.assigns.append(ast.Assign([inner.target], inner.value, lineno=inner.lineno))
            elif isinstance(inner, ast.AugAssign):
                self.stores.append(inner.target)

    @cached_property
    def launched(self) -> Mapping[str, Sequence[int]]:
        """The plain names that are assigned what a launch returns, each with its lines."""
        found: dict[str, list[int]] = {}
        for one in self.assigns:
            if isinstance(one.value, ast.Call) and last_name(one.value.func) in (*LAUNCHES, "to"):
                for target in one.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(one.lineno)
        return found

    @property
    def pins(self) -> bool:
        """Tells whether a pinned tensor is made here."""
        return any(_pins(call) for calls in self.calls.values() for call in calls)

    @cached_property
    def pinned(self) -> set[str]:
        """The dotted names of what is assigned a pinned tensor."""
        return {
            holder(target) for one in self.assigns if _pins(one.value) for target in one.targets
        }

    def lines(self, *words: str) -> Sequence[int]:
        """Returns the lines of the calls of any of these names."""
        return [call.lineno for word in words for call in self.calls.get(word, ())]

    def ordering_lines(self, without: Collection[str] = ()) -> Sequence[int]:
        """Returns the lines of the calls that wait, or whose name says that they order."""
        return [
            call.lineno
            for word, calls in self.calls.items()
            if word not in without and (word == "query" or ORDERING.search(word))
            for call in calls
        ]

    def ordered_lines(self, context: ast.With) -> Sequence[int]:
        """Returns the lines of what is sure to have the streams of a body wait for the current one.

        Beside what orders any streams, only `wait_stream` of streams that are spelled alike.
        """
        return self._surely(context, self._waits_for_current)

    def joined_lines(self, context: ast.With) -> Sequence[int]:
        """Returns the lines of what is sure to have the current stream, or all, wait for a body."""
        return self._surely(context, self._waits_by_current)

    def _surely(self, context: ast.With, waits: Mapping[str, Sequence[int]]) -> Sequence[int]:
        """Returns the lines of waits between the current stream and a body's."""
        entered = _paths(context)
        own = waits.get(min(entered), ()) if len(entered) == 1 else ()
        return sorted([*self._ordering_lines, *own])

    @cached_property
    def _ordering_lines(self) -> Sequence[int]:
        return self.ordering_lines(WAITS)

    @cached_property
    def _waits_for_current(self) -> Mapping[str, Sequence[int]]:
        """The lines on which a stream, which is the dump, waits for the current one."""
        return self._with_current((on, by, line) for by, on, line in self._stream_waits())

    @cached_property
    def _waits_by_current(self) -> Mapping[str, Sequence[int]]:
        """The lines on which the current stream waits for one, which is the dump."""
        return self._with_current(self._stream_waits())

    def _with_current(
        self, waits: Iterable[tuple[ast.expr, ast.expr, int]]
    ) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for current, other, line in waits:
            if self._is_current(current):
                found[ast.dump(other)].append(line)
        return found

    def _stream_waits(self) -> Iterator[tuple[ast.expr, ast.expr, int]]:
        """Yields who waits, for whom, and where."""
        for call in self.calls.get("wait_stream", ()):
            if call.args and isinstance(call.func, ast.Attribute):
                yield call.func.value, call.args[0], call.lineno

    def _is_current(self, node: ast.expr) -> bool:
        """Tells whether an expression is the stream that was current when the function began."""
        if isinstance(node, ast.Name):
            values = [one.value for one in self.assigns if node.id in names(*one.targets)]
            if len(values) != 1:
                return False
            node = values[0]
        return (
            isinstance(node, ast.Call)
            and last_name(node.func).endswith("current_stream")
            and node.lineno not in self._lines_in_contexts
        )

    @cached_property
    def _lines_in_contexts(self) -> set[int]:
        ranges = (range(one.lineno, (one.end_lineno or one.lineno) + 1) for one in self.contexts)
        return {line for lines in ranges for line in lines}

    def same_as(self, copy: ast.Call) -> set[str]:
        """Returns the last names that the target of a copy, or its result, may go by."""
        found: set[str] = set()
        if isinstance(copy.func, ast.Attribute) and copy.func.attr == "copy_":
            found.add(holder(copy.func.value))
        for one in self.assigns:
            if one.lineno <= copy.lineno <= (one.end_lineno or one.lineno):
                found |= {name for target in one.targets for name in mentions(target)}
        return {name.rpartition(".")[2] for name in self.aliases(found)} - {"", "self"}

    def aliases(self, names: set[str], more: Sequence[set[str]] = ()) -> set[str]:
        """Returns dotted names with those that are a view or a part of the same, or may be.

        `more` are sets of names that stand for one thing.
        """
        found = set(names)
        grown = 0
        while grown < len(found):
            grown = len(found)
            for view in (*self.views, *more):
                if not found.isdisjoint(view):
                    found |= view
        return found

    @cached_property
    def views(self) -> list[set[str]]:
        """Names that are bound to a part or a view of one another, in sets."""
        return [
            {holder(one.value), *map(holder, bound)} - {""}
            for one in self.assigns
            # `a[rows] = b` copies values, and binds nothing.
            if (bound := [to for to in one.targets if not isinstance(to, ast.Subscript)])
            and (not isinstance(one.value, ast.Call) or isinstance(one.value.func, ast.Attribute))
        ]

    def non_blocking(self) -> Iterator[ast.Call]:
        """Yields the copies that are asked not to block."""
        for word in COPIES:
            for call in self.calls.get(word, ()):
                if any(one.arg == "non_blocking" for one in call.keywords):
                    yield call


def stream_words(node: ast.AST) -> StreamWords:
    """Returns a block's stream words; the rules that look at one block share them."""
    known: StreamWords | None = vars(node).get("stream_words")
    if known is None:
        # Kept by the node itself, so that they go with it.
        known = vars(node)["stream_words"] = StreamWords(node)
    return known


def outermost_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields the functions and methods of a block; not those within functions."""
    if isinstance(node, FUNCTIONS):
        yield node
        return
    for name in ("body", "orelse", "finalbody", "handlers"):
        inner = getattr(node, name, ())
        for statement in inner if isinstance(inner, list) else ():
            yield from outermost_functions(statement)


def last_name(node: ast.AST) -> str:
    """Returns `c` of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def names(*nodes: ast.AST) -> set[str]:
    """Returns the plain names in some nodes."""
    return {inner.id for node in nodes for inner in all_below(node) if isinstance(inner, ast.Name)}


def mentions(node: ast.AST) -> set[str]:
    """Returns the names and attributes below a node, `self` aside."""
    found = {last_name(inner) for inner in all_below(node)}
    return found - {"", "self"}


def holder(node: ast.AST) -> str:
    """Returns the dotted name of what an expression is, or is a part, half or view of."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            parts.clear()
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts.clear()
            node = node.func.value
        else:
            break
    while parts and parts[0] in HELD:
        del parts[0]
    return ".".join([last_name(node), *reversed(parts)])


def _pins(node: ast.AST) -> bool:
    """Tells whether an expression makes a pinned tensor."""
    if isinstance(node, ast.IfExp):
        return _pins(node.body) or _pins(node.orelse)
    if not isinstance(node, ast.Call):
        return False
    return last_name(node.func) == "pin_memory" or any(
        one.arg == "pin_memory" for one in node.keywords
    )


def _paths(context: ast.With) -> set[str]:
    """Returns the streams that a `with` enters, as dumps; none if one is no dotted name."""
    found: set[str] = set()
    for item in context.items:
        entered: ast.expr = item.context_expr
        if _enters_stream(entered):
            if isinstance(entered, ast.Call):
                entered = entered.args[0] if entered.args else entered.keywords[0].value
            if not _is_path(entered):
                return set()
            found.add(ast.dump(entered))
    return found


def _enters_stream(item: ast.expr) -> bool:
    if isinstance(item, ast.Call):
        return last_name(item.func) in ("stream", "StreamContext") and bool(
            item.args or item.keywords
        )
    return looks_like_context(last_name(item))
