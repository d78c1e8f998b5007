"""Read-backs: numbers that the host reads from tensors which are on the device for certain."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.devices.places import CertainPlaces
from fmcheck.lint.devices.syncs import Syncs
from fmcheck.lint.model.expressions import dotted, is_name, keywords, last_name, targets
from fmcheck.lint.model.names import ByVersion
from fmcheck.lint.model.steps import is_for_cpu, is_for_debugging, is_step
from fmcheck.lint.model.vocabulary import NUMBERS, REDUCTIONS, TRUTHS
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function

#: Methods and functions of torch whose result is one number of many.
_REDUCTIONS = REDUCTIONS | TRUTHS | {"argmin", "mean"}
#: Functions that make a tensor of what the host has.
_UPLOADS = frozenset({"torch.tensor", "torch.from_numpy", "torch.FloatTensor", "torch.LongTensor"})
#: Functions that make a tensor of numbers alone.
_RANGES = frozenset({"torch.arange", "torch.full", "torch.linspace", "torch.ones", "torch.zeros"})
#: What only says something.
_SAYS = regex(r"^(debug|info|warning|warn|warn_once|error|exception|log|log_\w+|print)$")
#: Tests for what does not come in each step, or not on a device.
_RARELY = regex(
    r"cpu|is_cuda|\.type\b|is None|is not None|captur|warm|first|init|dummy|empty|numel\(\)|"
    r"\bnot in [\w.]+$|not hasattr\(|is_compiling|tracing|scripting|export|fallback|deprecated|"
    r"check|valid|strict|assert",
    re.IGNORECASE,
)
#: What talks to other ranks, or asks what they have.
_TALKS = regex(r"^(all_?reduce|all_?gather|all_?to_?all|broadcast|reduce|recv|irecv|gather)")
#: Functions and methods that write none of their arguments.
_PURE = frozenset(
    (
        *("all", "any", "bool", "enumerate", "float", "int", "isinstance", "len", "list", "max"),
        *("min", "print", "range", "sorted", "str", "sum", "tuple", "zip"),
        *("div", "eq", "expand", "gather", "index_select", "mul", "repeat", "repeat_interleave"),
        *("reshape", "split", "sub", "to", "type", "type_as", "view", "where"),
    )
)
_DEEPEST = 12


class ReadBack(Struct, frozen=True):
    """A number that the host reads of `value`, a tensor.

    `is_length` tells that it is how often `value` repeats rows, `was_host` that the host has it.
    """

    node: CSTNode
    value: CSTNode
    is_length: bool = False
    was_host: bool = False


def read_backs(function: Function) -> Mapping[CSTNode, ReadBack]:
    """Returns by their nodes what a function that runs in each step reads back."""
    known: dict[Function, Mapping[CSTNode, ReadBack]]
    known = function.module.memo.setdefault("read backs", {})
    if function not in known:
        known[function] = {one.node: one for one in _certain(function)}
    return known[function]


def _certain(function: Function) -> Iterator[ReadBack]:
    if not is_step(function):
        return
    kinds = (cst.Call, cst.If, cst.While)
    candidates = ((node, _read_back(node, function)) for node in function.of(*kinds))
    read = [(node, found) for node, found in candidates if found is not None]
    # What is cheap to ask comes first: most steps read nothing back.
    if not read or _may_be_on_host(function):
        return
    places, origins = CertainPlaces(function), _Origins(function)
    inside: set[CSTNode] = set()
    for node, found in read:
        if node in inside or is_aside(found.node, function):
            continue
        if not places.on_device(found.value) or places.on_host(found.value):
            continue
        was_host = origins.was_host(found.value)
        if was_host or (_is_reduced(found) and not origins.comes_from_ranks(node)):
            inside.update(walk(found.node))
            yield ReadBack(found.node, found.value, found.is_length, was_host)


def waits_anyway(function: Function, reported: Iterable[CSTNode]) -> bool:
    """Tells whether the host may wait in a function even without the waits that are reported."""
    inside = {one for node in reported for one in walk(node)}
    return any(sync.certain and sync.node not in inside for sync in Syncs(function).all())


class _Origins:
    """Of which values of a function the host has had the numbers."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._known = ByVersion(function.names)

    def was_host(self, node: CSTNode, depth: int = 0) -> bool:
        """Tells whether a tensor was made of numbers of the host, and of nothing else."""
        if depth > _DEEPEST:
            return False
        if isinstance(node, cst.Name):
            return self._known.of(node, lambda: self._is_uploaded(node, depth))
        if isinstance(node, cst.Subscript):
            return self.was_host(node.value, depth + 1)
        if isinstance(node, cst.BinaryOperation):
            sides = (node.left, node.right)
            return any(self.was_host(one, depth + 1) for one in sides) and all(
                self.was_host(one, depth + 1) or isinstance(one, (cst.Integer, cst.Float))
                for one in sides
            )
        return isinstance(node, cst.Call) and self._called(node, depth + 1)

    def _is_uploaded(self, node: cst.Name, depth: int) -> bool:
        names = self._function.names
        values = names.bound(node)
        return (
            bool(values)
            and not names.is_given(node)
            and node.value not in self._changed
            and all(self.was_host(one, depth + 1) for one in values)
        )

    def _called(self, call: cst.Call, depth: int) -> bool:
        name = self._function.module.resolve(dotted(call.func) or "")
        if name in _UPLOADS:
            return True
        if name in _RANGES:
            return all(not self._is_tensor(one.value) for one in call.args)
        if not isinstance(call.func, cst.Attribute):
            return False
        held = call.func.value
        if is_name(held, "torch"):
            given = [one.value for one in call.args if one.keyword is None]
            return bool(given) and self.was_host(given[0], depth)
        others = [one.value for one in call.args if self._is_tensor(one.value)]
        return self.was_host(held, depth) and all(self.was_host(one, depth) for one in others)

    def _is_tensor(self, node: CSTNode) -> bool:
        """Tells whether an argument may be a tensor, as far as it is one that is called on."""
        return isinstance(node, cst.Call) and last_name(node.func) in _REDUCTIONS

    def comes_from_ranks(self, node: CSTNode) -> bool:
        """Tells whether what is read there came from other ranks."""
        names = {one.value for one in walk(node) if isinstance(one, cst.Name)}
        return any(
            _TALKS.match(last_name(call.func))
            and any(
                isinstance(one, cst.Name) and one.value in names
                for arg in call.args
                for one in walk(arg)
            )
            for call in self._function.calls
        )

    @cached_property
    def _changed(self) -> set[str]:
        """The names of what may be written after it was made: by a slice, in place, by a call."""
        found: set[str] = set()
        for node in self._function.nodes:
            for target in targets(node):
                if isinstance(target, cst.Subscript) and isinstance(target.value, cst.Name):
                    found.add(target.value.value)
            if not isinstance(node, cst.Call):
                continue
            word = last_name(node.func)
            held = node.func.value if isinstance(node.func, cst.Attribute) else None
            if isinstance(held, cst.Name) and word.endswith("_"):
                found.add(held.value)
            if not self._leaves_alone(node, word):
                found |= {
                    one.value for arg in node.args for one in walk(arg) if isinstance(one, cst.Name)
                }
        return found

    def _leaves_alone(self, call: cst.Call, word: str) -> bool:
        """Tells whether a call is known not to write what it is handed."""
        if any(arg.keyword is not None and arg.keyword.value == "out" for arg in call.args):
            return False
        name = self._function.module.resolve(dotted(call.func) or "")
        if name.startswith("torch."):
            return not name.startswith(("torch.distributed", "torch.ops")) and word[-1] != "_"
        return word in _PURE


