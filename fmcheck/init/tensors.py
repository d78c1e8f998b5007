"""Tensors that classes hold: where each is created, how many rows it has, and of which type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.lint.model.expressions import dotted, is_name, keywords, last_name, literal_elements
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.init.engine_tree import EngineTree, FunctionPlace

#: Functions of torch that create a tensor of a given shape, and those that take it from another.
_SHAPED = frozenset(("zeros", "ones", "empty", "full"))
_LIKE = frozenset(("zeros_like", "ones_like", "empty_like", "full_like"))
_WORDS = tuple(f"torch.{name}" for name in sorted(_SHAPED))
_INTEGER = re.compile(r"torch\.u?int\d+|torch\.long")
#: A class that is one of these is a model's layer: what it holds are weights.
LAYERS = frozenset(("Module", "CustomOp", "LayerBase"))


@dataclass(frozen=True)
class Tensor:
    """A tensor that instances of a class hold as `name`.

    `rows` is the source of its first dimension, "" if that is not seen. `lives_on_host` says that
    it is pinned, or on the CPU.
    """

    name: str
    class_: str
    place: FunctionPlace
    node: cst.CSTNode
    rows: str
    is_integer: bool
    lives_on_host: bool

    @property
    def at(self) -> str:
        """Where it is created."""
        return self.place.at(self.node)

    @property
    def is_lazy(self) -> bool:
        """Tells whether it is created after the instance is."""
        return self.place.function.name not in ("__init__", "__post_init__")


def tensors(tree: EngineTree) -> Iterator[Tensor]:
    """Yields each tensor that a class of the tree creates for itself."""
    for place in tree.places(((*_WORDS, "._like(", ".new_"), ("self.",))):
        if not place.owner or _is_layer(place):
            continue
        for node in place.function.nodes:
            if isinstance(node, cst.Assign):
                yield from _assigned(place, [one.target for one in node.targets], node.value)
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                yield from _assigned(place, [node.target], node.value)


def _assigned(
    place: FunctionPlace, targets: list[cst.BaseExpression], value: cst.CSTNode
) -> Iterator[Tensor]:
    for target in targets:
        if not (isinstance(target, cst.Attribute) and is_name(target.value, "self")):
            continue
        call = creation(place, value)
        if call is None:
            continue
        given = keywords(call)
        dtype = place.code(given["dtype"]) if "dtype" in given else ""
        device = place.code(given["device"]) if "device" in given else ""
        pinned = given.get("pin_memory")
        yield Tensor(
            name=target.attr.value,
            class_=place.class_,
            place=place,
            node=target,
            rows=first_dimension(place, call),
            is_integer=bool(_INTEGER.fullmatch(dtype)),
            lives_on_host=device in ('"cpu"', "'cpu'")
            or bool(pinned and not is_name(pinned, "False")),
        )


def creation(place: FunctionPlace, value: cst.CSTNode, depth: int = 1) -> cst.Call | None:
    """Returns the call that creates a tensor, if `value` is one, or leads to one."""
    if isinstance(value, cst.IfExp):
        return creation(place, value.body, depth) or creation(place, value.orelse, depth)
    if not isinstance(value, cst.Call):
        return None
    called = place.source.module.resolve(dotted(value.func) or "")
    module, _, name = called.rpartition(".")
    if module == "torch" and name in _SHAPED | _LIKE:
        return value
    helper = place.function.called(value) if depth else None
    if helper is None:
        return None
    for node in helper.nodes:
        if isinstance(node, cst.Return) and node.value is not None:
            inner = creation(place, node.value, depth - 1)
            if inner is not None:
                # Of a helper that is handed the shape, the shape is what it is handed.
                return value if value.args and last_name(inner.func) in _LIKE else inner
    return None


def first_dimension(place: FunctionPlace, call: cst.Call) -> str:
    """Returns the source of the first dimension that a tensor is created with."""
    given = keywords(call)
    shape: cst.CSTNode | None = given.get("size") or given.get("shape")
    if shape is None and call.args and call.args[0].keyword is None:
        shape = call.args[0].value
    if isinstance(shape, cst.Name):
        values = place.function.names.values(shape.value)
        shape = values[0] if len(values) == 1 and literal_elements(values[0]) else shape
    elements = None if shape is None else literal_elements(shape)
    first = elements[0] if elements else shape
    if elements == [] or first is None or isinstance(first, (cst.StarredElement, cst.Integer)):
        return ""
    return place.code(first)


def _is_layer(place: FunctionPlace) -> bool:
    family = place.function.part.stretch.family
    return family is not None and not LAYERS.isdisjoint(family.bases)


def looped_names(place: FunctionPlace) -> set[str]:
    """Returns the names that a `for` of the function binds: an index by one of them is one row."""
    found: set[str] = set()
    for node in place.function.nodes:
        if isinstance(node, (cst.For, cst.CompFor)):
            found |= {one.value for one in walk(node.target) if isinstance(one, cst.Name)}
    return found
