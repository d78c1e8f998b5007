"""What a contract names: modules, functions, files and words, each with the key that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec.structs
from msgspec import Struct

from fmcheck.contract.schema import applies
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract.schema import Contract, Fill, Functions, Relay, Streams

#: Keys under which a function that is missing is reported by nobody else at run time.
QUIET = frozenset(
    {"launches.budget.waits_in", "launches.fused", "launches.per_step", "late_results.functions"}
)
#: What a path begins with, or a tensor has, without that any source says so.
_WITHOUT_SOURCE = frozenset({"return", "self", "shape", "slot"})
_NAME = regex(r"[^\W\d]\w*")
#: A key and what it names.
Named: TypeAlias = "tuple[str, Sequence[str]]"


class Words(Struct, frozen=True):
    """Names, or globs of them, under one key; of `alternatives` one has to be there, not each.

    Those of a path may be declared elsewhere as well.
    """

    key: str
    names: Sequence[str]
    alternatives: bool = False
    of_path: bool = False


def references(contract: Contract, version: str | None) -> Iterator[Named]:
    """Yields the functions and classes, `module:name`, of which one has to be there each time.

    Opaque functions are not among them: a release may lack the modules of all.
    """
    inputs, launches = contract.graph_inputs, contract.launches
    for relay in contract.relay:
        if applies(relay.releases, version):
            yield "relay.class", (relay.class_,)
            for key in ("peeks", "consumes_at_return", "takes"):
                yield f"relay.{key}", tuple(one for one in getattr(relay, key) if ":" in one)
    called: tuple[tuple[str, tuple[Functions, ...]], ...] = (
        ("owners", contract.owners),
        ("steps", contract.steps),
        ("launches.budget", launches.budget),
        ("streams.lend", contract.streams.lend),
    )
    for key, parts in called:
        for part in parts:
            if applies(part.releases, version):
                yield f"{key}.functions", part.functions
    for budget in launches.budget:
        if applies(budget.releases, version):
            yield "launches.budget.waits_in", budget.waits_in
    for fill in inputs.fill:
        if applies(fill.releases, version):
            yield "graph_inputs.fill.class", (fill.class_,)
            for key in ("settled_by", "captured_by"):
                names = tuple(one for one in getattr(fill, key) if ":" in one)
                yield f"graph_inputs.fill.{key}", names
    for replay in inputs.replay:
        if applies(replay.releases, version):
            yield "graph_inputs.replay.function", (replay.function,)
    yield "launches.fused", launches.fused
    yield "launches.per_step", launches.per_step
    yield "late_results.functions", contract.late_results.functions


def variables(contract: Contract, version: str | None) -> Iterator[Named]:
    """Yields the variables of modules, `module:name`, that paths start at.

    They may be those of a library that the engine calls, which neither has to be there nor says
    whose contract it is.
    """
    for fill in contract.graph_inputs.fill:
        if applies(fill.releases, version):
            for key in ("captured", "outputs"):
                for path in getattr(fill, key):
                    module, colon, names = path.partition(":")
                    if colon:
                        name = _NAME.findall(names)[0]
                        yield f"graph_inputs.fill.{key}", (f"{module}:{name}",)


def modules(contract: Contract) -> tuple[str, ...]:
    """Returns the modules of what a run looks for in any release, torch's own aside."""
    named = [one for _, alternatives in references(contract, None) for one in alternatives]
    named += [one for opaque in contract.opaque for one in opaque.functions]
    found = dict.fromkeys(one.partition(":")[0] for one in named)
    return tuple(one for one in found if one.partition(".")[0] != "torch")


def files(contract: Contract) -> Iterator[Named]:
    """Yields the globs of paths."""
    for key in ("agnostic", "cuda_only", "no_literal"):
        yield f"device.{key}", getattr(contract.device, key)


def inputs(contract: Contract) -> Iterator[tuple[str, str]]:
    """Yields the names of graph inputs that are said of all fills, each with its key."""
    for key in (
        *("row_indices", "index_like", "tail_is_discarded", "tail_may_stay"),
        *("holds", "valid", "offsets", "batch_dim"),
    ):
        yield from ((f"graph_inputs.{key}", name) for name in getattr(contract.graph_inputs, key))


def inputs_of(fill: Fill) -> Iterator[tuple[str, str]]:
    """Yields the names of graph inputs that are said of one fill, each with its key."""
    for key in ("holds", "only"):
        yield from ((f"graph_inputs.fill.{key}", name) for name in getattr(fill, key))


