"""What the alias makes of each call of torch: a gather, a write, a peek or nothing."""

from __future__ import annotations

import copy
import io
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fmcheck.runtime.core.ledger import State
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay import relay_tensor as rt
from fmcheck.runtime.relay.owners import Owners
from fmcheck.runtime.relay.relay_tensor import RelayTensor, relay_tensor
from fmcheck.runtime.relay.scope import Scope, scoped

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.finding import Violation

ROWS = torch.tensor([2, 3])
VALID = (">=", 0)
TEST_FILE = __file__


class Subject:
    """A watched buffer and the session that watches it."""

    def __init__(
        self,
        tensor: torch.Tensor,
        bound: tuple[str, int] | None = VALID,
        owners: Owners | None = None,
        overwrite: str = "never",
    ) -> None:
        self.plain = tensor
        self.tally = Tally()
        self.buf: Any = relay_tensor(
            tensor, "Map.buf", "engine:Map", self.tally, bound, (0,), owners, overwrite
        )
        self.buf._relay.lay_poison()

    def stashed(self) -> Subject:
        self.buf[1:] = torch.ones(())
        return self

    @property
    def live(self) -> list[int]:
        return np.flatnonzero(self.buf._relay.ledger.is_live(slice(None))).tolist()

    @property
    def consumed(self) -> list[int]:
        return np.flatnonzero(self.buf._relay.ledger.state == State.CONSUMED).tolist()

    @property
    def judged(self) -> Any:
        """The values that a gather is judged by: poison where there is nothing to read."""
        relay = self.buf._relay
        return relay.poison.values(relay.whole.memory.read(...))

    @property
    def found(self) -> list[Violation]:
        return list(self.tally.drain())

    @property
    def codes(self) -> list[str]:
        return [violation.code for violation in self.found]


@pytest.fixture
def line() -> Subject:
    return Subject(torch.arange(8))


@pytest.fixture
def table() -> Subject:
    return Subject(torch.arange(24.0).reshape(8, 3), None)


# --- the table of the design ---


def test_a_gather_of_an_unwritten_row_is_a_read_before_write(line: Subject) -> None:
    line.buf[ROWS]
    (violation,) = line.found
    assert (violation.code, violation.rows, violation.values) == ("FR101", (2, 3), ("-1", "-1"))
    assert violation.last_write is None


def test_a_second_gather_is_a_double_read_and_names_three_sites(line: Subject) -> None:
    line.buf[ROWS] = 5
    line.buf[ROWS]
    line.buf[ROWS]
    (violation,) = line.found
    assert (violation.code, violation.name, violation.rows) == ("FR102", "double-read", (2, 3))
    assert violation.last_write is not None
    assert violation.last_read is not None
    sites = [violation.last_write.site, violation.last_read.site, violation.access.site]
    assert {site.path for site in sites} == {TEST_FILE}
    assert [site.line - sites[0].line for site in sites] == [0, 1, 2]


@pytest.mark.parametrize("named", [[2, 3], [0, 3, 2], [-8, 3, 2], [3, 2, 2]])
def test_rows_that_come_all_the_time_are_judged_each_time(line: Subject, named: list[int]) -> None:
    rows = torch.tensor(named)
    for token in range(6):
        line.buf[rows] = token
        line.buf[rows]
    assert (line.codes, line.judged[0]) == ([], line.plain[0])
    line.buf[rows]
    assert [(one.code, one.rows) for one in line.found] == [("FR102", (2, 3))]


def test_a_row_that_is_named_twice_all_the_time_has_one_value(line: Subject) -> None:
    rows = torch.tensor([3, 2, 2])
    for token in range(6):
        line.buf[rows] = torch.full((3,), token)
        line.buf[rows]
    line.buf[rows] = torch.tensor([1, 2, 3])
    assert line.codes == ["FR110"]


def test_a_view_sees_what_became_of_rows_that_come_all_the_time(line: Subject) -> None:
    for _ in range(6):
        line.buf[ROWS] = 5
        line.buf[ROWS]
    line.buf[ROWS] = 5
    line.buf[2:][torch.tensor([0])]
    assert line.codes == []
    line.buf[2:][torch.tensor([0])]
    assert [(one.code, one.rows) for one in line.found] == [("FR102", (2,))]


def test_a_row_that_comes_all_the_time_may_become_a_sink(line: Subject) -> None:
    for token in range(6):
        line.buf[ROWS] = token
        line.buf[ROWS]
    line.buf._relay.learn_sinks([0, 2])
    line.buf[ROWS] = 5
    line.buf[ROWS]
    line.buf[ROWS]
    assert [(one.code, one.rows) for one in line.found] == [("FR102", (3,))]
    assert line.judged[2] == line.plain[2]


def test_write_and_gather_may_alternate_for_ever(line: Subject) -> None:
    for token in range(5):
        line.buf[ROWS] = token
        assert line.buf[ROWS].tolist() == [token, token]
    assert line.codes == []


def test_only_the_rows_at_fault_are_named(line: Subject) -> None:
    line.buf[ROWS] = 5
    line.buf[torch.tensor([3, 2, 6])]
    (violation,) = line.found
    assert violation.rows == (6,)


