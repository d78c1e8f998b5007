"""Host buffers: the pinned tensors of a class or function, what writes them, what copies from them.

A copy to the device that does not block reads its source when it runs, not when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.model.expressions import (
    holder,
    is_entry,
    keywords,
    last_name,
    literal_elements,
    receiver,
    squeezed,
    targets,
)
from fmcheck.lint.model.vocabulary import PARTS, VIEWS
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from fmcheck.lint.streams.function_streams import is_non_blocking

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part
    from fmcheck.lint.streams.function_streams import FunctionStreams

#: Methods of a tensor or array that set its values.
WRITES = frozenset(
    {
        *("copy_", "fill_", "zero_", "fill", "add_", "sub_", "mul_"),
        *("exponential_", "normal_", "random_", "uniform_"),
    }
)


#: Those of the methods which return a part that return one view.
_VIEWS_OF_ONE = VIEWS | {"narrow", "select", "expand", "transpose"}
#: Functions that return the same memory as an array or a tensor.
_SHARING = frozenset({"asarray", "from_numpy", "as_tensor"})
#: How many names are looked through, one bound to another.
_MOST_NAMES = 8


class PinnedTouch(Struct, frozen=True):
    """A write of a host buffer by the host, or an asynchronous copy from it.

    `parts` are the (start, stop) of the slices that are touched, as texts; "" is an open end.
    """

    node: CSTNode
    buffer: str
    order: int
    parts: frozenset[tuple[str, str]]

    def may_meet(self, other: PinnedTouch) -> bool:
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
        #: What each attribute is bound to a view of.
        self._above: dict[str, set[str]] = {}
        #: The first attribute that each call which makes a pinned tensor is bound to.
        self._made: dict[CSTNode, str] = {}
        self.learn(functions)

    def learn(self, functions: Iterable[Function]) -> None:
        """Takes in what some functions bind."""
        self._found: dict[str, set[str]] = {}
        for function in functions:
            for node in function.nodes:
                self._note(node, function)

    def _note(self, node: CSTNode, function: Function) -> None:
        if type(node) is cst.Call:
            if last_name(node.func) in self._uploads:
                self.names.add(holder(node))
            if _makes_own(node, function.part):
                # What a constructor is handed by name is taken for a field of that name.
                for name, given in keywords(node).items():
                    self._bind({f"self.{name}"}, given, function)
        bound = targets(node)
        value = getattr(node, "value", None)
        if not bound or value is None:
            return
        if makes_pinned(value, function.part):
            self.names.update(map(holder, bound))
        # `a[rows] = b` copies values, and binds nothing.
        held = {holder(one) for one in bound if not isinstance(one, cst.Subscript)} - {""}
        if held:
            self._bind(held, value, function)

    def _bind(self, bound: set[str], value: CSTNode, function: Function) -> None:
        """Notes attributes and names that are bound to a value, or to a view of it."""
        for source in _sources(value, function):
            if makes_pinned(source, function.part):
                self._bind_made(bound, source)
            elif not isinstance(source, cst.Call):
                view = {*bound, holder(source)} - {""}
                if len(view) > 1 and all(name.startswith("self.") for name in view):
                    self.views.append(view)
                    for name in bound:
                        self._above.setdefault(name, set()).add(holder(source))

    def _bind_made(self, bound: set[str], source: CSTNode) -> None:
        """Notes what is bound to a pinned tensor; an attribute that comes later is a view."""
        kept = {name for name in bound if name.startswith("self.")}
        self.names |= bound - kept
        if kept:
            first = self._made.setdefault(source, min(kept))
            self.names |= kept if first in kept else set()
            self.views.append({first, *kept})

    def _same(self, path: str) -> set[str]:
        """Returns the attributes that one is a view of, or that are views of it."""
        above = {path}
        while more := {one for name in above for one in self._above.get(name, ())} - above:
            above |= more
        return above.union(*(view for view in self.views if path in view))

    def attributes(self) -> set[str]:
        """Returns the pinned attributes."""
        return {name for name in self.names if name.startswith("self.")}

    def of(self, paths: Collection[str], streams: FunctionStreams) -> set[str]:
        """Returns the pinned buffers among some paths of a function: attributes or local names."""
        found: set[str] = set()
        for path in paths:
            values = streams.names.unlike(path)
            if "." not in path:
                found |= {path} if any(makes_pinned(one, streams.part) for one in values) else set()
            else:
                if path not in self._found:
                    self._found[path] = self._same(path) & self.attributes()
                found |= self._found[path]
        return found

    def writes(self, streams: FunctionStreams) -> Iterator[PinnedTouch]:
        """Yields a function's writes of pinned buffers, in order."""
        for node, order in streams.order.items():
            for written in _written(node):
                yield from self._touches(node, written, order, streams)

    def copies(self, streams: FunctionStreams) -> Iterator[PinnedTouch]:
        """Yields a function's asynchronous copies from pinned buffers, in order."""
        for copy in streams.copies:
            yield from self._touches(copy.node, copy.source, copy.order, streams)
        for node, order in streams.order.items():
            if isinstance(node, cst.Call) and last_name(node.func) in self._uploads:
                source = receiver(node)
                if source is not None:  # a plain function of that name uploads what it is handed
                    yield from self._touches(node, source, order, streams)

    def _touches(
        self, node: CSTNode, touched: CSTNode, order: int, streams: FunctionStreams
    ) -> Iterator[PinnedTouch]:
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
            yield PinnedTouch(node, buffer, order, frozenset(parts) or frozenset({("", "")}))


