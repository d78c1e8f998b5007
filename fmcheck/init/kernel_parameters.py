"""Kernels: which parameters a function reads or writes by which rows, Triton's included."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.lint.model.expressions import dotted, last_name, targets
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fmcheck.init.engine_tree import EngineTree, FunctionPlace


#: Words of the names of parameters that hold rows: a kernel loads sizes and offsets as well.
_INDEX = re.compile(r"(^|_)(idx|idxs|index|indices|indexes|row|rows|slot|slots|map|mapping)(_|$)")


@dataclass(frozen=True)
class RowsUse:
    """A function reads or writes the parameter `tensor` by the rows in the parameter `rows`."""

    tensor: str
    rows: str
    is_write: bool
    is_kernel: bool


def uses(tree: EngineTree, place: FunctionPlace) -> Sequence[RowsUse]:
    """Returns what a function does by rows with its parameters, in itself or in a Triton kernel."""
    memo: dict[str, Sequence[RowsUse]] = tree.__dict__.setdefault("uses", {})
    if place.name not in memo:
        memo[place.name] = list(dict.fromkeys((*_plain(place), *_launched(tree, place))))
    return memo[place.name]


def _plain(place: FunctionPlace) -> Iterator[RowsUse]:
    """Yields `tensor[rows]` of two parameters."""
    parameters = set(place.function.parameters)
    nodes = place.function.nodes
    written = {id(one) for node in nodes for one in targets(node)}
    compiled = is_compiled(place)
    for node in nodes:
        if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name):
            chosen = node.slice[0].slice
            if isinstance(chosen, cst.Index) and isinstance(chosen.value, cst.Name):
                tensor, rows = node.value.value, chosen.value.value
                if {tensor, rows} <= parameters:
                    yield RowsUse(tensor, rows, id(node) in written, compiled)


def is_compiled(place: FunctionPlace) -> bool:
    """Tells whether a function is compiled: by a decorator, or by `torch.compile` of its name."""
    texts = [place.code(one.decorator) for one in place.function.node.decorators]
    if any("compile" in one or "jit" in one for one in texts):
        return True
    handed = rf"compile\w*\(\s*{place.function.name}\b"
    return re.search(handed, place.source.text) is not None


def _launched(tree: EngineTree, place: FunctionPlace) -> Iterator[RowsUse]:
    """Yields the same for parameters that are handed to a kernel: `kernel[grid](...)`."""
    parameters = set(place.function.parameters)
    for call in place.function.calls:
        if not (isinstance(call.func, cst.Subscript) and isinstance(call.func.value, cst.Name)):
            continue
        for kernel in tree.defining(call.func.value.value):
            given = _handed(call, kernel, parameters)
            for tensor, rows, is_write in _addressed(kernel):
                if tensor in given and rows in given:
                    yield RowsUse(given[tensor], given[rows], is_write, True)


def _handed(call: cst.Call, kernel: FunctionPlace, parameters: set[str]) -> Mapping[str, str]:
    """Returns which parameter of the caller each parameter of a kernel is."""
    found: dict[str, str] = {}
    names = iter(kernel.function.parameters)
    for one in call.args:
        name = one.keyword.value if one.keyword is not None else next(names, "")
        root = (dotted(one.value) or "").partition(".")[0]
        if root in parameters:
            found[name] = root
    return found


def _addressed(kernel: FunctionPlace) -> Iterator[tuple[str, str, bool]]:
    """Yields pointers whose address a kernel computes from what another pointer holds.

    Each is a pair of parameters, and whether the first is stored to: `tl.load(tensor + tl.load(rows
    + i))`, with any number of names between.
    """
    addresses = _Addresses(kernel)
    for call in kernel.function.calls:
        word = last_name(call.func)
        if word in ("load", "store") and call.args:
            pointers, loaded = addresses.of(call.args[0].value)
            for tensor in sorted(pointers - loaded):
                for rows in sorted(filter(_INDEX.search, loaded)):
                    yield tensor, rows, word == "store"


class _Addresses:
    """What the addresses in one kernel are computed of."""

    def __init__(self, kernel: FunctionPlace) -> None:
        self.parameters = set(kernel.function.parameters)
        self._bound: dict[str, list[cst.BaseExpression]] = {}
        self._known: dict[str, tuple[set[str], set[str]]] = {}
        for node in kernel.function.nodes:
            if (
                isinstance(node, (cst.Assign, cst.AnnAssign, cst.NamedExpr))
                and node.value is not None
            ):
                for target in targets(node):
                    if isinstance(target, cst.Name):
                        self._bound.setdefault(target.value, []).append(node.value)

    def of(self, node: cst.CSTNode) -> tuple[set[str], set[str]]:
        """Returns the parameters that a node is computed of, and those whose values are loaded."""
        direct: set[str] = set()
        loaded: set[str] = set()
        for inner in _outside_loads(node):
            if isinstance(inner, cst.Call):
                pointers, deeper = self.of(inner.args[0].value)
                loaded |= pointers | deeper
            elif isinstance(inner, cst.Name):
                pointers, deeper = self._named(inner.value)
                direct |= pointers
                loaded |= deeper
        return direct, loaded

    def _named(self, name: str) -> tuple[set[str], set[str]]:
        if name in self.parameters:
            return {name}, set()
        if name not in self._known:
            self._known[name] = set(), set()  # for what is computed of itself
            found = [self.of(value) for value in self._bound.get(name, ())]
            self._known[name] = (
                set().union(*(one for one, _ in found)),
                set().union(*(one for _, one in found)),
            )
        return self._known[name]


def _outside_loads(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yields the names of an expression, and its loads, but nothing inside of these."""
    inside: set[int] = set()
    for inner in walk(node):
        if id(inner) in inside:
            continue
        if isinstance(inner, cst.Call) and last_name(inner.func) == "load" and inner.args:
            inside |= {id(one) for one in walk(inner)}
            yield inner
        elif isinstance(inner, cst.Name):
            yield inner


def is_launcher(place: FunctionPlace) -> bool:
    """Tells whether a function launches a Triton kernel: `kernel[grid](...)`."""
    return any(_is_launch(call) for call in place.function.calls)


def is_conditional(tree: EngineTree, place: FunctionPlace) -> bool:
    """Tells whether a kernel that a function launches has an `if`, and so may skip rows."""
    for call in place.function.calls:
        launched = call.func.value if isinstance(call.func, cst.Subscript) else None
        for kernel in tree.defining(dotted(launched) or "") if launched is not None else ():
            if any(isinstance(node, cst.If) for node in kernel.function.nodes):
                return True
    return False


def _is_launch(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Subscript) and isinstance(call.func.value, cst.Name)