def test_rows_of_two_faults_are_two_violations(line: Subject) -> None:
    line.buf[ROWS] = 5
    line.buf[ROWS]
    line.buf[torch.tensor([2, 7])]
    assert sorted(line.codes) == ["FR101", "FR102"]


@pytest.mark.parametrize("value", [-7, -1])
def test_an_invalid_value_is_reported_where_it_is_written(value: int, line: Subject) -> None:
    line.buf[ROWS] = torch.tensor([4, value])
    (violation,) = line.found
    assert (violation.code, violation.rows) == ("FR105", (3,))
    assert (violation.values, violation.access.verb) == ((str(value),), "write")
    assert violation.access.site.path == TEST_FILE


@pytest.mark.parametrize("value", [-7, -1])
def test_an_invalid_value_is_reported_once_and_handed_on(value: int, line: Subject) -> None:
    line.buf[ROWS] = torch.tensor([4, value])
    assert line.buf[ROWS].tolist() == [4, value]
    assert line.codes == ["FR105"]
    line.buf[ROWS]
    assert line.codes == ["FR102"]


@pytest.mark.parametrize("value", [-7, -1])
def test_an_invalid_value_over_a_gathered_row_is_no_missing_write(
    value: int, line: Subject
) -> None:
    line.buf[ROWS] = 5
    line.buf[ROWS]
    line.buf[ROWS] = torch.tensor([value, 6])
    line.buf[ROWS]
    (violation,) = line.found
    assert (violation.code, violation.rows, violation.access.verb) == ("FR105", (2,), "write")
    assert violation.last_write is not None


def test_the_next_write_of_a_row_is_judged_anew(line: Subject) -> None:
    for value in (-7, 4, -1):
        line.buf[ROWS] = torch.tensor([5, value])
    line.buf[ROWS]
    assert [(one.rows, one.values) for one in line.found] == [((3,), ("-7",))]
    line.buf[ROWS] = torch.tensor([5, 6])
    line.buf[ROWS]
    assert line.codes == []


INVALID_WRITES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda b: b.__setitem__(ROWS, -7),
    "a number of one element": lambda b: b.__setitem__(3, torch.tensor(-1)),
    "index_put_": lambda b: b.index_put_((ROWS,), torch.tensor(-1)),
    "index_copy_": lambda b: b.index_copy_(0, ROWS, torch.tensor([-1, 4])),
    "scatter_": lambda b: b.scatter_(0, ROWS, torch.tensor([-1, 4])),
    "a view's copy_": lambda b: b[2:4].copy_(torch.tensor([-1, 4])),
    "out=": lambda b: torch.sub(torch.ones(2, dtype=torch.int64), 2, out=b[2:4]),
    "a kernel": lambda b: (
        rt.plain(b).__setitem__(slice(2, 4), -1),
        rt.after_call([], [b], ROWS),
    ),
}


@pytest.mark.parametrize("name", INVALID_WRITES)
def test_each_way_to_write_is_judged(name: str, line: Subject) -> None:
    INVALID_WRITES[name](line.buf)
    assert line.codes == ["FR105"]


def test_an_update_is_judged_where_there_was_a_value(line: Subject) -> None:
    line.buf[ROWS] = 5
    line.buf.sub_(6)
    (violation,) = line.found
    assert (violation.code, violation.rows, violation.values) == ("FR105", (2, 3), ("-1", "-1"))


MARKS: dict[str, Callable[[Any], Any]] = {
    "poison over rows": lambda b: b.__setitem__(ROWS, -1),
    "poison over the buffer": lambda b: b.fill_(-1),
    "a number over the buffer": lambda b: b.fill_(-9),
    "a number over what was gathered": lambda b: b.__setitem__(CONSUMED, -9),
}
CONSUMED = torch.tensor([5])


@pytest.mark.parametrize("name", MARKS)
def test_one_number_that_marks_an_empty_row_is_no_value(name: str, line: Subject) -> None:
    line.buf[CONSUMED] = 5
    line.buf[CONSUMED]
    MARKS[name](line.buf)
    assert line.codes == []


def test_a_mark_that_is_gathered_is_an_invalid_value(line: Subject) -> None:
    line.buf.fill_(-9)
    assert line.buf[ROWS].tolist() == [-9, -9]
    (violation,) = line.found
    assert (violation.code, violation.access.verb) == ("FR105", "gather")


def test_an_invalid_value_written_out_of_sight_is_reported_when_it_is_gathered(
    line: Subject,
) -> None:
    line.plain[ROWS] = torch.tensor([4, -7])
    line.buf[ROWS]
    (violation,) = line.found
    assert (violation.code, violation.rows, violation.access.verb) == ("FR105", (3,), "gather")


def test_an_invalid_value_in_the_sink_is_nobodys(line: Subject) -> None:
    line.buf[torch.tensor([0, 2])] = torch.tensor([-7, 4])
    assert line.codes == []


def test_the_sink_row_is_never_a_finding_and_stays_readable(line: Subject) -> None:
    assert line.buf[torch.tensor([0, 0])].tolist() == [0, 0]
    line.buf[0] = 9
    assert line.buf[torch.tensor([0])].tolist() == [9]
    assert line.buf[torch.tensor([0])].tolist() == [9]
    line.buf[0] = -1
    line.buf[torch.tensor([0])]
    assert line.codes == []


