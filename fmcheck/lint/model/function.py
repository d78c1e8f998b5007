"""Functions: what one function does, worked out once for all rules, and only what one asks for."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from fmcheck.lint.model.expressions import (
    dotted,
    is_name,
    last_name,
    literal_elements,
    targets,
)
from fmcheck.lint.model.flow import Flow
from fmcheck.lint.model.names import Names
from fmcheck.lint.model.vocabulary import CLASS
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.neighbours import neighbours_of
from fmcheck.lint.source.walking import children, walk
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fmcheck.lint.source.module import Family, Module, Part

T = TypeVar("T", bound="cst.CSTNode")

#: How many names of one thing are followed, one from another.
_MOST_ALIASES = 3
_DOTTED = regex(r"[\w.]*")
#: Annotations of what may be missing.
_OPTIONAL = regex(r"(?:\w+\.)?Optional\[([\w.]+)\]|([\w.]+) *\| *None")
#: How many classes are looked through, one derived from another.
_MOST_BASES = 8
#: Bases outside of the package that hide nothing.
_BARE = frozenset({"ABC", "Generic", "Module", "Protocol", "object"})


class Function:
    """One function or method; what is nested in it is part of it."""

    def __init__(self, node: cst.FunctionDef, part: Part) -> None:
        self.node = node
        self.part = part
        #: Whether each call of it waits on the host, as `effects.py` finds it.
        self.waits: bool | None = None
        #: Whether a call of it may order streams, or wait.
        self.orders: bool | None = None
        #: Whether its streams are being worked out for one that enters it.
        self.entering = False

    @property
    def module(self) -> Module:
        """The module that it is in."""
        return self.part.module

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name.value

    @cached_property
    def nodes(self) -> Sequence[cst.CSTNode]:
        """Every node of its body, in the order of the source."""
        every = self._every
        return every[every.index(self.node.body) :]

    @cached_property
    def _every(self) -> Sequence[cst.CSTNode]:
        return self.part.nodes() if self.node is self.part.node else walk(self.node)

    @cached_property
    def order(self) -> Mapping[cst.CSTNode, int]:
        """The place of each node among them."""
        return {node: order for order, node in enumerate(self.nodes)}

    def end(self, node: cst.CSTNode) -> int:
        """Returns the place after that of the last node below another one."""
        return self._ends[node]

    @cached_property
    def _ends(self) -> Mapping[cst.CSTNode, int]:
        found: dict[cst.CSTNode, int] = {}
        for node in reversed(self.nodes):  # of what is below a node, the last comes first
            found.setdefault(self.parents[node], found.setdefault(node, self.order[node] + 1))
        return found

    @cached_property
    def named(self) -> Mapping[str, Sequence[cst.CSTNode]]:
        """Where it names each thing, by the dotted name, in order."""
        found: dict[str, list[cst.CSTNode]] = {}
        for node in self.nodes:
            name = dotted(node)
            if name is not None:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def bindings(self) -> Mapping[str, Sequence[cst.CSTNode]]:
        """What gives each thing a value, by its dotted name: assignments and walruses, in order."""
        found: dict[str, list[cst.CSTNode]] = {}
        for node in self.nodes:
            for target in targets(node):
                name = dotted(target)
                if name is not None:
                    found.setdefault(name, []).append(node)
        return found

    def of(self, *kinds: type[T]) -> Sequence[T]:
        """Returns the nodes of its body that are of some classes, in the order of the source."""
        found = [node for kind in kinds for node in self._by_class.get(kind, ())]
        return sorted(found, key=self.order.__getitem__) if len(kinds) > 1 else found

    @cached_property
    def _by_class(self) -> Mapping[type, Sequence[Any]]:
        found: dict[type, list[Any]] = {}
        for node in self.nodes:
            found.setdefault(type(node), []).append(node)
        return found

    @cached_property
    def calls(self) -> Sequence[cst.Call]:
        """Every call of its body."""
        return self.of(cst.Call)

    def calls_of(self, *names: str) -> Iterator[cst.Call]:
        """Yields its calls of functions with these dotted names, imports looked through."""
        for call in self.calls:
            if self.module.resolve(dotted(call.func) or "") in names:
                yield call

    @property
    def parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        """What each node stands in."""
        return self.part.parents

    @cached_property
    def names(self) -> Names:
        """What its local names are bound to."""
        return Names(self._every, self.part, lambda: self.flow)

    @cached_property
    def flow(self) -> Flow:
        """The paths through it."""
        return Flow(self.node, self.part)

    @cached_property
    def parameters(self) -> Sequence[str]:
        """The names of its parameters, in order."""
        params = self.node.params
        listed = (*params.posonly_params, *params.params, *params.kwonly_params)
        return [one.name.value for one in listed]

    @property
    def is_abstract(self) -> bool:
        """Tells whether it has no statement of its own: a class that is derived has them."""
        body: Sequence[cst.CSTNode] = self.node.body.body
        return all(
            isinstance(one, (cst.Pass, cst.Raise))
            or (isinstance(one, cst.Expr) and isinstance(one.value, (cst.BaseString, cst.Ellipsis)))
            for line in body
            for one in (line.body if isinstance(line, cst.SimpleStatementLine) else [line])
        )

    def takes(self, call: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
        """Yields the parameters that a call of this function gives values to, and the values.

        What `*rest` takes is given to `rest`; after a starred argument, names alone tell.
        """
        params = self.node.params
        names = [one.name.value for one in (*params.posonly_params, *params.params)]
        names = names[1:] if names[:1] in (["self"], ["cls"]) else names
        rest = params.star_arg.name.value if isinstance(params.star_arg, cst.Param) else ""
        is_known = True
        for place, arg in enumerate(call.args):
            is_known = is_known and not arg.star
            if arg.keyword is not None:
                yield arg.keyword.value, arg.value
            elif is_known:
                yield names[place] if place < len(names) else rest, arg.value

    @cached_property
    def _nested(self) -> Mapping[str, Function]:
        inner = (node for node in self.nodes if isinstance(node, cst.FunctionDef))
        return {node.name.value: Function(node, self.part) for node in inner}

    def called(self, call: cst.Call) -> Function | None:
        """Returns the function that a call leads to, None if that is unknown.

        `f()` is a function that stands in this one, or one beside classes, of this file or imported
        from one of its package; `self.f()` is a method of the same class, or of one that it is
        derived from; `x.f()` is one of the class that `x` is plainly of.
        """
        func = self.stands_for(call.func)
        if isinstance(func, cst.Name):
            found = (
                self._nested.get(func.value)
                or _beside_classes(self.module, func.value)
                or self._imported(func.value)
            )
        elif not isinstance(func, cst.Attribute):
            return None
        elif is_name(func.value, "self") or is_name(func.value, "cls"):
            family = self.part.stretch.family
            found = method_of(family, func.attr.value) if family is not None else None
        else:
            found = self._imported(dotted(func) or "")
            if found is None and self._says(func.value):
                family = class_of_object(func.value, self)
                found = method_of(family, func.attr.value) if family is not None else None
        return found if found is not self else None

    def _says(self, node: cst.CSTNode) -> bool:
        """Tells whether the file's text gives a value to what may be an attribute."""
        name = dotted(node) or ""
        return not name.startswith("self.") or bool(_given(name, self.module))

    def runs(self, call: cst.Call) -> Iterator[Function]:
        """Yields what a call plainly runs: a function, and of an object what a `with` enters."""
        found = self.called(call)
        if found is None and isinstance(self.parents.get(call), cst.WithItem):
            family = class_of_object(call, self)
            found = method_of(family, "__enter__") if family is not None else None
        if found is not None:
            yield found

    def leaves(self, item: cst.BaseExpression) -> Function | None:
        """Returns what runs where a `with` is left that this is an item of, None if unknown."""
        found = self.called(item) if isinstance(item, cst.Call) else None
        family = class_of_object(item, self) if found is None else None
        return method_of(family, "__exit__") if family is not None else found

    def stands_for(self, func: cst.BaseExpression) -> cst.BaseExpression:
        """Returns the function that a name or an attribute is another name for, or itself."""
        for _ in range(_MOST_ALIASES):
            name = dotted(func) or ""
            values: Sequence[cst.CSTNode] = ()
            if isinstance(func, cst.Name) and self.names.values(name):
                values = self.names.bound(func)
            elif name not in self.parameters and name.removeprefix("self.").isidentifier():
                given = _given(name, self.module)
                values = [cst.parse_expression(one) for one, rest in given if not rest]
                values = values if len(given) == 1 else ()
            if len(values) != 1 or not isinstance(values[0], (cst.Name, cst.Attribute)):
                break
            func = values[0]
        return func

    def callers(self) -> Iterator[tuple[Function, cst.Call]]:
        """Yields the functions of the same file that call this one, and where."""
        # Once for each name: many functions may have it.
        known: dict[str, dict[Function | None, list[tuple[Function, cst.Call]]]]
        known = self.module.memo.setdefault("calls", {})
        if self.name not in known:
            found = known[self.name] = {}
            for part in self.module.naming(self.name):
                for function in functions(part):
                    for call in function.calls:
                        if last_name(call.func) == self.name:
                            found.setdefault(function.called(call), []).append((function, call))
        yield from known[self.name].get(self, ())

    def _imported(self, name: str) -> Function | None:
        head = name.partition(".")[0]
        if not self.module.imports_of(head) or head in self.parameters or self.names.values(head):
            return None  # or another value has the name here
        found = neighbours_of(self.module).defining(self.module, name)
        return None if found is None else _beside_classes(*found)


