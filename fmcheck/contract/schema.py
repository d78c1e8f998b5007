"""The contract: what an engine's relay buffers, graph inputs and devices are, as data.

One TOML file describes one engine. The linter and the pytest plugin read the same one.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    ">": operator.gt,
}

_IS: dict[str, Callable[[Any, Any], bool]] = {
    **COMPARISONS,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
#: Releases and ranges of them as nearly all are, for which `packaging` need not be imported.
_PLAIN = regex(r"[0-9]+(?:\.[0-9]+)*")
_PLAIN_RANGE = regex(r"\s*(>=|<=|>|<|==|!=)\s*([0-9]+(?:\.[0-9]+)*)\s*")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A table of a contract file."""


class Engine(_Part, frozen=True, kw_only=True):
    """Whose contract this is.

    `distribution` is the installed package whose version picks what `releases` elsewhere in the
    file is about, or a list of such packages, of which the first that is installed counts: some
    engines are released under one name for each kind of device. `releases` here is the range that
    the contract was tried on.
    """

    name: str
    distribution: str | tuple[str, ...] = ""
    releases: str = ""

    @property
    def distributions(self) -> tuple[str, ...]:
        """The packages of which one is installed, the likeliest first."""
        named = self.distribution
        return tuple(filter(None, (named,) if isinstance(named, str) else named))


