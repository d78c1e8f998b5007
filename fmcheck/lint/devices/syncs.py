"""Syncs: which expressions of one function make the host wait for the device.

What a value lives on is told by its name (`seq_lens_cpu`), and by what it was made from. A value of
which nothing is known counts as the device's: who asks has said that the function runs every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.devices.host_words import is_named_host
from fmcheck.lint.model.expressions import dotted, keywords
from fmcheck.lint.model.names import ByVersion
from fmcheck.lint.model.vocabulary import NUMBERS, REDUCTIONS, TO_HOST, TRUTHS
from fmcheck.lint.source.globs import fits
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from fmcheck.lint.streams.function_streams import goes_to_host, is_non_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function

#: Methods and functions whose result is as long as the data say.
_DATA_SIZED = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"})
_UPLOADS = frozenset({"torch.tensor", "torch.as_tensor", "torch.from_numpy"})
_MAKES_TENSORS = frozenset(
    f"torch.{name}"
    for name in ("arange", "as_tensor", "empty", "full", "ones", "tensor", "zeros", "from_numpy")
)
#: What gives host values, whatever it is given.
_HOST_CALLS = frozenset({"len", "list", "dict", "range", "enumerate", "sorted", "str", "getattr"})
#: Annotations of what is on the host.
_ON_HOST = frozenset({"numpy.ndarray", "np.ndarray", "list", "int", "float", "bool", "str"})
_KEEPS_PLACE = 4


class Sync(Struct, frozen=True):
    """One expression at which the host waits: what it does, and what to write in its place.

    Where it is not `certain`, the device's driver decides whether the host waits.
    """

    node: CSTNode
    what: str
    instead: str
    certain: bool = True


class Syncs:
    """The syncs of one function. `host_values` are globs of names that live on the host.

    `mirrored` are globs of device values of which the host has a copy, named with `_cpu`.
    """

    def __init__(
        self,
        function: Function,
        host_values: Sequence[str] = (),
        mirrored: Sequence[str] = (),
    ) -> None:
        self._part = function.part
        self._host_values = host_values
        self._mirrored = mirrored
        self._names = function.names
        self._function = function
        self._written = {
            id(target.target) for node in function.of(cst.Assign) for target in node.targets
        }
        self._counters = set(_counters(function))
        #: Parameters that their annotation says to be of the host.
        self._arrays = set(_arrays(function))
        #: What names came to: a name may be bound a thousand times, to itself too.
        self._pageable = ByVersion(self._names)
        self._host_names = ByVersion(self._names)

    def all(self) -> Iterator[Sync]:
        """Yields the syncs in source order, but for those of a branch without overlap."""
        function = self._function
        seen = {id(inner) for branch in _not_overlapped(function) for inner in walk(branch)}
        kinds = (cst.Call, cst.Subscript, cst.If, cst.While, cst.Assert, cst.IfExp)
        for node in function.of(*kinds):
            if id(node) not in seen:
                for sync in self._at(node):
                    # What is below a reported call is part of it.
                    seen |= {id(inner) for inner in walk(sync.node)}
                    yield sync

    def _at(self, node: CSTNode) -> Iterator[Sync]:
        if isinstance(node, cst.Call):
            yield from self._call(node)
        elif isinstance(node, cst.Subscript):
            yield from self._subscript(node)
        elif isinstance(node, (cst.If, cst.While, cst.Assert, cst.IfExp)):
            yield from self._test(node.test)

    def _call(self, call: cst.Call) -> Iterator[Sync]:
        name = self._part.module.resolve(dotted(call.func) or "")
        if isinstance(call.func, cst.Attribute):
            yield from self._method(call, call.func.value, call.func.attr.value)
        if name in ("torch.tensor", "torch.as_tensor") and self._uploads(call):
            yield Sync(
                call,
                f"`{name}(..., device=...)` copies from pageable memory, and the host waits",
                "create it with `pin_memory=True` and use `.to(device, non_blocking=True)`",
            )
        elif name in ("torch.nonzero", "torch.argwhere", "torch.masked_select", "torch.unique"):
            yield self._data_sized(call, f"`{name}`")
        elif name == "torch.where" and len(call.args) == 1:
            yield self._data_sized(call, "`torch.where` of one argument")
        elif name in NUMBERS and len(call.args) == 1:
            yield from self._test(call.args[0].value, name)

    def _method(self, call: cst.Call, receiver: CSTNode, word: str) -> Iterator[Sync]:
        if word in TO_HOST and not call.args and not self._on_host(receiver):
            yield Sync(call, f"`.{word}()` waits for the device", _KEEP_ON_DEVICE)
        elif word == "to" and goes_to_host(call) and not self._on_host(receiver):
            if is_non_blocking(call):
                return  # PyTorch pins the target: whether it is read too soon is for FM404 to say
            yield Sync(
                call,
                '`.to("cpu")` copies to pageable memory, and the host waits',
                "`copy_` into a pinned buffer with `non_blocking=True`, record an event, and read "
                "it a step later",
            )
        elif word in ("to", "cuda") and is_non_blocking(call) and self._is_pageable(receiver):
            yield Sync(
                call,
                "`non_blocking=True` may still block: the source is not pinned",
                "create the source with `pin_memory=True`",
                certain=False,
            )
        elif word in _DATA_SIZED and not self._on_host(receiver) and not self._is_module(receiver):
            yield self._data_sized(call, f"`.{word}()`")

    def _data_sized(self, node: CSTNode, what: str) -> Sync:
        return Sync(
            node,
            f"{what} has a data-dependent size, which the host waits for",
            "keep the static shape: `torch.where(mask, values, other)`",
        )

    def _subscript(self, node: cst.Subscript) -> Iterator[Sync]:
        if id(node) in self._written or len(node.slice) != 1:
            return
        index = node.slice[0].slice
        if not isinstance(index, cst.Index) or self._on_host(node.value):
            return
        if self._is_mask(index.value):
            yield self._data_sized(node, "an index by a mask")
        elif isinstance(index.value, cst.Name) and index.value.value in self._counters:
            leaf = (dotted(node.value) or "").rpartition(".")[2]
            if self._has_mirror(leaf):
                yield Sync(
                    node,
                    f"one element of `{leaf}` on the host: a copy for each",
                    f"read `{leaf}_cpu`",
                )

    def _test(self, test: CSTNode, by: str = "a test") -> Iterator[Sync]:
        if isinstance(test, cst.BooleanOperation):
            yield from self._test(test.left, by)
            yield from self._test(test.right, by)
            return
        if isinstance(test, cst.NamedExpr):
            test = test.value
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            test = test.expression
        if not isinstance(test, cst.Call) or not isinstance(test.func, cst.Attribute):
            return
        held: CSTNode = test.func.value
        word = test.func.attr.value
        if test.args and self._part.module.resolve(dotted(test.func) or "") == f"torch.{word}":
            held = test.args[0].value  # `torch.any(mask)`
        reduces = word in TRUTHS or (by != "a test" and word in REDUCTIONS)
        if reduces and not self._on_host(held) and not self._is_module(held):
            what = by if by == "a test" else f"`{by}()`"
            yield Sync(test, f"{what} of `.{word}()` waits for the device", _KEEP_ON_DEVICE)

    def _has_mirror(self, leaf: str) -> bool:
        return fits(leaf, self._mirrored)

    def _is_mask(self, index: CSTNode) -> bool:
        if isinstance(index, cst.UnaryOperation) and isinstance(index.operator, cst.BitInvert):
            return True
        if isinstance(index, cst.Comparison):
            return True
        if isinstance(index, cst.Name):
            values = [one for one in self._names.bound(index) if not isinstance(one, cst.Name)]
            if values:
                return all(self._is_mask(one) for one in values)
        leaf = (dotted(index) or "").rpartition(".")[2]
        return "mask" in leaf.split("_")

    def _is_module(self, node: CSTNode) -> bool:
        name = self._part.module.resolve(dotted(node) or "")
        return name.partition(".")[0] in ("torch", "numpy", "np", "math")

    def _uploads(self, call: cst.Call) -> bool:
        """Tells whether a tensor is made from host values right on a device."""
        given = keywords(call)
        device = given.get("device")
        if device is None or "pin_memory" in given or not call.args:
            return False
        return not self._is_host_device(device) and not self._is_constant(call.args[0].value)

    def _is_constant(self, node: CSTNode) -> bool:
        return isinstance(node, (cst.Integer, cst.Float))

    def _is_host_device(self, device: CSTNode) -> bool:
        return "cpu" in self._part.code(device)

    def _is_pageable(self, node: CSTNode) -> bool:
        """Tells whether a value was just made in host memory that is not pinned."""
        if isinstance(node, cst.Name):
            return self._pageable.all(node, self._is_pageable)
        if not isinstance(node, cst.Call):
            return False
        name = self._part.module.resolve(dotted(node.func) or "")
        given = keywords(node)
        on_device = "device" in given and not self._is_host_device(given["device"])
        return name in _UPLOADS and "pin_memory" not in given and not on_device

    def _on_host(self, node: CSTNode, depth: int = 0) -> bool:
        """Tells whether a value is known to live on the host."""
        if depth > _KEEPS_PLACE:
            return False
        if isinstance(node, cst.Name):
            if is_named_host(node.value, self._host_values) or node.value in self._arrays:
                return True
            return self._host_names.all(node, lambda one: self._on_host(one, depth + 1), depth)
        if isinstance(node, cst.Attribute):
            holder = (dotted(node.value) or "").rpartition(".")[2]
            return is_named_host(node.attr.value, self._host_values, holder)
        if isinstance(node, cst.Subscript):
            return self._on_host(node.value, depth)
        if isinstance(node, cst.Call):
            return self._gives_host(node, depth)
        if isinstance(node, cst.Comparison):
            return self._on_host(node.left, depth)
        if isinstance(node, cst.BinaryOperation):
            return self._on_host(node.left, depth) and self._on_host(node.right, depth)
        if isinstance(node, cst.IfExp):
            return self._on_host(node.body, depth) and self._on_host(node.orelse, depth)
        return isinstance(
            node, (cst.Integer, cst.Float, cst.List, cst.ListComp, cst.Tuple, cst.SimpleString)
        )

    def _gives_host(self, call: cst.Call, depth: int) -> bool:
        name = self._part.module.resolve(dotted(call.func) or "")
        if name in _HOST_CALLS or name.startswith(("numpy.", "np.")):
            return True
        if name in _MAKES_TENSORS:
            device = keywords(call).get("device")
            return device is None or self._is_host_device(device)
        if isinstance(call.func, cst.Attribute):
            word = call.func.attr.value
            if word in TO_HOST or (word == "to" and goes_to_host(call)):
                return True
            # Any other method leaves a value where it is.
            return word not in ("to", "cuda") and self._on_host(call.func.value, depth + 1)
        return False


_KEEP_ON_DEVICE = "keep the value on the device, or read a copy that the host has already"


def _not_overlapped(function: Function) -> Iterator[CSTNode]:
    """Yields the branches that run where a switch called "overlap" is off."""
    for node in function.of(cst.If):
        test: CSTNode = node.test
        branch: CSTNode | None = node.orelse
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            test, branch = test.expression, node.body
        leaf = (dotted(test) or "").rpartition(".")[2]
        if branch is not None and "overlap" in leaf.split("_"):
            yield branch


def _arrays(function: Function) -> Iterator[str]:
    """Yields the parameters that are annotated as arrays, lists or numbers."""
    for param in walk(function.node.params):
        if isinstance(param, cst.Param) and param.annotation is not None:
            named = dotted(param.annotation.annotation) or ""
            if function.module.resolve(named) in _ON_HOST:
                yield param.name.value


def _counters(function: Function) -> Iterator[str]:
    """Yields the names that a `for` counts with."""
    loops: Sequence[cst.For | cst.CompFor] = (*function.of(cst.For), *function.of(cst.CompFor))
    for node in loops:
        if isinstance(node.iter, cst.Call):
            called = dotted(node.iter.func)
            target: CSTNode = node.target
            if called == "enumerate" and isinstance(target, cst.Tuple):
                target = target.elements[0].value
            if called in ("range", "enumerate") and isinstance(target, cst.Name):
                yield target.value
