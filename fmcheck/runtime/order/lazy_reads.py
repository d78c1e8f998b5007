"""Lazy reads: a read that nothing orders before a later write gets what that write leaves.

On a CPU a copy or a gather is done when its call returns. A device may come to it later, after
another stream, or the host, has written what it reads. Where nothing orders the two and nobody has
touched the result yet, it is read again behind the write. A result that was used stays as it is.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fmcheck.runtime.order.extents import LIMIT, READS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.order.fences import Fences, Lane
    from fmcheck.runtime.order.ops import OperatorCall

    Pick = Callable[[torch.Tensor], torch.Tensor]

#: Reads that are remembered, and bytes of a result that is.
_KEPT = 32
_LARGE = 1 << 16


class StoredTensor:
    """A tensor by its storage, which is not kept alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.key: int = storage._cdata
        self._storage = weakref.ref(storage)
        self._laid = tensor.storage_offset(), tensor.size(), tensor.stride()
        self._dtype = tensor.dtype

    def tensor(self) -> torch.Tensor | None:
        """Returns it again, with a version of its own; None if its memory is gone."""
        storage = self._storage()
        if storage is None:
            return None
        return torch.empty(0, dtype=self._dtype, device="cpu").set_(storage, *self._laid)


@dataclass(eq=False, slots=True)
class LazyRead:
    """A read by a lane whose result nobody has touched."""

    lane: int
    time: int
    source: StoredTensor
    result: StoredTensor
    pick: Pick | None
    is_copy: bool


class LazyReads:
    """The last reads of a session; `is_late` decides which of them are done again."""

    def __init__(self, fences: Fences, is_late: Callable[[], bool]) -> None:
        self.fences = fences
        self._is_late = is_late
        self._reads: deque[LazyRead] = deque(maxlen=_KEPT)

    def clear(self) -> None:
        """Forgets all reads."""
        self._reads.clear()

    def touched(self, call: OperatorCall) -> None:
        """Somebody is about to use what these reads brought, or to write it."""
        if self._reads:
            keys = {one.untyped_storage()._cdata for one in (*call.reads, *call.writes)}
            kept = [one for one in self._reads if one.result.key not in keys]
            if len(kept) < len(self._reads):
                self._reads = deque(kept, maxlen=_KEPT)

    def note(self, call: OperatorCall) -> None:
        """Notes a read that was made."""
        for source, result, pick in _read_by(call):
            if source.is_cpu and result.is_cpu and result.nbytes <= _LARGE:
                time = self.fences.time(call.lane)
                ends = StoredTensor(source), StoredTensor(result)
                made = LazyRead(call.lane.number, time, *ends, pick, call.is_async_copy)
                self._reads.append(made)

    def written(self, tensor: torch.Tensor, lane: Lane, is_host: bool) -> None:
        """Makes the reads of some memory again that nothing orders before a write by a lane.

        Of memory that `is_host` only asynchronous copies read later than they are called.
        """
        key = tensor.untyped_storage()._cdata
        for one in [one for one in self._reads if one.source.key == key]:
            is_ordered = one.time <= self.fences.clocks.known(lane.number, one.lane)
            if one.lane == lane.number or is_ordered or (is_host and not one.is_copy):
                continue
            source, result = one.source.tensor(), one.result.tensor()
            self._reads.remove(one)
            if source is not None and result is not None and self._is_late():
                result.copy_(source if one.pick is None else one.pick(source))


def _read_by(call: OperatorCall) -> Iterator[tuple[torch.Tensor, torch.Tensor, Pick | None]]:
    """Yields source and result of a copy or a gather, and how the one is picked from the other."""
    if call.name == "copy_" and call.is_async_copy:
        if isinstance(call.args[1], torch.Tensor):
            yield call.args[1], call.args[0], None
    elif len(call.made) == 1 and (call.name == "clone" or call.is_async_copy):
        yield call.args[0], call.made[0], None
    elif len(call.made) == 1 and call.name in READS:
        source = call.args[0]
        if isinstance(source, torch.Tensor) and source.numel() <= LIMIT:
            yield source, call.made[0], READS[call.name][0](call.args)