def makes_pinned(value: CSTNode, part: Part) -> bool:
    """Tells whether an expression makes one pinned tensor."""
    if isinstance(value, cst.IfExp):
        return makes_pinned(value.body, part) or makes_pinned(value.orelse, part)
    if not isinstance(value, cst.Call) or literal_elements(value) is not None:
        return False
    word = last_name(value.func)
    if word == "pin_memory":
        return True
    held = receiver(value)
    if word in _VIEWS_OF_ONE and held is not None:
        return makes_pinned(held, part)
    if word in ("to", "cuda", "partial"):
        return False
    return any(
        arg.keyword is not None
        and arg.keyword.value == "pin_memory"
        and last_name(arg.value) != "False"
        for arg in value.args
    )


def _makes_own(call: cst.Call, part: Part) -> bool:
    """Tells whether a call makes an object of the class that it stands in."""
    family = part.stretch.family
    if family is None or not family.is_class or not part.is_nested:
        return False
    return isinstance(call.func, cst.Name) and call.func.value in ("cls", family.name)


def _sources(value: CSTNode, function: Function, depth: int = 0) -> Iterator[CSTNode]:
    """Yields what a value is, or is a view of, a name that stands for one other thing replaced."""
    if isinstance(value, cst.IfExp):
        yield from _sources(value.body, function, depth)
        yield from _sources(value.orelse, function, depth)
    elif isinstance(value, cst.Call) and last_name(value.func) in PARTS:
        yield from _sources(receiver(value) or value.func, function, depth)
    elif isinstance(value, cst.Call) and last_name(value.func) in _SHARING and value.args:
        yield from _sources(value.args[0].value, function, depth)
    elif isinstance(value, cst.Subscript) and isinstance(value.value, cst.Call):
        yield from _sources(value.value, function, depth)
    else:
        bound: Sequence[CSTNode] = ()
        if isinstance(value, cst.Name) and not function.names.is_given(value):
            bound = function.names.bound(value)
        if len(bound) == 1 and depth < _MOST_NAMES:
            yield from _sources(bound[0], function, depth + 1)
        else:
            yield value


def _written(node: CSTNode) -> Iterator[CSTNode]:
    """Yields what the host writes in place by a statement or call."""
    if type(node) is cst.Assign:
        for target in node.targets:
            # An entry under a name is bound, not written.
            if isinstance(target.target, cst.Subscript) and not is_entry(target.target):
                yield target.target
    elif type(node) is cst.AugAssign:
        yield node.target
    elif type(node) is cst.Call:
        # An asynchronous copy into it comes from a device: its stream puts it in order.
        held = receiver(node) if last_name(node.func) in WRITES else None
        if held is not None and not is_non_blocking(node):
            yield held
        if last_name(node.func) == "copyto" and node.args:
            yield node.args[0].value
        for arg in node.args:
            if arg.keyword is not None and arg.keyword.value == "out":
                yield arg.value
