"""Host buffers: the pinned tensors of a class or function, what writes them, what copies from them.

A copy to the device that does not block reads its source when it runs, not when it is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.lint.model.expressions import holder, last_name, literal_elements, receiver, targets
from fmcheck.lint.model.names import squeezed
from fmcheck.lint.model.streams import is_non_blocking
from fmcheck.lint.model.vocabulary import PARTS
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function
    from fmcheck.lint.model.streams import Streams
    from fmcheck.lint.source.module import Part

#: Methods of a tensor or array that set its values.
WRITES = frozenset(
    {
        *("copy_", "fill_", "zero_", "fill", "add_", "sub_", "mul_"),
        *("exponential_", "normal_", "random_", "uniform_"),
    }
)


@dataclass(frozen=True, slots=True)
class Touch:
    """A write of a host buffer by the host, or an asynchronous copy from it.

    `parts` are the (start, stop) of the slices that are touched, as texts; "" is an open end.
    """

    node: CSTNode
    buffer: str
    order: int
    parts: frozenset[tuple[str, str]]

    def may_meet(self, other: Touch) -> bool:
        """Tells whether both may touch one element: not if one starts where the other stops."""
        return any(
            not (mine[1] and mine[1] == theirs[0]) and not (theirs[1] and theirs[1] == mine[0])
            for mine in self.parts
            for theirs in other.parts
        )


class Pinned:
    """The pinned attributes of a class, by their paths, and the views that it keeps of them.

    A list or dict of pinned tensors is none: who makes several takes turns. Of what one of the
    `uploads` is called on, the host half is pinned.
    """

    def __init__(self, functions: Iterable[Function], uploads: Collection[str]) -> None:
        self._uploads = uploads
        #: The dotted names, local ones included, that a pinned tensor is bound to or held by.
        self.names: set[str] = set()
        #: Attributes that are bound to a view of one another, in sets.
        self.views: list[set[str]] = []
        self.learn(functions)

    def learn(self, functions: Iterable[Function]) -> None:
        """Takes in what some functions bind."""
        for function in functions:
            for node in function.nodes:
                self._note(node, function.part)

    def _note(self, node: CSTNode, part: Part) -> None:
        if type(node) is cst.Call and last_name(node.func) in self._uploads:
            self.names.add(holder(node))
        bound = targets(node)
        value = getattr(node, "value", None)
        if not bound or value is None:
            return
        if makes_pinned(value, part):
            self.names.update(map(holder, bound))
        # `a[rows] = b` copies values, and binds nothing.
        held = {holder(one) for one in bound if not isinstance(one, cst.Subscript)}
        if held and (not isinstance(value, cst.Call) or last_name(value.func) in PARTS):
            view = {*held, holder(value)} - {""}
            if len(view) > 1 and all(name.startswith("self.") for name in view):
                self.views.append(view)

    def attributes(self) -> set[str]:
        """Returns the pinned attributes."""
        return {name for name in self.names if name.startswith("self.")}

    def of(self, paths: Collection[str], streams: Streams) -> set[str]:
        """Returns the pinned buffers among some paths of a function: attributes or local names."""
        found: set[str] = set()
        for path in paths:
            values = streams.names.values(path)
            if "." not in path:
                found |= {path} if any(makes_pinned(one, streams.part) for one in values) else set()
            else:
                same = {path}.union(*(view for view in self.views if path in view))
                found |= same & self.attributes()
        return found

    def writes(self, streams: Streams) -> Iterator[Touch]:
        """Yields a function's writes of pinned buffers, in order."""
        for node, order in streams.order.items():
            for written in _written(node):
                yield from self._touches(node, written, order, streams)

    def copies(self, streams: Streams) -> Iterator[Touch]:
        """Yields a function's asynchronous copies from pinned buffers, in order."""
        for copy in streams.copies:
            yield from self._touches(copy.node, copy.source, copy.order, streams)
        for node, order in streams.order.items():
            if isinstance(node, cst.Call) and last_name(node.func) in self._uploads:
                source = receiver(node)
                if source is not None:  # a plain function of that name uploads what it is handed
                    yield from self._touches(node, source, order, streams)

    def _touches(
        self, node: CSTNode, touched: CSTNode, order: int, streams: Streams
    ) -> Iterator[Touch]:
        if any(isinstance(one, cst.Attribute) and one.attr.value == "gpu" for one in walk(touched)):
            return  # the device's half of a pair
        if any(isinstance(one, cst.FormattedString) for one in walk(touched)):
            return  # which entry of a dict that is, nobody knows
        code = streams.part.code
        parts = {
            (
                "" if one.start is None else squeezed(code(one.start)),
                "" if one.stop is None else squeezed(code(one.stop)),
            )
            for one in streams.names.regions(touched)
        }
        for buffer in self.of(streams.holders(touched), streams):
            yield Touch(node, buffer, order, frozenset(parts) or frozenset({("", "")}))


def makes_pinned(value: CSTNode, part: Part) -> bool:
    """Tells whether an expression makes one pinned tensor."""
    if isinstance(value, cst.IfExp):
        return makes_pinned(value.body, part) or makes_pinned(value.orelse, part)
    if not isinstance(value, cst.Call) or literal_elements(value) is not None:
        return False
    word = last_name(value.func)
    if word == "pin_memory":
        return True
    if word in ("to", "cuda", "partial"):
        return False
    return any(
        arg.keyword is not None
        and arg.keyword.value == "pin_memory"
        and last_name(arg.value) != "False"
        for arg in value.args
    )


def _is_named(target: cst.Subscript) -> bool:
    index = target.slice[0].slice if len(target.slice) == 1 else None
    return isinstance(index, cst.Index) and isinstance(index.value, cst.BaseString)


def _written(node: CSTNode) -> Iterator[CSTNode]:
    """Yields what the host writes in place by a statement or call."""
    if type(node) is cst.Assign:
        for target in node.targets:
            # An entry under a name is bound, not written.
            if isinstance(target.target, cst.Subscript) and not _is_named(target.target):
                yield target.target
    elif type(node) is cst.AugAssign:
        yield node.target
    elif type(node) is cst.Call:
        # An asynchronous copy into it comes from a device: its stream puts it in order.
        held = receiver(node) if last_name(node.func) in WRITES else None
        if held is not None and not is_non_blocking(node):
            yield held
        for arg in node.args:
            if arg.keyword is not None and arg.keyword.value == "out":
                yield arg.value