def _beside_classes(module: Module, name: str) -> Function | None:
    """Returns the one function of a name that no class of a module holds."""
    known: dict[str, Function | None] = module.memo.setdefault("beside classes", {})
    if name not in known:
        found = _called(name, (part for part in module.defining(name) if not part.is_nested))
        known[name] = found[0] if len(found) == 1 else None
    return known[name]


def _called(name: str, parts: Iterable[Part]) -> Sequence[Function]:
    return [one for part in parts for one in functions(part) if one.name == name]


def method_of(family: Family, name: str) -> Function | None:
    """Returns the method of a class, or of one that it is derived from, None if unknown."""
    for one in lineage(family):
        parts = one.module.defining(name)
        found = _called(
            name, (part for part in parts if part.is_nested and part.stretch.family is one)
        )
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _given(name: str, module: Module) -> Sequence[tuple[str, str]]:
    """Returns what a module's text gives to `self.x`, or to `x` beside functions and classes.

    Each is a dotted name, "" for any other value, and what comes behind it. To read the classes of
    all that methods are called on costs more than all else.
    """
    known: dict[str, Sequence[tuple[str, str]]] = module.memo.setdefault("given", {})
    if name not in known:
        lines = (*_lines(f"{name} = ", module.text), *_lines(f"{name}: ", module.text))
        values = (line.partition(" = ")[2].partition("#")[0].strip() for line in lines)
        found = [_DOTTED.match(one) for one in values if one and one != "None"]
        known[name] = [(one[0], one.string[one.end() :]) for one in found if one is not None]
    return known[name]