def test_a_row_twice_in_one_gather_is_no_double_read(line: Subject) -> None:
    line.buf[ROWS] = 5
    line.buf[torch.tensor([2, 2, 3])]
    assert line.codes == []


def test_writing_the_poison_invalidates_and_is_no_finding(line: Subject) -> None:
    line.buf[ROWS] = 5
    line.buf[ROWS] = -1
    assert (line.live, line.consumed, line.codes) == ([], [2, 3], [])
    line.buf[ROWS]
    assert line.codes == ["FR102"]


def test_one_violation_seen_often_is_one_with_a_count(line: Subject) -> None:
    for _ in range(3):
        line.buf[ROWS]
    (violation,) = line.found
    assert violation.count == 3


def test_a_partly_written_row_of_floats_was_not_written(table: Subject) -> None:
    table.buf[2, :2] = 1.0
    table.buf[torch.tensor([2])]
    assert table.codes == ["FR101"]


def test_a_row_written_out_of_sight_is_counted_and_no_finding(line: Subject) -> None:
    line.plain[2:4] = 5
    line.buf[ROWS]
    assert (line.codes, line.tally.unseen_writes) == ([], 2)
    line.buf[ROWS]
    assert line.codes == ["FR102"]


OTHER_WRITERS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "torch": lambda b, plain: plain.__setitem__(ROWS, 5),
    "a view of NumPy": lambda b, plain: np.asarray(b.numpy()).__setitem__(ROWS.numpy(), 5),
    "a kernel": lambda b, plain: (b.data_ptr(), plain.detach().numpy().fill(5)),
}


@pytest.mark.parametrize("name", OTHER_WRITERS)
def test_a_token_that_untracked_code_writes_twice_is_no_double_read(
    name: str, line: Subject
) -> None:
    for _ in range(4):
        OTHER_WRITERS[name](line.buf, line.plain)
        assert line.buf[ROWS].tolist() == [5, 5]
    assert line.codes == []
    ((what, why),) = line.tally.untracked
    assert (what, line.tally.untracked[what, why]) == ("gathers", 3)
    assert "`Map.buf` is written by untracked code" in why


