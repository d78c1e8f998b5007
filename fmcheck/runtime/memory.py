"""Memory: the elements of a relay buffer as bits, read and written in place by index expression.

On CPU that is NumPy over the same memory, which costs a fraction of eager torch. On any other
device it is torch itself, with a copy to the host for each read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

_SAME_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Memory(Protocol):
    """Elements as signed integers of their width."""

    def read(self, expression: Any) -> npt.NDArray[Any]:
        """Returns a copy of the elements."""

    def write(self, expression: Any, bits: Any) -> None:
        """Overwrites the elements."""

    def part(self, place: slice) -> Any:
        """Returns some rows in place: what is written to the memory shows in it."""


class HostMemory:
    """Elements in this process's memory."""

    def __init__(self, bits: torch.Tensor) -> None:
        self._bits: npt.NDArray[Any] = bits.numpy()

    def read(self, expression: Any) -> npt.NDArray[Any]:
        """Returns a copy of the elements."""
        if type(expression) is np.ndarray:
            return self._bits[expression]  # an index array always copies
        if type(expression) is slice:
            return self._bits[expression].copy()
        found = np.asarray(self._bits[expression])
        return found if found.base is None else found.copy()

    def write(self, expression: Any, bits: Any) -> None:
        """Overwrites the elements."""
        self._bits[expression] = bits

    def part(self, place: slice) -> npt.NDArray[Any]:
        """Returns some rows in place."""
        return self._bits[place]


class DeviceMemory:
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

    def part(self, place: slice) -> Any:
        """Returns some rows in place."""
        return _DevicePart(self._bits[place])

    def _on_device(self, expression: Any) -> Any:
        if isinstance(expression, tuple):
            return tuple(self._on_device(item) for item in expression)
        if isinstance(expression, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(expression)).to(self._bits.device)
        return expression


class _DevicePart:
    """Rows on an accelerator, with the two words of an array that a sink needs."""

    def __init__(self, bits: torch.Tensor) -> None:
        self._bits = bits

    def copy(self) -> torch.Tensor:
        return self._bits.clone()

    def __setitem__(self, place: Any, bits: torch.Tensor) -> None:
        self._bits[place] = bits


def memory_of(tensor: torch.Tensor) -> Memory:
    """Returns the memory of a plain tensor, whatever its dtype."""
    plain = tensor.detach()
    width = _SAME_WIDTH.get(plain.element_size())
    bits = plain if width is None else plain.view(width)
    return HostMemory(bits) if plain.device.type == "cpu" else DeviceMemory(bits)
