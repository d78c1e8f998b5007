"""The life of a row, without a tensor in sight."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fmcheck.runtime.core.ledger import NEVER, Ledger, State
from fmcheck.runtime.core.rows import Column

if TYPE_CHECKING:
    import numpy.typing as npt

ROWS = np.array([1, 3])


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(5)


def states(ledger: Ledger) -> list[State]:
    return [State(state) for state in ledger.state]


def test_a_new_row_is_empty_and_has_no_story(ledger: Ledger) -> None:
    assert states(ledger) == [State.EMPTY] * 5
    assert ledger.last_write(1) == ledger.last_read(1) == (NEVER, 0)


def test_a_written_row_is_live(ledger: Ledger) -> None:
    ledger.stash(ROWS, 7)
    assert states(ledger) == [State.EMPTY, State.LIVE, State.EMPTY, State.LIVE, State.EMPTY]
    assert ledger.last_write(3) == (7, 0)
    assert ledger.last_write(2) == (NEVER, 0)


@pytest.mark.parametrize("all_live", [False, True])
def test_a_gathered_row_is_consumed(ledger: Ledger, all_live: bool) -> None:
    ledger.stash(ROWS, 7)
    ledger.consume(ROWS, 8, all_live)
    assert states(ledger)[1] is State.CONSUMED
    assert (ledger.last_write(1), ledger.last_read(1)) == ((7, 0), (8, 0))


def test_an_empty_row_stays_empty_when_it_is_gathered(ledger: Ledger) -> None:
    ledger.consume(ROWS, 8)
    assert states(ledger)[1] is State.EMPTY
    assert ledger.last_read(1) == (8, 0)


def test_a_consumed_row_is_live_again_once_it_is_written(ledger: Ledger) -> None:
    ledger.stash(ROWS, 7)
    ledger.consume(ROWS, 8)
    ledger.stash(ROWS, 9)
    assert ledger.is_live(ROWS).all()


def test_an_invalidated_row_is_consumed(ledger: Ledger) -> None:
    ledger.stash(ROWS, 7)
    ledger.invalidate(ROWS, 9)
    assert states(ledger)[1] is State.CONSUMED
    assert (ledger.last_write(1), ledger.last_read(1)) == ((7, 0), (9, 0))


def test_an_invalidation_leaves_empty_and_consumed_rows_as_they_are(ledger: Ledger) -> None:
    ledger.stash(np.array([1]), 7)
    ledger.consume(np.array([1]), 8)
    ledger.invalidate(ROWS, 9)
    assert states(ledger)[1] is State.CONSUMED
    assert states(ledger)[3] is State.EMPTY
    assert (ledger.last_read(1), ledger.last_read(3)) == ((8, 0), (NEVER, 0))


def test_rows_may_be_negative_and_repeat(ledger: Ledger) -> None:
    ledger.stash(np.array([-1, 4, -1]), 7)
    assert states(ledger)[4] is State.LIVE


def test_an_adopted_buffer_is_live_where_it_has_values(ledger: Ledger) -> None:
    ledger.adopt(np.array([True, False, True, True, True]))
    assert ledger.is_empty(np.arange(5)).tolist() == [False, True, False, False, False]


# --- owners ---


def test_a_row_that_is_handed_out_is_empty_in_a_new_generation(ledger: Ledger) -> None:
    ledger.stash(ROWS, 7)
    ledger.hand_out(ROWS, [1, 4])
    assert ledger.is_empty(ROWS).all()
    assert ledger.generation.tolist() == [0, 1, 0, 4, 0]


def test_an_unread_value_is_stale_once_its_row_is_handed_out(ledger: Ledger) -> None:
    ledger.stash(np.array([1, 2]), 7)
    ledger.consume(np.array([2]), 8)
    rows = np.array([1, 2, 3])
    ledger.hand_out(rows, 1)
    assert ledger.is_stale(rows).tolist() == [True, False, False]
    ledger.hand_out(rows, 2)
    assert ledger.is_stale(rows).tolist() == [True, False, False]


def test_a_new_write_ends_what_was_stale(ledger: Ledger) -> None:
    ledger.stash(ROWS, 7)
    ledger.hand_out(ROWS, 1)
    ledger.stash(ROWS, 8)
    assert not ledger.is_stale(ROWS).any()
    ledger.consume(ROWS, 9)
    ledger.hand_out(ROWS, 2)
    assert not ledger.is_stale(ROWS).any()


def test_accesses_keep_the_generation_they_were_made_in(ledger: Ledger) -> None:
    row = np.array([1])
    ledger.hand_out(row, 1)
    ledger.stash(row, 7)
    ledger.consume(row, 8)
    ledger.hand_out(row, 2)
    ledger.hand_out(row, 3)
    assert (ledger.last_write(1), ledger.last_read(1)) == ((7, 1), (8, 1))
    ledger.stash(row, 7)
    assert (ledger.last_write(1), ledger.last_read(1)) == ((7, 3), (8, 1))


def test_a_written_value_is_awaited_until_it_is_gathered_or_spared(ledger: Ledger) -> None:
    ledger.stash(np.array([1, 2, 3]), 7)
    ledger.consume(np.array([2]), 8)
    ledger.spare(np.array([3, 4]))
    assert ledger.is_awaited(np.arange(5)).tolist() == [False, True, False, False, False]
    assert ledger.is_live(np.arange(5)).tolist() == [False, True, False, True, False]
    assert ledger.awaits_any(np.array([1, 2]))
    assert not ledger.awaits_any(np.array([2, 3, 4]))
    assert str(State(ledger.state[3])) == "live"


def test_an_adopted_value_is_awaited_by_nobody(ledger: Ledger) -> None:
    ledger.adopt(np.full(5, True))
    assert not ledger.awaits_any(np.arange(5))
    assert ledger.all_live(np.arange(5))


def test_what_is_dumped_can_be_loaded_and_is_all_that_is_kept(ledger: Ledger) -> None:
    ledger.stash(ROWS, 7)
    ledger.consume(np.array([1]), 8, True)
    other = Ledger(5)
    other.load({name: kept.copy() for name, kept in ledger.dump().items()})
    assert states(other) == states(ledger)
    for row in range(5):
        assert other.last_write(row) == ledger.last_write(row)
        assert other.last_read(row) == ledger.last_read(row)


def test_what_is_dumped_is_signed_integers_of_the_width_that_is_kept(ledger: Ledger) -> None:
    for kept in ledger.dump().values():
        assert kept.dtype.kind == "i"
        assert len(kept) == 5
    assert ledger.dump()["state"].dtype == np.int8
    ledger.dump()["state"][:] = State.LIVE
    assert states(ledger) == [State.LIVE] * 5


def fixed(rows: list[int]) -> npt.NDArray[np.int64]:
    made = np.array(rows)
    made.setflags(write=False)
    return made


def test_a_column_is_the_same_whether_a_list_comes_again_or_one_like_it() -> None:
    draw = random.Random(1)
    lists = [fixed(rows) for rows in ([0, 2], [2, 0, 5], [7], [1, 3, 4])]
    expected = np.zeros(8, np.int64)
    column = Column(expected.copy())
    part = Column(column.values[2:6], column)
    for value in range(2000):
        rows = draw.choice((lists[value // 20 % 4], lists[value // 20 % 4], draw.choice(lists)))
        if draw.random() < 0.1:
            assert column.values.tolist() == expected.tolist()
        elif draw.random() < 0.1:
            assert part.values.tolist() == expected[2:6].tolist()
            part.put(2, value)
            expected[4] = value
        else:
            column.put(rows, value)
            expected[rows] = value


def test_a_column_knows_what_a_list_has_in_common_until_others_are_asked_for() -> None:
    column, rows = Column(np.zeros(4, np.int64)), fixed([1, 2])
    assert column.common(rows) is None
    column.put(rows, 7)
    assert (column.common(rows), column.common(rows.copy())) == (7, None)
    assert column.values.tolist() == [0, 7, 7, 0]
    assert column.common(rows) is None


def test_a_list_that_may_be_changed_is_looked_at_each_time() -> None:
    column, rows = Column(np.zeros(4, np.int64)), np.array([1, 2])
    column.put(rows, 7)
    rows[0] = 3
    column.put(rows, 8)
    assert column.values.tolist() == [0, 7, 8, 8]
