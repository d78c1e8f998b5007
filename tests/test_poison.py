"""Which bits mean that there is nothing to read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fmcheck.runtime.core.ledger import State
from fmcheck.runtime.core.verdicts import GOOD, INVALID, UNWRITTEN, judge, poison_for
from fmcheck.runtime.relay.memory import DeviceMemory, HostMemory, memory_of

LIVE = np.array([State.LIVE])
WITH_NAN = ["float64", "float32", "float16", "bfloat16", "float8_e5m2"]
WITHOUT = [
    *("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


@pytest.mark.parametrize("dtype", WITH_NAN)
def test_the_poison_of_a_float_is_a_nan_of_our_own(dtype: str) -> None:
    tensor = torch.zeros(2, dtype=getattr(torch, dtype))
    memory, poison = memory_of(tensor), poison_for(dtype, None)
    memory.write(0, poison.bits)
    tensor[1] = float("nan")
    assert tensor.isnan().tolist() == [True, True]
    assert poison.is_poison(memory.read(...)).tolist() == [True, False]
    assert poison.certain


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_poison_of_a_signed_integer_is_minus_one(dtype: str) -> None:
    tensor = torch.zeros(2, dtype=getattr(torch, dtype))
    memory_of(tensor).write(0, poison_for(dtype, (">=", 0)).bits)
    assert tensor.tolist() == [-1, 0]


@pytest.mark.parametrize("dtype", WITH_NAN)
def test_no_arithmetic_makes_the_poison(dtype: str) -> None:
    kind = getattr(torch, dtype)
    nan, wide = float("nan"), torch.tensor([0.0, -1.0, float("inf")])
    made = torch.cat([wide * nan, -wide * nan, wide[2:] - wide[2:], (-wide[1:2]).log(), wide / 0])
    bits = memory_of(made.to(kind)).read(...)
    assert not poison_for(dtype, None).is_poison(bits).any()
    assert not poison_for(dtype, None).is_in(bits)


@pytest.mark.parametrize("dtype", [*WITH_NAN, "int8", "int16", "int32", "int64"])
def test_poison_is_exact_to_the_bit(dtype: str) -> None:
    tensor = torch.zeros(3, dtype=getattr(torch, dtype))
    memory, poison = memory_of(tensor), poison_for(dtype, (">=", 0))
    memory.write(1, poison.bits)
    width = tensor.element_size()
    assert poison.bits is not None
    expected = poison.bits.to_bytes(width, "little", signed=True)
    raw = bytes(tensor.view(torch.uint8).tolist())
    assert raw == bytes(width) + expected + bytes(width)
    assert poison.is_poison(memory.read(...)).tolist() == [False, True, False]
    assert poison.is_in(memory.read(...))
    memory.write(1, poison.bits ^ 1)
    assert not poison.is_in(memory.read(...))


@pytest.mark.parametrize("dtype", [*WITH_NAN, "int32", "uint8", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("bound", [None, (">=", 0), (">", 0)])
def test_what_is_cleared_is_no_suspect(dtype: str, bound: tuple[str, int] | None) -> None:
    poison = poison_for(dtype, bound)
    tensor = torch.tensor([1.0, 0.0, -1.0, 3.0]).to(getattr(torch, dtype))
    memory = memory_of(tensor)
    if poison.bits is not None:
        memory.write(3, poison.bits)
    for place in range(4):
        bits = memory.read(slice(place, place + 1))
        suspects = judge(poison, bits, LIVE, False)
        assert poison.clears(bits) is not bool(suspects.any())


def test_a_small_float_is_shown_as_what_it_is() -> None:
    tensor = torch.tensor([0.5, -3.0]).to(torch.float8_e5m2)
    assert poison_for("float8_e5m2", None).values(memory_of(tensor).read(...)).tolist() == [0.5, -3]


def test_minus_one_is_a_verdict_only_where_it_is_no_value() -> None:
    assert poison_for("int64", (">=", 0)).certain
    assert not poison_for("int64", (">=", -1)).certain
    assert not poison_for("int64", None).certain


@pytest.mark.parametrize("dtype", WITHOUT)
def test_other_dtypes_have_none(dtype: str) -> None:
    assert poison_for(dtype, None).bits is None


@pytest.mark.parametrize(
    ("bound", "live", "expected"),
    [
        ((">=", 0), True, [True, False, False, True]),
        ((">", 0), True, [True, True, False, True]),
        (None, True, [False, False, False, False]),
        (None, False, [True, False, False, False]),
    ],
)
def test_suspects_among_integers(
    bound: tuple[str, int] | None, live: bool, expected: list[bool]
) -> None:
    bits = np.array([-1, 0, 5, -7])
    state = LIVE if live else np.array([State.CONSUMED])
    suspects = judge(poison_for("int64", bound), bits, state, False) != GOOD
    assert suspects.tolist() == expected


def test_without_a_poison_the_ledger_has_the_verdict() -> None:
    bits = np.array([1, 1, 0], np.int8)
    state = np.array([State.LIVE, State.EMPTY, State.LIVE])
    found = judge(poison_for("uint8", (">", 0)), bits, state, False)
    assert found.tolist() == [GOOD, UNWRITTEN, INVALID]


def test_a_float_is_judged_by_its_bound_too() -> None:
    tensor = torch.tensor([0.5, -0.5], dtype=torch.bfloat16)
    poison = poison_for("bfloat16", (">=", 0))
    assert poison.values(memory_of(tensor).read(...)).tolist() == [0.5, -0.5]
    found = judge(poison, memory_of(tensor).read(...), LIVE, False)
    assert found.tolist() == [GOOD, INVALID]


@pytest.mark.parametrize("kind", [HostMemory, DeviceMemory])
def test_memory_is_read_and_written_in_place(kind: type[HostMemory] | type[DeviceMemory]) -> None:
    tensor = torch.arange(6).reshape(3, 2)
    memory = kind(tensor)
    rows = np.array([2, 0])
    assert memory.read(rows).tolist() == [[4, 5], [0, 1]]
    memory.write((rows, np.array([1, 1])), 9)
    memory.write(slice(1, 2), np.array([[7, 8]]))
    assert tensor.tolist() == [[0, 9], [7, 8], [4, 9]]


@pytest.mark.parametrize("kind", [HostMemory, DeviceMemory])
def test_what_was_read_is_a_copy(kind: type[HostMemory] | type[DeviceMemory]) -> None:
    tensor = torch.arange(3)
    found = kind(tensor).read(slice(0, 1))
    tensor.fill_(9)
    assert found.tolist() == [0]
