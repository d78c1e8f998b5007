"""Accesses: where one function gathers from relay buffers, and where it writes to them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.model.expressions import dotted, keywords, last_name, squeezed
from fmcheck.lint.model.relays import ROW_METHODS, ROW_WRITES, Relays
from fmcheck.lint.model.vocabulary import OVERWRITES
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function

#: The nodes that bind what touches a buffer, or say what an index is.
_NOTED = frozenset(("AnnAssign", "Assign", "AugAssign", "Call", "CompFor", "Del", "For", "Slice"))


class RelayAccess(Struct, frozen=True):
    """One gather from a relay buffer, or one write to it, by the rows `index`.

    `index` is the rows' source without spaces, names that stand for others replaced. `node` is the
    whole read, or the whole target. `value` is what is written, `bound` the text of what a gather
    is assigned to. `is_declared` is False for a buffer that only looks like its siblings.
    """

    buffer: str
    index: str
    node: CSTNode
    is_write: bool
    is_declared: bool = True
    is_opaque: bool = False
    value: CSTNode | None = None
    bound: tuple[str, ...] = ()

    @property
    def is_constant(self) -> bool:
        """Tells whether one constant is written: rows are invalidated, or put back to a start."""
        value = self.value
        if isinstance(value, cst.UnaryOperation):
            value = value.expression
        if isinstance(value, cst.Name):
            return bool(value.value.isupper())
        return isinstance(value, (cst.Integer, cst.Float))


def accesses_of(function: Function, relays: Relays) -> Accesses:
    """Returns the accesses of a function, worked out once for all rules that have its relays."""
    known: dict[object, Accesses] = function.module.memo.setdefault("accesses", {})
    key = function, relays.key
    if key not in known:
        known[key] = Accesses(function, relays)
    return known[key]


class Accesses:
    """The gathers and writes of relay buffers in one function, in source order.

    Buffers that only look like declared ones count where a declared one is named beside them.
    """

    def __init__(self, function: Function, relays: Relays) -> None:
        self.function = function
        self._part = function.part
        self._relays = relays
        self.names = function.names
        self._written: dict[CSTNode, CSTNode | None] = {}
        self._bound: dict[CSTNode, tuple[str, ...]] = {}
        self._overwritten: set[CSTNode] = set()
        self._bounds: set[str] = set()
        self._counters: set[str] = set()
        self._names_buffers = any(
            relays.declares(one.attr.value) for one in function.of(cst.Attribute)
        )
        for node in function.nodes:
            if node.__class__.__name__ in _NOTED:
                self._note(node)
        subscripts = function.of(cst.Subscript)
        found = [access for node in subscripts for access in self._subscript(node)]
        found += [access for node in function.calls for access in self._call(node)]
        self.all: Sequence[RelayAccess] = sorted(found, key=lambda one: function.order[one.node])

    @cached_property
    def gathers(self) -> Sequence[RelayAccess]:
        """The reads of rows."""
        return [one for one in self.all if not one.is_write]

    @cached_property
    def writes(self) -> Sequence[RelayAccess]:
        """The writes of rows."""
        return [one for one in self.all if one.is_write]

    def guards(self, index: str) -> Mapping[cst.Call, Sequence[cst.Call]]:
        """Returns the calls that are handed a relay buffer and these rows, and are no gather.

        So are calls of a function that makes such calls with the rows that it is handed: each
        stands here with those that it makes.
        """
        return self._every_guard.get(index, {})

    @cached_property
    def _every_guard(self) -> Mapping[str, Mapping[cst.Call, Sequence[cst.Call]]]:
        found: dict[str, dict[cst.Call, Sequence[cst.Call]]] = {}
        for index, guards in self._guards.items():
            found[index] = dict.fromkeys(guards, ())
        for call in self.function.calls:
            callee = self.function.called(call) if call.args else None
            inner = accesses_of(callee, self._relays) if callee is not None else None
            for name, value in callee.takes(call) if callee is not None else ():
                if inner is not None and name in inner._guards:
                    found.setdefault(self.index_text(value), {})[call] = inner._guards[name]
        return found

    @cached_property
    def _guards(self) -> Mapping[str, Sequence[cst.Call]]:
        found: dict[str, list[cst.Call]] = {}
        for call in self.function.calls:
            word = last_name(call.func)
            if word in ROW_METHODS or word == "embedding" or self._relays.is_opaque(word):
                continue
            values = [argument.value for argument in call.args]
            if any(self._is_relay(one) for one in values):
                for index in dict.fromkeys(map(self.index_text, values)):
                    found.setdefault(index, []).append(call)
        return found

    def index_text(self, node: CSTNode) -> str:
        """Returns the source of an index, a name that stands for one other thing replaced by it."""
        seen: set[str] = set()
        while isinstance(node, cst.Name) and node.value not in seen:
            seen.add(node.value)
            values = self.names.bound(node)
            if len(values) != 1 or not isinstance(values[0], (cst.Name, cst.Attribute)):
                break
            node = values[0]
        return squeezed(self._part.code(node))

    def _note(self, node: CSTNode) -> None:
        if isinstance(node, cst.Assign):
            targets = [target.target for target in node.targets]
            for target in targets:
                for inner in _unpacked(target):
                    self._written[inner] = node.value
            self._bind(node.value, targets)
        elif isinstance(node, (cst.AugAssign, cst.AnnAssign)):
            self._written[node.target] = node.value
            if node.value is not None:
                self._bind(node.value, [node.target])
        elif isinstance(node, cst.Del):
            self._written[node.target] = None
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value in OVERWRITES:
                self._overwritten.add(node.func.value)
        elif isinstance(node, cst.Slice):
            bounds = (one for one in (node.lower, node.upper) if isinstance(one, cst.Name))
            self._bounds.update(one.value for one in bounds)
        elif isinstance(node, (cst.For, cst.CompFor)) and isinstance(node.iter, cst.Call):
            first = next(_unpacked(node.target), None)
            if last_name(node.iter.func) in ("enumerate", "range") and isinstance(first, cst.Name):
                self._counters.add(first.value)

    def _bind(self, value: CSTNode, targets: Iterable[CSTNode]) -> None:
        texts = tuple(squeezed(self._part.code(target)) for target in targets)
        for inner in walk(value):
            self._bound[inner] = texts

    def _subscript(self, node: cst.Subscript) -> Iterator[RelayAccess]:
        index = node.slice[0].slice if node.slice else None
        if not isinstance(index, cst.Index) or self._is_one_row(index.value):
            return
        if node in self._overwritten:
            return  # `buf[row].zero_()` reads nothing; of several rows it writes to a copy
        is_write = node in self._written
        if is_write and self._written[node] is None:
            return
        if (
            not is_write
            and isinstance(index.value, cst.Name)
            and index.value.value in self._counters
        ):
            return  # one row in each round of a loop, as a dump reads them
        for buffer, declared in self._relay_buffers(node.value):
            yield RelayAccess(
                buffer,
                self.index_text(index.value),
                node,
                is_write,
                declared,
                value=self._written.get(node),
                bound=self._bound.get(node, ()),
            )

    def _is_one_row(self, index: CSTNode) -> bool:
        if isinstance(index, cst.UnaryOperation):
            index = index.expression
        if isinstance(index, cst.Name):
            # What bounds a slice is one number.
            return index.value == "None" or index.value in self._bounds
        return isinstance(index, (cst.Integer, cst.SimpleString, cst.Ellipsis))

    def _call(self, call: cst.Call) -> Iterator[RelayAccess]:
        word = last_name(call.func)
        values = [argument.value for argument in call.args]
        if isinstance(call.func, cst.Attribute):
            holder, taken = self._by_rows(call, call.func.value, word, values)
            if taken is not None:
                value = values[-1] if word in ROW_WRITES else None
                for buffer, declared in self._relay_buffers(holder):
                    yield RelayAccess(
                        buffer,
                        self.index_text(taken),
                        call,
                        word in ROW_WRITES,
                        declared,
                        value=value,
                        bound=self._bound.get(call, ()),
                    )
        rows = self._relays.opaque_reads(word)
        if rows is not None:
            index = self._rows_of(call, rows)
            for value in values:
                for buffer, declared in self._relay_buffers(value):
                    bound = self._bound.get(call, ())
                    yield RelayAccess(
                        buffer, index, call, False, declared, is_opaque=True, bound=bound
                    )

    def _by_rows(
        self, call: cst.Call, receiver: CSTNode, word: str, values: Sequence[CSTNode]
    ) -> tuple[CSTNode, CSTNode | None]:
        """Returns the buffer that a method or function of torch takes, and the rows of it."""
        name = self._part.module.resolve(dotted(call.func) or "")
        if name in ("torch.nn.functional.embedding", "F.embedding") and len(values) > 1:
            return values[1], values[0]
        position = ROW_METHODS.get(word)
        if name == f"torch.{word}" and values:
            receiver, values = values[0], values[1:]
        if position is None or len(values) <= position:
            return receiver, None
        given = keywords(call)
        return receiver, given.get("index") or given.get("indices") or values[position]

    def _rows_of(self, call: cst.Call, rows: str) -> str:
        """Returns the rows that a kernel is handed: by keyword, or the first that is no buffer."""
        for argument in call.args:
            if argument.keyword is not None and argument.keyword.value == rows:
                return self.index_text(argument.value)
        others = [one.value for one in call.args if not self._is_relay(one.value)]
        return self.index_text(others[0]) if others else ""

    def _is_relay(self, node: CSTNode) -> bool:
        return any(True for _ in self._relay_buffers(node))

    def _relay_buffers(self, node: CSTNode) -> Iterator[tuple[str, bool]]:
        found: dict[str, bool] = {}
        for region in self.names.regions(node):
            declared = self._relays.buffer(region, self._part.identity)
            if declared or (declared is False and self._names_buffers):
                found[region.leaf] = bool(declared)
        yield from found.items()


def _unpacked(target: CSTNode) -> Iterator[CSTNode]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _unpacked(element.value)
    else:
        yield target
