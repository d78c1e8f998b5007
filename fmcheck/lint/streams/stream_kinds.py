"""Stream kinds: where a stream comes from, as the class, the module and the function tell.

`self.side` is a side stream if the class makes it by `Stream()`; the current one, or an argument's,
is none. What is made elsewhere is known by its name alone.
"""

from __future__ import annotations

from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING

from fmcheck.lint.model.expressions import is_name, last_name, literal_elements, targets
from fmcheck.lint.model.function import attribute_values, class_of_object, functions
from fmcheck.lint.model.vocabulary import ENTERS
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from fmcheck.lint.streams.function_streams import streams_of
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function
    from fmcheck.lint.streams.function_streams import Context, FunctionStreams


class StreamKind(Enum):
    """What a stream is, as far as the file tells."""

    MADE = "made by `Stream()`: never the current one unless somebody enters it"
    CURRENT = "the current stream"
    DEFAULT = "the default stream"
    GIVEN = "an argument's: whoever calls decides"
    UNKNOWN = "made elsewhere"


#: How streams are named that other streams hand work to.
_SIDE = regex(
    r"(^|_)(alt|aux|backup|comm|copy|d2h|down(load)?|gather|global|h2d|io|load|memcpy|offload|onload"
    r"|pre_?fetch|reduce|reduction|side|staging|swap|transfer|up(load)?)s?(_\w+)?_?stream$"
)
#: Classes of streams. `ExternalStream` wraps one that may be anybody's.
_CLASSES = frozenset({"Stream"})
#: How deep names, attributes and functions are followed.
_DEPTH = 4
#: Bodies of one function of which nobody has to know at once whether they run on a side stream.
_FEW = 8


def is_side(node: CSTNode, function: Function) -> bool:
    """Tells whether a stream is plainly not the one that runs what stands around its context.

    One that is made in some configurations, and the current one in others, is one in the former.
    """
    kinds = kinds_of(node, function)
    if StreamKind.MADE in kinds and kinds <= {
        StreamKind.MADE,
        StreamKind.CURRENT,
        StreamKind.DEFAULT,
    }:
        return True
    if kinds == {StreamKind.UNKNOWN} and _SIDE.search(_name(node)):
        return True
    streams = streams_of(function)
    return not kinds & {StreamKind.CURRENT, StreamKind.DEFAULT} and streams.is_fenced(
        streams.text(node)
    )


def is_kept_current(node: CSTNode, function: Function) -> bool:
    """Tells whether a stream may be the current or the default one of some time before.

    One that is made here in some configurations is none. To be asked late: the class may have to be
    read for it.
    """
    kinds = kinds_of(node, function)
    return bool(kinds & {StreamKind.CURRENT, StreamKind.DEFAULT}) and StreamKind.MADE not in kinds


def may_be_side(streams: FunctionStreams) -> Sequence[Context]:
    """Returns the bodies of a function that may run on a side stream, to be asked of `is_side`.

    The class may have to be read for that: only where there are many is it asked here already, for
    what else is asked of each looks at all the others.
    """
    contexts = streams.contexts
    if len(contexts) <= _FEW:
        return contexts
    return [one for one in contexts if is_side(one.item, streams.function)]


def kinds_of(node: CSTNode, function: Function, depth: int = 0) -> set[StreamKind]:
    """Returns what a stream may be; nothing for None."""
    if is_name(node, "None"):
        return set()
    if depth > _DEPTH:
        return {StreamKind.UNKNOWN}
    if isinstance(node, cst.IfExp):
        return kinds_of(node.body, function, depth) | kinds_of(node.orelse, function, depth)
    if isinstance(node, cst.BooleanOperation):
        return kinds_of(node.left, function, depth) | kinds_of(node.right, function, depth)
    if isinstance(node, cst.NamedExpr):
        return kinds_of(node.value, function, depth)
    if isinstance(node, cst.Call):
        return _called(node, function, depth)
    if isinstance(node, cst.Name):
        return _named(node.value, function, depth)
    if isinstance(node, cst.Attribute):
        return _attribute(node, function, depth)
    if isinstance(node, cst.Subscript):
        return _entry(node, function, depth)
    return {StreamKind.UNKNOWN}


