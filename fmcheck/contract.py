"""The contract: what an engine's relay buffers, graph inputs and devices are, as data.

One TOML file describes one engine. The linter and the pytest plugin read the same one.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from fmcheck.errors import UsageError
from fmcheck.strict import convert, parse_toml, read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Version ranges that need no `packaging`, whose import takes longer than linting a file.
_PLAIN_RELEASES = re.compile(r"((>=|<=|<|>|==|!=)\d+(\.\d+)*(,(?!$)|$))*")
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    ">": operator.gt,
}


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A table of a contract file."""


class Engine(_Part, frozen=True, kw_only=True):
    """Whose contract this is.

    `distribution` is the installed package whose version picks what `releases` elsewhere in the
    file is about; `releases` here is the range that the contract was tried on.
    """

    name: str
    distribution: str = ""
    releases: str = ""


class Buffer(_Part, frozen=True, kw_only=True):
    """A relay buffer: an attribute of the relay class that holds a tensor, one row per slot.

    `name` may be a glob. `valid` is what a written value satisfies (`>= 0`, `> 0`, or "" for
    anything). A `lazy` buffer may be made after `__init__`, or never.
    """

    name: str
    releases: str = ""
    valid: str = ""
    lazy: bool = False

    @cached_property
    def is_glob(self) -> bool:
        """Tells whether `name` stands for several attributes."""
        return any(mark in self.name for mark in "*?[")

    def matches(self, attribute: str) -> bool:
        """Tells whether `attribute` is this buffer."""
        return fnmatch.fnmatchcase(attribute, self.name)

    @cached_property
    def bound(self) -> tuple[str, int] | None:
        """The comparison and limit of `valid`, or None when every value is valid."""
        if not self.valid:
            return None
        sign, _, limit = self.valid.partition(" ")
        return sign, int(limit)


class Relay(_Part, frozen=True, kw_only=True):
    """A relay class, `module:Class`, and its buffers.

    `sink_rows` are rows that padded batch entries point at: nobody owns them, and reading them
    is never a fault. `peeks` are methods whose gathers do not consume; `consumes_at_return` are
    methods that go on reading after the gather, whose rows are consumed when they return. A method
    that a release lacks is passed over. A healthy run may never make an `optional` relay.
    """

    class_: str = msgspec.field(name="class")
    buffer: tuple[Buffer, ...]
    releases: str = ""
    optional: bool = False
    sink_rows: tuple[int, ...] = (0,)
    peeks: tuple[str, ...] = ()
    consumes_at_return: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The module that defines the class."""
        return self.class_.partition(":")[0]

    @property
    def qualname(self) -> str:
        """The class's name in its module."""
        return self.class_.partition(":")[2]

    def buffer_for(self, attribute: str, version: str | None) -> Buffer | None:
        """Returns the declared buffer that `attribute` is in this release, or None."""
        for buffer in self.buffer:
            if buffer.matches(attribute) and applies(buffer.releases, version):
                return buffer
        return None

    def expected_after_init(self, version: str | None) -> Iterator[Buffer]:
        """Yields the buffers that exist as soon as `__init__` has returned."""
        for buffer in self.buffer:
            if not buffer.lazy and not buffer.is_glob and applies(buffer.releases, version):
                yield buffer


class Opaque(_Part, frozen=True, kw_only=True):
    """A kernel, `module:function`, that gathers or writes relay rows out of Python's sight.

    `rows` is the parameter that holds the row indices; `reads` and `writes` name the parameters
    that are handed relay buffers. `functions` lists alternatives, for kernels move between
    releases; none of them has to exist.
    """

    functions: tuple[str, ...]
    rows: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class Registry(_Part, frozen=True, kw_only=True):
    """A declarative registry of graph inputs: the slot class and its padding policies.

    `stale_policies` keep whatever the last replay left in the padded tail; a slot that names no
    policy has `default_policy`. Slots of one axis are padded together; a slot that names none is on
    `default_axis`. A slot that is given one of `computed_by` is written whole on each replay.
    """

    slot_class: str
    name_argument: str = "name"
    policy_argument: str = "padding_policy"
    default_policy: str
    stale_policies: tuple[str, ...]
    axis_argument: str = "axis"
    default_axis: str = ""
    computed_by: tuple[str, ...] = ()


class FillValue(_Part, frozen=True, kw_only=True):
    """What the padded rows of a graph input hold: `name`, which may be a glob, and the value."""

    name: str
    value: int


class GraphInputs(_Part, frozen=True, kw_only=True):
    """The static buffers of graph runners.

    `row_indices` name the buffers whose padded rows must point at the sink row: a stale tail there
    reads another request's rows. `index_like` name further buffers whose values are used as
    indices (positions, cache slots) or choose rows (masks). `tail_is_discarded` name those that
    padded rows compute from, for results that nobody keeps; `tail_may_stay` those whose padded
    tail is harmless, whatever the rest says. All are names or globs. `fill_value` says what padded
    rows of single buffers hold.
    """

    row_indices: tuple[str, ...] = ()
    index_like: tuple[str, ...] = ()
    tail_is_discarded: tuple[str, ...] = ()
    tail_may_stay: tuple[str, ...] = ()
    registry: tuple[Registry, ...] = ()
    fill_value: tuple[FillValue, ...] = ()


