"""Open fills: one call of a fill method, from the poison it finds to the verdict on its tails."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime import paths
from fmcheck.runtime.captures import Place, place_of
from fmcheck.runtime.demands import SINK, Demand
from fmcheck.runtime.device_tails import DeviceTail, Record
from fmcheck.runtime.relay_tensor import plain
from fmcheck.runtime.tails import Found, HostTail, Tail, can_be_laid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Site
    from fmcheck.runtime.fills import FillHold

# What these lead to is not known, or is that of an earlier call, before the fill has run.
_LATE = ("self", paths.RETURN)


@dataclass(frozen=True, slots=True)
class Input:
    """A part of a graph input, in one call: its tail, its head, or row 0 of the mapping."""

    name: str
    part: str
    tensor: torch.Tensor
    expected: str
    rule: str

    def head(self) -> Input:
        """Returns the part before the tail."""
        expected = "what the batch brought, in the entries before the tail"
        return dataclasses.replace(self, part="head", expected=expected, rule="fill.copies_source")

    def notes(self, found: Found) -> tuple[str, ...]:
        """Returns what else a reader wants to know."""
        rule = f"the contract's rule for it is `graph_inputs.{self.rule}`"
        if self.part != "tail":
            return (rule,)
        if found.untouched:
            told = (
                "nothing wrote the tail: the replay reads what was left there, right by luck or not"
            )
        else:
            told = "this fill wrote the tail; these are the values that the replay reads"
        return (told, rule)


@dataclass(frozen=True, slots=True)
class _Laid:
    """A poisoned tail behind `raw` real rows of an axis, `per_row` entries each."""

    name: str
    tensor: torch.Tensor
    demand: Demand
    axis: str
    raw: int
    per_row: int
    tail: Tail
    source: torch.Tensor | None

    @property
    def what(self) -> Input:
        """The tail as a report tells of it."""
        return Input(self.name, "tail", self.tensor, self.demand.sentence, self.demand.rule)


@dataclass(eq=False)
class OpenFill:
    """One call of a fill method."""

    hold: FillHold
    bindings: dict[str, Any]
    site: Site
    _laid: list[_Laid] = field(default_factory=list)
    _places: dict[str, Place] = field(default_factory=dict)
    _padded: bool = False

    @property
    def owner(self) -> str:
        """The class of the object that fills, for the names of buffers."""
        return type(self.filler).__name__

    @property
    def filler(self) -> Any:
        """The object that fills."""
        return self.bindings.get("self")

    def begin(self) -> bool:
        """Lays poison behind the real entries of each declared input; tells whether it could."""
        if self._passed_over():
            return False
        try:
            self._places = self.places()
            self._lay_all()
        except Exception as err:  # an engine must not stop for a contract that does not fit it
            self.put_back()
            self._problem(err)
            return False
        return True

    def settle(self) -> None:
        """Judges the tails, and gives back what the fill did not write."""
        try:
            self.hold.captures.judge(self, self._places)
            self._judge_all()
        except Exception as err:
            self._problem(err)
        finally:
            self.put_back()

    def places(self) -> dict[str, Place]:
        """Returns where each declared input lies now, by its name."""
        return {
            name: place_of(tensor)
            for name, _, tensor, _ in self._inputs()
            if self.hold.demands.of(name, tensor.dtype is torch.bool) is not None
        }

    def put_back(self) -> None:
        """Takes all poison away."""
        laid, self._laid = self._laid, []
        for one in laid:
            one.tail.restore()

    def end(self, result: Any) -> None:
        """The fill has returned: judges what nothing has settled, then row 0 of the mapping."""
        self.bindings[paths.RETURN] = result
        if self.hold.fill.settled_by:
            self.hold.unsettled += self._pads()
            self.put_back()  # never settled: nothing was replayed
        else:
            self.settle()
        if self.hold.fill.mapping and self._padded:
            try:
                self._judge_mapping(plain(self._look_up(self.hold.fill.mapping)))
            except Exception as err:
                self._problem(err)

    def _pads(self) -> bool:
        """Tells whether any tail would have been judged: an eager step pads nothing."""
        axes = self.hold.fill.axis
        try:
            return any(int(self._look_up(axes[one.axis].padded)) > one.raw for one in self._laid)
        except LookupError:
            return False

    # --- before ---

    def _passed_over(self) -> bool:
        try:
            return bool(self.hold.fill.unless and self._look_up(self.hold.fill.unless))
        except LookupError:
            return False  # a release that cannot be told to

    def _lay_all(self) -> None:
        fill = self.hold.fill
        sizes = {name: self._sizes(name) for name in fill.axis}
        source = self._look_up(fill.source) if fill.source else None
        for name, axis, tensor, slot in self._inputs():
            demand = self._demand(name, tensor, slot)
            if demand is not None:
                raw, rows = sizes[axis]
                self._lay(name, axis, tensor, demand, raw, rows, _member(source, name))

    def _sizes(self, axis: str) -> tuple[int, int]:
        """Returns how many rows of an axis are real, and how many there may be."""
        declared = self.hold.fill.axis[axis]
        raw, rows = int(self._look_up(declared.raw)), int(self._look_up(declared.capacity))
        early = not self.hold.fill.settled_by and paths.root(declared.padded) not in _LATE
        if early and int(self._look_up(declared.padded)) <= raw:
            return rows, rows  # nothing is padded
        return raw, rows

    def _inputs(self) -> Iterator[tuple[str, str, torch.Tensor, Any]]:
        """Yields name, axis, tensor and slot of each input that is there."""
        fill = self.hold.fill
        only = next(iter(fill.axis))
        for name, value in _members(self._look_up(fill.inputs)):
            tensor = self._tensor_of(value)
            axis = getattr(value, fill.slot_axis, only) if fill.slot_axis else only
            if tensor is not None and tensor.dim() and axis in fill.axis:
                self.hold.met.add(name)
                yield name, axis, tensor, value

    def _tensor_of(self, member: Any) -> torch.Tensor | None:
        """Returns the tensor of an input, None for what has none."""
        slot_buffer = self.hold.fill.slot_buffer
        tensor = getattr(member, slot_buffer, None) if slot_buffer else member
        if not isinstance(tensor, torch.Tensor):
            return None
        found: torch.Tensor = plain(tensor)
        return found

    def _demand(self, name: str, tensor: torch.Tensor, slot: Any) -> Demand | None:
        demand = self.hold.demands.of(name, tensor.dtype is torch.bool)
        if demand is None or not demand.path:
            return demand
        value = paths.look_up(demand.path, {**self.bindings, "slot": slot})
        return None if value is None else dataclasses.replace(demand, expected=int(value))

    def _lay(
        self,
        name: str,
        axis: str,
        tensor: torch.Tensor,
        demand: Demand,
        raw: int,
        rows: int,
        brought: Any,
    ) -> None:
        dim = self.hold.demands.dim(name)
        per_row, rest = divmod(tensor.shape[dim], rows) if rows else (0, 0)
        start = raw * per_row
        if rest or start >= tensor.shape[dim] or not per_row or not can_be_laid(tensor):
            return
        source = plain(brought) if isinstance(brought, torch.Tensor) else None
        if source is not None and _reaches(source, tensor, dim, start):
            return  # the fill copies from where poison would lie
        tail = self._tail(name, tensor, dim, start, demand)
        self._laid.append(_Laid(name, tensor, demand, axis, raw, per_row, tail, source))
        tail.lay()

    def _tail(
        self,
        name: str,
        tensor: torch.Tensor,
        dim: int,
        start: int,
        demand: Demand,
        what: Input | None = None,
    ) -> Tail:
        if tensor.device.type == "cpu" and not self.hold.tally.compare_on_device:
            return HostTail(tensor, dim, start, demand)
        told = what or Input(name, "tail", tensor, demand.sentence, demand.rule)

        def record(part: str, bits: torch.Tensor) -> Record:
            return self._record(told.head() if part == "head" else told, bits)

        return DeviceTail(tensor, dim, start, demand, record)

    def _record(self, what: Input, bits: torch.Tensor) -> Record:
        """Returns where finds on a device are entered."""
        kind = (what.part, tuple(bits.shape), bits.dtype, bits.device)
        key = (self.owner, what.name, kind, self.site)
        if key not in self.hold.records:
            self.hold.records[key] = (Record(bits, what.tensor.dtype), what)
        record: Record = self.hold.records[key][0]
        return record

    # --- after ---

    def _judge_all(self) -> None:
        axes = self.hold.fill.axis
        padded: dict[str, int] = {}
        holder = self._look_up(self.hold.fill.inputs) if self._laid else None
        for one in self._laid:
            if self._tensor_of(_member(holder, one.name)) is not one.tensor:
                continue  # given another tensor, which the graph does not know: no tail's fault
            if one.axis not in padded:
                padded[one.axis] = int(self._look_up(axes[one.axis].padded))
            if padded[one.axis] > one.raw:
                self._judge(one, padded[one.axis])

    def _judge(self, one: _Laid, padded: int) -> None:
        self._padded = True
        self.hold.tally.tails += 1
        self.hold.tally.checked.add(self.hold.contract.engine.name)
        found = one.tail.judge(min((padded - one.raw) * one.per_row, one.tail.length))
        if found is not None:
            self._tell(one.what, found)
        if self.hold.fill.copies_source and one.source is not None:
            found = one.tail.judge_head(one.source)
            if found is not None:
                self._tell(one.what.head(), found)

    def _judge_mapping(self, mapping: torch.Tensor) -> None:
        name = paths.last(self.hold.fill.mapping)
        expected = "zeros: padded rows look up their cache slots in row 0"
        demand = Demand(0, "fill.mapping", always=True)
        what = Input(name, "row 0", mapping, expected, demand.rule)
        tail = self._tail(name, mapping[SINK : SINK + 1], 0, 0, demand, what)
        found = tail.judge(1)
        if found is not None:
            self._tell(what, found)

    def _tell(self, what: Input, found: Found) -> None:
        self.hold.report(self.owner, what, found, self.site)

    def _look_up(self, path: str) -> Any:
        return paths.look_up(path, self.bindings)

    def _problem(self, err: Exception) -> None:
        self.hold.problem(str(err) if isinstance(err, LookupError) else repr(err))


def _members(holder: Any) -> list[tuple[str, Any]]:
    """Returns the members of a mapping, of an object, or of a data class with slots."""
    if isinstance(holder, Mapping):
        return list(holder.items())
    members = getattr(holder, "__dict__", None)
    if members is not None:
        return list(members.items())
    if dataclasses.is_dataclass(holder):
        return [(one.name, getattr(holder, one.name)) for one in dataclasses.fields(holder)]
    raise LookupError(f"{type(holder).__name__} holds no inputs by name")


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
    last = sum((n - 1) * s for n, s in zip(source.shape, source.stride(), strict=True))
    end = source.data_ptr() + last * source.element_size()
    return end >= target.data_ptr() + start * target.stride(0) * target.element_size()