def words(contract: Contract, version: str | None) -> Iterator[Words]:
    """Yields the names that may stand anywhere in the source; what is by default is left out."""
    for relay in contract.relay:
        if applies(relay.releases, version):
            yield from _of_relay(relay, version)
    for owners in contract.owners:
        if applies(owners.releases, version):
            for key in ("rows", "owner", "pool"):
                yield _in_path(f"owners.{key}", getattr(owners, key))
    for key, name in inputs(contract):
        yield Words(key, (name,))
    for registry in contract.graph_inputs.registry:
        for key in (
            *("slot_class", "name_argument", "policy_argument", "default_policy"),
            *("stale_policies", "axis_argument", "default_axis", "computed_by"),
        ):
            yield Words(f"graph_inputs.registry.{key}", _given(registry, key))
    for fill in contract.graph_inputs.fill:
        if applies(fill.releases, version):
            for key, name in inputs_of(fill):
                yield Words(key, (name,))
            yield from _of_paths(fill)
            yield Words("graph_inputs.fill.methods", fill.methods, alternatives=True)
            for key in ("settled_by", "captured_by"):
                plain = [one for one in getattr(fill, key) if ":" not in one]
                yield Words(f"graph_inputs.fill.{key}", plain, alternatives=True)
    for key in ("no_compile", "device_modules", "guards"):
        yield Words(f"device.{key}", _given(contract.device, key))
    parts = [part for name in contract.launches.host_values for part in name.split(".")]
    yield Words("launches.host_values", parts)
    yield Words("launches.mirrored", contract.launches.mirrored)
    yield Words("late_results.checks", _given(contract.late_results, "checks"))
    yield from _of_streams(contract.streams)
    for renamed in contract.renamed:
        yield Words("renamed.new", (renamed.new,))
        yield Words("renamed.classes", renamed.classes, alternatives=True)
        yield Words("renamed.receivers", renamed.receivers, alternatives=True)
    for one in contract.self_guarding:
        yield Words("self_guarding.call", (one.call,))
        yield Words("self_guarding.guards", one.guards, alternatives=True)


def _of_relay(relay: Relay, version: str | None) -> Iterator[Words]:
    for buffer in relay.buffer:
        if applies(buffer.releases, version):
            yield Words("relay.buffer.name", (buffer.name.partition(".")[0],))
    for key in ("peeks", "consumes_at_return", "takes"):
        plain = [one for one in getattr(relay, key) if ":" not in one]
        yield Words(f"relay.{key}", plain, alternatives=True)


def _of_paths(fill: Fill) -> Iterator[Words]:
    for key in ("inputs", "source", "mapping"):
        yield _in_path(f"graph_inputs.fill.{key}", getattr(fill, key))
    for path in fill.captured:
        if ":" not in path:
            yield _in_path("graph_inputs.fill.captured", path)
    for name, axis in fill.axis.items():
        for key in ("raw", "padded", "capacity"):
            yield _in_path(f"graph_inputs.fill.axis.{name}.{key}", getattr(axis, key))
    for name, value in fill.holds.items():
        if isinstance(value, str):
            yield _in_path(f"graph_inputs.fill.holds.{name}", value)


def _in_path(key: str, path: str) -> Words:
    """Returns the names that a path is made of and that the source has to have."""
    names = [name for name in _NAME.findall(path) if name not in _WITHOUT_SOURCE]
    return Words(key, names, of_path=True)


def _of_streams(streams: Streams) -> Iterator[Words]:
    for key in ("ordered_by", "fills_pinned", "consumed_once"):
        yield Words(f"streams.{key}", getattr(streams, key))
    yield Words("streams.uploads", _given(streams, "uploads"))
    for pair in streams.joins:
        yield Words("streams.joins", pair)
    for guard in streams.guard:
        yield Words("streams.guard.name", (guard.name,))
        yield Words("streams.guard.covers", guard.covers)
    for fence in streams.fence:
        yield Words("streams.fence.fence", (fence.fence,))
        yield Words("streams.fence.launch", (fence.launch,))
        yield Words("streams.fence.writes", fence.writes)


def _given(part: msgspec.Struct, key: str) -> Sequence[str]:
    """Returns what a key is given, nothing where that is its default."""
    value = getattr(part, key)
    if any(one.name == key and one.default == value for one in msgspec.structs.fields(part)):
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
