"""A gather that is reported brings what it would have brought if nobody watched."""

from __future__ import annotations

import pytest
import torch

from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay.owners import Owners
from fmcheck.runtime.relay.relay_tensor import after_call, before_call, relay_tensor

ROWS = torch.tensor([1, 2])


def watched(
    plain: torch.Tensor, bound: tuple[str, int] | None = (">=", 0), owners: Owners | None = None
) -> tuple[torch.Tensor, Tally]:
    tally = Tally()
    made = relay_tensor(plain, "buf", "test", tally, bound, owners=owners)
    made._relay.lay_poison()
    return made, tally


def codes(tally: Tally) -> list[str]:
    return [one.code for one in tally.drain()]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16], ids=str)
def test_a_second_gather_brings_the_last_value(dtype: torch.dtype) -> None:
    buf, tally = watched(torch.zeros(4, 2, dtype=dtype))
    buf[ROWS] = torch.tensor([[5, 6], [7, 8]], dtype=dtype)
    first = buf[ROWS].clone()
    again = buf[ROWS]
    assert torch.equal(first, again)
    assert codes(tally) == ["FR102"]


def test_an_unwritten_row_brings_what_the_engine_made_it_with() -> None:
    buf, tally = watched(torch.full((4,), 9))
    assert buf[ROWS].tolist() == [9, 9]
    assert codes(tally) == ["FR101"]


def test_a_row_of_an_older_owner_brings_its_value() -> None:
    owners = Owners()
    buf, tally = watched(torch.zeros(4, dtype=torch.int64), owners=owners)
    owners.hand_out([1, 2], ["first", "first"])
    buf[ROWS] = torch.tensor([5, 6])
    owners.take_back([1, 2])
    owners.hand_out([1, 2], ["second", "second"])
    assert buf[ROWS].tolist() == [5, 6]
    assert codes(tally) == ["FR104"]


def test_what_the_engine_itself_invalidated_stays_invalid() -> None:
    buf, tally = watched(torch.zeros(4, dtype=torch.int64))
    buf[ROWS] = torch.tensor([5, 6])
    buf[ROWS].clone()
    buf[ROWS] = -1
    assert buf[ROWS].tolist() == [-1, -1]
    assert codes(tally) == ["FR102"]


def test_only_the_rows_at_fault_are_another() -> None:
    buf, tally = watched(torch.zeros(4, dtype=torch.int64))
    buf[ROWS] = torch.tensor([5, 6])
    buf[ROWS].clone()
    buf[torch.tensor([1])] = torch.tensor([8])
    assert buf.index_select(0, ROWS).tolist() == [8, 6]
    assert codes(tally) == ["FR102"]


def test_a_kernel_finds_it_in_the_buffer() -> None:
    buf, tally = watched(torch.zeros(4, dtype=torch.int64))
    buf[ROWS] = torch.tensor([5, 6])
    buf[ROWS].clone()
    before_call([buf], ROWS)
    assert buf._plain[ROWS].tolist() == [5, 6]
    after_call([buf], [], ROWS)
    assert buf._plain[ROWS].tolist() == [5, 6]
    assert buf._relay.ledger.is_consumed(ROWS.numpy()).all()
    assert codes(tally) == ["FR102"]


def test_a_value_that_the_contract_forbids_is_handed_on() -> None:
    buf, tally = watched(torch.zeros(4, dtype=torch.int64))
    buf[ROWS] = torch.tensor([-7, 6])
    assert buf[ROWS].tolist() == [-7, 6]
    assert codes(tally) == ["FR105"]
