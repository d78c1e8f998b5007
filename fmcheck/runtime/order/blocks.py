"""Blocks: pieces of memory that lanes share, as far as torch's operators touch them.

Each knows which lane it was allocated on, which lanes used it last, the last accesses and what they
reached, and the asynchronous copies that read or fill it. Whose memory it is, `placements` knows.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from fmcheck.runtime.core.clocks import Epoch
from fmcheck.runtime.order.extents import Picked, Some, Strided, meet, meets_range
from fmcheck.runtime.steps.torch_modes import left_alone
from fmcheck.runtime.steps.writes import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.order.extents import Extent
    from fmcheck.runtime.order.fences import Lane

#: Bytes of a copy's source that are kept, to see whether somebody wrote it out of torch's sight.
KEPT_BYTES = 1 << 16
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class BlockTouch(msgspec.Struct, eq=False):  # a data class takes twice as long to make
    """One access of a storage: bytes [low, high), of which `extent` tells some, None all.

    `is_copy` tells of a copy that the host does not wait for: what the host does beside it is
    judged elsewhere. `is_loose` tells that it may leave out any of them, `is_arrival` that what may
    be the host's was sent to the device, `sent` by which of these its tensor came. One that is
    `either_way` would be the host's own, or a copy by which the memory shows to be the host's.
    """

    lane: Lane
    count: int
    moment: int
    low: int
    high: int
    extent: Extent | None
    is_copy: bool
    is_loose: bool = False
    is_arrival: bool = False
    sent: BlockTouch | None = None
    either_way: bool = False

    def meets(self, other: BlockTouch) -> bool | None:
        """Tells whether both reach some byte; None where there is no telling."""
        if self.low >= other.high or other.low >= self.high:
            return False
        if self.extent is None and other.extent is None:
            return True
        if self.extent is not None and other.extent is not None:
            return meet(self.extent, other.extent)
        whole, part = (self, other) if self.extent is None else (other, self)
        assert part.extent is not None
        covers = whole.low <= part.low and part.high <= whole.high
        if isinstance(part.extent, Some):
            return True if covers and not whole.is_loose else None
        if covers and isinstance(part.extent, Strided):
            return True
        found = meets_range(part.extent, whole.low, whole.high)
        return None if found and whole.is_loose and isinstance(part.extent, Picked) else found

    def covers(self, other: BlockTouch) -> bool:
        """Tells whether this reaches all that another did."""
        is_whole = self.extent is None and not self.is_loose
        return is_whole and self.low <= other.low and other.high <= self.high


class BlockUse(msgspec.Struct, eq=False):
    """One touch of a block: bytes [low, high), by which lane, when and where.

    It is `by_kernel` where the lane has done more to the block than asynchronous copies.
    """

    lane: Lane
    count: int
    moment: int
    low: int = 0
    high: int = 0
    by_kernel: bool = True

    @property
    def epoch(self) -> Epoch:
        """The touch as others' clocks know it."""
        return Epoch(self.lane.number, self.count)

    def meets(self, low: int, high: int) -> bool:
        """Tells whether it reaches into a range of bytes."""
        return self.low < high and low < self.high


@dataclass(frozen=True, slots=True)
class Freed:
    """Memory that was freed at a moment, while another lane than its own might still use it."""

    made: BlockUse
    use: BlockUse
    moment: int


class PendingCopy(msgspec.Struct, frozen=True, eq=False):
    """An asynchronous copy that the host has not waited for: its source or its target.

    `known` tells that this end is the host's, `sure` that it is so beyond doubt, `doubtful` that it
    may be the device's as well. `before` holds the source's bytes at the call, `borrowed` keeps
    memory of another owner, as of a NumPy array, whose tensor may go before the copy is done. One
    that is `real` is made by a device, which may be at it now.
    """

    use: BlockUse
    known: bool
    sure: bool = False
    doubtful: bool = False
    before: bytes = b""
    borrowed: torch.UntypedStorage | None = None
    real: bool = False


