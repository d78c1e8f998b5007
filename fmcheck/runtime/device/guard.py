"""The guard: a relay buffer whose ledger lies on the device, beside the buffer.

A gather or write by an index tensor costs no host sync and may be captured in a graph. It is one
launch, but for a gather of more rows than a program takes at once (256, or 32 where they are wide),
which is two: one judges, one retires. What else touches the buffer (views, masks, index expressions
of several dimensions) fetches the ledger, goes the way of a buffer on the host, and puts the ledger
back: it waits for the device.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcheck.runtime.core import verdicts, violations
from fmcheck.runtime.core.ledger import NEVER, State
from fmcheck.runtime.core.site import unfollowed
from fmcheck.runtime.device import kernels
from fmcheck.runtime.device.launcher import Launcher
from fmcheck.runtime.device.ring import BOOK, INVALID_WRITE, UNSEEN, Guards, KernelRecord
from fmcheck.runtime.relay import indexing, relay_tensor, scope
from fmcheck.runtime.relay.buffer import VALUES, PutOff, RelayBuffer, WriteEffect
from fmcheck.runtime.steps import capturing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from fmcheck.runtime.device.ring import Clash
    from fmcheck.runtime.relay.buffer import Seen, TakenFor
    from fmcheck.runtime.relay.memory import Window


class OwnFence:
    """Keeps the poison of a hand-out from falling on what the row's new owner writes.

    A hand-out is launched behind the last access of its buffer, on that one's stream, and an access
    on another stream waits for it. On a CPU there is nothing to wait for. None of it is followed: a
    race that this fence happens to order is one all the same.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last_stream: Any = None
        self._handed_out: tuple[Any, Any] | None = None

    def launched(self) -> None:
        """The buffer was accessed on the current stream."""
        # A capture's stream runs nothing: replays go elsewhere.
        if self._device.type == "cuda" and not capturing.on(self._device):
            self._last_stream = torch.cuda.current_stream(self._device.index)

    @contextlib.contextmanager
    def behind_the_last_launch(self) -> Iterator[None]:
        """Makes the stream of the last access current."""
        if self._last_stream is None:
            yield
            return
        with unfollowed(), torch.cuda.stream(self._last_stream):
            yield

    def handed_out(self) -> None:
        """Marks where a hand-out stands on the stream that it was launched on."""
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device.index)
            with unfollowed():
                self._handed_out = (stream, stream.record_event())

    def wait(self) -> None:
        """Lets an access that is about to be made wait for the last hand-out, on another stream."""
        if self._handed_out is None:
            return
        stream, event = self._handed_out
        current = torch.cuda.current_stream(self._device.index)
        if current != stream and not capturing.on(self._device):
            with unfollowed():
                current.wait_event(event)
        self._handed_out = None


_SIGNS = {">=": 1, ">": 2}
#: Rows that a program takes, fewer of wide ones; more need a second launch.
_BLOCK = 256
_FEWEST = 32
_ELEMENTS = 8192
#: Elements that a program has at hand at once: with more, threads spill registers (docs/gpu.md).
_AT_ONCE = 1024
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: What is found at a write.
_OF_WRITES = (verdicts.LOST, verdicts.UNOWNED, verdicts.REPEATED, INVALID_WRITE)