def test_what_untracked_code_did_not_write_again_is_a_double_read(line: Subject) -> None:
    line.plain[ROWS] = 5
    line.buf[ROWS]
    line.buf[torch.tensor([6])] = 4
    line.buf[ROWS]
    assert line.codes == ["FR102"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_without_a_poison_the_ledger_accuses(dtype: torch.dtype) -> None:
    subject = Subject(torch.zeros(8, dtype=dtype), None)
    subject.buf[ROWS]
    subject.buf[ROWS] = 1
    subject.buf[ROWS]
    subject.buf[ROWS]
    assert subject.codes == ["FR101", "FR102"]


def test_minus_one_may_be_a_value_where_nothing_is_declared() -> None:
    subject = Subject(torch.zeros(8, dtype=torch.int32), None)
    subject.buf[ROWS] = -1
    subject.buf[ROWS]
    assert subject.codes == []
    subject.buf[ROWS]
    assert subject.codes == ["FR102"]


# --- gathers ---

GATHERS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda b: b[torch.tensor([2, 3])],
    "int32": lambda b: b[torch.tensor([2, 3], dtype=torch.int32)],
    "negative": lambda b: b[torch.tensor([-6, -5])],
    "list": lambda b: b[[2, 3]],
    "array": lambda b: b[np.array([2, 3])],
    "two dimensions": lambda b: b[torch.tensor([[2], [3]])],
    "mask": lambda b: b[(torch.arange(8) // 2 == 1)],
    "bytes": lambda b: b[(torch.arange(8) // 2 == 1).to(torch.uint8)],
    "tuple": lambda b: b[(torch.tensor([2, 3]),)],
    "ellipsis": lambda b: b[torch.tensor([2, 3]), ...],
    "new axis": lambda b: b[None, torch.tensor([2, 3])],
    "index_select": lambda b: b.index_select(0, torch.tensor([2, 3])),
    "torch.index_select": lambda b: torch.index_select(b, dim=0, index=torch.tensor([2, 3])),
    "aten.index": lambda b: torch.ops.aten.index.Tensor(b, [torch.tensor([2, 3])]),
    "aten.index_select": lambda b: torch.ops.aten.index_select.default(b, 0, torch.tensor([2, 3])),
    "through a slice": lambda b: b[1:6][torch.tensor([1, 2])],
    "through a view": lambda b: b.view(4, -1)[torch.tensor([1])],
    "out=": lambda b: torch.index_select(
        b, 0, torch.tensor([2, 3]), out=torch.empty(0, dtype=b.dtype)
    ),
}
ROW_GATHERS = {
    **GATHERS,
    "embedding": lambda b: torch.nn.functional.embedding(torch.tensor([2, 3]), b),
    "torch.embedding": lambda b: torch.embedding(b, torch.tensor([2, 3])),
    "columns": lambda b: b[torch.tensor([2, 3]), 1],
    "both": lambda b: b[torch.tensor([2, 3]), torch.tensor([0, 2])],
    "some columns": lambda b: b[torch.tensor([2, 3]), :2],
    "gather": lambda b: b.gather(0, torch.tensor([[2, 2, 2], [3, 3, 3]])),
    "take": lambda b: b.take(torch.tensor([7, 9])),
    "take_along_dim": lambda b: b.take_along_dim(torch.tensor([[2], [3]]), 0),
    "masked_select": lambda b: b.masked_select((torch.arange(8) // 2 == 1)[:, None]),
    "flat": lambda b: b.view(-1)[torch.tensor([6, 11])],
}
del ROW_GATHERS["through a view"]


@pytest.mark.parametrize("name", GATHERS)
def test_gathers_of_numbers(name: str, line: Subject) -> None:
    line.stashed()
    expected = GATHERS[name](line.plain.clone())
    result = GATHERS[name](line.buf)
    assert type(result) is torch.Tensor
    assert result.tolist() == expected.tolist()
    assert (line.consumed, line.codes) == ([2, 3], [])
    GATHERS[name](line.buf)
    assert line.codes == ["FR102"]


@pytest.mark.parametrize("name", ROW_GATHERS)
def test_gathers_of_rows(name: str, table: Subject) -> None:
    table.stashed()
    before = table.plain.clone()
    expected = ROW_GATHERS[name](before)
    result = ROW_GATHERS[name](table.buf)
    assert result.tolist() == expected.tolist()
    assert (table.consumed, table.codes) == ([2, 3], [])
    ROW_GATHERS[name](table.buf)
    assert table.codes == ["FR102"]


def test_poison_is_put_on_the_very_elements_that_were_gathered(table: Subject) -> None:
    table.stashed()
    table.buf[ROWS, 1]
    assert np.isnan(table.judged[2]).tolist() == [False, True, False]
    table.buf[ROWS, 2]
    assert table.codes == []


def test_poison_is_never_in_the_memory(table: Subject, line: Subject) -> None:
    assert table.plain.tolist() == torch.arange(24.0).reshape(8, 3).tolist()
    table.stashed().buf[ROWS]
    assert table.plain[ROWS].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert line.plain.tolist() == [*range(8)]
    assert line.judged.tolist() == [0, *[-1] * 7]


def test_an_empty_gather_takes_nothing(line: Subject) -> None:
    assert line.buf[torch.tensor([], dtype=torch.int64)].shape == (0,)
    assert line.buf[[]].shape == (0,)
    assert (line.consumed, line.codes) == ([], [])


def test_a_gather_out_of_range_is_torchs_own_error(line: Subject) -> None:
    with pytest.raises(IndexError):
        line.buf[torch.tensor([99])]
    assert line.tally.gathers == 0


def test_other_relays_are_no_part_of_a_gather(line: Subject) -> None:
    other = Subject(torch.arange(8)).stashed()
    torch.arange(8)[other.buf]
    assert (other.consumed, other.tally.peeks) == ([], 1)


# --- owners ---


class Owned(Subject):
    """A watched buffer whose rows 2 and 3 belong to `a`."""

    def __init__(self, overwrite: str = "never", tensor: torch.Tensor | None = None) -> None:
        self.owners = Owners()
        bound = VALID if tensor is None else None
        tensor = torch.arange(8) if tensor is None else tensor
        super().__init__(tensor, bound, self.owners, overwrite)
        self.hand_out("a")

    def hand_out(self, name: str) -> None:
        self.owners.hand_out(ROWS.tolist(), [name, name])

    def take_back(self) -> None:
        self.owners.take_back(ROWS.tolist())


def test_a_row_that_is_handed_out_is_empty_and_its_value_gone() -> None:
    subject = Owned()
    subject.buf[ROWS] = 5
    subject.hand_out("b")
    assert subject.judged[ROWS].tolist() == [-1, -1]
    assert subject.plain[ROWS].tolist() == [5, 5]
    assert subject.live == []


def test_a_gather_of_what_an_old_owner_left_unread_is_a_stale_owner() -> None:
    subject = Owned()
    subject.buf[ROWS] = 5
    subject.take_back()
    subject.hand_out("b")
    subject.buf[ROWS]
    (violation,) = subject.found
    assert (violation.code, violation.name, violation.rows) == ("FR104", "stale-owner", (2, 3))
    assert (violation.owner, violation.previous_owner) == ("b", "a")
    assert violation.last_write is not None
    assert (violation.last_write.owner, violation.last_write.generation) == ("a", 1)
    assert (violation.access.owner, violation.access.generation) == ("b", 2)
    assert "1 times before, 2 by now" in violation.notes[0]


def test_a_peek_at_what_an_old_owner_left_is_a_stale_owner() -> None:
    subject = Owned()
    subject.buf[ROWS] = 5
    subject.hand_out("b")
    scoped(lambda: subject.buf[ROWS], Scope.PEEK, Tally())()
    assert subject.codes == ["FR104"]


def test_a_value_that_the_old_owner_read_is_not_stale_but_missing() -> None:
    subject = Owned()
    subject.buf[ROWS] = 5
    subject.buf[ROWS]
    subject.hand_out("b")
    subject.buf[ROWS]
    (violation,) = subject.found
    assert violation.code == "FR101"
    assert violation.last_read is not None
    assert (violation.last_read.owner, violation.last_read.generation) == ("a", 1)


def test_an_unread_value_outlives_an_owner_who_wrote_nothing() -> None:
    subject = Owned()
    subject.buf[ROWS] = 5
    subject.hand_out("b")
    subject.hand_out("c")
    subject.buf[ROWS]
    (violation,) = subject.found
    assert (violation.code, violation.owner, violation.previous_owner) == ("FR104", "c", "a")


def test_a_write_over_an_unread_value_is_lost() -> None:
    subject = Owned()
    subject.buf[ROWS] = 5
    subject.buf[ROWS] = 6
    (violation,) = subject.found
    assert (violation.code, violation.name, violation.rows) == ("FR103", "lost-write", (2, 3))
    assert violation.access.verb == "write"
    assert violation.last_write is not None
    assert violation.access.site.line == violation.last_write.site.line + 1
    assert subject.buf[ROWS].tolist() == [6, 6]
    assert subject.codes == []


@pytest.mark.parametrize("overwrite", ["never", "until gathered"])
def test_a_value_is_lost_in_a_buffer_that_is_gathered(overwrite: str) -> None:
    subject = Owned(overwrite)
    for _ in range(2):
        subject.buf[ROWS] = 5
        subject.buf[ROWS]
    subject.buf[ROWS] = 5
    subject.buf[ROWS] = 6
    assert subject.codes == ["FR103"]


OVERWRITES: dict[str, Callable[[Owned], Any]] = {
    "in a row nobody holds": lambda s: s.take_back(),
    "by the next chunk": lambda s: s.hand_out("a"),
    "by an owner without a name": lambda s: s.hand_out(""),
    "after it was peeked at": lambda s: scoped(lambda: s.buf[ROWS], Scope.PEEK, Tally())(),
    "by a new owner": lambda s: s.hand_out("b"),
    "after the engine's own poison": lambda s: s.buf.__setitem__(ROWS, -1),
}


@pytest.mark.parametrize("name", OVERWRITES)
def test_a_write_loses_nothing(name: str) -> None:
    subject = Owned()
    subject.buf[ROWS] = 5
    OVERWRITES[name](subject)
    subject.buf[ROWS] = 6
    assert subject.codes == []


@pytest.mark.parametrize("overwrite", ["always", "until gathered"])
def test_a_contract_may_allow_writing_over(overwrite: str) -> None:
    subject = Owned(overwrite)
    subject.buf[ROWS] = 5
    subject.buf[ROWS] = 6
    assert subject.codes == []


def test_what_may_always_be_written_over_may_be_after_a_gather() -> None:
    subject = Owned("always")
    for _ in range(2):
        subject.buf[ROWS] = 5
        subject.buf[ROWS] = 6
        subject.buf[ROWS]
    assert subject.codes == []


def test_a_gather_that_peeks_leaves_the_value(line: Subject) -> None:
    line.buf[ROWS] = 5
    for _ in range(2):
        assert scoped(lambda: line.buf[ROWS], Scope.PEEK, Tally())().tolist() == [5, 5]
    assert line.live == [2, 3]
    assert line.codes == []


def test_without_owners_no_write_is_lost(line: Subject) -> None:
    line.buf[ROWS] = 5
    line.buf[ROWS] = 6
    assert line.codes == []


def test_a_row_that_was_never_handed_out_loses_nothing() -> None:
    subject = Owned()
    subject.buf[torch.tensor([5])] = 5
    subject.buf[torch.tensor([5])] = 6
    assert subject.codes == []


def test_writes_that_keep_or_complete_what_stands_lose_nothing() -> None:
    subject = Owned(tensor=torch.zeros(8, 2))
    subject.buf[ROWS, 0] = 5.0
    subject.buf[ROWS, 1] = 6.0
    subject.buf[2:4].add_(1)
    subject.buf.index_put_((ROWS,), torch.ones(2), accumulate=True)
    assert subject.codes == []
    subject.buf[2:4].copy_(torch.ones(2, 2))
    assert subject.codes == ["FR103"]


def test_the_sink_row_has_no_owner() -> None:
    subject = Owned()
    subject.owners.declared_sinks.add(0)
    subject.owners.hand_out([0], ["a"])
    subject.buf[0] = 5
    subject.buf[0] = 6
    subject.owners.hand_out([0], ["b"])
    assert subject.buf[torch.tensor([0])].tolist() == [6]
    assert subject.codes == []


def test_duplicates_in_one_write_are_one_write() -> None:
    subject = Owned()
    subject.buf[torch.tensor([2, 2, 3])] = 5
    assert subject.codes == []


def test_rows_in_a_put_off_gather_may_be_written_and_handed_out() -> None:
    subject = Owned()

    def take() -> None:
        subject.buf[ROWS]
        subject.buf[ROWS[:1]] = 6
        subject.owners.hand_out([3], ["b"])

    subject.buf[ROWS] = 5
    scoped(take, Scope.AT_RETURN, Tally())()
    assert subject.codes == []
    assert subject.judged[ROWS].tolist() == [6, -1]
    assert subject.live == [2]


def test_a_put_off_gather_takes_the_elements_it_gathered(table: Subject) -> None:
    table.stashed()
    scoped(lambda: table.buf[ROWS, 1], Scope.AT_RETURN, Tally())()
    assert np.isnan(table.judged[2]).tolist() == [False, True, False]


def test_a_buffer_made_later_starts_from_the_owners_of_now() -> None:
    owners = Owners()
    owners.hand_out([2, 3], ["a", "a"])
    subject = Subject(torch.arange(8), VALID, owners)
    subject.buf[ROWS]
    (violation,) = subject.found
    assert (violation.code, violation.owner, violation.access.generation) == ("FR101", "a", 1)


def test_a_violation_tells_of_steps_streams_and_neighbours() -> None:
    subject = Owned()
    moments = subject.tally.moments
    moments.counts_steps = True
    subject.buf[ROWS] = 5
    moments.begin_step()
    subject.buf[ROWS[:1]]
    subject.buf[ROWS[:1]]
    (violation,) = subject.found
    assert violation.last_write is not None
    assert (violation.last_write.step, violation.access.step) == (0, 1)
    assert (violation.last_write.stream, violation.access.stream) == ("cpu", "cpu")
    reported = [(one.row, one.state, one.value, one.owner) for one in violation.neighbours]
    assert reported == [
        (0, "sink", "0", ""),
        (1, "empty", "-1", ""),
        (2, "consumed", "-1", "a"),
        (3, "live", "5", "a"),
        (4, "empty", "-1", ""),
    ]


WITHOUT_POISON = [torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", WITHOUT_POISON, ids=str)
def test_a_buffer_without_a_poison_is_judged_by_the_ledger(dtype: torch.dtype) -> None:
    subject = Subject(torch.zeros(8, 2).to(dtype), None)
    subject.buf[ROWS]
    subject.buf[ROWS] = torch.ones(2, 2).to(dtype)
    subject.buf[ROWS]
    subject.buf[ROWS]
    first, second = subject.found
    assert (first.code, second.code) == ("FR101", "FR102")


def test_a_small_float_has_a_poison() -> None:
    subject = Subject(torch.zeros(8, 2).to(torch.float8_e5m2), None)
    subject.buf[ROWS] = torch.ones(2, 2).to(torch.float8_e5m2)
    assert subject.buf[ROWS].float().tolist() == [[1, 1], [1, 1]]
    assert np.isnan(subject.judged[ROWS]).all()
    subject.buf[ROWS]
    assert subject.codes == ["FR102"]


def test_without_step_functions_no_step_is_reported(line: Subject) -> None:
    line.buf[ROWS]
    (violation,) = line.found
    assert violation.access.step is None


# --- writes that are not tracked ---


def test_a_value_nobody_wrote_is_a_note_with_suspects(line: Subject) -> None:
    line.tally.unwrapped.append("engine.kernels:fill")
    line.buf.data_ptr()
    line.plain[ROWS] = 5
    assert line.buf[ROWS].tolist() == [5, 5]
    assert line.codes == []
    assert line.tally.unseen_writes == 2
    (escape, note) = line.tally.notes
    assert "`data_ptr`" in escape
    assert TEST_FILE in escape
    assert "values that no tracked write had put there" in note
    assert "`engine.kernels:fill` (declared opaque, not wrapped)" in note
    assert "who took `data_ptr`" in note


ESCAPES: dict[str, Callable[[Any], Any]] = {
    "data_ptr": lambda b: b.data_ptr(),
    "untyped_storage": lambda b: b.untyped_storage(),
    "__dlpack__": lambda b: b.__dlpack__(),
    "data_ptr of a view": lambda b: b[2:4].data_ptr(),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_noted_once_with_a_count(name: str, line: Subject) -> None:
    for _ in range(3):
        ESCAPES[name](line.buf)
    ((note, count),) = line.tally.notes.items()
    assert f"`{name.partition(' ')[0]}`" in note
    assert count == 3
    assert line.codes == []


INNER_CALLS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "repr": repr,
    "gather": lambda b: b[ROWS],
    "save": lambda b: torch.save(b, io.BytesIO()),
}


@pytest.mark.parametrize("name", INNER_CALLS)
def test_torchs_own_calls_are_no_escape(name: str, line: Subject) -> None:
    line.stashed()
    INNER_CALLS[name](line.buf)
    assert line.tally.notes == {}


# --- peeks ---

PEEKS: dict[str, Callable[[Any], Any]] = {
    "clone": lambda b: b.clone(),
    "cpu": lambda b: b.cpu() + 0,
    "to": lambda b: b.to(torch.float64),
    "sum": lambda b: b.sum(),
    "repr": repr,
    "item": lambda b: b[3].item(),
    "int": lambda b: int(b[3]),
    "tolist": lambda b: b.tolist(),
    "numpy": lambda b: b.numpy(),
    "eq": lambda b: b == 1,
    "arithmetic": lambda b: 1 + b,
    "copied from": lambda b: torch.zeros(8, dtype=b.dtype).copy_(b),
    "assigned from": lambda b: torch.zeros(8, dtype=b.dtype).__setitem__(slice(None), b),
    "stack": lambda b: torch.stack([b, b]),
    "where": lambda b: torch.where(torch.tensor(True), b, 0),
    "deepcopy": copy.deepcopy,
    "equal": lambda b: torch.equal(b, torch.zeros(8)),
    "slice": lambda b: b[2:5] + 1,
    "one": lambda b: b[torch.tensor(3)] + 1,
}


@pytest.mark.parametrize("name", PEEKS)
def test_peeks_consume_nothing_and_find_nothing(name: str, line: Subject) -> None:
    line.buf[ROWS] = 5
    PEEKS[name](line.buf)
    assert (line.live, line.codes, line.tally.gathers) == ([2, 3], [], 0)
    assert line.tally.peeks >= 1


def test_what_is_brought_to_the_host_is_no_relay_and_shares_its_memory(line: Subject) -> None:
    line.buf[ROWS] = 5
    brought = line.buf[2:4].detach().cpu()
    peeks = line.tally.peeks
    line.buf[ROWS]
    line.buf[ROWS] = 6
    # As without the watch: a CPU makes no copy.
    assert (type(brought), brought.tolist()) == (torch.Tensor, [6, 6])
    assert brought.data_ptr() == line.plain[2:4].data_ptr()
    assert line.tally.peeks == peeks
    brought.fill_(7)
    assert line.buf[ROWS].tolist() == [7, 7]
    assert (line.tally.notes, line.codes) == ({}, [])


def test_a_module_that_is_moved_to_where_it_is_keeps_its_buffer(line: Subject) -> None:
    module = torch.nn.Module()
    module.register_buffer("buf", line.buf)
    assert type(module.cpu().buf) is RelayTensor
    assert type(module.to("cpu").buf) is RelayTensor


def test_metadata_counts_as_nothing(line: Subject) -> None:
    buf = line.buf
    assert (buf.shape, buf.dtype, buf.device.type) == ((8,), torch.int64, "cpu")
    assert (buf.dim(), len(buf), buf.numel(), buf.stride(), buf.is_contiguous()) == (
        *(1, 8, 8, (1,)),
        True,
    )
    assert buf.data_ptr() == line.plain.data_ptr()
    made = (torch.zeros_like(buf), torch.full_like(buf, 3), buf.new_empty(2))
    assert {type(one) for one in made} == {torch.Tensor}
    assert (line.tally.peeks, line.tally.writes, line.tally.gathers) == (0, 0, 0)


def test_a_column_of_all_rows_is_a_peek(table: Subject) -> None:
    table.buf[:, torch.tensor([1])]
    assert (table.codes, table.tally.gathers) == ([], 0)


# --- writes ---

WRITES: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda b: b.__setitem__(torch.tensor([2, 3]), 1),
    "slice": lambda b: b.__setitem__(slice(2, 4), 1),
    "mask": lambda b: b.__setitem__((torch.arange(8) // 2 == 1), 1),
    "list": lambda b: b.__setitem__([2, -5], 1),
    "view copy_": lambda b: b[2:4].copy_(torch.ones_like(rt.plain(b)[2:4])),
    "view [...]": lambda b: b[2:4].__setitem__(..., 1),
    "view of a view": lambda b: b[1:6][1:3].fill_(1),
    "index_put_": lambda b: b.index_put_((torch.tensor([2, 3]),), torch.ones((), dtype=b.dtype)),
    "index_fill_": lambda b: b.index_fill_(0, torch.tensor([2, 3]), 1),
    "index_copy_": lambda b: b.index_copy_(
        0, torch.tensor([2, 3]), torch.ones_like(rt.plain(b)[:2])
    ),
    "narrow zero_": lambda b: b.narrow(0, 2, 2).zero_(),
    "split": lambda b: b.split(2)[1].zero_(),
    "out=": lambda b: torch.add(torch.ones_like(rt.plain(b)[:2]), 1, out=torch.narrow(b, 0, 2, 2)),
    "_foreach_copy_": lambda b: torch._foreach_copy_([b[2:4]], [torch.ones_like(rt.plain(b)[:2])]),
    "aten.index_put_": lambda b: torch.ops.aten.index_put_.default(
        b, [torch.tensor([2, 3])], torch.ones((), dtype=b.dtype)
    ),
    "aten.copy_": lambda b: torch.ops.aten.copy_.default(b[2:4], torch.ones_like(rt.plain(b)[:2])),
    "recast": lambda b: b[2:4].view(torch.int8).zero_(),
}
# Added to a NaN of ours, a number leaves it what it is: these rows are written only as integers.
NUMBER_WRITES = {
    "augmented": lambda b: b[2:4].__iadd__(5),
    "index_add_": lambda b: b.index_add_(0, torch.tensor([2, 3]), torch.ones_like(rt.plain(b)[:2])),
    "int": lambda b: (b.__setitem__(2, 1), b.__setitem__(3, 1)),
    "scatter_": lambda b: b.scatter_(0, torch.tensor([2, 3]), 1),
    "scatter_add_": lambda b: b.scatter_add_(0, torch.tensor([2, 3]), torch.tensor([2, 2])),
    "masked_fill_": lambda b: b.masked_fill_((torch.arange(8) // 2 == 1), 1),
    "put_": lambda b: b.put_(torch.tensor([2, -5]), torch.tensor([1, 1])),
}


@pytest.mark.parametrize("name", [*WRITES, *NUMBER_WRITES])
def test_writes_of_numbers(name: str, line: Subject) -> None:
    {**WRITES, **NUMBER_WRITES}[name](line.buf)
    assert (line.live, line.codes, line.tally.gathers) == ([2, 3], [], 0)


@pytest.mark.parametrize("name", WRITES)
def test_writes_of_rows(name: str, table: Subject) -> None:
    WRITES[name](table.buf)
    assert (table.live, table.codes) == ([2, 3], [])


@pytest.mark.parametrize(
    "write",
    [
        lambda b: b.fill_(1),
        lambda b: b.zero_(),
        lambda b: b.copy_(torch.zeros(8)),
        lambda b: torch.add(torch.zeros(8, dtype=torch.int64), 1, out=b),
        lambda b: b.random_(5),
        lambda b: b.data.fill_(1),
    ],
)
def test_writes_of_the_whole_buffer(write: Callable[[Any], Any], line: Subject) -> None:
    write(line.buf)
    assert line.live == [*range(8)]


def test_a_write_in_place_returns_the_buffer_itself(line: Subject) -> None:
    assert line.buf.fill_(1) is line.buf
    buf = line.buf
    buf += 1
    assert buf is line.buf


def test_a_stash_from_another_relay_peeks_at_it(line: Subject) -> None:
    other = Subject(torch.arange(8))
    line.buf[2:4] = other.buf[4:6]
    assert other.tally.peeks == 1


def test_views_stay_watched_and_values_do_not(line: Subject) -> None:
    buf = line.buf
    for view in (buf[2:5], buf[3], buf.view(2, 4), buf.data, buf.detach(), buf.split(4)[0]):
        assert type(view) is RelayTensor
    for value in (buf.clone(), buf + 1, buf[ROWS], buf.float()):
        assert type(value) is torch.Tensor


def test_a_tensor_that_is_given_another_storage_is_followed(line: Subject) -> None:
    line.buf.data = torch.tensor([-1, 5, 6, -1])
    assert line.live == [1, 2]
    line.buf[torch.tensor([3])]
    assert line.codes == ["FR101"]


def test_nothing_is_checked_any_more_after_the_session(line: Subject) -> None:
    line.tally.active = False
    assert line.buf[ROWS].tolist() == [2, 3]
    line.buf[ROWS] = 4
    assert line.buf[ROWS].tolist() == [4, 4]
    assert line.codes == []


def test_inference_mode_is_no_obstacle() -> None:
    with torch.inference_mode():
        subject = Subject(torch.zeros(8, dtype=torch.int64))
        subject.buf[ROWS] = 5
        assert subject.buf[ROWS].tolist() == [5, 5]
        subject.buf[ROWS]
    assert subject.codes == ["FR102"]


def test_a_buffer_that_is_not_contiguous_is_watched() -> None:
    subject = Subject(torch.arange(32).reshape(4, 8).T)
    subject.buf[ROWS] = torch.ones(4, dtype=torch.int64)
    assert subject.buf[ROWS].tolist() == [[1] * 4] * 2
    subject.buf[ROWS]
    (violation,) = subject.found
    assert violation.rows == (2, 3)


def test_a_gather_through_another_dtype_takes_whole_rows(line: Subject) -> None:
    line.stashed()
    line.buf.view(torch.int32)[torch.tensor([4, 6])]
    assert (line.consumed, line.codes) == ([2, 3], [])
    line.buf[ROWS]
    assert line.codes == ["FR102"]


@pytest.mark.parametrize("seen", [torch.conj, lambda buf: buf.conj().imag])
def test_a_view_that_only_marks_its_values_as_conjugated_is_followed(
    seen: Callable[[Any], Any],
) -> None:
    subject = Subject(torch.zeros(4, dtype=torch.complex64), None)
    view = seen(subject.buf)
    view[ROWS] = torch.ones(2, dtype=view.dtype)
    subject.buf[ROWS]
    assert subject.codes == []
    view[ROWS]
    assert subject.codes == ["FR102"]


@pytest.mark.parametrize("touch", [lambda b: b[ROWS], lambda b: b.__setitem__(ROWS, 1)])
def test_the_ledger_changes_under_the_lock(
    touch: Callable[[Any], Any], line: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    for name in ("stash", "consume"):
        change = getattr(line.buf._relay.ledger, name)

        def watched(*args: Any, change: Any = change) -> None:
            held.append(line.tally.lock._is_owned())  # type: ignore[attr-defined]
            change(*args)

        monkeypatch.setattr(line.buf._relay.ledger, name, watched)
    touch(line.buf)
    assert held == [True]


def test_threads_share_a_buffer() -> None:
    subject = Subject(torch.zeros(65, dtype=torch.int64))

    def work(first: int) -> None:
        rows = torch.arange(first, first + 8)
        for _ in range(200):
            subject.buf[rows] = 1
            subject.buf[rows]

    threads = [threading.Thread(target=work, args=(1 + 8 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert subject.codes == []
    assert (subject.tally.writes, subject.tally.gathers) == (800, 800)


def test_a_method_of_torch_s_that_a_test_replaces_is_called_once_and_followed(
    line: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counting(name: str) -> Any:
        original = getattr(torch.Tensor, name)
        return lambda self, *args: (calls.append(name), original(self, *args))[1]

    for name in ("sum", "index_copy_", "index_select"):
        monkeypatch.setattr(torch.Tensor, name, counting(name))
    rows = torch.tensor([1, 2])
    line.buf.index_copy_(0, rows, torch.tensor([5, 6]))
    assert line.buf.index_select(0, rows).tolist() == [5, 6]
    assert line.codes == []
    line.buf.index_select(0, rows)
    line.buf.sum()
    assert line.codes == ["FR102"]
    assert calls == ["index_copy_", "index_select", "index_select", "sum"]
