"""Delay: a write that nothing orders before a read is not there yet when the read runs.

On a CPU each launch is done when it returns, so that a missing fence changes nothing. Here every
write leaves what it went over behind, in a store buffer of its stream. A read by another lane, and
by the host, gets the value from before each write that no fence lets it see: in mode `delayed`
always, in mode `random` by the throw of a seeded coin, after which everybody sees the write.

The memory itself is always up to date: for a late read the old values are put in place, and taken
out again when it is done. A write that nothing orders after a read changes what the read got, as
long as nobody has used that (`lazy_reads.py`).
"""

from __future__ import annotations

import random
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcheck.runtime.order.lazy_reads import LazyReads
from fmcheck.runtime.steps.placements import is_sure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from fmcheck.runtime.order.blocks import Block
    from fmcheck.runtime.order.cross_stream import CrossStreamTensors
    from fmcheck.runtime.order.fences import Fences, Lane
    from fmcheck.runtime.order.ops import OperatorCall
    from fmcheck.runtime.relay.buffer import RelayBuffer

_KEPT = 16
#: Undeclared memory of more bytes than this is not kept from before a write in place.
_LARGE = 1 << 16


@dataclass(eq=False, slots=True)
class Stored:
    """One write in a store buffer: the rows and what stood there. `out` once everybody sees it."""

    lane: int
    time: int
    rows: npt.NDArray[np.int64]
    old: torch.Tensor
    out: bool = False


@dataclass(eq=False, slots=True)
class StoreBuffer:
    """The writes to one relay buffer that somebody may not see yet, oldest first."""

    base: torch.Tensor
    stored: deque[Stored] = field(default_factory=lambda: deque(maxlen=_KEPT))
    before: torch.Tensor | None = None


class Delay:
    """Listens to operators, and shows each read the memory as its lane may see it."""

    check = "delaying unordered writes"

    def __init__(self, fences: Fences, cross_stream: CrossStreamTensors, seed: int | None) -> None:
        self.fences = fences
        self.cross_stream = cross_stream
        self._seed = seed
        self._coin = None if seed is None else random.Random(seed)
        self._relays: dict[int, StoreBuffer] = {}
        self._reads = LazyReads(fences, lambda: not self._is_out())

    def begin_test(self) -> None:
        """Throws the coin from its beginning: the next test sees what it would see alone."""
        self._coin = None if self._seed is None else random.Random(self._seed)
        self._reads.clear()
        for relay in list(self._relays.values()):
            relay.stored.clear()

    def adopt(self, buffer: RelayBuffer) -> None:
        """A relay buffer's writes are delayed from now on."""
        storage = buffer.base.untyped_storage()
        key: int = storage._cdata
        self._relays[key] = StoreBuffer(_same(buffer.base))
        weakref.finalize(storage, self._relays.pop, key, None).atexit = False

    def wrote(self, buffer: RelayBuffer, rows: npt.NDArray[Any], lane: Lane) -> None:
        """A lane wrote rows of a relay buffer: others see it later."""
        kept = self._relays.get(buffer.base.untyped_storage()._cdata)
        if kept is None or kept.before is None:
            return
        numbers = np.unique(np.asarray(rows) % len(buffer.ledger))
        old = kept.before[torch.from_numpy(numbers)]
        time = self.fences.now(lane).time
        kept.stored.append(Stored(lane.number, time, numbers, old))
        kept.before = None

    # --- the listener ---

    def before(self, call: OperatorCall) -> Callable[[], None] | None:
        """Puts old values where the call may see nothing newer; returns what takes them out."""
        lane = self.fences.host if call.host else call.lane
        self._reads.touched(call)
        written = {tensor.untyped_storage()._cdata for tensor in call.writes}
        for tensor in call.writes:
            if tensor.is_cpu:
                self._keep(tensor)
        undo: list[Callable[[], object]] = []

        def put_back() -> None:
            for one in reversed(undo):
                one()

        try:
            for tensor in call.reads:
                key = tensor.untyped_storage()._cdata
                if key in written or not tensor.is_cpu:
                    continue
                relay = self._relays.get(key)
                undo += self._as_relay(relay, lane) if relay else self._as_memory(tensor, lane)
        except BaseException:
            put_back()
            raise
        return put_back if undo else None

    def after(self, call: OperatorCall) -> None:
        """A read may be late as well: one that a write here overtakes is made again."""
        if call.writes and not call.host:
            for tensor in call.writes:
                on_host = self.cross_stream.blocks.of(tensor).on_host
                self._reads.written(tensor, self._writer(call), on_host)
        if call.reads and not call.host:
            self._reads.note(call)

    def _writer(self, call: OperatorCall) -> Lane:
        """Returns the lane that writes: what is the host's beyond doubt it writes at once."""
        is_host = not call.is_async_copy and all(map(is_sure, (*call.writes, *call.reads)))
        return self.fences.host if is_host else call.lane

    def _keep(self, tensor: torch.Tensor) -> None:
        """Keeps what a write in place is about to go over."""
        relay = self._relays.get(tensor.untyped_storage()._cdata)
        if relay is not None:
            relay.before = relay.base.clone()
            return
        memory = self.cross_stream.blocks.of(tensor)
        if _is_left(memory) or not memory.writes or tensor.untyped_storage().nbytes() > _LARGE:
            memory.image = None
        else:
            memory.image = _bytes_of(tensor).clone()

    def _as_relay(self, relay: StoreBuffer, lane: Lane) -> Iterator[Callable[[], object]]:
        late = [one for one in relay.stored if not one.out and self._is_late(one, lane)]
        if not late:
            return
        now = relay.base.clone()
        for one in reversed(late):
            relay.base[torch.from_numpy(one.rows)] = one.old
        yield lambda: relay.base.copy_(now)

    def _is_late(self, one: Stored, lane: Lane) -> bool:
        """Tells whether a lane may miss a write, and does."""
        if one.lane == lane.number:
            return False
        if one.time <= self.fences.clocks.known(lane.number, one.lane):
            return False
        one.out = self._is_out()
        return not one.out

    def _is_out(self) -> bool:
        return self._coin is not None and self._coin.random() < 0.5

    def _as_memory(self, tensor: torch.Tensor, lane: Lane) -> Iterator[Callable[[], object]]:
        memory = self.cross_stream.blocks.of(tensor)
        if _is_left(memory) or memory.out or not self.cross_stream.is_late(memory, tensor, lane):
            return
        memory.out = self._is_out()
        if memory.out:
            return
        shown = _bytes_of(tensor)
        now = shown.clone()
        if memory.image is None:
            shown.zero_()
        else:
            shown.copy_(memory.image)
        yield lambda: shown.copy_(now)


def _is_left(memory: Block) -> bool:
    """Tells whether memory is shown as it is: its rows go ways that one image would hide."""
    return memory.left_out or memory.by_index


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns all of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())


def _same(tensor: torch.Tensor) -> torch.Tensor:
    """Returns another tensor over the same values: no graph or version shows what is done to it."""
    laid = tensor.storage_offset(), tensor.size(), tensor.stride()
    made = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return made.set_(tensor.untyped_storage(), *laid)
