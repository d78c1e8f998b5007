"""Blocks: pieces of memory that lanes share, as far as torch's operators touch them.

Each knows which lane it was allocated on, which lanes used it last, and the asynchronous copies
that read or fill it. Whose memory it is, `homes` knows.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from fmcheck.runtime.core.clocks import Epoch
    from fmcheck.runtime.order.fences import Lane

#: Bytes of a copy's source that are kept, to see whether somebody wrote it out of torch's sight.
KEPT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Use:
    """One touch of a block: bytes [low, high), by which lane, when and where."""

    lane: Lane
    epoch: Epoch
    moment: int
    low: int
    high: int

    def meets(self, low: int, high: int) -> bool:
        """Tells whether it reaches into a range of bytes."""
        return self.low < high and low < self.high


@dataclass(frozen=True, slots=True)
class Copy:
    """An asynchronous copy that the host has not waited for: its source or its target.

    `known` tells that this end is the host's, `sure` that it is so beyond doubt, `doubtful` that it
    may be the device's as well. `before` holds the source's bytes at the call.
    """

    use: Use
    known: bool
    sure: bool = False
    doubtful: bool = False
    before: bytes = b""


@dataclass(eq=False, slots=True)
class Block:
    """What is known of one storage. `made` is its allocation by an operator, None for any other.

    It `is_host` where the last asynchronous copy found it to be the host's.
    """

    storage: weakref.ref[Any]
    is_host: bool = False
    made: Use | None = None
    uses: dict[int, Use] = field(default_factory=dict)
    by_kernels: set[int] = field(default_factory=set)
    lent: set[int] = field(default_factory=set)
    fills: list[Copy] = field(default_factory=list)
    reads: list[Copy] = field(default_factory=list)


class Blocks:
    """All blocks that were seen and still live; `freed` is told of the end of each."""

    def __init__(self, freed: Callable[[Block], None]) -> None:
        self._freed = freed
        self._known: dict[int, Block] = {}

    def of(self, tensor: torch.Tensor) -> Block:
        """Returns the block that a tensor lies in."""
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        known = self._known.get(key)
        if known is None:
            gone = weakref.ref(storage, lambda _: self._end(key))
            known = self._known[key] = Block(gone)
        return known

    def __iter__(self) -> Iterator[Block]:
        return iter(list(self._known.values()))

    def _end(self, key: int) -> None:
        block = self._known.pop(key, None)
        if block is not None:
            self._freed(block)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the first byte of a tensor's elements, and the one after the last."""
    low = tensor.data_ptr()
    if not tensor.numel():
        return low, low
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return low, low + (reach + 1) * tensor.element_size()


def content(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of a small, dense tensor on the host, and nothing for any other."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.nbytes > KEPT_BYTES:
        return b""
    low = tensor.data_ptr()
    if not holds(tensor.untyped_storage(), low, tensor.nbytes):
        return b""
    # Not by torch, which refuses some kinds of values.
    return ctypes.string_at(low, tensor.nbytes)


def holds(storage: torch.UntypedStorage, low: int, size: int) -> bool:
    """Tells whether some bytes are a storage's by now: it may have been freed, or moved."""
    begins = storage.data_ptr()
    return begins != 0 and begins <= low and low + size <= begins + storage.nbytes()
