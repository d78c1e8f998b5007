"""Open fills: one call of a fill method, from what it finds to the verdict on its tails."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fmcheck.runtime.core import paths
from fmcheck.runtime.core.containment import broke
from fmcheck.runtime.core.naming import plainly, slots_of
from fmcheck.runtime.graphs.captures import (
    AttributeLocation,
    TensorLocation,
    place_of,
    told_apart_by,
)
from fmcheck.runtime.graphs.expectations import SINK, Expectation
from fmcheck.runtime.graphs.graph_reads import storage_of
from fmcheck.runtime.graphs.tails import (
    BY_FILL,
    BY_NOBODY,
    DeviceTail,
    Found,
    HostTail,
    Tail,
    TailRecord,
    can_be_followed,
)
from fmcheck.runtime.relay.relay_tensor import plain
from fmcheck.runtime.steps.torch_modes import has_memory
from fmcheck.runtime.steps.writes import (
    UNSEEN,
    Trace,
    address_of,
    follow,
    leave,
    line_of,
    made_here,
    region_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.contract import Contract, Fill
    from fmcheck.finding import Site
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.graphs.captures import Captures
    from fmcheck.runtime.graphs.expectations import Expectations
    from fmcheck.runtime.graphs.tails import Unseen
    from fmcheck.runtime.steps.writes import Made

# What these lead to is not known, or is that of an earlier call, before the fill has run.
_LATE = ("self", paths.RETURN)
#: What may be empty, and be filled later.
_CONTAINERS = (Mapping, list, tuple, torch.nn.Module)
#: Whether tails on a CPU are compared as those on a device: for tests of that code.
compares_on_device = False


_WRITTEN = {
    BY_NOBODY: "nothing wrote the tail: the replay reads leftover values, which may happen to be "
    "correct",
    BY_FILL: "this fill wrote the tail; these are the values that the replay reads",
}
_IN_DOUBT = (
    "these are the values that the replay reads; it is unknown here whether this fill wrote them"
)


_HEADS = {
    "head": (
        "the batch's values in the entries before the tail",
        "fill.copies_source",
        "FR201",
    ),
    "values": ("{} in each entry of a real row", "head", "FR202"),
    "rewritten": ("a write of each real row in this fill", "rewritten", "FR203"),
}


@dataclass(frozen=True, slots=True)
class Input:
    """A part of a graph input, in one call: its tail, its head, or row 0 of the mapping."""

    name: str
    part: str
    tensor: torch.Tensor
    expected: str
    rule: str
    code: str = "FR201"

    def of(self, part: str, expectation: Expectation) -> Input:
        """Returns another part: the head as it was copied, its values, or that it was written."""
        if part == "tail":
            return self
        expected, rule, code = _HEADS[part]
        bound = " ".join(map(str, expectation.head or ()))
        return dataclasses.replace(
            self, part="head", expected=expected.format(bound), rule=rule, code=code
        )

    def notes(self, found: Found) -> tuple[str, ...]:
        """Returns what else a reader wants to know."""
        rule = f"the contract's rule for it is `graph_inputs.{self.rule}`"
        if self.part != "tail":
            return (rule,)
        return (_WRITTEN.get(found.by, _IN_DOUBT), rule)


@dataclass(frozen=True, slots=True)
class _Followed:
    """A tail behind `raw` real rows of an axis, `per_row` entries each, and the writes to it."""

    name: str
    tensor: torch.Tensor
    expectation: Expectation
    axis: str
    raw: int
    real: int
    per_row: int
    tail: Tail
    trace: Trace
    source: torch.Tensor | None
    slot: Any

    @property
    def what(self) -> Input:
        """The tail as a report tells of it."""
        return Input(
            self.name, "tail", self.tensor, self.expectation.sentence, self.expectation.rule
        )


class Declared(Protocol):
    """The declared fill that a call is one of, and what its calls were found to have or lack."""

    contract: Contract
    fill: Fill
    tally: Tally
    expectations: Expectations
    captures: Captures
    records: dict[tuple[str, str, Any, Site], tuple[Any, Input]]
    #: By the name of an input and its address, the number of the line that wrote it last.
    written: dict[tuple[str, int], int]
    met: set[str]
    reached: set[str]

    @property
    def unseen(self) -> Unseen:
        """The inputs that were once written past torch's dispatcher."""

    def misses(self, err: LookupError) -> None:
        """A path led nowhere in this call, which is not judged."""

    def capture_of(self, filler: Any) -> object | None:
        """Returns the call that captures graphs over the inputs of `filler` now, if any."""

    def holds_none(self, key: str, path: str, value: Any) -> None:
        """A path of `captured` or `outputs` led to what has no tensor."""

    def has_no_offsets(self, name: str, entries: int, rows: int) -> None:
        """An input that the contract has among the offsets has not one entry more than rows."""

    def report(self, owner: str, what: Input, found: Found, site: Site) -> None:
        """Reports entries that hold what they must not."""