class GuardedBuffer(RelayBuffer):
    """A relay buffer on a device. `ledger` is a copy of the device's, fresh only while it is used.

    `on_device` is the device's own, an entry a row by each name of `Ledger.dump`; `owned_rows`
    tells there which rows are no sinks.

    Raises ValueError for dtypes whose elements have no integer of their width.
    """

    is_on_device = True

    def __init__(self, plain: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self.on_device: dict[str, torch.Tensor] = {}  # a hand-out may come while this is made
        super().__init__(*args, **kwargs)
        dtype = _BITS.get(plain.element_size())
        if dtype is None:
            raise ValueError(f"{plain.dtype} has no integer of its width")
        row = plain[0] if len(plain) else plain.new_empty(plain.shape[1:])
        if not row.is_contiguous():
            raise ValueError("its rows are not contiguous")
        self._plain = plain.detach()
        self._bits = self._plain.view(dtype)
        self._width = row.numel()
        self._row_stride = int(plain.stride(0))
        rows, device = len(plain), plain.device
        self._own_fence = OwnFence(device)
        self.launch = Launcher(device).launch

        def full(value: int, kind: torch.dtype) -> torch.Tensor:
            return torch.full((rows,), value, dtype=kind, device=device)

        #: What records show of the ledger, one behind the other: views of it are in `on_device`.
        self.book = torch.zeros((len(BOOK), rows), dtype=torch.int64, device=device)
        self.on_device = {
            "state": full(0, torch.int8),
            "left_live": full(0, torch.int8),
            "reported": full(0, torch.int8),
            **dict(zip(BOOK, self.book, strict=True)),
        }
        for name, values in self.ledger.dump().items():
            self.on_device[name].copy_(torch.from_numpy(values))
        self.owned_rows = full(1, torch.int8)
        self._mark_sinks()
        self._allocation = full(verdicts.Allocation.NEVER, torch.int8)
        self._left_in = full(0, torch.int64)
        if self.owners is not None:
            every = np.arange(rows)
            self._allocation.copy_(torch.from_numpy(self.owners.allocation(every)))
            self._left_in.copy_(torch.from_numpy(self.owners.left_in(every)))
        self._sink_holds = torch.full(
            (1,), self.layout.sink_holds or 0, dtype=plain.dtype, device=device
        )
        self._writes = full(0, torch.int64)
        self._stamps = full(0, torch.int64)
        self._epoch = torch.zeros(1, dtype=torch.int64, device=device)
        self._rings = Guards.of(self.tally).rings
        self._ring, self._number = self._rings.add(self, device)
        self._warm_up()

    # --- by an index tensor: one launch ---

    def gather_rows(self, index: torch.Tensor, result: torch.Tensor, site: int) -> None:
        """A gather of whole rows, after it was made.

        `index` holds integers on the device or the host, `result` what was gathered.
        """
        if not self.tally.active:
            return
        with self.tally.lock, unfollowed():
            rows, moment = self._gathered_now(index, site)
            self._retire_by_scope(rows, result, moment, judges=True)
            self._halt_if_asked()

    def judge_rows(self, index: torch.Tensor, site: int) -> None:
        """A gather of whole rows that is about to be made: the verdict alone."""
        if self.tally.active:
            with self.tally.lock, unfollowed():
                rows, moment = self._gathered_now(index, site)
                self._launch_gather(rows, None, moment, judges=True)
                self._halt_if_asked()

    def retire_rows(self, index: torch.Tensor, site: int) -> None:
        """A gather that was judged has been made."""
        if self.tally.active:
            with self.tally.lock, unfollowed():
                moment = self.tally.moments.now(site, self.device)
                self._retire_by_scope(self._rows_on_device(index), None, moment, judges=False)

    def set_sinks(self, rows: Sequence[int]) -> None:
        """Says which rows padded entries point at, to the device as well."""
        super().set_sinks(rows)
        if self.on_device:
            with unfollowed():
                self._mark_sinks()

    def _mark_sinks(self) -> None:
        self.owned_rows.fill_(1)
        self.owned_rows[torch.from_numpy(self._sink).to(self.owned_rows.device)] = 0

    def stash_rows(
        self,
        expression: Any,
        site: int,
        how: WriteEffect = VALUES,
        values: torch.Tensor | None = None,
    ) -> None:
        """A write into the whole buffer, after it was made."""
        index = self._rows_written(expression)
        if index is None or scope.is_changing_owners():  # the host has to know which rows these are
            super().stash_rows(expression, site, how, values)
            return
        if not self.tally.active:
            return
        # One that resets goes over all of the rows.
        resets = index is not expression and len(index) == len(self.ledger)
        with self.tally.lock, unfollowed():
            self.tally.touched.add(self.relay)
            moment = self.tally.moments.now(site, self.device)
            rows = self._rows_on_device(index)
            if self.lanes is not None:
                self.lanes.wrote(rows, moment)
            if self.is_on_trust:
                self._settle_on_device(rows, how)
            judges = not (resets and how.constant)
            self._launch_write(rows, moment, how, judges, self._bits_of_rows(values, rows))
            self._halt_if_asked()

    def _rows_written(self, expression: Any) -> torch.Tensor | None:
        """Returns the rows that a write reaches, None if the host has to find out."""
        if indexing.are_rows(expression):
            return expression  # type: ignore[no-any-return]
        if not (expression is ... or isinstance(expression, (slice, int))):
            return None
        every = torch.arange(len(self.base), device=self.base.device)
        return every[expression].reshape(-1)

    def _bits_of_rows(self, values: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor | None:
        """Returns the bits of values of which each row was given its own; None if it was not.

        None, too, where torch made others of them on the way: that would have to be done again.
        """
        if values is None or values.dtype != self._plain.dtype or values.device != rows.device:
            return None
        has_each = values.dim() == self._plain.dim() and len(values) == len(rows)
        if not (has_each and values.numel() == self._width * len(values)):
            return None
        if not values.is_contiguous():
            return None
        return values.detach().view(self._bits.dtype)

    # --- by owners ---

    def hand_out(self, rows: npt.NDArray[np.int64]) -> None:
        """Rows have new owners: they are empty, with poison over what the old ones left.

        The launch goes behind the last one of this buffer, on its stream: what is still in flight
        for the old owners comes first.
        """
        if not self.tally.active or self.owners is None or not self.on_device:
            return
        with self.tally.lock, unfollowed():
            rows = self._owned(rows)
            if not rows.size:
                return
            if self.lanes is not None and self.owners.drained:
                self.lanes.reused(rows, True)
            generations = self.owners.generations(rows)
            self.has_owners = True
            ledger = self.on_device
            with self._own_fence.behind_the_last_launch():
                places = [(self.upload(mine), moment) for mine, moment in self._begun(rows)]
                begun = [(at, moment, self._bits[at]) for at, moment in places]
                arguments = (
                    self.upload(rows),
                    self.upload(generations),
                    self._bits,
                    ledger["state"],
                    ledger["left_live"],
                    self.book,
                    self._writes,
                    self._allocation,
                    self._epoch,
                    len(rows),
                    len(self.ledger),
                    self._width,
                    self._row_stride,
                    self.poison.bits or 0,
                )
                constants = {
                    "HAS_POISON": self.poison.bits is not None,
                    "BLOCK": self._block,
                    "WIDE": self._wide,
                }
                self.launch(kernels.hand_out_rows, self._programs(len(rows)), arguments, constants)
                for at, moment, kept in begun:
                    self._bits[at] = kept
                    ledger["last_write"][at] = moment
                    ledger["state"][at] = int(State.SPARED)
                self._own_fence.handed_out()

    def spare(self, rows: npt.NDArray[np.int64]) -> None:
        """Rows were taken back, or go on to the next chunk: what they hold may be overwritten."""
        if not self.tally.active or self.owners is None or not self.on_device:
            return
        with self.tally.lock, unfollowed():
            rows = self._owned(rows)
            if not rows.size:
                return
            allocation, left_in = self.owners.allocation(rows), self.owners.left_in(rows)
            with self._own_fence.behind_the_last_launch():
                arguments = (
                    self.upload(rows),
                    self.upload(allocation),
                    self.upload(left_in),
                    self.on_device["state"],
                    self._allocation,
                    self._left_in,
                    len(rows),
                )
                constants = {"BLOCK": self._block}
                self.launch(kernels.spare_rows, self._programs(len(rows)), arguments, constants)

    # --- any other way: by the host ---

    def lay_poison(self) -> None:
        """Fills every row but the sinks with poison."""
        with self.tally.lock, unfollowed():
            super().lay_poison()

    def adopt_values(self, bound: bool = False) -> None:
        """Takes the buffer as it is."""
        with self._by_the_host():
            super().adopt_values(bound)

    def stash(
        self,
        window: Window,
        expression: Any,
        site: int,
        how: WriteEffect = VALUES,
        values: torch.Tensor | None = None,
    ) -> None:
        """A write by any expression."""
        with self._by_the_host():
            super().stash(window, expression, site, how, values)
            # No kernel counts so far down: a gather that was put off sees that it was written.
            written = np.unique(window.touched(expression) % len(self.ledger))
            self._writes[self.upload(written)] -= 1 << 32

    def judge_late(self, rows: npt.NDArray[Any], moment: int) -> None:
        """Judges the owners of rows that a hand-out wrote."""
        with self._by_the_host():
            super().judge_late(rows, moment)

    def keep_resets(self, rows: npt.NDArray[Any], moment: int) -> None:
        """Keeps what a take-back wrote to rows that nobody has now, for their next owners.

        No kernel counts what is written over it until then: that stays as well.
        """
        with self._by_the_host(puts_back=False):
            super().keep_resets(rows, moment)

    def judge_view(self, taken: TakenFor, site: int, verb: str) -> None:
        """Reports the use of a view whose row has gone to another owner since it was taken."""
        if self.owners is None or self.owners.generation(taken.unit) == taken.generation:
            return
        with self._by_the_host(puts_back=False):
            super().judge_view(taken, site, verb)

    def gather(self, *args: Any) -> None:
        """A gather by any expression."""
        with self._by_the_host():
            super().gather(*args)

    def peek(self, *args: Any) -> None:
        """A read that does not consume."""
        with unfollowed():
            super().peek(*args)
            if self.lanes is not None:
                self._halt_if_asked()

    def judge(self, *args: Any) -> None:
        """The verdict on a gather by any expression."""
        with self._by_the_host():
            super().judge(*args)

    def retire(self, *args: Any) -> None:
        """The end of a gather by any expression."""
        with self._by_the_host():
            super().retire(*args)

    def fetch(self) -> None:
        """Brings `ledger` up to date. Waits for the device; of one that is lost it is as it was."""
        with contextlib.suppress(torch.AcceleratorError):
            self.ledger.load({name: kept.cpu().numpy() for name, kept in self.on_device.items()})

    def report_found(self, kind: int, moment: int, records: list[KernelRecord]) -> None:
        """Reports what a kernel found in some rows at one moment."""
        if kind == UNSEEN:
            with self._by_the_host(puts_back=False):
                self.tally.unseen_writes += len(records)
                self.tally.note(violations.of_unseen_write(self, moment))
            return
        with self.as_of(records[0]):
            rows = np.array([record.row for record in records], np.int64)
            bits = np.array([record.bits for record in records], np.int64)
            verb = "write" if kind in _OF_WRITES else "gather"
            code = "FR105" if kind == INVALID_WRITE else f"FR{kind}"
            violations.report(self, code, rows, bits.astype(self._bits_dtype), moment, verb)

    @property
    def is_lost(self) -> bool:
        """Whether an error has ended the device's context, so that nothing there can be read."""
        return bool(self._ring.lost)

    # --- inside ---

    @property
    def _bits_dtype(self) -> npt.DTypeLike:
        return f"i{self._bits.element_size()}"

    @functools.cached_property
    def _wide(self) -> int:
        """Columns that a program takes at once: a power of two."""
        return int(min(_AT_ONCE // self._block, _power_of_two(self._width)))

    @functools.cached_property
    def _block(self) -> int:
        """Rows that a program takes at once: a power of two."""
        return max(_FEWEST, min(_BLOCK, _ELEMENTS // _power_of_two(self._width)))

    def _halt_if_asked(self) -> None:
        """In mode halt waits for the device, so that what it found is raised here."""
        if self.tally.halts:
            self.tally.collect()

    def _settle_on_device(self, rows: torch.Tensor, how: WriteEffect) -> None:
        """The first write to a buffer on trust, which was made: poison goes over all other rows."""
        self.is_on_trust = False
        if how.updates:
            return
        count = len(self.ledger)
        written = torch.zeros(count + 1, dtype=torch.bool, device=self.owned_rows.device)
        # The last one is for rows that a kernel skipped.
        written[torch.where(rows < 0, rows + count, rows).clamp(max=count)] = True
        others = (self.owned_rows != 0) & ~written[:count]
        self.on_device["state"].masked_fill_(others, State.EMPTY)
        self.on_device["last_write"].masked_fill_(others, NEVER)
        if self.poison.bits is not None:
            inner = (1,) * (self._bits.dim() - 1)
            self._bits.masked_fill_(others.reshape(-1, *inner), self.poison.bits)

    def _gathered_now(self, index: torch.Tensor, site: int) -> tuple[torch.Tensor, int]:
        """Enters a gather; returns its rows on the device, and its moment."""
        self.is_on_trust = False
        self.tally.touched.add(self.relay)
        self._guards_writes = self.owners is not None and self.overwrite != "always"
        moment = self.tally.moments.now(site, self.device)
        rows = self._rows_on_device(index)
        if self.lanes is not None:
            self.lanes.gathered(rows, moment)
        return rows, moment

    def _launch_gather(
        self,
        index: torch.Tensor,
        result: torch.Tensor | None,
        moment: int,
        judges: bool = False,
        retires: bool = False,
        spares: bool = False,
        seen: torch.Tensor | None = None,
    ) -> None:
        self._is_launched()
        values = self._plain if result is None else result.contiguous()
        sign, limit = self.poison.bound or ("", 0)
        ledger = self.on_device
        arguments = (
            values,
            self._bits if result is None else values.view(self._bits.dtype),
            index,
            self._bits,
            ledger["state"],
            self.owned_rows,
            ledger["left_live"],
            self.book,
            ledger["reported"],
            self._sink_holds,
            self._writes,
            self._writes if seen is None else seen,
            self._ring.records,
            self._ring.counts,
            self._ring.capacity,
            index.numel(),
            len(self.ledger),
            self._width,
            self._row_stride,
            self._number,
            self.poison.bits or 0,
            limit,
            moment,
        )
        constants = {
            "JUDGES": judges,
            "RETIRES": retires,
            "RETIRES_LATE": seen is not None,
            "SPARES": spares,
            "FROM_BUFFER": result is None,
            "HAS_POISON": self.poison.bits is not None,
            "CHECKS": verdicts.packed(verdicts.kind_of(self.poison)),
            "SIGN": _SIGNS.get(sign, 0),
            "SINKS": self.layout.sink_holds is not None,
            "BLOCK": self._block,
            "WIDE": self._wide,
        }
        programs = self._programs(max(1, index.numel()))
        self.launch(kernels.gather_guard, programs, arguments, constants)

    def _launch_write(
        self,
        index: torch.Tensor,
        moment: int,
        how: WriteEffect,
        judges: bool = True,
        given: torch.Tensor | None = None,
    ) -> None:
        self._is_launched()
        ledger = self.on_device
        sign, limit = self.poison.bound or ("", 0)
        step = self.tally.moments.step_of(moment)
        arguments = (
            index,
            self._plain,
            self._bits,
            self._bits if given is None else given,
            ledger["state"],
            self.owned_rows,
            self._allocation,
            self._left_in,
            self.book,
            ledger["reported"],
            self._writes,
            self._stamps,
            self._ring.records,
            self._ring.counts,
            self._ring.capacity,
            self._epoch,
            index.numel(),
            len(self.ledger),
            self._width,
            self._row_stride,
            self._number,
            self.poison.bits or 0,
            limit,
            moment,
            -1 if step is None else step,
            int(self.has_owners and how.picks),
            int(given is not None and how.picks),
            int(self._guards_writes and not how.updates),
            int(how.constant and self.poison.certain and not self.poison.is_float),
            int(how.constant),
            int(how.updates),
            int(judges),
        )
        constants = {
            "SIGN": _SIGNS.get(sign, 0),
            "HAS_POISON": self.poison.bits is not None,
            "IS_FLOAT": self.poison.is_float,
            "BLOCK": self._block,
            "WIDE": self._wide,
        }
        self.launch(kernels.write_guard, 1, arguments, constants)

    def _retire_by_scope(
        self, index: torch.Tensor, result: torch.Tensor | None, moment: int, judges: bool
    ) -> None:
        within = self.scope()
        if within is None:
            together = index.numel() <= self._block
            if judges and not together:
                # A row may stand in the index twice, far apart: no program may retire what another
                # one has still to judge.
                self._launch_gather(index, result, moment, judges=True)
            self._launch_gather(index, result, moment, judges=judges and together, retires=True)
            return
        self._launch_gather(index, result, moment, judges=judges, spares=True)
        if within is scope.Scope.AT_RETURN:
            seen = self._writes[index.clamp(max=len(self.ledger) - 1)]
            scope.put_off(lambda: self._retire_late(index, seen, moment))

    def _retire_late(self, index: torch.Tensor, seen: torch.Tensor, moment: int) -> None:
        with self.tally.lock, unfollowed():
            self._launch_gather(index, None, moment, retires=True, seen=seen)

    def _retire(
        self, window: Window, expression: Any, rows: npt.NDArray[Any], moment: int, seen: Seen
    ) -> None:
        if self.scope() is not scope.Scope.AT_RETURN or not rows.size:
            super()._retire(window, expression, rows, moment, seen)
            return
        waiting = PutOff(window, expression, np.unique(rows % len(self.ledger)), moment)
        self.ledger.spare(waiting.rows)
        before = self._writes.clone()
        scope.put_off(lambda: self._retire_by_the_host(waiting, before))

    def _retire_by_the_host(self, waiting: PutOff, seen: torch.Tensor) -> None:
        with self._by_the_host():
            waiting.leave_out(np.flatnonzero((self._writes != seen).cpu().numpy()))
            self._retire_but_for_written(waiting)

    def _warm_up(self) -> None:
        """Compiles the kernels now: a capture is no place for it."""
        none = torch.zeros(0, dtype=torch.int64, device=self._bits.device)
        before = self._ring.counts.clone()
        self._launch_write(none, 0, VALUES)
        result = self._plain[none]
        self._launch_gather(none, result, 0, judges=True, retires=True)
        self._launch_gather(none, result, 0, judges=True)
        self._launch_gather(none, result, 0, retires=True)
        self._launch_gather(none, result, 0, judges=True, spares=True)
        self._launch_gather(none, None, 0, judges=True)
        self._launch_gather(none, None, 0, retires=True)
        self._launch_gather(none, None, 0, spares=True)
        self._launch_gather(none, None, 0, retires=True, seen=none)
        self._ring.counts.copy_(before)

    def _rows_on_device(self, index: torch.Tensor) -> torch.Tensor:
        flat = index.reshape(-1).to(self._bits.device, torch.int64, non_blocking=True)
        return flat.contiguous()

    def upload(self, rows: npt.NDArray[Any]) -> torch.Tensor:
        """Returns numbers of the host's on the device. Does not wait for it."""
        host = torch.from_numpy(rows)
        if self._bits.is_cuda:
            host = host.pin_memory()
        return host.to(self._bits.device, non_blocking=True)

    def _programs(self, rows: int) -> int:
        return -(-rows // self._block)

    def order(self) -> None:
        """Lets an access that is about to be made wait for the last hand-out, on another stream."""
        self._own_fence.wait()

    def _is_launched(self) -> None:
        self._rings.touch(self._number, self)
        self._own_fence.launched()

    @contextlib.contextmanager
    def as_of(self, record: KernelRecord | Clash) -> Iterator[None]:
        """Sets a row's ledger back to what a kernel's record of it says. Waits for the device."""
        with self._by_the_host(puts_back=False):
            self.ledger.recall(
                record.row,
                (record.last_write, record.written_in),
                (record.last_read, record.read_in),
                record.generation,
            )
            yield

    @contextlib.contextmanager
    def _by_the_host(self, puts_back: bool = True) -> Iterator[None]:
        """Fetches the ledger for what the host does with it, and puts it back."""
        with self.tally.lock, unfollowed():
            self.fetch()
            yield
            if puts_back:
                for name, values in self.ledger.dump().items():
                    self.on_device[name].copy_(torch.from_numpy(values))


def _power_of_two(number: int) -> int:
    """Returns the least power of two that is not smaller."""
    return int(1 << max(0, number - 1).bit_length())


relay_tensor.make_on_device = GuardedBuffer