def _is_reduced(found: ReadBack) -> bool:
    """Tells whether the number is one of many: an element by itself may be what is asked for."""
    value = found.value
    return (
        found.is_length
        or (isinstance(found.node, cst.Call) and last_name(found.node.func) in TRUTHS)
        or (isinstance(value, cst.Call) and last_name(value.func) in _REDUCTIONS)
    )


def _may_be_on_host(function: Function) -> bool:
    """Tells whether a function asks where its tensors are, or its class is one for a CPU."""
    return is_for_cpu(function) or any(
        one.attr.value in ("is_cuda", "is_cpu")
        or (one.attr.value == "type" and last_name(one.value) == "device")
        for one in function.of(cst.Attribute)
    )


def _read_back(node: CSTNode, function: Function) -> ReadBack | None:
    """Returns what a node reads, if it reads a number of a value."""
    if isinstance(node, (cst.If, cst.While)):
        return None if isinstance(node, cst.If) and _is_check(node) else _truth(node.test)
    if not isinstance(node, cst.Call):
        return None
    if last_name(node.func) == "repeat_interleave":
        return _repeated(node)
    if isinstance(node.func, cst.Attribute):
        is_read = node.func.attr.value == "item" and not node.args
        return ReadBack(node, _bound(node.func.value, function)) if is_read else None
    if len(node.args) == 1 and any(is_name(node.func, one) for one in NUMBERS):
        return ReadBack(node, _bound(node.args[0].value, function))
    return None