def _lines(start: str, text: str) -> Iterator[str]:
    """Yields the lines of a text from where a statement of them starts so."""
    at = text.find(start)
    while at >= 0:
        end = text.find("\n", at)
        before = text[text.rfind("\n", 0, at) + 1 : at]
        if not before or (start.startswith("self.") and before.isspace()):
            yield text[at : end if end >= 0 else None]
        at = text.find(start, at + 1)


def lineage(family: Family) -> Iterator[Family]:
    """Yields a class and those that it is derived from, nearest first.

    It ends at one that lies outside of the package, for what comes after that one may be hidden.
    """
    left: list[Family] = [family]
    seen: list[Family] = []
    while left and left[0] not in seen and len(seen) < _MOST_BASES:
        one = left.pop(0)
        seen.append(one)
        yield one
        above, ends = _bases(one)
        left = [*above] if ends else [*above, *left]


def _bases(family: Family) -> tuple[Sequence[Family], bool]:
    """Returns the bases of a class up to one outside of the package, and whether there is one."""
    known: dict[Family, tuple[Sequence[Family], bool]] = family.module.memo.setdefault("bases", {})
    if family not in known:
        found: list[Family] = []
        ends = False
        for name in family.derived_from:
            base = class_of(family.module, name)
            if base is not None:
                found.append(base)
            elif name.rpartition(".")[2].partition("[")[0] not in _BARE:
                ends = True
                break
        known[family] = found, ends
    return known[family]


