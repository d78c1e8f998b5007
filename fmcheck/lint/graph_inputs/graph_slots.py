"""Graph slots: graph inputs that are declared in a registry, each with a padding policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.model.expressions import dotted
from fmcheck.lint.model.function import functions
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Registry
    from fmcheck.lint.source.module import Module, Part


class Slot(Struct, frozen=True):
    """One declared graph input.

    `node` is its name in the source. `policy` is None where it is not written out; `is_explicit`
    tells that the call names one, `is_computed` that something else writes all of the buffer on
    each replay.
    """

    node: CSTNode
    name: str
    axis: str
    policy: str | None
    is_explicit: bool
    is_computed: bool
    registry: Registry

    @property
    def is_stale(self) -> bool:
        """Tells whether the padded tail keeps what the last replay left there."""
        return not self.is_computed and self.policy in self.registry.stale_policies

    @property
    def is_reset(self) -> bool:
        """Tells whether the policy resets the padded tail."""
        return self.policy is not None and self.policy not in self.registry.stale_policies


def slots(part: Part, registries: Mapping[str, Registry]) -> Iterator[list[Slot]]:
    """Yields the slots of each function of a part, or of a statement beside functions."""
    names = _local_names(part.module, registries)
    bodies: Sequence[CSTNode] = [one.node for one in functions(part)] or [part.node]
    for body in bodies:
        calls = [node for node in walk(body) if isinstance(node, cst.Call)]
        found = [_slot(call, names[word]) for call in calls if (word := _called(call)) in names]
        yield [slot for slot in found if slot is not None]


def _called(call: cst.Call) -> str:
    return (dotted(call.func) or "").rpartition(".")[2]


def _local_names(module: Module, registries: Mapping[str, Registry]) -> dict[str, Registry]:
    """Returns the slot classes by the names that they have in this module."""
    names = dict(registries)
    for one in module.imports:
        made = one.target.rpartition(".")[2]
        if made in registries:
            names[one.name] = registries[made]
    return names


def _slot(call: cst.Call, registry: Registry) -> Slot | None:
    """Reads a slot off the call that makes it; None if its name or arguments are not literal."""
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    positional = [arg.value for arg in call.args if arg.keyword is None]
    if any(arg.star for arg in call.args):
        return None
    name = given.get(registry.name_argument, positional[0] if positional else None)
    axis = given.get(registry.axis_argument)
    if not isinstance(name, cst.SimpleString) or not isinstance(name.evaluated_value, str):
        return None
    return Slot(
        name,
        name.evaluated_value,
        _text(axis) if axis is not None else registry.default_axis,
        _policy(given.get(registry.policy_argument), positional, registry),
        registry.policy_argument in given,
        any(argument in given for argument in registry.computed_by),
        registry,
    )


def _policy(given: CSTNode | None, positional: Sequence[CSTNode], registry: Registry) -> str | None:
    if given is not None:
        name = dotted(given)
        return name.rpartition(".")[2] if name and "." in name else None
    # A policy may stand without its keyword, for all that is known here.
    named = [(dotted(value) or "").rpartition(".")[2] for value in positional]
    if any(name.isupper() for name in named):
        return next(name for name in named if name.isupper())
    return registry.default_policy


def _text(node: CSTNode) -> str:
    if isinstance(node, cst.SimpleString):
        return str(node.evaluated_value)
    return dotted(node) or ""
