"""Each entry of the row table, held against the model that was written apart from it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fmcheck.runtime.core import verdicts
from fmcheck.runtime.core.ledger import State
from fmcheck.runtime.core.verdicts import poison_for
from tests.row_model import CONSUMED, EMPTY, LIVE, Model, Pool

#: A dtype and bound for each way that a buffer can be poisoned.
BUFFERS = (
    (torch.int64, (">=", 0)),  # no value is -1
    (torch.int64, None),  # a value may be
    (torch.int64, (">=", -5)),
    (torch.float32, None),
    (torch.float32, (">=", 0)),
    (torch.uint8, None),
    (torch.uint8, (">", 0)),
)
STATES = {
    State.EMPTY: EMPTY,
    State.LIVE: LIVE,
    State.CONSUMED: CONSUMED,
    State.SPARED: LIVE,  # the model keeps apart whether a live value is awaited
}
GOOD, BAD = 3, -7
POISON = None
CASES = list(itertools.product(BUFFERS, State, (False, True), (POISON, GOOD, BAD, 0)))


def modelled(dtype: torch.dtype, bound: tuple[str, int] | None) -> Model:
    return Model(torch.zeros(2, dtype=dtype), bound, None, "always", sinks=())


@pytest.mark.parametrize(("buffer", "state", "stale", "value"), CASES)
def test_a_gather_is_judged_as_by_the_model(buffer, state, stale, value):
    model = modelled(*buffer)
    if value is not POISON:
        model.memory[1] = abs(value) if buffer[0] is torch.uint8 else value
    model.rows[1].state, model.rows[1].left_unread = STATES[state], stale
    poison = poison_for(str(buffer[0]).removeprefix("torch."), buffer[1])
    bits = np.atleast_1d(model.bits[1].numpy())
    found = verdicts.judge(poison, bits, np.array([state]), np.array([stale]))
    said = model._verdict(1)
    assert found.tolist() == [int(said.removeprefix("FR") or verdicts.GOOD)]


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("state", State)
def test_a_write_loses_what_the_model_says(state, held):
    model = modelled(torch.int64, (">=", 0))
    model.pool = Pool([["", "a"]] * 2, [held] * 2)
    model.overwrite = "never"
    model.rows[1].state, model.rows[1].awaited = STATES[state], state is State.LIVE
    assert bool(verdicts.losses()[state, int(held)]) is model._is_lost(1)


# --- what kernels are handed ---

KINDS = sorted({verdicts.kind_of(poison_for(str(d).removeprefix("torch."), b)) for d, b in BUFFERS})


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kernel_is_handed_is_the_table(kind, state, stale):
    code = verdicts.of_gather(kind, state, stale, poisoned=True, invalid=False)
    packed = verdicts.packed(kind) >> (verdicts.WIDTH * (2 * state + stale)) & (
        (1 << verdicts.WIDTH) - 1
    )
    assert packed == max(0, code - verdicts.BASE)
    assert bool(verdicts.packed_losses() >> state & 1) is (
        verdicts.of_write(state, True) == verdicts.LOST
    )


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("allocation", verdicts.Allocation)
def test_whose_a_row_is_a_kernel_is_handed_too(allocation, in_flight):
    nobodys = bool(verdicts.packed_unowned() >> (2 * allocation + in_flight) & 1)
    assert nobodys is (verdicts.of_owned_write(allocation, in_flight) == verdicts.UNOWNED)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.has_poison])
def test_of_what_is_no_poison_the_state_says_nothing(kind, state):
    """What a kernel takes for granted."""
    invalid = verdicts.of_gather(kind, state, stale=True, poisoned=False, invalid=True)
    assert invalid == verdicts.INVALID
    assert (
        verdicts.of_gather(kind, state, stale=True, poisoned=False, invalid=False) == verdicts.GOOD
    )


def test_what_a_kernel_is_handed_fits_a_number_of_32_bits():
    assert all(0 <= verdicts.packed(kind) < 1 << 31 for kind in KINDS)


# --- by who has the row ---


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("allocation", verdicts.Allocation)
def test_a_hand_out_is_judged_by_who_has_the_row(allocation, sink, another):
    is_shared = allocation is verdicts.Allocation.HELD and another
    expected = "FR106" if sink else "FR107" if is_shared else ""
    found = verdicts.of_hand_out(allocation, sink, another)
    assert found == int(expected.removeprefix("FR") or verdicts.GOOD)


@pytest.mark.parametrize("allocation", verdicts.Allocation)
def test_a_take_back_is_judged_by_who_has_the_row(allocation):
    assert verdicts.of_take_back(allocation) == (
        108 if allocation is verdicts.Allocation.FREED else 0
    )


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("allocation", verdicts.Allocation)
def test_a_use_is_judged_by_who_has_the_row_or_had_it(allocation, another, in_flight):
    whose = {
        verdicts.Allocation.NEVER: False,
        verdicts.Allocation.HELD: another,
        verdicts.Allocation.FREED: another or not in_flight,
    }
    expected = 111 if whose[allocation] else verdicts.GOOD
    assert verdicts.of_use(allocation, another, in_flight) == expected


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("allocation", verdicts.Allocation)
def test_a_write_is_judged_by_who_has_the_row(allocation, in_flight):
    model = modelled(torch.int64, None)
    held = allocation is verdicts.Allocation.HELD
    names = [""] if allocation is verdicts.Allocation.NEVER else ["", "a"]
    model.pool = Pool([names] * 2, [held] * 2)
    nobodys = not held and (model._is_nobodys(1) or not in_flight)
    assert verdicts.of_owned_write(allocation, in_flight) == (109 if nobodys else verdicts.GOOD)
    assert bool(verdicts.unowned()[allocation, int(in_flight)]) is nobodys
