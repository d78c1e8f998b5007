"""Memory: the elements of a relay buffer as bits, read and written in place by index expression.

On CPU that is NumPy over the same memory, which costs a fraction of eager torch, and poison is a
veil beside the memory: what the engine put there stays there, whoever reads it. On any other device
it is torch itself, with a copy to the host for each read, and poison lies in the memory.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcheck.runtime.core.rows import Column, array_over, row_dims, row_map
from fmcheck.runtime.steps.writes import address_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_SAME_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Memory(ABC):
    """Elements as signed integers of their width. Without a veil, poison lies among them."""

    @abstractmethod
    def read(self, expression: Any) -> npt.NDArray[Any]:
        """Returns a copy of the elements."""

    @abstractmethod
    def write(self, expression: Any, bits: Any) -> None:
        """Overwrites the elements."""

    def cover(self, expression: Any, poison: int) -> None:
        """Poisons the elements: they read as poison until somebody writes them."""
        self.write(expression, poison)

    def uncover(self, expression: Any) -> None:  # noqa: B027 - no veil to lift
        """The elements were written: whatever stands there is the engine's."""

    def unchanged(self, expression: Any) -> Any:
        """Tells which elements hold what they held when they were poisoned.

        None do where the poison lies in the memory itself.
        """
        return np.False_

    def was_changed(self) -> bool:
        """Tells whether any element was written since it was poisoned, with no `uncover`.

        Known only where the poison lies beside the memory.
        """
        return False

    def keep(self, rows: Any) -> Any:
        """Returns what `put_back` needs to undo a later `cover` of the rows."""
        return self.read(rows)

    def put_back(self, rows: Any, kept: Any) -> None:
        """Undoes a `cover` of the rows."""
        self.write(rows, kept)

    def keep_sinks(self, rows: list[slice]) -> Any:
        """Returns what `put_back_sinks` needs to undo a `cover` of rows that never are poisoned."""
        return [self.read(place) for place in rows]

    def put_back_sinks(self, rows: list[slice], kept: Any) -> None:
        """Undoes a `cover` of sinks."""
        for place, values in zip(rows, kept, strict=True):
            self.write(place, values)


class HostMemory(Memory):
    """Elements in this process's memory. Poison is put into the memory itself."""

    def __init__(self, bits: torch.Tensor) -> None:
        self._tensor = bits
        self._address = -1
        self._array: npt.NDArray[Any] = np.empty(0)

    @property
    def _bits(self) -> npt.NDArray[Any]:
        # A storage may move: `share_memory_` and `resize_` give it other memory.
        if address_of(self._tensor) != self._address:
            self._array, self._address = _array_over(self._tensor), address_of(self._tensor)
        return self._array

    def read(self, expression: Any) -> npt.NDArray[Any]:
        """Returns a copy of the elements."""
        return _copied(self._bits, expression)

    def write(self, expression: Any, bits: Any) -> None:
        """Overwrites the elements."""
        self._bits[expression] = bits


@dataclass(eq=False, slots=True)
class Veil:
    """Which elements of a buffer are poisoned, and what each held when it was.

    The poison itself is nowhere: the memory keeps the engine's values, and nobody can be handed
    anything else. Both tensors are laid out as the buffer is. `columns` are the whole buffer's.
    """

    covered: torch.Tensor
    held: torch.Tensor
    columns: tuple[Column | None, Column | None] = (None, None)

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Veil:
        """Returns a veil for a buffer, over nothing yet."""
        made = functools.partial(
            torch.empty_strided, tensor.size(), tensor.stride(), device=tensor.device
        )
        return cls(made(dtype=torch.bool).zero_(), made(dtype=tensor.dtype))

    def of_view(self, view: torch.Tensor, offset: int) -> Veil | None:
        """Returns the part over a view that begins so many elements into the buffer.

        None where their elements are not the same ones.
        """
        if offset < 0 or self.held.element_size() != view.element_size():
            return None
        last = offset + sum(
            (size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True)
        )
        if view.numel() and last >= self.covered.untyped_storage().nbytes():
            return None
        laid = (view.size(), view.stride(), offset)
        return Veil(self.covered.as_strided(*laid), self.held.as_strided(*laid), self.columns)