class Block(msgspec.Struct, eq=False):
    """What is known of one storage. `made` is its allocation by an operator, None for any other,
    and `former` the last use, on that lane, of anything that it had freed by then.

    It `is_host` where the last asynchronous copy found it to be the host's. What is `on_host` only
    copies touch in a stream's order: all else the host does itself, at once. What may be the host's
    and was sent to the device is one block on a CPU: `sent` has the last time that each lane did
    so, by its number, `homes` the lanes that used it before; it `is_apart` where what was sent is
    another tensor than what the host kept. `left_out` is what others follow, but for what reaches
    memory that is `shared` by the tensor that the engine itself has, and not by the relay's. Where
    writes are delayed, `image` is what its last write in place went over, `out` tells that
    everybody sees that write; memory written `by_index` is shown as is.
    """

    storage: _Storage
    device: torch.device
    uses: dict[int, BlockUse] = {}
    writes: list[BlockTouch] = []
    reads: list[BlockTouch] = []
    made: BlockUse | None = None
    former: BlockUse | None = None
    lent: frozenset[int] = frozenset()
    sent: dict[int, BlockTouch] = {}
    homes: frozenset[int] = frozenset()
    is_apart: bool = False
    filled_by: tuple[PendingCopy, ...] = ()
    read_by: tuple[PendingCopy, ...] = ()
    is_host: bool = False
    left_out: bool = False
    shared: bool = False
    by_index: bool = False
    on_host: bool = False
    image: torch.Tensor | None = None
    out: bool = False


class _Storage(weakref.ref[Any]):
    """A storage, and the key of its block."""

    __slots__ = ("key",)

    key: int


class Blocks:
    """All blocks that were seen and still live; `freed` is called at the end of each."""

    def __init__(self) -> None:
        self.freed: Callable[[Block], None] | None = None
        self._known: dict[int, Block] = {}
        self._ended: list[_Storage] = []
        self._note_end = self._ended.append

    def of(self, tensor: torch.Tensor) -> Block:
        """Returns the block that a tensor lies in."""
        if self._ended:
            self._settle()
        storage = tensor.untyped_storage()
        return self._known.get(storage._cdata) or self._begin(storage, tensor.device)

    def of_all(self, tensors: list[torch.Tensor]) -> list[Block]:
        """Returns the blocks that tensors lie in."""
        if self._ended:
            self._settle()
        known, found = self._known, []
        for one in tensors:
            storage = one.untyped_storage()
            block = known.get(storage._cdata)
            found.append(self._begin(storage, one.device) if block is None else block)
        return found

    def of_known(self, tensors: list[torch.Tensor]) -> list[Block] | None:
        """Returns the same, None unless all are seen at a glance to be plain memory.

        What lies in a known block is, but for a nested tensor over it and one of a class.
        """
        if self._ended:
            self._settle()
        known, found = self._known, []
        for one in tensors:
            if type(one) not in _PLAIN or one.is_nested:
                return None
            try:
                block = known.get(one.untyped_storage()._cdata)
            except (RuntimeError, NotImplementedError):  # without storage
                return None
            if block is None:
                return None
            found.append(block)
        return found

    def renew(self, storage: torch.UntypedStorage) -> Block | None:
        """Begins another block in a storage that has other memory now, None if it has none."""
        self._settle()
        self._end(storage._cdata)
        return self._begin(storage, storage.device) if storage.nbytes() else None

    def notice_end(self, block: Block) -> None:
        """Has `freed` called when the block ends, and not at the next look: where it does counts.

        That is a function of Python's, in which an error of a signal's handler would be lost. Most
        blocks do without.
        """
        storage = block.storage()
        if storage is not None:
            ref = _Storage(storage, self._gone)
            ref.key = storage._cdata
            block.storage = ref

    def _begin(self, storage: torch.UntypedStorage, device: torch.device) -> Block:
        ref = _Storage(storage, self._note_end)
        key = ref.key = storage._cdata
        made = self._known[key] = Block(ref, device)
        return made

    def _settle(self) -> None:
        while self._ended:
            try:
                ref = self._ended.pop()
            except IndexError:  # another thread was there first
                return
            self._gone(ref)

    @left_alone
    def _gone(self, ref: Any) -> None:
        block = self._known.get(ref.key)
        if block is not None and block.storage is ref:
            self._end(ref.key)

    def __iter__(self) -> Iterator[Block]:
        self._settle()
        return iter(list(self._known.values()))

    def _end(self, key: int) -> None:
        block = self._known.pop(key, None)
        if block is not None and self.freed is not None:
            self.freed(block)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the first byte of a tensor's elements, and the one after the last."""
    low = address_of(tensor)
    if tensor.is_contiguous():
        return low, low + tensor.nbytes
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return low, low + (reach + 1) * tensor.element_size()


def content(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of a small, dense tensor on the host, and nothing for any other."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.nbytes > KEPT_BYTES:
        return b""
    low = address_of(tensor)
    if not holds(tensor.untyped_storage(), low, tensor.nbytes):
        return b""
    # Not by torch, which refuses some kinds of values.
    return ctypes.string_at(low, tensor.nbytes)


def holds(storage: torch.UntypedStorage, low: int, size: int) -> bool:
    """Tells whether some bytes are a storage's by now: it may have been freed, or moved."""
    begins = storage.data_ptr()
    return begins != 0 and begins <= low and low + size <= begins + storage.nbytes()