class Device(_Part, frozen=True, kw_only=True):
    """Where code must not name one accelerator's API.

    `agnostic` are globs of paths from the package's root, in which `*` crosses folders;
    `cuda_only` are those written for CUDA alone, whatever they mention; `no_literal` are further
    ones whose tensors go where the engine is told to run. `no_compile` are names whose truth means
    a platform that cannot compile what is compiled in `agnostic` ones. `device_modules` are the
    names by which code reaches the device-agnostic module; `guards` are names, leading underscores
    aside, whose truth means that the code runs on CUDA.
    """

    agnostic: tuple[str, ...] = ()
    cuda_only: tuple[str, ...] = ()
    no_literal: tuple[str, ...] = ()
    no_compile: tuple[str, ...] = ()
    device_modules: tuple[str, ...] = ("get_device_module", "device_module")
    guards: tuple[str, ...] = ("is_cuda", "is_cuda_alike", "is_hip")


class Launches(_Part, frozen=True, kw_only=True):
    """What the host does between two steps.

    `per_step` are functions, `module:function` or `module:Class.method`, that run every step and
    must not wait for the device; one that a release lacks is passed over. `host_values` are globs
    of names, besides those like `seq_lens_cpu`, whose values live on the host; `mirrored` are
    those of device values of which the host has a copy under the same name with `_cpu`.
    """

    per_step: tuple[str, ...] = ()
    host_values: tuple[str, ...] = ()
    mirrored: tuple[str, ...] = ()


class LateResults(_Part, frozen=True, kw_only=True):
    """What handles the results of a step while the next one runs.

    `functions`, `module:function` or `module:Class.method`, book results to requests; one that a
    release lacks is passed over. `checks` are the attributes and methods of a request that tell
    whether it is still the one that the step ran for.
    """

    functions: tuple[str, ...] = ()
    checks: tuple[str, ...] = ("finished", "is_retracted")


class Guard(_Part, frozen=True, kw_only=True):
    """A context manager under which reused host buffers may be written.

    `name` is the method that makes it, `covers` are methods that write such buffers: where one
    function enters the guard, it calls them inside.
    """

    name: str
    covers: tuple[str, ...]


class Fence(_Part, frozen=True, kw_only=True):
    """A fence by the name of the function that sets it, and between what it has to stand.

    A function that calls `fence` calls it after each `launch` and before any of `writes`, which
    write what the launched work may still read.
    """

    fence: str
    launch: str
    writes: tuple[str, ...]


class Streams(_Part, frozen=True, kw_only=True):
    """What orders streams out of the sight of a single function.

    `ordered_by` are functions that order streams for their caller; `joins` are pairs of long-lived
    streams, by the last part of their names, each of which has to wait for the other before it
    reuses memory. `uploads` are methods of a buffer that start an asynchronous copy from its host
    half. `fills_pinned` are the methods, by name or glob, that fill reused pinned buffers in every
    step.
    """

    ordered_by: tuple[str, ...] = ()
    fills_pinned: tuple[str, ...] = ()
    joins: tuple[tuple[str, str], ...] = ()
    uploads: tuple[str, ...] = ("copy_to_gpu",)
    guard: tuple[Guard, ...] = ()
    fence: tuple[Fence, ...] = ()


class Renamed(_Part, frozen=True, kw_only=True):
    """A hook that has a new name; a method or call by the old one is never reached.

    `classes` are globs of the classes that offer the hook, or of their bases; `receivers` of the
    names by which they are called. Elsewhere the old name is somebody else's.
    """

    old: str
    new: str
    classes: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()


class SelfGuarding(_Part, frozen=True, kw_only=True):
    """A function that returns at once where it has nothing to do: `call`, by its last name.

    `guards` are names that it tests itself; a caller's test of one of them repeats it.
    """

    call: str
    guards: tuple[str, ...]


