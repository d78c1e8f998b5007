"""Each entry of the row table, held against the model that was written apart from it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fmcheck.runtime.core import table
from fmcheck.runtime.core.ledger import State
from fmcheck.runtime.core.poison import poison_for
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
    found = table.judge(poison, bits, np.array([state]), np.array([stale]))
    said = model._verdict(1)
    assert found.tolist() == [int(said.removeprefix("FR") or table.GOOD)]


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("state", State)
def test_a_write_loses_what_the_model_says(state, held):
    model = modelled(torch.int64, (">=", 0))
    model.pool = Pool([["", "a"]] * 2, [held] * 2)
    model.overwrite = "never"
    model.rows[1].state, model.rows[1].awaited = STATES[state], state is State.LIVE
    assert bool(table.losses()[state, int(held)]) is model._is_lost(1)


# --- what kernels are handed ---

KINDS = sorted({table.kind_of(poison_for(str(d).removeprefix("torch."), b)) for d, b in BUFFERS})


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kernel_is_handed_is_the_table(kind, state, stale):
    code = table.of_gather(kind, state, stale, poisoned=True, invalid=False)
    packed = table.packed(kind) >> (table.WIDTH * (2 * state + stale)) & ((1 << table.WIDTH) - 1)
    assert packed == max(0, code - table.BASE)
    assert bool(table.packed_losses() >> state & 1) is (table.of_write(state, True) == table.LOST)


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("standing", table.Standing)
def test_whose_a_row_is_a_kernel_is_handed_too(standing, in_flight):
    nobodys = bool(table.packed_unowned() >> (2 * standing + in_flight) & 1)
    assert nobodys is (table.of_owned_write(standing, in_flight) == table.UNOWNED)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.has_poison])
def test_of_what_is_no_poison_the_state_says_nothing(kind, state):
    """What a kernel takes for granted."""
    invalid = table.of_gather(kind, state, stale=True, poisoned=False, invalid=True)
    assert invalid == table.INVALID
    assert table.of_gather(kind, state, stale=True, poisoned=False, invalid=False) == table.GOOD


def test_what_a_kernel_is_handed_fits_a_number_of_32_bits():
    assert all(0 <= table.packed(kind) < 1 << 31 for kind in KINDS)


# --- by who has the row ---


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("standing", table.Standing)
def test_a_hand_out_is_judged_by_who_has_the_row(standing, sink, another):
    is_shared = standing is table.Standing.HELD and another
    expected = "FR106" if sink else "FR107" if is_shared else ""
    found = table.of_hand_out(standing, sink, another)
    assert found == int(expected.removeprefix("FR") or table.GOOD)


@pytest.mark.parametrize("standing", table.Standing)
def test_a_take_back_is_judged_by_who_has_the_row(standing):
    assert table.of_take_back(standing) == (108 if standing is table.Standing.FREED else 0)


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("standing", table.Standing)
def test_a_write_is_judged_by_who_has_the_row(standing, in_flight):
    model = modelled(torch.int64, None)
    held = standing is table.Standing.HELD
    names = [""] if standing is table.Standing.NEVER else ["", "a"]
    model.pool = Pool([names] * 2, [held] * 2)
    nobodys = not held and (model._is_nobodys(1) or not in_flight)
    assert table.of_owned_write(standing, in_flight) == (109 if nobodys else table.GOOD)
    assert bool(table.unowned()[standing, int(in_flight)]) is nobodys