def _called(call: cst.Call, function: Function, depth: int) -> set[StreamKind]:
    word = last_name(call.func)
    if word.endswith("current_stream"):
        return {StreamKind.CURRENT}
    if word == "default_stream":
        return {StreamKind.DEFAULT}
    if word in _CLASSES:
        return {StreamKind.MADE}
    if ENTERS.search(word) and call.args:  # a context that is kept
        return kinds_of(call.args[0].value, function, depth)
    if word == "cast" and len(call.args) == 2:
        return kinds_of(call.args[1].value, function, depth)
    callee = function.called(call)
    if callee is None:
        return {StreamKind.UNKNOWN}
    returned = (one.value for one in callee.of(cst.Return))
    found = [kinds_of(one, callee, depth + 1) for one in returned if one is not None]
    return set().union(*found) if found else {StreamKind.UNKNOWN}


def _named(name: str, function: Function, depth: int) -> set[StreamKind]:
    given = {StreamKind.GIVEN} if name in streams_of(function).parameters else set()
    values = function.names.unlike(name)
    if not values and not given:
        values = list(_globals(name, function))
    found = [kinds_of(one, function, depth + 1) for one in values]
    return given.union(*found) if found or given else {StreamKind.UNKNOWN}


def _attribute(node: cst.Attribute, function: Function, depth: int) -> set[StreamKind]:
    if not (is_name(node.value, "self") or is_name(node.value, "cls")):
        held = _method_of(node.value, node.attr.value, function)
        if held is None:
            return {StreamKind.UNKNOWN}
        function = held
    found: set[StreamKind] = set()
    name, is_bound = node.attr.value, False
    for value, owner in attribute_values(name, function):
        is_bound = True
        found |= {StreamKind.UNKNOWN} if value is None else kinds_of(value, owner, depth + 1)
    return found if is_bound else {StreamKind.UNKNOWN}


def _method_of(holder: CSTNode, name: str, function: Function) -> Function | None:
    """Returns a function of the class that an object is made of, None where that is unknown.

    One that binds the attribute, if there is any, which is read for it.
    """
    family = class_of_object(holder, function)
    inside = chain(family.binding(name), family.parts) if family is not None else ()
    return next((one for part in inside if part.is_nested for one in functions(part)), None)


def _entry(node: cst.Subscript, function: Function, depth: int) -> set[StreamKind]:
    """Returns what an entry of a list or a dict may be."""
    base = node.value
    if isinstance(base, cst.Name):
        held = [(one, function) for one in function.names.bound(base)]
    elif isinstance(base, cst.Attribute) and is_name(base.value, "self"):
        bound = attribute_values(base.attr.value, function)
        held = [(one, owner) for one, owner in bound if one is not None]
    else:
        held = []
    found: set[StreamKind] = set()
    for value, owner in held:
        elements: Sequence[CSTNode] | None = literal_elements(value)
        if isinstance(value, (cst.ListComp, cst.GeneratorExp)):
            elements = [value.elt]
        if isinstance(value, cst.Dict):
            elements = _under(node, value)
        if elements is None:
            return {StreamKind.UNKNOWN}
        for one in elements:
            found |= kinds_of(one, owner, depth + 1)
    return found or {StreamKind.UNKNOWN}


def _under(entry: cst.Subscript, display: cst.Dict) -> Sequence[CSTNode] | None:
    """Returns the values of a dict that may stand under a key, None if that is unknown."""
    index = entry.slice[0].slice
    key = index.value if isinstance(index, cst.Index) else None
    found: list[CSTNode] = []
    for one in display.elements:
        if not isinstance(one, cst.DictElement):
            return None
        strings = [at for at in (one.key, key) if isinstance(at, cst.SimpleString)]
        if len(strings) < 2 or strings[0].evaluated_value == strings[1].evaluated_value:
            found.append(one.value)
    return found


def _globals(name: str, function: Function) -> Iterator[CSTNode]:
    """Yields what statements beside functions, and functions that say `global`, bind to a name."""
    for part in function.module.naming(name):
        nodes = walk(part.node)
        is_function = part.is_nested or isinstance(part.node, cst.FunctionDef)
        if is_function and not any(
            isinstance(one, cst.Global) and any(name == item.name.value for item in one.names)
            for one in nodes
        ):
            continue
        for node in nodes:
            value = getattr(node, "value", None)
            if value is not None and any(is_name(one, name) for one in targets(node)):
                yield value


def _name(node: CSTNode) -> str:
    if isinstance(node, cst.Call):
        return last_name(node.func).removeprefix("get_")
    return last_name(node)
