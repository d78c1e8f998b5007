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
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from fmcheck.errors import UsageError, nearest
from fmcheck.strict import convert, parse_toml, read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    ">": operator.gt,
}
OVERWRITES = ("never", "until gathered", "always")
HANDS_OUT, TAKES_BACK = "hands out", "takes back"

# Of one thing, by names and keys; and of several, with `[]` for each item.
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[(\w[\w.]*|\*)\])*")
_PATHS = re.compile(r"[A-Za-z_]\w*(\[\])?(\.[A-Za-z_]\w*(\[\])?)*")


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
    anything). A `lazy` buffer may be made after `__init__`, or never. `overwrite` says when a
    value that nobody gathered may be written over: `never`, `always`, or `until gathered`, for a
    buffer that some modes of the engine fill and nobody reads: from its first gather on, never.
    """

    name: str
    releases: str = ""
    valid: str = ""
    lazy: bool = False
    overwrite: str = "never"

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
    that a release lacks is passed over. A healthy run may never make an `optional` relay. `pool`
    lists alternatives for the path, from the parameters of `__init__` and `self`, to the pool whose
    rows these are; without one, all pools of the contract are taken for one.
    """

    class_: str = msgspec.field(name="class")
    buffer: tuple[Buffer, ...]
    releases: str = ""
    optional: bool = False
    sink_rows: tuple[int, ...] = (0,)
    peeks: tuple[str, ...] = ()
    consumes_at_return: tuple[str, ...] = ()
    pool: tuple[str, ...] = ()

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


class OwnerFunctions(_Part, frozen=True, kw_only=True):
    """Functions, `module:Class.method` or `module:function`, that give rows to owners or end that.

    `does` is `hands out` or `takes back`. `rows` and `owner` are paths: `return`, a parameter
    (`self` is one), attributes of it, and `[]` for each item of a sequence, as in `reqs[].rid`.
    What is handed out is looked up after the call, what is taken back before it: freeing clears
    attributes. None hands out nothing. `functions` lists alternatives, for functions move between
    releases; each that exists is watched. `relays` are the classes whose rows these are, all of
    the contract's if there are none. `renews` tells of a ring, whose rows nobody takes back: that a
    row goes to whoever is next even where its last owner still has it. `pool` is the path to the
    pool, where relays name theirs.
    """

    functions: tuple[str, ...]
    does: str
    rows: str
    owner: str = ""
    releases: str = ""
    relays: tuple[str, ...] = ()
    renews: bool = False
    pool: str = ""

    def covers(self, relay: Relay, version: str | None) -> bool:
        """Tells whether the rows of `relay` are handed out here in this release."""
        return applies(self.releases, version) and (not self.relays or relay.class_ in self.relays)


class StepFunctions(_Part, frozen=True, kw_only=True):
    """Functions, `module:Class.method` or `module:function`, each call of which begins a step."""

    functions: tuple[str, ...]
    releases: str = ""


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


class Axis(_Part, frozen=True, kw_only=True):
    """How much of a graph input one call fills: `raw` real entries of `padded`, out of `capacity`.

    All three are paths. An input that is n times as long as `capacity` has n entries for each.
    """

    raw: str
    padded: str
    capacity: str


class Fill(_Part, frozen=True, kw_only=True):
    """Methods of a class, `module:Class`, that copy a batch into the graph inputs and pad it.

    A path is a name with attributes and subscripts (`self.buffers`, `io[bs].rows`); `[*]` takes the
    entry with the largest key. It starts at a parameter of the method; at `return`, what the method
    returned; or at `slot`, the slot itself.

    `inputs` is the path of the object, or of the mapping, that holds the inputs. They are tensors,
    or slots with the tensor in the attribute `slot_buffer` and the name of the axis in `slot_axis`;
    without slots there is one axis. `only` restricts the fill to some inputs. The tail is judged
    when a method of `settled_by` is called, of the same class or `module:Class.method`, and else
    when the fill returns. A call is passed over where the path `unless` leads to something true.
    `holds` is what the tail of an input holds after this fill, a number or
    a path. `source` is where the batch's own values lie by the same names; `copies_source` means
    that the head holds just these. `mapping` is the path of the tensor whose row 0 stays zero.
    """

    class_: str = msgspec.field(name="class")
    methods: tuple[str, ...]
    inputs: str
    axis: dict[str, Axis]
    releases: str = ""
    slot_buffer: str = ""
    slot_axis: str = ""
    only: tuple[str, ...] = ()
    settled_by: tuple[str, ...] = ()
    unless: str = ""
    holds: dict[str, int | str] = {}
    source: str = ""
    copies_source: bool = False
    mapping: str = ""

    @property
    def module(self) -> str:
        """The module that defines the class."""
        return self.class_.partition(":")[0]

    @property
    def qualname(self) -> str:
        """The class's name in its module."""
        return self.class_.partition(":")[2]


