"""Buffers: which tensor storage the expressions of one function name.

A name has versions: where it is used, it stands for what it may be bound to on the paths that lead
there (`bound`, `regions`). `values` is what it is bound to anywhere, whatever the order. Nested
functions are part of the one that holds them, and see every version.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fmcheck.lint.model.expressions import is_name, literal_elements
from fmcheck.lint.model.vocabulary import HELD, SAME_SHAPE, VIEWS
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set

    from libcst import CSTNode

    from fmcheck.lint.model.flow import Flow
    from fmcheck.lint.source.module import Part

#: Stands for any one element of a container, and for any attribute of an object.
ANY = "[*]"


class Region(Struct, frozen=True):
    """A stretch `[start:stop]` of the buffer at `path`; without bounds it is the whole buffer.

    `leaf` is the buffer's own name, the last part of `path`, and "" for what is no buffer, as the
    result of a call. `node` is where the slice is written. `cuts` are the subscripts that lead to
    it, those of each holder apart. Any other node among them makes a view, None any one element.
    """

    path: str
    leaf: str
    node: CSTNode
    start: CSTNode | None = None
    stop: CSTNode | None = None
    cuts: tuple[tuple[CSTNode | None, ...], ...] = ((),)

    @property
    def is_whole(self) -> bool:
        """Tells whether this is all of the buffer."""
        return self.start is None and self.stop is None

    @property
    def is_head(self) -> bool:
        """Tells whether this is `[:stop]`."""
        return self.start is None and self.stop is not None

    @property
    def is_tail(self) -> bool:
        """Tells whether this is `[start:]` or `[start:stop]`."""
        return self.start is not None

    def attribute(self, name: str, node: CSTNode) -> Region:
        """Returns the buffer that the object at this path holds as `name`."""
        return Region(f"{self.path}.{name}", name, node, cuts=(*self.cuts, ()))

    def element(self, node: CSTNode) -> Region:
        """Returns what stands for any element of the container at this path."""
        return Region(self.path + ANY, self.leaf + ANY if self.leaf else "", node, cuts=self.cuts)

    def cut_by(self, node: CSTNode | None) -> Region:
        """Returns this region, with one more that cuts it or looks at it in another shape."""
        *holders, own = self.cuts
        return replace(self, cuts=(*holders, (*own, node)))

    def may_be(self, other: Region) -> bool:
        """Tells whether this buffer may be the other, or hold it, if one function names both."""
        holder = self.path.removesuffix(ANY)
        if other.path.startswith((f"{holder}.", f"{holder}{ANY}")):
            return True
        if self.leaf != other.leaf:
            return False
        # What a call returned may be anybody's buffer.
        return self.path == other.path or "(" in self.path or "(" in other.path


class Regions:
    """Some regions, read once however many others are compared with them."""

    def __init__(self, regions: Iterable[Region]) -> None:
        self._stems: set[str] = set()
        self._paths: dict[str, set[str]] = defaultdict(set)
        self._returned: set[str] = set()
        for one in regions:
            self._stems.add(one.path.removesuffix(ANY))
            self._paths[one.leaf].add(one.path)
            if "(" in one.path:
                self._returned.add(one.leaf)

    def may_be(self, other: Region) -> bool:
        """Tells whether one of them may be the other, or hold it: see `Region.may_be`."""
        path, leaf = other.path, other.leaf
        if leaf in self._paths and (
            "(" in path or leaf in self._returned or path in self._paths[leaf]
        ):
            return True
        return any(
            path[:end] in self._stems
            for mark in (".", ANY)
            for end in range(len(path))
            if path.startswith(mark, end)
        )


class Binding(Struct, frozen=True):
    """What a name is bound to: `value`, or any element of it, or a column of any element.

    `node` is the statement or expression that binds it.
    """

    node: CSTNode
    value: CSTNode
    is_element: bool = False
    column: int | None = None


#: Expressions that are looked at to learn what one name may stand for: more are a maze.
MOST_STEPS = 100_000
#: What a name is bound to that often is compared: it may be one thing, said again and again.
_FEW = 8
#: More bindings of one name are all taken for what it stands for, wherever it is used.
_MOST_VERSIONS = 16
#: How far a name is followed, from one version to the one before.
_DEEPEST = 12
#: The nodes that bind a name, or grow what one is bound to.
_BINDING = frozenset(
    (
        *("AnnAssign", "AsName", "Assign", "AugAssign", "Call", "CompFor", "For", "Lambda"),
        *("NamedExpr", "Param"),
    )
)


class _Placed(Struct):
    """The bindings of one name, by where they hold.

    `inner` are those in nested functions: of another variable, or made who knows when. `in_step`
    are those of comprehensions, which end with their step. `own` is what binds the name in the
    function itself, in order, and `known` what that binds it to, as far as anything is known.
    """

    inner: list[Binding] = []
    in_step: list[Binding] = []
    own: Sequence[CSTNode] = ()
    known: dict[CSTNode, Binding] = {}


class Names:
    """The local names of one function and what each is bound to."""

    def __init__(self, nodes: Iterable[CSTNode], part: Part, flow: Callable[[], Flow]) -> None:
        self._part = part
        self._flow = flow
        self._parameters: set[str] = set()
        self._bindings: dict[str, list[Binding]] = defaultdict(list)
        self._grown: dict[str, list[CSTNode]] = defaultdict(list)
        self._values: dict[str, Sequence[CSTNode]] = {}
        self._alike: dict[CSTNode, list[CSTNode]] = {}
        self._differing: dict[str, Sequence[Binding]] = {}
        self._elements: dict[str, Sequence[CSTNode]] = {}
        #: What binds a name to something of which nothing is known.
        self._unknown: dict[str, list[CSTNode]] = defaultdict(list)
        self._lambdas: list[cst.Lambda] = []
        self._placed: dict[str, _Placed] = {}
        self._reaching: dict[tuple[str, int], tuple[Sequence[Binding], bool]] = {}
        self._steps = 0
        for node in nodes:
            if node.__class__.__name__ in _BINDING:
                self._note(node)

    def values(self, name: str) -> Sequence[CSTNode]:
        """Returns the expressions that are assigned to `name`."""
        if name not in self._values:
            bound = self._bindings.get(name, ())
            self._values[name] = [one.value for one in bound if not one.is_element]
        return self._values[name]

    def unlike(self, name: str) -> Sequence[CSTNode]:
        """Returns the same; of many expressions that are written alike, the first."""
        return [one.value for one in self._unlike(name) if not one.is_element]

    def is_looped(self, name: str) -> bool:
        """Tells whether a name stands for each element of a container in turn."""
        return any(one.is_element for one in self._bindings.get(name, ()))

    def _note(self, node: CSTNode) -> None:
        # By class: these are many of a function's nodes.
        if type(node) is cst.Call:
            self._note_growth(node)
        elif type(node) is cst.Param:
            self._parameters.add(node.name.value)
        elif type(node) is cst.Assign:
            for target in node.targets:
                self._bind(target.target, node.value, node)
        elif isinstance(node, (cst.AnnAssign, cst.NamedExpr)) and node.value is not None:
            self._bind(node.target, node.value, node)
        elif isinstance(node, cst.AsName):
            self._bind(node.name, None, node)
        elif isinstance(node, cst.Lambda):
            self._lambdas.append(node)
        elif isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Name):
            self._grown[node.target.value].extend(literal_elements(node.value) or ())
        elif isinstance(node, (cst.For, cst.CompFor)):
            for name, binding in _looped(node.target, node.iter, node):
                self._bindings[name].append(binding)

    def _note_growth(self, call: cst.Call) -> None:
        """Notes `names.append(x)` and `names.extend([x])`."""
        if not (isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.Name)):
            return
        if call.args and call.func.attr.value in ("append", "extend"):
            value = call.args[0].value
            is_one = call.func.attr.value == "append"
            grown = [value] if is_one else literal_elements(value) or ()
            self._grown[call.func.value.value].extend(grown)

    def _bind(self, target: CSTNode, value: CSTNode | None, node: CSTNode) -> None:
        if isinstance(target, cst.Name) and value is not None:
            self._bindings[target.value].append(Binding(node, value))
        elif isinstance(target, cst.Name):
            self._unknown[target.value].append(node)
        elif isinstance(target, (cst.Tuple, cst.List)):
            values = literal_elements(value) if value is not None else None
            known = values if values is not None and len(values) == len(target.elements) else ()
            for left, right in zip_longest(target.elements, known):
                self._bind(left.value, right, node)
        elif isinstance(target, cst.StarredElement):
            self._bind(target.value, None, node)

    def elements(self, node: CSTNode) -> Sequence[CSTNode] | None:
        """Returns the elements of a list that is built here, None for any other container."""
        if not isinstance(node, cst.Name):
            return literal_elements(node)
        if node.value not in self._elements:
            literals = [literal_elements(value) for value in self.values(node.value)]
            found: list[CSTNode] = [element for literal in literals for element in literal or ()]
            found += self._grown.get(node.value, ())
            firsts = self._firsts([Binding(one, one) for one in found])
            self._elements[node.value] = [one.value for one in firsts]
        return self._elements[node.value] or None

    def regions(self, node: CSTNode, seen: frozenset[CSTNode] = frozenset()) -> Sequence[Region]:
        """Returns every region that `node` may name: none, one, or one for each binding.

        Raises:
            RecursionError: if names are bound to one another in too many ways to follow.
        """
        if not seen:
            self._steps = 0
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise RecursionError("its names are bound to one another in too many ways")
        if isinstance(node, cst.Name):
            return self._named(node, seen)
        if isinstance(node, cst.Attribute):
            held = self.regions(node.value, seen)
            # `self.cpu` is no half of `self`, but an attribute like any other.
            is_half = node.attr.value in HELD and not is_name(node.value, "self")
            if is_half and any(one.leaf for one in held):
                return [one.cut_by(node) for one in held] if node.attr.value == "T" else held
            return [one.attribute(node.attr.value, node) for one in held if one.is_whole]
        if isinstance(node, cst.Subscript):
            return self._sliced(node, seen)
        if isinstance(node, cst.Call):
            return self._called(node, seen)
        if isinstance(node, cst.IfExp):
            return [*self.regions(node.body, seen), *self.regions(node.orelse, seen)]
        if isinstance(node, cst.BooleanOperation):
            return [*self.regions(node.left, seen), *self.regions(node.right, seen)]
        return ()

    def _named(self, node: cst.Name, seen: frozenset[CSTNode]) -> Sequence[Region]:
        name = node.value
        bindings, is_given = self._versions(node)
        found: list[Region] = []
        follows = len(seen) < _DEEPEST
        if is_given or not follows or not bindings or any(one.value in seen for one in bindings):
            found.append(Region(name, name if is_given else "", node))
        for binding in bindings if follows else ():
            if binding.value not in seen:
                found.extend(self._bound(binding, seen | {binding.value}))
        return found

    def bound(self, node: cst.Name) -> Sequence[CSTNode]:
        """Returns the expressions that may be the value of a name where it is used."""
        return [one.value for one in self._versions(node)[0] if not one.is_element]

    def is_given(self, node: cst.Name) -> bool:
        """Tells whether a name may still be what the caller gave, where it is used."""
        return self._versions(node)[1]

    def version(self, node: cst.Name) -> Hashable:
        """Returns what is the same wherever a name may be bound to the same."""
        bindings, is_given = self._versions(node)
        return node.value, is_given, *(one.value for one in bindings if not one.is_element)

    def _versions(self, node: cst.Name) -> tuple[Sequence[Binding], bool]:
        """Returns what a name may be where it is used, and whether a parameter may be it."""
        name = node.value
        every = self._bindings.get(name, ())
        begins = name in self._parameters
        count = len(every) + len(self._unknown.get(name, ())) + begins
        if count < 2:
            return every, begins
        if count > _MOST_VERSIONS:
            return self._unlike(name), begins
        flow = self._flow()
        if not flow.contains(node) or self._is_later(node, flow):
            return self._unlike(name), begins
        key = name, flow.position(node)
        if key not in self._reaching:
            self._reaching[key] = self._reaching_at(node, flow)
        return self._reaching[key]

    def _reaching_at(self, node: cst.Name, flow: Flow) -> tuple[Sequence[Binding], bool]:
        """Returns the bindings that no other one comes after on each path to a use."""
        placed, here = self._placed_of(node.value, flow), flow.position(node)
        in_step = [one for one in placed.in_step if flow.position(one.node) == here]
        own = placed.own
        before = [one for one in own if _is_before(one, node, flow)]
        last = next((one for one in reversed(before) if _is_passed(one, node, flow)), None)
        seen = before if last is None else before[before.index(last) :]
        # Another round of a loop may bring what comes later, unless it is bound again by then.
        again = [*flow.loops(node)]
        if last is not None:
            again = [loop for loop in again if loop not in _rounds(last, flow)]
        later = own[len(before) :] if again else []
        later = [one for one in later if not set(again).isdisjoint(_rounds(one, flow))]
        reaching = [placed.known[one] for one in (*seen, *later) if one in placed.known]
        found = [*placed.inner, *in_step, *reaching]
        return found, last is None and node.value in self._parameters

    def _placed_of(self, name: str, flow: Flow) -> _Placed:
        """Returns the bindings of a name by where they hold, worked out once for all its uses."""
        if name not in self._placed:
            placed = self._placed[name] = _Placed()
            for one in self._bindings.get(name, ()):
                if not flow.contains(one.node):
                    continue
                if isinstance(flow.step(one.node), cst.FunctionDef):
                    placed.inner.append(one)
                elif isinstance(one.node, cst.CompFor):
                    placed.in_step.append(one)
                else:
                    placed.known[one.node] = one
            own = [*placed.known, *filter(flow.contains, self._unknown.get(name, ()))]
            own = [one for one in own if not isinstance(flow.step(one), cst.FunctionDef)]
            placed.own = sorted(own, key=flow.position)
        return self._placed[name]

    def _is_later(self, node: CSTNode, flow: Flow) -> bool:
        """Tells whether a node stands in a nested function or a lambda, which runs later."""
        return isinstance(flow.step(node), (cst.FunctionDef, cst.ClassDef)) or (
            node in self._in_lambdas
        )

    @cached_property
    def _in_lambdas(self) -> Set[CSTNode]:
        return {node for one in self._lambdas for node in walk(one)}

    def _unlike(self, name: str) -> Sequence[Binding]:
        """Returns what a name is bound to; of many that are written alike, the first."""
        if name not in self._differing:
            self._differing[name] = self._firsts(self._bindings.get(name, ()))
        return self._differing[name]

    def _firsts(self, every: Sequence[Binding]) -> Sequence[Binding]:
        if len(every) <= _FEW:
            return every
        found: dict[tuple[str, bool, int | None], Binding] = {}
        for one in every:
            key = self._part.code(one.value), one.is_element, one.column
            first = found.setdefault(key, one)
            if first is not one:
                for node, its in zip(walk(first.value), walk(one.value), strict=False):
                    self._alike.setdefault(node, []).append(its)
        return [*found.values()]

    def alike(self, node: CSTNode) -> Sequence[CSTNode]:
        """Returns the nodes that are written alike and for which one stands, as in `unlike`."""
        return self._alike.get(node, ())

    def _bound(self, binding: Binding, seen: frozenset[CSTNode]) -> Iterator[Region]:
        if not binding.is_element:
            yield from self.regions(binding.value, seen)
            return
        elements = self.elements(binding.value)
        if elements is None:
            for one in self.regions(binding.value, seen):
                yield one.element(one.node).cut_by(None)
            return
        for element in elements:
            parts = literal_elements(element)
            if binding.column is None:
                yield from self.regions(element, seen)
            elif parts is not None and binding.column < len(parts):
                yield from self.regions(parts[binding.column], seen)

    def _sliced(self, node: cst.Subscript, seen: frozenset[CSTNode]) -> Sequence[Region]:
        base = self.regions(node.value, seen)
        inner = [element.slice for element in node.slice]
        slices = [one for one in inner if isinstance(one, cst.Slice)]
        indices = [one.value for one in inner if isinstance(one, cst.Index)]
        indices = [one for one in indices if not isinstance(one, cst.Ellipsis)]
        if len(indices) == 1 and not slices and all(one.is_whole for one in base):
            keys = self._keys(indices[0])
            if keys:
                return [one.attribute(key, node) for one in base for key in keys]
        base = [one.cut_by(node) for one in base]
        is_cut = bool(inner) and isinstance(inner[0], cst.Slice) and _is_bounded(inner[0])
        if indices and not is_cut:
            # `a[i]` is an element; `a[n:, 0]` is a column of the rows from n on.
            base = [one.element(node) for one in base]
        for one in slices:
            start, stop = (
                (None if _is_zero(one.lower) else _unbound(one.lower)),
                _unbound(one.upper),
            )
            if start is not None or stop is not None:
                return [replace(region, node=node, start=start, stop=stop) for region in base]
        return [replace(one, node=node) for one in base]

    def _keys(self, index: CSTNode) -> Sequence[str]:
        """Returns the strings that an index may be, if literals and loops over them say all."""
        if isinstance(index, cst.SimpleString):
            return [str(index.evaluated_value)]
        if not isinstance(index, cst.Name) or index.value in self._parameters:
            return ()
        found: list[CSTNode] = []
        for binding in self._bindings.get(index.value, ()):
            given = self.elements(binding.value) if binding.is_element else [binding.value]
            found += given or [binding.value]
        # A key that is not known may be any: to take it for a known one names another buffer.
        keys = [str(one.evaluated_value) for one in found if isinstance(one, cst.SimpleString)]
        return keys if len(keys) == len(found) else ()

    def _called(self, call: cst.Call, seen: frozenset[CSTNode]) -> Sequence[Region]:
        if isinstance(call.func, cst.Name) and call.func.value == "getattr" and len(call.args) > 1:
            held = self.regions(call.args[0].value, seen)
            keys = self._keys(call.args[1].value)
            if keys:
                return [one.attribute(key, call) for one in held for key in keys]
            return [one.element(call) for one in held]
        if is_name(call.func, "vars") and len(call.args) == 1:
            return self.regions(call.args[0].value, seen)
        if isinstance(call.func, cst.Attribute):
            word = call.func.attr.value
            args = [arg.value for arg in call.args]
            if word in VIEWS:
                held = self.regions(call.func.value, seen)
                return held if word in SAME_SHAPE else [one.cut_by(call) for one in held]
            if word == "get" and args and isinstance(args[0], cst.SimpleString):
                held = self.regions(call.func.value, seen)
                return [one.attribute(str(args[0].evaluated_value), call) for one in held]
            if word == "narrow" and len(args) == 3:
                held = [one.cut_by(call) for one in self.regions(call.func.value, seen)]
                if _is_zero(args[1]):
                    return [replace(one, node=call, stop=_unbound(args[2])) for one in held]
                return [replace(one, node=call, start=_unbound(args[1])) for one in held]
        return [Region(f"{self._part.code(call.func)}()", "", call)]


class ByVersion:
    """What the versions of names came to. One that is made of itself came to no."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[Hashable, bool] = {}

    def of(self, node: cst.Name, judge: Callable[[], bool], *key: Hashable) -> bool:
        """Returns what a name where it is used came to, judged once for each `key`."""
        version = self._names.version(node), *key
        if version not in self._known:
            self._known[version] = False
            self._known[version] = judge()
        return self._known[version]

    def all(self, node: cst.Name, judge: Callable[[CSTNode], bool], *key: Hashable) -> bool:
        """Tells whether something is known to be bound to a name, and all of it passes."""
        values = self._names.bound(node)
        return self.of(node, lambda: bool(values) and all(map(judge, values)), *key)


