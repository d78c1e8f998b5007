"""Verdicts: what is said of an element that is gathered, or of a row that is written.

Poison is the bits that a row holds when there is nothing in it to read.

It is the one place that turns the state of a row and what lies in it into a check's number. The
host looks it up with NumPy, kernels are handed it as constants, and `tests/test_verdicts.py` holds
each entry against a model that was written apart from it.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fmcheck.contract import COMPARISONS
from fmcheck.runtime.core.ledger import State

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


#: Nothing is said.
GOOD = 0
UNWRITTEN, READ_TWICE, LOST, STALE, INVALID = 101, 102, 103, 104, 105
SINK_CONTENT = 204
SINK, STILL_HELD, FREED_TWICE, UNOWNED, REPEATED, WRONG_OWNER = 106, 107, 108, 109, 110, 111
#: Steps that may still use a row for the owner that gave it back: one runs, one is planned.
IN_FLIGHT = 2
_HOLDS_VALUE = (State.LIVE, State.SPARED)


class Allocation(enum.IntEnum):
    """Who has a row: a request, nobody any more, or nobody as far as was seen."""

    NEVER = 0
    HELD = 1
    FREED = 2


class PoisonKind(NamedTuple):
    """What of a buffer's poison a verdict depends on.

    It `is_certain` where no valid value has its bits, and a NaN where it `is_float`.
    """

    has_poison: bool
    is_certain: bool
    is_float: bool


def kind_of(poison: Poison) -> PoisonKind:
    """Returns the kind of a poison."""
    return PoisonKind(poison.bits is not None, poison.certain, poison.is_float)


def of_gather(kind: PoisonKind, state: State, stale: bool, poisoned: bool, invalid: bool) -> int:
    """Returns the check that a gathered element fails.

    `stale` tells that the row's last value was left unread by an older owner, `poisoned` that the
    element has the bits of poison, `invalid` that it breaks the contract's bound.
    """
    live = state in _HOLDS_VALUE
    if not kind.has_poison:
        poisoned = not live  # the ledger alone tells
    if not (invalid or (poisoned and (kind.is_certain or not live))):
        return GOOD
    if live:
        # A NaN of ours in a live row was left there by a write that did not reach all of it.
        return UNWRITTEN if poisoned and kind.is_float else INVALID
    if not poisoned:
        return INVALID
    if state is State.CONSUMED:
        return READ_TWICE
    return STALE if stale else UNWRITTEN


def of_write(state: State, held: bool) -> int:
    """Returns the check that a write of new values fails by what it went over."""
    return LOST if state is State.LIVE and held else GOOD


# --- by who has the row ---


def of_hand_out(allocation: Allocation, is_sink: bool, to_another: bool) -> int:
    """Returns the check that a hand-out of a row fails; `to_another` than the one that has it."""
    if is_sink:
        return SINK
    return STILL_HELD if allocation is Allocation.HELD and to_another else GOOD


def of_take_back(allocation: Allocation) -> int:
    """Returns the check that a take-back of a row fails.

    A row that was never handed out in sight may have been before anybody watched.
    """
    return FREED_TWICE if allocation is Allocation.FREED else GOOD


def of_owned_write(allocation: Allocation, in_flight: bool) -> int:
    """Returns the check that a write of values fails by who has the row.

    `in_flight` tells that a step which began while somebody had it may be the writer.
    """
    if allocation is Allocation.HELD or (allocation is Allocation.FREED and in_flight):
        return GOOD
    return UNOWNED


def of_use(allocation: Allocation, for_another: bool, in_flight: bool) -> int:
    """Returns the check that a use of a row fails; `for_another` than had it last.

    Who has a row that was never handed out in sight, nobody knows.
    """
    if allocation is Allocation.NEVER:
        return GOOD
    is_over = allocation is Allocation.FREED and not in_flight
    return WRONG_OWNER if for_another or is_over else GOOD


@cache
def unowned() -> npt.NDArray[np.bool_]:
    """Returns by whose a row is, and whether a step is in flight, whether a write is nobody's."""
    return np.array(
        [[of_owned_write(one, flight) != GOOD for flight in (False, True)] for one in Allocation]
    )


@cache
def gathers(kind: PoisonKind) -> npt.NDArray[np.uint8]:
    """Returns the checks of gathered elements by state, staleness, poison and validity."""
    table = np.zeros((len(State), 2, 2, 2), np.uint8)
    for state, *bits in itertools.product(State, (False, True), (False, True), (False, True)):
        stale, poisoned, invalid = bits
        table[state, int(stale), int(poisoned), int(invalid)] = of_gather(
            kind, state, stale, poisoned, invalid
        )
    return table


@cache
def losses() -> npt.NDArray[np.bool_]:
    """Returns in which states a row loses its value to a write, by whether somebody holds it."""
    return np.array([[of_write(state, held) != GOOD for held in (False, True)] for state in State])


def judge(
    poison: Poison, bits: npt.NDArray[Any], state: npt.NDArray[np.uint8], stale: Any
) -> npt.NDArray[np.uint8]:
    """Returns the checks that gathered elements fail; `state` and `stale` are those of each."""
    poisoned, invalid = poison.is_poison(bits), poison.is_invalid(bits)
    table = gathers(kind_of(poison))
    return np.asarray(table[state, _place(stale), _place(poisoned), _place(invalid)])


def _place(flags: Any) -> npt.NDArray[np.int8]:
    return np.asarray(flags).astype(np.int8)


# --- as constants of a kernel ---

#: Bits of a check's number in what a kernel is handed, and what is taken from it to fit there.
WIDTH, BASE = 4, 100


@cache
def packed(kind: PoisonKind) -> int:
    """Returns the checks of gathered poison: `WIDTH` bits for each state, unstale and stale.

    A value that is not poison fails `INVALID` or nothing, whatever its row's state.
    """
    codes = gathers(kind)[:, :, 1, 0].reshape(-1).tolist()
    return sum((code - BASE) << (WIDTH * place) for place, code in enumerate(codes) if code)


@cache
def packed_losses() -> int:
    """Returns a bit for each state in which a held row loses its value to a write."""
    return sum(1 << place for place, loses in enumerate(losses()[:, 1].tolist()) if loses)


@cache
def packed_unowned() -> int:
    """Returns two bits for each allocation: whether a write is nobody's, without and with a step in
    flight.
    """
    return sum(1 << place for place, nobodys in enumerate(unowned().reshape(-1)) if nobodys)
