"""Poison: the bits that a row holds when there is nothing in it to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fmcheck.contract import COMPARISONS

if TYPE_CHECKING:
    import numpy.typing as npt

# Quiet NaNs of our own: no arithmetic makes this payload, so a row that holds it was never written.
_NAN_BITS = {
    "float64": 0x7FF8_FC0C_DEAD_F00D,
    "float32": 0x7FCF_C0DE,
    "float16": 0x7EFC,
    "bfloat16": 0x7FDC,
    # The other float8 kinds have one NaN, or none, and nothing to tell it by.
    "float8_e5m2": 0x7D,
}
_SIGNED = ("int8", "int16", "int32", "int64")
_COMPLEX = ("complex64", "complex128")
_UNSIGNED = ("bool", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True, slots=True)
class Poison:
    """How one buffer is judged, by its dtype and by what its contract calls valid.

    `bits` is the poison as a signed integer of the element's width, None where no value can be
    spared. `certain` means that no valid value has these bits: then they are a verdict by
    themselves, else only together with the ledger.
    """

    dtype: str
    bits: int | None
    certain: bool
    bound: tuple[str, int] | None

    @property
    def is_float(self) -> bool:
        """Tells whether the poison is a NaN."""
        return self.dtype in _NAN_BITS

    def is_poison(self, bits: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tells which elements are poison, bit by bit."""
        if self.bits is None:
            return np.zeros(bits.shape, bool)
        return np.asarray(bits == self.bits)

    def is_in(self, bits: npt.NDArray[Any]) -> bool:
        """Tells whether any element is poison."""
        return self.bits is not None and bool(np.count_nonzero(bits == self.bits))

    def clears(self, bits: npt.NDArray[Any]) -> bool:
        """Tells whether live elements with these bits are all good: what a healthy gather costs."""
        if self.bound is None:
            return not self.certain or not self.is_in(bits)
        sign, limit = self.bound
        good = COMPARISONS[sign](bits if self.dtype in _SIGNED else self.values(bits), limit)
        if np.count_nonzero(good) != bits.size:
            return False
        return self.dtype in _SIGNED or not self.certain or not self.is_in(bits)

    def is_invalid(self, bits: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tells which elements break the contract's `valid`."""
        if self.bound is None:
            return np.zeros(bits.shape, bool)
        sign, limit = self.bound
        return ~np.asarray(COMPARISONS[sign](self.values(bits), limit))

    def values(self, bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the elements as numbers."""
        if self.dtype == "bfloat16":  # NumPy has none: it is the upper half of a float32
            wide: npt.NDArray[Any] = bits.view(np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32)
        if self.dtype == "float8_e5m2":  # the upper half of a float16
            half: npt.NDArray[Any] = bits.view(np.uint8).astype(np.uint16) << 8
            return half.view(np.float16)
        if self.dtype in _NAN_BITS or self.dtype in _UNSIGNED or self.dtype in _COMPLEX:
            return bits.view(self.dtype)
        return bits


def poison_for(dtype: str, bound: tuple[str, int] | None, kept: bool = False) -> Poison:
    """Returns the poison of a dtype (`int64`, `bfloat16`, …) under the contract's `valid`.

    Memory that is `kept` has none.
    """
    if kept:
        return Poison(dtype, None, False, bound)
    if dtype in _SIGNED:
        excluded = bound is not None and not COMPARISONS[bound[0]](-1, bound[1])
        return Poison(dtype, -1, excluded, bound)
    if dtype in _NAN_BITS:
        return Poison(dtype, _NAN_BITS[dtype], True, bound)
    # NumPy cannot compare what it has no dtype for.
    return Poison(dtype, None, False, bound if dtype in _UNSIGNED else None)