@dataclass(eq=False)
class OpenFill:
    """One call of a fill method."""

    fill_patch: Declared
    bindings: dict[str, Any]
    site: Site
    _followed: list[_Followed] = field(default_factory=list)
    _places: dict[str, TensorLocation] = field(default_factory=dict)
    _sizes: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _found: dict[str, weakref.ref[torch.Tensor]] = field(default_factory=dict)
    _made: Made = field(default_factory=dict)
    _padded: bool = False
    _is_left: bool = False
    is_settled: bool = False
    #: Whether it is an override that has to go on to a fill, and has not yet.
    goes_on: bool = False
    test: str = ""
    #: Where the function is defined that reads the inputs, once it is called.
    replay: Site | None = None

    @property
    def owner(self) -> str:
        """The class of the object that fills, for the names of buffers."""
        return type(self.filler).__name__

    @property
    def filler(self) -> Any:
        """The object that fills."""
        return self.bindings.get("self")

    def begin(self) -> bool:
        """Follows the writes to each declared input from now on; tells whether it could."""
        if self._passed_over():
            return False
        try:
            self._places = self.places()
            self._follow_all()
        except LookupError as err:  # an engine must not stop for a contract that does not fit it
            self.fill_patch.misses(err)
            return False
        follow(one.trace for one in self._followed)
        return True

    def leave(self) -> None:
        """The fill is over: what is written from now on is not its work."""
        if self._is_left:
            return
        self._is_left = True
        self._made = made_here()
        leave([one.trace for one in self._followed])
        # Where one was given other memory, the old one may be gone.
        self._followed = [one for one in self._followed if one.trace.is_in_place]
        for one in self._followed:
            one.tail.seal(one.trace)
            if one.trace.last:
                self.fill_patch.written[one.name, address_of(one.tensor)] = one.trace.last
            if one.trace.error is not None:
                broke(self.fill_patch.tally, "FR201", one.trace.error)

    def settle(self, replay: Site | None = None) -> None:
        """Judges the tails, once: the function at `replay`, if known, is about to read them."""
        self.replay = replay
        self.leave()
        self.is_settled = True
        followed, self._followed = self._followed, []
        try:
            is_captured = self.fill_patch.capture_of(self.filler) is not None
            bound = set() if is_captured else self.fill_patch.captures.judge(self, self._places)
            made = self._made_in_fill(bound) if bound else []
            self._judge_all([*(one for one in followed if one.trace.is_in_place), *made])
        except LookupError as err:
            self.fill_patch.misses(err)

    def places(self) -> dict[str, TensorLocation]:
        """Returns where each declared input lies now, and what else was captured, by its name."""
        found = {
            name: place_of(tensor)
            for name, _, tensor, _ in self._inputs()
            if self.fill_patch.expectations.of(name, tensor.dtype is torch.bool) is not None
        }
        for path in self.fill_patch.fill.captured:
            try:
                tensors = self._tensors_at("captured", path)
            except paths.NothingThereError:
                continue  # no graph reads what is not made yet
            found.update((part, place_of(tensor)) for part, tensor in tensors.items())
        return found

    def attributes(self) -> dict[str, AttributeLocation]:
        """Returns where the tensors lie that captured modules have as plain attributes, by name."""
        found: dict[str, AttributeLocation] = {}
        for path in self.fill_patch.fill.captured:
            with contextlib.suppress(paths.NothingThereError):
                named = _attributes_of(path.removeprefix("self."), self._look_up(path))
                for name, tensor in named:
                    if has_memory(tensor):
                        found[name] = AttributeLocation(place_of(tensor), storage_of(tensor))
        return found

    def outputs(self) -> dict[str, torch.Tensor]:
        """Returns what the replay that is about to begin writes, by what reports call it."""
        found: dict[str, torch.Tensor] = {}
        if self.fill_patch.fill.outputs and self.fill_patch.capture_of(self.filler) is None:
            for path in self.fill_patch.fill.outputs:
                try:
                    tensors = self._tensors_at("outputs", path)
                except LookupError as err:
                    self.fill_patch.misses(err)
                    continue
                found.update((self.called(name), one) for name, one in tensors.items())
        return found

    def _tensors_at(self, key: str, path: str) -> dict[str, torch.Tensor]:
        """Returns the tensors that a path of a key leads to, each by a name."""
        value = self._look_up(path)
        if key == "outputs" and isinstance(value, Mapping):
            value = self._of_this_graph(path, value)
        tensors = dict(_tensors_of(path.removeprefix("self."), value))
        if not (tensors or value is None or isinstance(value, _CONTAINERS)):
            self.fill_patch.holds_none(key, path, value)
        return tensors

    def _of_this_graph(self, path: str, by_key: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Returns what the graph of the padded size writes, of a mapping by size.

        Nothing where no key, or more than one, may be this graph's.
        """
        if len(by_key) < 2 or any(isinstance(key, str) for key in by_key):
            return by_key
        sizes = self.padded_sizes()
        found = {key: one for key, one in by_key.items() if sizes.intersection(told_apart_by(key))}
        if len(found) == 1:
            return found
        self.fill_patch.tally.untrack("outputs", f"nothing tells which of `{path}` a replay writes")
        return {}

    def called(self, name: str) -> str:
        """Returns what reports call an input, or what a path led to: with what holds it."""
        of_modules = [*self.fill_patch.fill.captured, *self.fill_patch.fill.outputs]
        if any(":" in path and name.startswith(path) for path in of_modules):
            module, _, rest = name.partition(":")
            return f"{module.rpartition('.')[2]}.{rest}"
        return f"{self.owner}.{name}"

    def line_that_made(self, name: str) -> Site | None:
        """Returns the line of this fill that created an input, None if it was created before."""
        tensors = {one: tensor for one, _, tensor, _ in self._inputs()}
        tensor = tensors.get(name)
        line = 0 if tensor is None else line_of(tensor, self._made)
        return self.fill_patch.tally.sites[line] if line else None

    def kept(self) -> set[str]:
        """Returns the inputs that are the same tensors as when the fill began."""
        return {
            name
            for name, _, tensor, _ in self._inputs()
            if name in self._found and self._found[name]() is tensor
        }

    def judge_mapping(self) -> None:
        """Judges row 0 of the mapping, where a tail was judged."""
        if self.fill_patch.fill.mapping and self._padded:
            try:
                self._judge_mapping(plain(self._look_up(self.fill_patch.fill.mapping)))
            except LookupError as err:
                self.fill_patch.misses(err)

    def returns(self, result: Any) -> None:
        """The fill has returned `result`."""
        self.bindings[paths.RETURN] = result

    def pads(self) -> bool:
        """Tells whether any tail would have been judged: an eager step pads nothing."""
        axes = self.fill_patch.fill.axis
        try:
            return any(
                int(self._look_up(axes[one.axis].padded)) > one.raw for one in self._followed
            )
        except LookupError:
            return False

    def padded_sizes(self) -> set[int]:
        """Returns how far each axis is padded now, none where a path leads nowhere yet."""
        try:
            return {int(self._look_up(axis.padded)) for axis in self.fill_patch.fill.axis.values()}
        except (LookupError, TypeError, ValueError):
            return set()

    # --- before ---

    def _passed_over(self) -> bool:
        try:
            return bool(self.fill_patch.fill.unless and self._look_up(self.fill_patch.fill.unless))
        except LookupError:
            return False  # a release that cannot be told to

    def _follow_all(self) -> None:
        fill = self.fill_patch.fill
        self._sizes = {name: self._sizes_of(name) for name in fill.axis}
        source = self._look_up(fill.source) if fill.source else None
        for name, axis, tensor, slot in self._inputs():
            self._found[name] = weakref.ref(tensor)
            self._follow(name, axis, tensor, slot, _member(source, name))

    def _sizes_of(self, axis: str) -> tuple[int, int, int]:
        """Returns where the tail of an axis begins, how many rows may be, and how many are real."""
        declared = self.fill_patch.fill.axis[axis]
        raw, rows = int(self._look_up(declared.raw)), int(self._look_up(declared.capacity))
        early = not self.fill_patch.fill.settled_by and paths.root(declared.padded) not in _LATE
        if early and int(self._look_up(declared.padded)) <= raw:
            return rows, rows, raw  # nothing is padded
        return raw, rows, raw

    def _inputs(self) -> Iterator[tuple[str, str, torch.Tensor, Any]]:
        """Yields name, axis, tensor and slot of each input that is there."""
        fill = self.fill_patch.fill
        only = next(iter(fill.axis))
        for name, value in _members(self._look_up(fill.inputs)):
            tensor = self._tensor_of(value)
            axis = getattr(value, fill.slot_axis, only) if fill.slot_axis else only
            if tensor is not None and tensor.dim() and axis in fill.axis:
                self.fill_patch.met.add(name)
                yield name, axis, tensor, value

    def _tensor_of(self, member: Any) -> torch.Tensor | None:
        """Returns the tensor of an input, None for what has none."""
        slot_buffer = self.fill_patch.fill.slot_buffer
        tensor = getattr(member, slot_buffer, None) if slot_buffer else member
        if not isinstance(tensor, torch.Tensor):
            return None
        found: torch.Tensor = plain(tensor)
        return found

    def _follow(
        self, name: str, axis: str, tensor: torch.Tensor, slot: Any, brought: Any = None
    ) -> None:
        expectation = self.fill_patch.expectations.of(name, tensor.dtype is torch.bool)
        if expectation is None:
            return
        raw, rows, real = self._sizes[axis]
        dim = self.fill_patch.expectations.dim(name)
        first = expectation.first
        per_row, rest = divmod(tensor.shape[dim] - first, rows) if rows else (0, 0)
        start = first + raw * per_row
        if rest and first:
            self.fill_patch.has_no_offsets(name, tensor.shape[dim], rows)
        is_full = start >= tensor.shape[dim] and not expectation.is_of_head
        if rest or is_full or not per_row or not can_be_followed(tensor):
            return
        source = plain(brought) if isinstance(brought, torch.Tensor) else None
        if source is not None and _reaches(source, tensor, dim, start):
            source = None  # the fill may have gone over it since
        tail = self._tail(name, tensor, dim, start, expectation)
        trace = Trace(tensor, self.fill_patch.tally.sites)
        self._followed.append(
            _Followed(
                name, tensor, expectation, axis, raw, real, per_row, tail, trace, source, slot
            )
        )

    def _tail(
        self,
        name: str,
        tensor: torch.Tensor,
        dim: int,
        start: int,
        expectation: Expectation,
        what: Input | None = None,
    ) -> Tail:
        place = (dim, start, expectation, self.fill_patch.unseen)
        if tensor.device.type == "cpu" and not compares_on_device:
            return HostTail(tensor, *place)

        def record(part: str, settled: Expectation, bits: torch.Tensor) -> TailRecord:
            first, any_call = (
                (what or Input(name, "tail", tensor, one.sentence, one.rule)).of(part, one)
                for one in (settled, expectation)
            )
            return self._record(first, any_call, bits)

        return DeviceTail(tensor, *place, record=record)

    def _record(self, what: Input, of_any_call: Input, bits: torch.Tensor) -> TailRecord:
        """Returns where finds on a device are entered, those of calls that expect another number
        as well.
        """
        kind = (what.part, what.rule, tuple(bits.shape), bits.dtype, bits.device)
        key = (self.owner, what.name, kind, self.site)
        if key not in self.fill_patch.records:
            self.fill_patch.records[key] = (TailRecord(bits, what.tensor.dtype), what)
        record: TailRecord
        record, known = self.fill_patch.records[key]
        # It tells of the last call, whose input is the one that was written last.
        latest = what if known.expected == what.expected else of_any_call
        self.fill_patch.records[key] = (record, latest)
        return record

    # --- after ---

    def _judge_all(self, followed: list[_Followed]) -> None:
        axes = self.fill_patch.fill.axis
        padded: dict[str, int] = {}
        holder = self._look_up(self.fill_patch.fill.inputs) if followed else None
        for one in followed:
            if self._tensor_of(_member(holder, one.name)) is not one.tensor:
                continue  # given another tensor, which the graph does not know: no tail's fault
            if one.axis not in padded:
                padded[one.axis] = int(self._look_up(axes[one.axis].padded))
            if one.expectation.is_of_head:
                self._judge_head(one)
            if padded[one.axis] > one.raw and not one.expectation.of_head_only:
                settled = self._with_number(one)
                if settled is not None:
                    self._judge(settled, padded[one.axis])

    def _with_number(self, one: _Followed) -> _Followed | None:
        """Returns a tail with the number that a path leads to now, None where it leads to none.

        The fill itself may have set it: before the fill ran, it was that of an earlier call.
        """
        path = one.expectation.path
        if not path:
            return one
        value = paths.look_up(path, {**self.bindings, "slot": one.slot})
        self.fill_patch.reached.add(path)
        if value is None:
            return None
        one.tail.expectation = dataclasses.replace(one.expectation, expected=int(value))
        return dataclasses.replace(one, expectation=one.tail.expectation)

    def _made_in_fill(self, names: set[str]) -> list[_Followed]:
        """Returns inputs that the fill itself has bound, to be judged by their values alone."""
        for name, axis, tensor, slot in self._inputs():
            if name in names and axis in self._sizes:
                self._follow(name, axis, tensor, slot)
        made, self._followed = self._followed, []
        return made

    def _judge_head(self, one: _Followed) -> None:
        """Judges the entries of real rows, padded or not."""
        end = one.expectation.first + one.real * one.per_row
        self.fill_patch.tally.checked.add(self.fill_patch.contract.engine.name)
        if one.expectation.head is not None and (found := one.tail.judge_values(end)) is not None:
            self._report(one.what.of("values", one.expectation), found)
        if one.expectation.rewritten and (found := one.tail.judge_rewritten(end)) is not None:
            self._report(one.what.of("rewritten", one.expectation), found)
        elif one.expectation.rewritten and one.tail.is_in_doubt:
            self.fill_patch.tally.untrack("heads", one.trace.why or UNSEEN)

    def _judge(self, one: _Followed, padded: int) -> None:
        self._padded = True
        self.fill_patch.tally.tails += 1
        self.fill_patch.tally.checked.add(self.fill_patch.contract.engine.name)
        found = one.tail.judge(min((padded - one.raw) * one.per_row, one.tail.length))
        if found is not None:
            self._report(one.what, found)
        elif one.tail.is_in_doubt:
            self.fill_patch.tally.untrack("tails", one.trace.why or UNSEEN)
        if self.fill_patch.fill.copies_source and one.source is not None:
            found = one.tail.judge_head(one.source)
            if found is not None:
                self._report(one.what.of("head", one.expectation), found)

    def _judge_mapping(self, mapping: torch.Tensor) -> None:
        name = paths.last(self.fill_patch.fill.mapping)
        expected = "zeros: padded rows look up their cache slots in row 0"
        expectation = Expectation(0, "fill.mapping", always=True)
        what = Input(name, "row 0", mapping, expected, expectation.rule)
        tail = self._tail(
            name, mapping[SINK : SINK + 1], 0, 0, expectation, what
        )  # by its values alone
        found = tail.judge(1)
        if found is not None:
            self._report(what, found)

    def _report(self, what: Input, found: Found) -> None:
        self.fill_patch.report(self.owner, what, found, self.site)

    def _look_up(self, path: str) -> Any:
        found = paths.look_up(path, self.bindings)
        self.fill_patch.reached.add(path)
        return found


def _members(holder: Any) -> list[tuple[str, Any]]:
    """Returns the members of a mapping, of an object, or of a data class with slots.

    What is None holds none yet: the first fill makes it.
    """
    if holder is None:
        return []
    if isinstance(holder, Mapping):
        return list(holder.items())
    members = getattr(holder, "__dict__", None)
    if members is not None:
        return list(members.items())
    if dataclasses.is_dataclass(holder):
        return [(one.name, getattr(holder, one.name)) for one in dataclasses.fields(holder)]
    raise LookupError(f"{type(holder).__name__} holds no inputs by name")


def _tensors_of(
    name: str, found: Any, within: frozenset[int] = frozenset(), is_inside: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of what a path led to, each with a name.

    `within` are the containers that it was found in: one that holds itself is not entered again,
    and neither is an object that another one holds, for that may lead anywhere.
    """
    if isinstance(found, torch.Tensor):
        yield name, plain(found)
        return
    if id(found) in within:
        return
    if isinstance(found, torch.nn.Module):
        parts = [*found.named_parameters(), *found.named_buffers()]
        entries: list[tuple[str, Any]] = [(f".{part}", one) for part, one in parts]
    elif isinstance(found, (Mapping, list, tuple)):
        entries = list(_entries_of(found))
    elif not is_inside:
        is_inside = True
        names = [*(plainly(found, "__dict__") or ()), *slots_of(type(found))]
        entries = [(f".{part}", plainly(found, part)) for part in names]
    else:
        entries = []
    for part, one in entries:
        yield from _tensors_of(name + part, one, within | {id(found)}, is_inside)


def _attributes_of(
    name: str, found: Any, within: frozenset[int] = frozenset()
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors that modules have, as no parameters and no buffers, each with a name.

    `within` are the containers that it was found in.
    """
    if id(found) in within:
        return
    within |= {id(found)}
    if isinstance(found, torch.nn.Module):
        for prefix, module in found.named_modules(prefix=name):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor):
                    yield f"{prefix}.{attribute}", plain(value)
    elif isinstance(found, (Mapping, list, tuple)):
        for part, one in _entries_of(found):
            yield from _attributes_of(name + part, one, within)


def _entries_of(
    found: Mapping[Any, Any] | list[Any] | tuple[Any, ...],
) -> Iterator[tuple[str, Any]]:
    """Yields what a container has, each with how it is got."""
    # Another thread may grow it meanwhile.
    keyed = list(found.items()) if isinstance(found, Mapping) else enumerate(found)
    return ((f"[{key}]", one) for key, one in keyed)


def _member(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def _reaches(source: torch.Tensor, target: torch.Tensor, dim: int, start: int) -> bool:
    """Tells whether `source` may reach into `target` from entry `start` on."""
    if source.device != target.device or source.device.type == "meta" or not source.numel():
        return False
    if source.untyped_storage().data_ptr() != target.untyped_storage().data_ptr():
        return False
    if dim:
        return True
    tail = region_of(target).start + start * target.stride(0) * target.element_size()
    return region_of(source).end > tail