def class_of(module: Module, name: str) -> Family | None:
    """Returns the class that a name stands for in a module, None if it is unknown."""
    if module.imports_of(name.partition(".")[0]):
        found = neighbours_of(module).defining(module, name)
        if found is None:
            return None
        module, name = found
    known: dict[str, list[Family]] = module.memo.get("classes by name", {})
    if "classes by name" not in module.memo:
        for one in module.families:
            if one.is_class:
                known.setdefault(one.name, []).append(one)
        module.memo["classes by name"] = known
    own = known.get(name, ())
    return own[0] if len(own) == 1 else None


def class_of_object(node: cst.CSTNode, function: Function, depth: int = 0) -> Family | None:
    """Returns the class of the package that an object is plainly of, or that a name is itself."""
    if depth > _MOST_ALIASES:
        return None
    if isinstance(node, cst.Call):
        return _class_made(node, function)
    name = dotted(node) or ""
    made: list[tuple[cst.CSTNode | None, Function]] = []
    if isinstance(node, cst.Name) and function.names.values(name):
        if not function.names.is_given(node):
            made += [(one, function) for one in function.names.bound(node)]
    elif name in function.parameters:
        return _class_annotated(name, function)
    elif CLASS.match(name):
        return class_of(function.module, name)
    elif given := _given(name, function.module):
        return _class_given(given, function.module)
    elif isinstance(node, cst.Attribute) and is_name(node.value, "self"):
        made += attribute_values(node.attr.value, function)
    value, owner = made[0] if len(made) == 1 else (None, function)
    return None if value is None else class_of_object(value, owner, depth + 1)


def _class_given(given: Sequence[tuple[str, str]], module: Module) -> Family | None:
    """Returns the class of what a module's text gives to a name, by its only value there."""
    (name, rest), *more = given
    if more:
        return None
    if not rest:  # an argument, whose annotation tells
        noted = rf"\b{re.escape(name)} *: *[\"']?(?:[\w.]*Optional\[)?([\w.]+)"
        found = set(re.findall(noted, module.text))
        name = found.pop() if len(found) == 1 else ""
    elif not rest.startswith("("):
        return None
    return class_of(module, name) if CLASS.match(name.rpartition(".")[2]) else None


def _class_made(call: cst.Call, function: Function) -> Family | None:
    """Returns the class that a call makes an object of."""
    name = dotted(call.func) or ""
    return class_of(function.module, name) if CLASS.match(name.rpartition(".")[2]) else None


def _class_annotated(name: str, function: Function) -> Family | None:
    """Returns the class that a parameter is annotated with; `X | None` and `"X"` are `X`."""
    params = function.node.params
    for one in (*params.posonly_params, *params.params, *params.kwonly_params):
        if one.name.value == name and one.annotation is not None:
            text = function.part.code(one.annotation.annotation).strip("\"'")
            found = _OPTIONAL.fullmatch(text)
            text = (found[1] or found[2]) if found is not None else text
            return class_of(function.module, text) if CLASS.match(text.rpartition(".")[2]) else None
    return None