def _bound(value: CSTNode, function: Function) -> CSTNode:
    """Returns the reduction that a name stands for, or what was handed in."""
    bound = function.names.bound(value) if isinstance(value, cst.Name) else ()
    if len(bound) == 1 and isinstance(bound[0], cst.Call):
        return bound[0] if last_name(bound[0].func) in _REDUCTIONS else value
    return value


def _is_check(node: cst.If) -> bool:
    """Tells whether a test ends in an error or a message, and nothing else."""
    body = getattr(node.body, "body", ())
    lines = [
        one
        for line in body
        for one in (line.body if isinstance(line, cst.SimpleStatementLine) else (line,))
    ]
    return all(
        isinstance(one, cst.Raise)
        or (
            isinstance(one, cst.Expr)
            and isinstance(one.value, cst.Call)
            and _SAYS.match(last_name(one.value.func)) is not None
        )
        for one in lines
    )


def _stands_in(choice: cst.IfExp, function: Function) -> bool:
    """Tells whether this is `a if a else b`, whose `b` stands in for what is missing."""
    return function.part.code(choice.test) in function.part.code(choice.body)


def _truth(test: CSTNode) -> ReadBack | None:
    """Returns what `x.any()` or `torch.any(x)` reads where it is tested."""
    while isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        test = test.expression
    if not isinstance(test, cst.Call) or last_name(test.func) not in TRUTHS:
        return None
    if not isinstance(test.func, cst.Attribute):
        return None
    if is_name(test.func.value, "torch"):
        return ReadBack(test, test.args[0].value) if len(test.args) == 1 else None
    return ReadBack(test, test.func.value) if not test.args else None


def _repeated(call: cst.Call) -> ReadBack | None:
    if "output_size" in keywords(call):
        return None
    assert isinstance(call.func, (cst.Attribute, cst.Name))
    args = [one.value for one in call.args if one.keyword is None]
    is_torch = isinstance(call.func, cst.Name) or is_name(call.func.value, "torch")
    repeats = keywords(call).get("repeats") or next(iter(args[int(is_torch) :]), None)
    return None if repeats is None else ReadBack(call, repeats, is_length=True)


def is_aside(node: CSTNode, function: Function) -> bool:
    """Tells whether a node runs for a message or an error, or not in each step."""
    if is_for_debugging(node, function):
        return True
    inner = node
    while inner in function.parents and inner is not function.node:
        outer = function.parents[inner]
        if isinstance(outer, (cst.Raise, cst.Finally, cst.ExceptHandler, cst.Assert)):
            return True
        if isinstance(outer, cst.Call) and _SAYS.match(last_name(outer.func)):
            return True
        if isinstance(outer, (cst.If, cst.IfExp)) and (
            _RARELY.search(function.part.code(outer.test))
            or (isinstance(outer, cst.If) and inner is outer.test and _is_check(outer))
        ):
            return True
        if isinstance(outer, cst.Assign) and isinstance(outer.targets[0].target, cst.Attribute):
            return True
        if isinstance(outer, cst.IfExp) and inner is outer.orelse and _stands_in(outer, function):
            return True
        inner = outer
    return False