class Replay(_Part, frozen=True, kw_only=True):
    """A function, `module:name`, after which a captured graph has touched relay rows.

    `rows` is the path of the row indices, as for a fill, and `count` of how many of them are real,
    where that is not all. `reads` and `writes` are the paths of the relay buffers that the graph
    gathers from and scatters into.
    """

    function: str
    rows: str
    count: str = ""
    releases: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class GraphInputs(_Part, frozen=True, kw_only=True):
    """The static buffers of graph runners.

    `row_indices` name the buffers whose padded rows must point at the sink row: a stale tail there
    reads another request's rows. `index_like` name further buffers whose values are used as
    indices (positions, cache slots) or choose rows (masks). `tail_is_discarded` name those that
    padded rows compute from, for results that nobody keeps; `tail_may_stay` those whose padded
    tail is harmless, whatever the rest says. All are names or globs.

    At run time: `holds` is what a tail holds after every fill, unless the fill says otherwise;
    `valid` (`> 0`) is what it must be besides. `batch_dim` is the dimension that is padded, where
    that is not the first.
    """

    row_indices: tuple[str, ...] = ()
    index_like: tuple[str, ...] = ()
    tail_is_discarded: tuple[str, ...] = ()
    tail_may_stay: tuple[str, ...] = ()
    holds: dict[str, int] = {}
    valid: dict[str, str] = {}
    batch_dim: dict[str, int] = {}
    registry: tuple[Registry, ...] = ()
    fill: tuple[Fill, ...] = ()
    replay: tuple[Replay, ...] = ()


class Device(_Part, frozen=True, kw_only=True):
    """Where code must not name one accelerator's API.

    `agnostic` are globs of paths from the package's root, in which `*` crosses folders;
    `cuda_only` are those written for CUDA alone, whatever they mention. `device_modules` are the
    names by which code reaches the device-agnostic module; `guards` are names, leading underscores
    aside, whose truth means that the code runs on CUDA.
    """

    agnostic: tuple[str, ...] = ()
    cuda_only: tuple[str, ...] = ()
    device_modules: tuple[str, ...] = ("get_device_module", "device_module")
    guards: tuple[str, ...] = ("is_cuda", "is_cuda_alike", "is_hip")