def functions(part: Part) -> Sequence[Function]:
    """Returns the outermost functions and methods of a part."""
    known: dict[Part, Sequence[Function]] = part.module.memo.setdefault("functions", {})
    if part not in known:
        known[part] = [Function(node, part) for node in _outermost(part.node)]
    return known[part]


def functions_near(family: Family, *words: Iterable[str]) -> Iterator[Function]:
    """Yields the functions of a family in whose slices one of each group of words stands."""
    for part in family.near(tuple(map(tuple, words))):
        yield from functions(part)


def bound_in_class(name: str, part: Part) -> Iterator[tuple[cst.CSTNode, Function]]:
    """Yields the values that the class of a part gives to `self.x`, each with its function."""
    family = part.stretch.family
    if family is None:
        return
    # Once for each name: a function may copy to an attribute a thousand times.
    known: dict[tuple[Family, str], list[tuple[cst.CSTNode, Function]]]
    known = part.module.memo.setdefault("bound in class", {})
    if (family, name) not in known:
        known[family, name] = [
            (node.value, function)
            for other in family.binding(name.removeprefix("self."))
            for function in functions(other)
            for node in function.bindings.get(name, ())
            if isinstance(node, (cst.Assign, cst.AnnAssign)) and node.value is not None
        ]
    yield from known[family, name]


def attribute_values(
    name: str, function: Function
) -> Iterator[tuple[cst.CSTNode | None, Function]]:
    """Yields what a class binds to one of its attributes, or returns from a property of that name.

    What the classes do that it is derived from counts too. None stands for what is bound in a way
    that does not say the value.
    """
    family = function.part.stretch.family
    if family is None:
        return
    # A class is looked through once for a name: each context on a stream asks for it.
    known: dict[tuple[Family, str], list[tuple[cst.CSTNode | None, Function | None]]]
    known = function.module.memo.setdefault("attributes", {})
    if (family, name) not in known:
        known[family, name] = list(_bound_to(name, family))
    for value, owner in known[family, name]:
        yield value, owner or function


def _bound_to(name: str, family: Family) -> Iterator[tuple[cst.CSTNode | None, Function | None]]:
    """Yields what is bound to an attribute and in which function, None beside functions."""
    for part in (part for one in lineage(family) for part in one.binding(name)):
        for node in part.nodes():
            value = getattr(node, "value", None)
            if value is None:
                continue
            for target in targets(node):
                inside = functions(part)
                owner = inside[0] if inside else None
                if dotted(target) in (f"self.{name}", f"cls.{name}") or (
                    not inside and is_name(target, name)
                ):
                    yield value, owner
                elif isinstance(target, cst.Tuple):
                    names = [dotted(one.value) for one in target.elements]
                    if f"self.{name}" in names:
                        given = literal_elements(value) or ()
                        is_known = len(given) == len(names)
                        yield given[names.index(f"self.{name}")] if is_known else None, owner
        for one in functions(part):
            if one.name == name:
                for inner in one.of(cst.Return):
                    if inner.value is not None:
                        is_own = dotted(inner.value) == f"self.{name}"
                        yield (None if is_own else inner.value), one


def classes(family: Family) -> Iterator[tuple[str, Sequence[Function]]]:
    """Yields the classes at the top of a family, by name, each with all its methods."""
    if family.is_class:
        inside = [one for part in family.parts if part.is_nested for one in functions(part)]
        yield family.name, [one for one in inside if one.node is one.part.node]


def _outermost(root: cst.CSTNode) -> Iterator[cst.FunctionDef]:
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, cst.FunctionDef):
            yield node
        elif isinstance(node, (cst.BaseCompoundStatement, cst.BaseSuite, *_clauses())):
            stack.extend(reversed(children(node)))


def _clauses() -> tuple[type[cst.CSTNode], ...]:
    return (cst.Else, cst.Finally, cst.ExceptHandler, cst.ExceptStarHandler, cst.MatchCase)
