"""What a contract says of the names in an engine's source, for operators to go by.

Which of the relay's methods write and which gather is read from the relay's own source.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from fmcheck.contract import Contract, GraphInputs
    from fmcheck.prove.operators.parsed import ParsedModule

RESETS = ("zero_", "fill_")


@dataclass(frozen=True)
class EngineNames:
    """The names of one engine.

    `buffers` are relay buffers, attributes; those of `swappable` exist from the start and may be
    taken for each other, those of `bound` may be given a new tensor by a step. `inputs` are graph
    inputs whose padded tail matters, `OBJECT.half` where a fill is of one object's half alone, less
    those that are `harmless`. `writers` and `readers` are the functions of the relay's modules that
    write and gather, and of kernels those that write; `peeks` those whose gathers do not consume,
    `takes` those that gather by a slice as well, `kernels` functions that gather in untracked code.
    `slots` are the slot classes by name, with their policy's argument, the policy of a slot that
    names none, and the policies that keep a stale tail. `agnostic` and `cuda_only` are globs of
    paths.
    """

    buffers: tuple[str, ...] = ()
    swappable: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    writers: frozenset[str] = frozenset()
    readers: frozenset[str] = frozenset()
    peeks: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    slots: dict[str, tuple[str, str, tuple[str, ...]]] = field(default_factory=dict)
    agnostic: tuple[str, ...] = ()
    cuda_only: tuple[str, ...] = ()

    def is_buffer(self, name: str) -> bool:
        """Tells whether an attribute of this name is a relay buffer."""
        return _matches(name, self.buffers)

    def is_bound(self, name: str) -> bool:
        """Tells whether a step may give an attribute of this name a new tensor."""
        return _matches(name, self.bound)

    def is_input(self, name: str, of: str = "") -> bool:
        """Tells whether a buffer of this name, `of` an object, is an input whose tail matters."""
        found = _matches(name, self.inputs) or _matches(f"{of}.{name}", self.inputs)
        return found and not _matches(name, self.harmless)

    def is_agnostic(self, path: str) -> bool:
        """Tells whether code at this path, from the import root, is meant for every device."""
        return _matches(path, self.agnostic) and not _matches(path, self.cuda_only)

    def buffer_at(self, node: cst.BaseExpression, function: str = "") -> str:
        """Returns the relay buffer that `x.BUFFER[...]` is a row of, "" for anything else.

        A number is no gather, nor is a slice but in a function of `takes`.
        """
        if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Attribute):
            return ""
        name = node.value.attr.value
        index = node.slice[0].slice
        if isinstance(index, cst.Slice) and function not in self.takes:
            return ""
        if isinstance(index, cst.Index) and isinstance(index.value, cst.Integer):
            return ""
        return name if self.is_buffer(name) else ""


def last_name(node: cst.CSTNode) -> str:
    """Returns the last name of a dotted expression, past any subscripts; "" for anything else."""
    while isinstance(node, cst.Subscript):
        key = constant(node.slice[0].slice) if len(node.slice) == 1 else ""
        if key:
            return key
        node = node.value
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def owner_of(node: cst.CSTNode) -> str:
    """Returns the last name but one of a dotted expression, "" without one."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return last_name(node.value) if isinstance(node, cst.Attribute) else ""


def constant(node: cst.CSTNode) -> str:
    """Returns the text of a string constant, or of one in square brackets; "" for anything else."""
    if isinstance(node, cst.Index):
        node = node.value
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return value if isinstance(value, str) else ""
    return ""


def is_reset(tree: ParsedModule, node: cst.CSTNode) -> bool:
    """Tells whether an expression is written in place and not read, as in `buf[row].zero_()`."""
    method = tree.parent(node)
    return (
        isinstance(method, cst.Attribute)
        and method.value is node
        and method.attr.value in RESETS
        and isinstance(tree.parent(method), cst.Call)
    )


def called(node: cst.CSTNode) -> str:
    """Returns the last name of what a call calls; "" for anything else."""
    return last_name(node.func) if isinstance(node, cst.Call) else ""


def modules_of(contract: Contract) -> tuple[str, ...]:
    """Returns the modules that define the contract's relays and fill its graph inputs."""
    found = [one.module for one in contract.relay]
    found += [one.module for one in contract.graph_inputs.fill]
    return tuple(dict.fromkeys(found))