def _is_before(binding: CSTNode, use: CSTNode, flow: Flow) -> bool:
    """Tells whether a name is bound at a place, in the order of the source, before it is used."""
    first, then = flow.position(binding), flow.position(use)
    return first < then or (first == then and isinstance(binding, cst.NamedExpr))


def _is_passed(binding: CSTNode, use: CSTNode, flow: Flow) -> bool:
    """Tells whether every path to a use has passed a binding before it."""
    if isinstance(binding, cst.NamedExpr):
        return False  # a part of a test need not be reached
    if isinstance(binding, cst.For):
        return binding in flow.loops(use)
    return flow.encloses(binding, use)


def _rounds(binding: CSTNode, flow: Flow) -> Sequence[CSTNode]:
    """Returns the loops in each of whose rounds a name is bound."""
    loops = flow.loops(binding)
    return [*loops, binding] if isinstance(binding, cst.For) else loops


def _is_bounded(cut: cst.Slice) -> bool:
    return not _is_zero(cut.lower) or cut.upper is not None


def _unbound(node: CSTNode | None) -> CSTNode | None:
    """Returns the name of `(name := value)`, and anything else as it is."""
    return node.target if isinstance(node, cst.NamedExpr) else node


def _is_zero(node: CSTNode | None) -> bool:
    return node is None or (isinstance(node, cst.Integer) and node.value == "0")


def _looped(target: CSTNode, over: CSTNode, node: CSTNode) -> Iterator[tuple[str, Binding]]:
    """Yields the names of a `for` with what each is bound to."""
    func = over.func if isinstance(over, cst.Call) else None
    word = func.attr if isinstance(func, cst.Attribute) else func
    called = word.value if isinstance(word, cst.Name) else ""
    held = func.value if isinstance(func, cst.Attribute) else over
    if isinstance(target, cst.Name):
        yield target.value, Binding(node, held if called == "values" else over, is_element=True)
    elif isinstance(target, cst.Tuple):
        parts = [element.value for element in target.elements]
        args = [arg.value for arg in over.args] if isinstance(over, cst.Call) else []
        if called == "zip":
            for part, arg in zip(parts, args, strict=False):
                yield from _looped(part, arg, node)
        elif called == "enumerate" and args:
            yield from _looped(parts[-1], args[0], node)
        elif called == "items":
            yield from _looped(parts[-1], held, node)
        else:
            for column, part in enumerate(parts):
                if isinstance(part, cst.Name):
                    yield part.value, Binding(node, over, is_element=True, column=column)