class Contract(_Part, frozen=True, kw_only=True):
    """An engine's contract, whole. `origin` is the file it was read from."""

    engine: Engine
    relay: tuple[Relay, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    owners: tuple[OwnerFunctions, ...] = ()
    steps: tuple[StepFunctions, ...] = ()
    graph_inputs: GraphInputs = GraphInputs()
    device: Device = Device()


def applies(releases: str, version: str | None) -> bool:
    """Tells whether a part for `releases` is meant for `version`; an unknown version gets all."""
    return not releases or version is None or SpecifierSet(releases).contains(version, True)


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
        for path in relay.pool:
            _check_path(path, where, f"{key}.pool")
        for inner, buffer in enumerate(relay.buffer):
            _check_releases(buffer.releases, where, f"{key}.buffer[{inner}].releases")
            _check_valid(buffer.valid, where, f"{key}.buffer[{inner}].valid")
            _check_one_of(buffer.overwrite, OVERWRITES, where, f"{key}.buffer[{inner}].overwrite")
    for number, registry in enumerate(contract.graph_inputs.registry):
        _check_registry(registry, where, f"graph_inputs.registry[{number}]")
    _check_graph_inputs(contract.graph_inputs, where)
    for number, opaque in enumerate(contract.opaque):
        for function in opaque.functions:
            _check_reference(function, where, f"opaque[{number}].functions", "module:function")
    for number, owners in enumerate(contract.owners):
        _check_owners(owners, contract, where, f"owners[{number}]")
    for number, steps in enumerate(contract.steps):
        _check_functions(steps, where, f"steps[{number}]")


def _check_owners(owners: OwnerFunctions, contract: Contract, where: str, key: str) -> None:
    _check_functions(owners, where, key)
    _check_one_of(owners.does, (HANDS_OUT, TAKES_BACK), where, f"{key}.does")
    _check_paths(owners.rows, where, f"{key}.rows")
    if owners.owner:
        _check_paths(owners.owner, where, f"{key}.owner")
    if owners.pool:
        _check_path(owners.pool, where, f"{key}.pool")
    if owners.does == TAKES_BACK and re.match(r"return\b", owners.rows):
        raise UsageError(
            where,
            f"key `{key}.rows`: expected a parameter, got `{owners.rows}` "
            "(what is taken back is looked up before the call)",
        )
    for relay in owners.relays:
        _check_one_of(relay, [one.class_ for one in contract.relay], where, f"{key}.relays")


def _check_functions(part: OwnerFunctions | StepFunctions, where: str, key: str) -> None:
    if not part.functions:
        raise UsageError(where, f"key `{key}.functions`: expected at least one, got none")
    for function in part.functions:
        shape = "module:Class.method` or `module:function"
        _check_reference(function, where, f"{key}.functions", shape)
    _check_releases(part.releases, where, f"{key}.releases")


def _check_one_of(text: str, known: Sequence[str], where: str, key: str) -> None:
    if text not in known:
        names = ", ".join(f"`{one}`" for one in known) or "none that is declared"
        raise UsageError(
            where, f"key `{key}`: expected one of {names}, got `{text}`{nearest(text, known)}"
        )


def _check_paths(text: str, where: str, key: str) -> None:
    if not _PATHS.fullmatch(text):
        raise UsageError(
            where,
            f"key `{key}`: expected a path like `return`, `reqs[].rid` or `self.rows`, "
            f"got `{text}`",
        )


def _check_reference(text: str, where: str, key: str, shape: str) -> None:
    module, colon, name = text.partition(":")
    dotted = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in dotted):
        raise UsageError(where, f"key `{key}`: expected `{shape}`, got `{text}`")


def _check_registry(registry: Registry, where: str, key: str) -> None:
    for field in ("slot_class", "name_argument", "policy_argument", "axis_argument"):
        value = getattr(registry, field)
        if not value.isidentifier():
            raise UsageError(where, f"key `{key}.{field}`: expected a name, got `{value}`")
    if not registry.stale_policies:
        raise UsageError(where, f"key `{key}.stale_policies`: expected at least one, got none")


def _check_graph_inputs(inputs: GraphInputs, where: str) -> None:
    for name, text in inputs.valid.items():
        _check_valid(text, where, f"graph_inputs.valid.{name}")
    for number, fill in enumerate(inputs.fill):
        _check_fill(fill, where, f"graph_inputs.fill[{number}]")
    for number, replay in enumerate(inputs.replay):
        key = f"graph_inputs.replay[{number}]"
        _check_reference(replay.function, where, f"{key}.function", "module:function")
        _check_releases(replay.releases, where, f"{key}.releases")
        for path in (replay.rows, replay.count, *replay.reads, *replay.writes):
            if path:
                _check_path(path, where, key)


def _check_fill(fill: Fill, where: str, key: str) -> None:
    _check_reference(fill.class_, where, f"{key}.class", "module:Class")
    _check_releases(fill.releases, where, f"{key}.releases")
    if not fill.methods:
        raise UsageError(where, f"key `{key}.methods`: expected at least one method, got none")
    if len(fill.axis) != 1 and not fill.slot_axis:
        raise UsageError(
            where, f"key `{key}.axis`: expected one axis without `slot_axis`, got {len(fill.axis)}"
        )
    for method in fill.settled_by:
        if ":" in method:
            _check_reference(method, where, f"{key}.settled_by", "module:Class.method")
    paths = [fill.inputs, *(path for path in (fill.unless, fill.source, fill.mapping) if path)]
    paths += [held for held in fill.holds.values() if isinstance(held, str)]
    for axis in fill.axis.values():
        paths += [axis.raw, axis.padded, axis.capacity]
    for path in paths:
        _check_path(path, where, key)


def _check_path(text: str, where: str, key: str) -> None:
    if not _PATH.fullmatch(text):
        raise UsageError(where, f"key `{key}`: expected a path like `self.buffers`, got `{text}`")


def _check_releases(text: str, where: str, key: str) -> None:
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