def module_path(module: str, roots: Iterable[Path]) -> Path | None:
    """Returns the file of a module under the first import root that has it."""
    for root in roots:
        path = root.joinpath(*module.split(".")).with_suffix(".py")
        if path.is_file():
            return path
    return None


def names_of(
    contracts: Sequence[Contract], relays: Iterable[tuple[str, ParsedModule]]
) -> EngineNames:
    """Returns the names of all contracts; `relays` are relay classes with their modules' trees."""
    buffers = [buffer for one in contracts for relay in one.relay for buffer in relay.buffer]
    inputs = [one.graph_inputs for one in contracts]
    names = EngineNames(
        buffers=tuple(dict.fromkeys(one.name for one in buffers)),
        swappable=tuple(
            dict.fromkeys(one.name for one in buffers if not one.lazy and not one.is_glob)
        ),
        bound=tuple(dict.fromkeys(one.name for one in buffers if one.lazy)),
        inputs=tuple(dict.fromkeys(name for one in inputs for name in _tails(one))),
        harmless=tuple(
            name for one in inputs for name in (*one.tail_is_discarded, *one.tail_may_stay)
        ),
        peeks=frozenset(
            name for one in contracts for relay in one.relay for name in relay.peek_names
        ),
        takes=frozenset(
            _last(name) for one in contracts for relay in one.relay for name in relay.takes
        ),
        kernels=frozenset(
            _last(function)
            for contract in contracts
            for opaque in contract.opaque
            for function in opaque.functions
            if opaque.reads
        ),
        slots={
            one.slot_class: (one.policy_argument, one.default_policy, one.stale_policies)
            for given in inputs
            for one in given.registry
        },
        agnostic=tuple(glob for one in contracts for glob in one.device.agnostic),
        cuda_only=tuple(glob for one in contracts for glob in one.device.cuda_only),
    )
    opaque = [one for contract in contracts for one in contract.opaque if one.writes]
    writers = {_last(function) for one in opaque for function in one.functions}
    readers = set[str]()
    for owner, tree in relays:
        writers |= _doing(tree, owner, names, writes=True)
        readers |= _doing(tree, owner, names, writes=False)
    object.__setattr__(names, "writers", frozenset(writers - readers))
    object.__setattr__(names, "readers", frozenset(readers - names.peeks))
    return names


def _last(reference: str) -> str:
    """Returns the last name of `module:Class.method`."""
    return reference.rpartition(":")[2].rpartition(".")[2]


def _tails(given: GraphInputs) -> Iterator[str]:
    yield from given.row_indices
    yield from given.index_like
    yield from given.offsets
    yield from given.holds
    yield from given.valid
    for fill in given.fill:
        _, dot, one = fill.inputs.rpartition(".")
        # A half of one buffer, as in `self.lengths.gpu`, says nothing of others' halves.
        is_half = dot and len(fill.only) == 1
        yield from (f"{one}.{name}" if is_half else name for name in fill.holds)


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _doing(tree: ParsedModule, owner: str, names: EngineNames, *, writes: bool) -> set[str]:
    """Returns the functions of a relay's module that touch its buffers, by themselves or by others.

    `__init__` makes buffers and relays nothing.
    """
    found: set[str] = set()
    calls: dict[str, set[str]] = {}
    for function in tree.every(cst.FunctionDef):
        name = function.name.value
        inside = next((one for one in tree.around(function) if isinstance(one, cst.ClassDef)), None)
        if name.startswith("__") or (inside is not None and inside.name.value != owner):
            continue
        calls[name] = {called(node) for node in _inside(function)} - {"", name}
        if any(_touches(node, tree, names, writes) for node in _inside(function)):
            found.add(name)
    while more := {name for name, others in calls.items() if others & found} - found:
        found |= more
    return found


def _touches(node: cst.CSTNode, tree: ParsedModule, names: EngineNames, writes: bool) -> bool:
    if not writes and called(node) in names.kernels:
        return True
    if not isinstance(node, cst.Subscript) or not names.buffer_at(node):
        return False
    if is_reset(tree, node):
        return False  # it hands nothing on
    return isinstance(tree.parent(node), cst.AssignTarget) == writes


def _inside(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for child in node.children:
        yield child
        yield from _inside(child)