class Contract(_Part, frozen=True, kw_only=True):
    """An engine's contract, whole. `origin` is the file it was read from."""

    engine: Engine
    relay: tuple[Relay, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    graph_inputs: GraphInputs = GraphInputs()
    device: Device = Device()
    launches: Launches = Launches()
    late_results: LateResults = LateResults()
    streams: Streams = Streams()
    renamed: tuple[Renamed, ...] = ()
    self_guarding: tuple[SelfGuarding, ...] = ()


def applies(releases: str, version: str | None) -> bool:
    """Tells whether a part for `releases` is meant for `version`; an unknown version gets all."""
    if not releases or version is None:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(releases).contains(version, True)


def load_contract(path: Path) -> Contract:
    """Reads and checks one contract file.

    Raises:
        UsageError: naming the file, the key, what was expected and the nearest known name.
    """
    return _checked(read_toml(path), str(path))


def parse_contract(text: str, where: str) -> Contract:
    """Reads and checks the text of a contract file, which errors call `where`.

    Raises:
        UsageError: as for `load_contract`.
    """
    return _checked(parse_toml(text, where), where)


def _checked(table: dict[str, Any], where: str) -> Contract:
    contract = convert(table, Contract, where)
    _check(contract, where)
    return contract


def _check(contract: Contract, where: str) -> None:
    """Rejects values that fit their type and mean nothing."""
    _check_releases(contract.engine.releases, where, "engine.releases")
    for number, relay in enumerate(contract.relay):
        key = f"relay[{number}]"
        _check_reference(relay.class_, where, f"{key}.class", "module:Class")
        _check_releases(relay.releases, where, f"{key}.releases")
        if not relay.buffer:
            raise UsageError(where, f"key `{key}.buffer`: expected at least one buffer, got none")
        for inner, buffer in enumerate(relay.buffer):
            _check_releases(buffer.releases, where, f"{key}.buffer[{inner}].releases")
            _check_valid(buffer.valid, where, f"{key}.buffer[{inner}].valid")
    for number, registry in enumerate(contract.graph_inputs.registry):
        _check_registry(registry, where, f"graph_inputs.registry[{number}]")
    for name in contract.device.no_compile:
        _check_name(name, where, "device.no_compile")
    _check_streams(contract.streams, where)
    for number, renamed in enumerate(contract.renamed):
        _check_name(renamed.old, where, f"renamed[{number}].old")
        _check_name(renamed.new, where, f"renamed[{number}].new")
        if not renamed.classes and not renamed.receivers:
            key = f"renamed[{number}]"
            raise UsageError(where, f"key `{key}`: expected `classes` or `receivers`, got neither")
    for number, guarding in enumerate(contract.self_guarding):
        _check_name(guarding.call, where, f"self_guarding[{number}].call")
        if not guarding.guards:
            key = f"self_guarding[{number}].guards"
            raise UsageError(where, f"key `{key}`: expected at least one, got none")
    for number, opaque in enumerate(contract.opaque):
        for function in opaque.functions:
            _check_reference(function, where, f"opaque[{number}].functions", "module:function")
    named = {
        "launches.per_step": contract.launches.per_step,
        "late_results.functions": contract.late_results.functions,
    }
    for key, functions in named.items():
        for function in functions:
            _check_reference(function, where, key, "module:Class.method")


def _check_reference(text: str, where: str, key: str, shape: str) -> None:
    module, colon, name = text.partition(":")
    dotted = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in dotted):
        raise UsageError(where, f"key `{key}`: expected `{shape}`, got `{text}`")


def _check_name(text: str, where: str, key: str) -> None:
    if not text.isidentifier():
        raise UsageError(where, f"key `{key}`: expected a name, got `{text}`")


def _check_registry(registry: Registry, where: str, key: str) -> None:
    for field in ("slot_class", "name_argument", "policy_argument", "axis_argument"):
        value = getattr(registry, field)
        if not value.isidentifier():
            raise UsageError(where, f"key `{key}.{field}`: expected a name, got `{value}`")
    if not registry.stale_policies:
        raise UsageError(where, f"key `{key}.stale_policies`: expected at least one, got none")


def _check_streams(streams: Streams, where: str) -> None:
    named = {
        "ordered_by": streams.ordered_by,
        "joins": [name for pair in streams.joins for name in pair],
        "uploads": streams.uploads,
    }
    for number, fence in enumerate(streams.fence):
        named[f"fence[{number}]"] = (fence.fence, fence.launch, *fence.writes)
        if not fence.writes:
            key = f"streams.fence[{number}].writes"
            raise UsageError(where, f"key `{key}`: expected at least one function, got none")
    for number, guard in enumerate(streams.guard):
        named[f"guard[{number}].name"] = (guard.name,)
        named[f"guard[{number}].covers"] = guard.covers
        if not guard.covers:
            key = f"streams.guard[{number}].covers"
            raise UsageError(where, f"key `{key}`: expected at least one method, got none")
    for key, names in named.items():
        for name in names:
            if not name.isidentifier():
                raise UsageError(where, f"key `streams.{key}`: expected a name, got `{name}`")


def _check_releases(text: str, where: str, key: str) -> None:
    if _PLAIN_RELEASES.fullmatch(text):
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise UsageError(
            where, f"key `{key}`: expected a version range like `>=0.5.13,<0.6`, got `{text}`"
        ) from None


def _check_valid(text: str, where: str, key: str) -> None:
    sign, _, limit = text.partition(" ")
    if text and (sign not in COMPARISONS or not limit.lstrip("-").isdigit()):
        raise UsageError(where, f"key `{key}`: expected `>= N` or `> N`, got `{text}`")