class VeiledMemory(HostMemory):
    """Elements in this process's memory, read with poison where a veil covers them."""

    def __init__(self, bits: torch.Tensor, veil: Veil, poison: int) -> None:
        super().__init__(bits)
        covered = _array_over(veil.covered.view(torch.int8)).view(np.bool_)
        self._covered = Column(covered, veil.columns[0])
        self._held = Column(_array_over(_as_bits(veil.held)), veil.columns[1])
        if veil.columns[0] is None:
            veil.columns = self._covered, self._held
        self._poison = poison

    def read(self, expression: Any) -> npt.NDArray[Any]:
        """Returns a copy of the elements: poison where nobody has changed them since."""
        bits = super().read(expression)
        if self._covered.common(expression) is False:
            return bits
        covered = self._covered.values[expression]
        if b"\x01" not in covered.tobytes():  # half of what a count takes
            return bits
        return np.where(
            covered & (bits == self._held.values[expression]), self._poison, bits
        ).astype(bits.dtype, copy=False)

    def cover(self, expression: Any, poison: int) -> None:
        """Puts poison over the elements, which stay in the memory."""
        self._held.put(expression, self._bits[expression])
        self._covered.put(expression, True)

    def uncover(self, expression: Any) -> None:
        """The elements were written: whatever stands there is the engine's."""
        self._covered.put(expression, False)

    def unchanged(self, expression: Any) -> Any:
        """Tells which elements hold what they held when they were poisoned."""
        held = self._held.values[expression]
        return self._covered.values[expression] & (self._bits[expression] == held)

    def was_changed(self) -> bool:
        """Tells whether any element was written since it was poisoned, with no `uncover`."""
        return bool((self._covered.values & (self._bits != self._held.values)).any())

    def keep(self, rows: npt.NDArray[Any]) -> Any:
        """Returns what `put_back` needs to undo a later `cover` of the rows."""
        return self._covered.values[rows], self._held.values[rows]

    def put_back(self, rows: npt.NDArray[Any], kept: Any) -> None:
        """Undoes a `cover` of the rows."""
        self._covered.values[rows], self._held.values[rows] = kept

    def keep_sinks(self, rows: list[slice]) -> Any:
        """Returns nothing: a sink is never under the veil."""

    def put_back_sinks(self, rows: list[slice], kept: Any) -> None:
        """Takes the veil off the sinks again."""
        covered = self._covered.values
        for place in rows:
            covered[place] = False


class DeviceMemory(Memory):
    """Elements on an accelerator. Each read waits for the device."""

    def __init__(self, bits: torch.Tensor) -> None:
        self._bits = bits

    def read(self, expression: Any) -> npt.NDArray[Any]:
        """Returns a copy of the elements."""
        found: npt.NDArray[Any] = (
            self._bits[self._on_device(expression)].to("cpu", copy=True).numpy()
        )
        return found

    def write(self, expression: Any, bits: Any) -> None:
        """Overwrites the elements."""
        if isinstance(bits, np.ndarray):
            bits = torch.from_numpy(bits).to(self._bits.device)
        self._bits[self._on_device(expression)] = bits

    def keep_sinks(self, rows: list[slice]) -> Any:
        """Returns what the sinks hold, on the device: nobody waits for it."""
        return [self._bits[place].clone() for place in rows]

    def _on_device(self, expression: Any) -> Any:
        if isinstance(expression, tuple):
            return tuple(self._on_device(item) for item in expression)
        if isinstance(expression, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(expression)).to(self._bits.device)
        return expression


def memory_of(tensor: torch.Tensor, veil: Veil | None = None, poison: int = 0) -> Memory:
    """Returns the memory of a plain tensor, whatever its dtype, under a veil if there is one."""
    bits = _as_bits(tensor.detach())
    if not bits.is_cpu:
        return DeviceMemory(bits)
    return HostMemory(bits) if veil is None else VeiledMemory(bits, veil, poison)


def bits_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Returns the elements of a tensor in host memory as bits, in place."""
    return _array_over(_as_bits(tensor.detach()))


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    # What is only marked as conjugated or negated shares the bits of what it is a view of.
    if tensor.is_conj():
        tensor = tensor.conj()
    if tensor.is_neg():
        tensor = torch._neg_view(tensor)
    width = _SAME_WIDTH.get(tensor.element_size())
    return tensor if width is None else tensor.view(width)


def _copied(array: npt.NDArray[Any], expression: Any) -> npt.NDArray[Any]:
    if type(expression) is np.ndarray:
        return array[expression]  # an index array always copies
    if type(expression) is slice:
        return array[expression].copy()
    found = np.asarray(array[expression])
    return found if found.base is None else found.copy()


def _array_over(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Returns an array over a tensor's memory, as bits.

    Raises RuntimeError if the storage holds less than the tensor shows.
    """
    size = tensor.element_size()
    kind = np.dtype(np.complex128 if size not in _SAME_WIDTH else f"i{size}")
    last = sum((n - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    reach = (int(tensor.storage_offset()) + last + 1) * size
    if tensor.numel() and reach > tensor.untyped_storage().nbytes():
        raise RuntimeError("the storage was resized below the buffer's size")
    return array_over(tensor, kind.str)


@dataclass(eq=False)
class Window:
    """What a tensor shows of a relay buffer: all of it, or what a view reaches.

    `rows` has the row of each element, `dims` are the dimensions along which it changes.
    """

    rows: npt.NDArray[np.int64]
    memory: Memory
    whole: bool
    dims: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.dims = row_dims(self.rows)

    def touched(self, expression: Any) -> npt.NDArray[Any]:
        """Returns the rows that an index expression touches, in the shape of what it picks.

        Of a whole buffer that is one number a row, without its inner dimensions.
        """
        if not self.whole:
            return np.asarray(self.rows[expression])
        if type(expression) is np.ndarray and expression.dtype.kind != "b":
            return expression
        if isinstance(expression, tuple) or getattr(expression, "ndim", 1) > 1:
            return np.asarray(self.rows[expression])
        return np.asarray(np.arange(len(self.rows))[expression])


def window_of(
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    row_stride: int,
    memory: Memory,
    whole: bool,
    count: int = 0,
) -> Window:
    """Returns the window of a tensor that lies at `offset` elements into a relay buffer."""
    return Window(row_map(shape, strides, offset, row_stride, count), memory, whole)