class Buffer(_Part, frozen=True, kw_only=True):
    """A relay buffer: an attribute of the relay class that holds a tensor, one row per slot.

    `name` may be a glob; one with a dot is an entry of a dict or a list that the attribute holds
    when `__init__` is done, as `inputs.lens` or `pools.0`. `valid` is what a written value
    satisfies (`>= 0`, `> 0`, or "" for anything). A `lazy` buffer may be made after `__init__`, or
    never. `overwrite` says when a value that nobody gathered may be written over: `never`,
    `always`, or `until gathered`, for a buffer that some modes of the engine fill and nobody reads:
    from its first gather on, never.
    `reads` is `once`, or `many` where a gather leaves the value there for the next one. `row_dim`
    is the dimension that counts the rows. `unit` is what is written and read by itself: a `row`, an
    `element` `[row, position]`, or a number of columns side by side. `sink_holds` is what the sink
    rows hold whenever a padded entry reads them. A buffer is `kept` where others than the relay
    read its memory after the gather, as a copy that is under way does: no poison is written over
    what was gathered. One that is not `owned` has other rows than those that `[[owners]]` speaks
    of, as the places of the batch before.
    """

    name: str
    releases: str = ""
    valid: str = ""
    lazy: bool = False
    kept: bool = False
    overwrite: str = "never"
    reads: str = "once"
    row_dim: int = 0
    unit: str | int = "row"
    sink_holds: int | None = None
    owned: bool = True

    @property
    def stays(self) -> bool:
        """Tells whether a gather leaves the value there for the next one."""
        return self.reads == "many"

    @property
    def columns(self) -> int:
        """How many columns are a unit, 0 where a row is."""
        return self.unit if isinstance(self.unit, int) else int(self.unit == "element")

    @cached_property
    def is_glob(self) -> bool:
        """Tells whether `name` stands for several attributes."""
        return any(mark in self.name for mark in "*?[")

    def matches(self, attribute: str) -> bool:
        """Tells whether `attribute`, or an entry of one, is this buffer."""
        is_alike = attribute.count(".") == self.name.count(".")
        return is_alike and fnmatch.fnmatchcase(attribute, self.name)

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
    is never a fault. A negative one counts from the end, and a path from `self` leads to one.
    Where nobody says, row 0 is taken for one until it is handed out.
    `peeks` are methods whose gathers do not consume; `consumes_at_return` are methods that go on
    reading after the gather, whose rows are consumed when they return; `takes` are methods that
    gather by a slice as well, elsewhere a view that consumes nothing. All are methods of the relay
    class, or `module:Class.method` and `module:function` of others. A method that a release lacks
    is passed over. A healthy run may never make an `optional` relay. `pool` lists alternatives for
    the path, from the parameters of `__init__` and `self`, to the pool whose rows these are;
    without one, all pools of the contract are taken for one.
    """

    class_: str = msgspec.field(name="class")
    buffer: tuple[Buffer, ...]
    releases: str = ""
    optional: bool = False
    sink_rows: tuple[int | str, ...] | None = None
    peeks: tuple[str, ...] = ()
    consumes_at_return: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    pool: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The module that defines the class."""
        return self.class_.partition(":")[0]

    @property
    def qualname(self) -> str:
        """The class's name in its module."""
        return self.class_.partition(":")[2]

    @property
    def peek_names(self) -> frozenset[str]:
        """The names of the functions whose gathers do not consume, whoever's they are."""
        return frozenset(re.split("[.:]", name)[-1] for name in self.peeks)

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
    that are handed relay buffers. A kernel that skips some of its rows touches those for which all
    of `rows_where` hold: comparisons of its parameters like `num_sampled > 0`, which has a number
    for each row index, or `seq_lens > prefill_len[rows]`, where `prefill_len` has one for each row;
    `starts[1:] - starts > 1` is about neighbours, a name alone is a mask, and `drafts is not None`
    asks whether there is such an argument. `functions` lists
    alternatives, for kernels move between releases; a release may lack the modules of all of them.
    A kernel that treats its buffers differently is declared once for each.
    """

    functions: tuple[str, ...]
    rows: str
    rows_where: tuple[str, ...] = ()
    releases: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class OwnerFunctions(_Part, frozen=True, kw_only=True):
    """Functions, `module:Class.method` or `module:function`, that give rows to owners or end that.

    `does` is `hands out` or `takes back`; or `assigns`, of functions after which `owner` leads to
    who has each row: a list by row, where None stands for nobody, or a mapping from names to rows;
    or `uses`, of functions that take rows to be `owner`'s, before the call, or after it where a
    path starts at `return`; or `serves`, of functions that run a batch: they access no row that
    belongs to another than `owner`. What assigns or serves has no `rows`.
    `rows` and `owner` are paths: `return`, a parameter
    (`self` is one), attributes of it, `[]` for each item of a sequence, as in `reqs[].rid`, and
    `[key]` for what a mapping has under a parameter, as in `self.row_of[rid]`: nothing, if it lacks
    the key. What is handed out is looked up after the call, what is taken back before it: freeing
    clears attributes. None hands out nothing. `functions` lists alternatives, for functions move
    between releases; each that exists is watched. `relays` are the classes whose rows these are,
    all of the contract's if there are none. `renews` tells of a ring, whose rows nobody takes back:
    that a row goes to whoever is next even where its last owner still has it. `drained` tells that
    a row is handed out only once nothing that was launched for its last owner can still touch it.
    `rows` of `*` takes back all that are out. `idempotent` tells of a take-back that does nothing
    where nobody holds the row any more. `pool` is the path to the pool, where relays name theirs.
    """

    functions: tuple[str, ...]
    does: str
    rows: str = ""
    owner: str = ""
    releases: str = ""
    relays: tuple[str, ...] = ()
    renews: bool = False
    drained: bool | None = None
    idempotent: bool = False
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
    when what `settled_by` names is called in the fill or after it, a method of the same class or
    a function of any module; without one, when the fill returns. A call is passed over where the
    path `unless` leads to something true. `captured_by` are the methods, named likewise, after
    which a graph reads the inputs where they are then: an object that captured nothing is not
    judged when its fill returns. Without one, the inputs must not move between a fill and its
    replay.
    `captured` are paths of what else the graph reads where it was, such as weights: tensors, and
    sequences, mappings and modules of them, from `self` or from a variable of a module,
    `module:name.attribute`, as a cached workspace is. `outputs` are paths of what each replay
    writes and returns, which may start likewise and which `settled_by` makes: what is kept of them
    beyond the next one has to be a copy.
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
    captured_by: tuple[str, ...] = ()
    captured: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
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

    @property
    def functions(self) -> tuple[str, ...]:
        """The function, as the tables of several name theirs."""
        return (self.function,)


class GraphInputs(_Part, frozen=True, kw_only=True):
    """The static buffers of graph runners.

    `row_indices` name the buffers whose padded rows must point at the sink row: a stale tail there
    reads another request's rows. `index_like` name further buffers whose values are used as
    indices (positions, cache slots) or choose rows (masks). `tail_is_discarded` name those that
    padded rows compute from, for results that nobody keeps; `tail_may_stay` those whose padded
    tail is harmless, whatever the rest says. `holds` is what a tail holds after
    every fill, unless the fill says otherwise. All are names or globs.

    At run time: `valid` (`> 0`) is what it must be besides. `head` is what every entry of a real
    row must be when a graph reads it: no placeholder. `rewritten` name those whose real rows each
    fill writes: a step that leaves one out replays the last step's. `offsets` name those with an
    entry more than there are rows, where each row's tokens begin and end, which never fall.
    `batch_dim` is the dimension that is padded, where that is not the first.
    """

    row_indices: tuple[str, ...] = ()
    index_like: tuple[str, ...] = ()
    tail_is_discarded: tuple[str, ...] = ()
    tail_may_stay: tuple[str, ...] = ()
    holds: dict[str, int] = {}
    valid: dict[str, str] = {}
    head: dict[str, str] = {}
    rewritten: tuple[str, ...] = ()
    offsets: tuple[str, ...] = ()
    batch_dim: dict[str, int] = {}
    registry: tuple[Registry, ...] = ()
    fill: tuple[Fill, ...] = ()
    replay: tuple[Replay, ...] = ()


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


class Budget(_Part, frozen=True, kw_only=True):
    """What one call of a function, `module:Class.method` or `module:function`, may cost.

    `syncs` is how often the host may wait for the device, beside the waits inside of the functions
    of `waits_in`, and `launches` how many operations it may give to the device; None counts
    nothing. A call is held to it where the path `when` leads to something true, or there is none.
    `functions` lists alternatives, for functions move between releases; each that exists is held.
    """

    functions: tuple[str, ...]
    syncs: int | None = None
    launches: int | None = None
    waits_in: tuple[str, ...] = ()
    when: str = ""
    releases: str = ""


class Launches(_Part, frozen=True, kw_only=True):
    """What the host does between two steps.

    `per_step` are functions, `module:function` or `module:Class.method`, that run every step and
    must not wait for the device; one that a release lacks is passed over. `host_values` are globs
    of names whose values live on the host, `holder.name` of attributes of what has such a name, as
    `host_io.*`: the buffers of one class may be on either side. The linter takes names like
    `seq_lens_cpu` for such in any case; a run takes none but these, for attributes and locals that
    hold a tensor, or a list, tuple or dict of tensors. `mirrored` are those of device values of
    which the host has a copy under the same name with `_cpu`.

    At run time: what a call may cost is said by `budget`; a sync in a function of `per_step` that
    has none is reported and fails nothing. A call of one of `fused`, functions like those of
    `per_step`, is one launch. `device_is_string` says that the engine has its device as a string:
    what is made on `"cpu"` by such a setting is then the device's, and `x.to(setting)` is no sync
    for certain. Where a call spells `"cpu"` itself, it means the host.
    """

    per_step: tuple[str, ...] = ()
    host_values: tuple[str, ...] = ()
    mirrored: tuple[str, ...] = ()
    device_is_string: bool = False
    fused: tuple[str, ...] = ()
    budget: tuple[Budget, ...] = ()


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


class Lend(_Part, frozen=True, kw_only=True):
    """Functions that tell the allocator, by `record_stream`, that a stream uses a tensor.

    Each is handed both. `functions` lists alternatives, for functions move between releases.
    """

    functions: tuple[str, ...]
    releases: str = ""


class Streams(_Part, frozen=True, kw_only=True):
    """What orders streams out of the sight of a single function.

    `ordered_by` are names of functions that order streams for their caller; `joins` are pairs of
    long-lived streams, by the last part of their names, each of which has to wait for the other
    before it reuses memory. `uploads` are methods of a buffer that start an asynchronous copy from
    its host half. `fills_pinned` are the methods, by name or glob, that fill reused pinned buffers
    in every step. `consumed_once` are the attributes that hold events which each step waits for
    again: a record that one step has waited for is of no use to the next. `gated` says which fence
    between a read and a later write the engine makes on some platforms alone: on a CPU such a race
    is reported and fails nothing.
    """

    ordered_by: tuple[str, ...] = ()
    fills_pinned: tuple[str, ...] = ()
    consumed_once: tuple[str, ...] = ()
    gated: str = ""
    joins: tuple[tuple[str, str], ...] = ()
    uploads: tuple[str, ...] = ("copy_to_gpu",)
    guard: tuple[Guard, ...] = ()
    fence: tuple[Fence, ...] = ()
    lend: tuple[Lend, ...] = ()


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


#: Tables that name functions, alternatives of each other.
Functions: TypeAlias = Budget | Lend | Opaque | OwnerFunctions | Replay | StepFunctions


class Contract(_Part, frozen=True, kw_only=True):
    """An engine's contract, whole.

    `only_in` says of names and globs, under whichever keys, which releases have them, where a key
    has no `releases` of its own: `fmcheck contract --release` does not look for them in others.
    """

    engine: Engine
    relay: tuple[Relay, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    owners: tuple[OwnerFunctions, ...] = ()
    steps: tuple[StepFunctions, ...] = ()
    graph_inputs: GraphInputs = GraphInputs()
    device: Device = Device()
    launches: Launches = Launches()
    late_results: LateResults = LateResults()
    streams: Streams = Streams()
    renamed: tuple[Renamed, ...] = ()
    self_guarding: tuple[SelfGuarding, ...] = ()
    only_in: dict[str, str] = {}


def applies(releases: str, version: str | None) -> bool:
    """Tells whether a part for `releases` is meant for `version`; an unknown version gets all."""
    if not releases or version is None:
        return True
    if _PLAIN.fullmatch(version) and all(map(_PLAIN_RANGE.fullmatch, releases.split(","))):
        at = _numbers(version)
        return all(_IS[one[1]](at, _numbers(one[2])) for one in _PLAIN_RANGE.finditer(releases))
    from packaging.specifiers import SpecifierSet  # slower to import than a small file to lint

    return SpecifierSet(releases).contains(version, True)


def _numbers(release: str) -> list[int]:
    """Returns a plain release as it compares: `1.0` is `1`."""
    return [int(one) for one in re.sub(r"(?:\.0+)+$", "", release).split(".")]
