"""Which bytes an access touches: held against sets of addresses, element by element."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.runtime.order.extents import LIMIT, WRITES, Picked, Strided, meet, meets_range, picked
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICE = torch.device("cpu")


def addresses(tensor: torch.Tensor) -> set[int]:
    """The addresses of a tensor's bytes, found one by one."""
    places = {tensor.data_ptr()}
    for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = {place + step * stride * tensor.itemsize for place in places for step in range(n)}
    return {place + byte for place in places for byte in range(tensor.itemsize)}


def strided(tensor: torch.Tensor) -> Strided:
    return Strided(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.itemsize)


def a_view(dice: random.Random, base: torch.Tensor) -> torch.Tensor:
    view = base
    for dim in range(view.dim()):
        n = view.shape[dim]
        start = dice.randrange(n)
        view = view.narrow(dim, start, dice.randint(1, n - start))
        every = dice.choice((1, 1, 2, 3))
        view = view[(slice(None),) * dim + (slice(None, None, every),)]
    return view.permute(dice.sample(range(view.dim()), view.dim()))


def test_two_strided_views_meet_where_they_share_a_byte() -> None:
    dice = random.Random(4)
    outcomes = []
    for _ in range(400):
        base = torch.zeros([dice.randint(1, 6) for _ in range(dice.randint(1, 4))])
        one, other = a_view(dice, base), a_view(dice, base)
        shares = not addresses(one).isdisjoint(addresses(other))
        assert meet(strided(one), strided(other)) is shares
        low, high = min(addresses(other)), max(addresses(other)) + 1
        assert meets_range(strided(one), low, high) is not addresses(one).isdisjoint(
            range(low, high)
        )
        outcomes.append(shares)
    assert 50 < sum(outcomes) < 350


TABLE = torch.zeros((6, 3))[:, 1:]
ROWS = torch.tensor([4, 1, 1])
PICKS: dict[str, tuple[str, tuple[Any, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "rows": ("index_put_", (TABLE, [ROWS], None), lambda t: t[ROWS]),
    "columns": ("index_put_", (TABLE, [None, torch.tensor([1])], None), lambda t: t[:, 1:]),
    "a mask": (
        "index_put_",
        (TABLE, [ROWS.new_tensor([0, 1, 0, 0, 0, 1]).bool()], None),
        lambda t: t[[1, 5]],
    ),
    "from the end": ("index_put_", (TABLE, [torch.tensor([-1])], None), lambda t: t[5:]),
    "index_copy_": ("index_copy_", (TABLE, 0, ROWS, None), lambda t: t[ROWS]),
    "index_fill_": ("index_fill_", (TABLE, 1, torch.tensor([0]), 1), lambda t: t[:, :1]),
    "scatter_": ("scatter_", (TABLE, 0, torch.tensor([[2, 3]]), None), lambda t: t[[2, 3], [0, 1]]),
    "masked_fill_": (
        "masked_fill_",
        (TABLE, torch.eye(6, 2).bool(), 0),
        lambda t: t[[0, 1], [0, 1]],
    ),
    "put_": ("put_", (TABLE, torch.tensor([3]), None), lambda t: t[1, 1]),
}


@pytest.mark.parametrize("name", PICKS)
def test_an_index_picks_the_elements_that_torch_picks(name: str) -> None:
    operator, args, taken = PICKS[name]
    found = picked(WRITES, operator, args)
    assert isinstance(found, Picked)
    numbers = torch.arange(TABLE.data_ptr(), TABLE.data_ptr() + 4 * 3 * 6, 4)
    places = numbers.as_strided(TABLE.shape, TABLE.stride())
    starts, run = found.pieces()
    assert (sorted(set(starts.tolist())), run) == (sorted(set(taken(places).flatten().tolist())), 4)


# --- in a session ---


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch([], streams="tracked")
    watch.start()
    yield watch
    assert watch.tally.broken == {}
    watch.stop()


def at(*rows: int) -> torch.Tensor:
    return torch.tensor(rows, device=DEVICE)


Access = "Callable[[torch.Tensor], Any]"
RACES: dict[str, tuple[Any, Any]] = {
    "a column and all": (lambda t: t[:, 0].fill_(1), lambda t: t.sum()),
    "a column and a row": (lambda t: t[:, 0].fill_(1), lambda t: t[2].clone()),
    "every other row and a row of them": (lambda t: t[::2].fill_(1), lambda t: t[2].clone()),
    "rows by index and all": (lambda t: t.__setitem__(at(1, 2), 1.0), lambda t: t * 2),
    "rows by index and one of them": (lambda t: t.__setitem__(at(1, 2), 1.0), lambda t: t[2] + 1),
    "rows by index, twice": (
        lambda t: t.index_fill_(0, at(1), 1),
        lambda t: t.index_add_(0, at(1), torch.ones((1, 4), device=DEVICE)),
    ),
    "rows copied and a column": (
        lambda t: t.index_copy_(0, at(3), torch.ones((1, 4), device=DEVICE)),
        lambda t: t[:, 1].clone(),
    ),
    "a mask and what it picks": (lambda t: t.masked_fill_(t.new_ones(()) > 0, 1), lambda t: t + 1),
}
NO_RACES: dict[str, tuple[Any, Any]] = {
    "two columns": (lambda t: t[:, 0].fill_(1), lambda t: t[:, 1].clone()),
    "even and odd rows": (lambda t: t[::2].fill_(1), lambda t: t[1::2].clone()),
    "a column and a part of a row": (lambda t: t[:, 0].fill_(1), lambda t: t[2, 1:].clone()),
    "rows by index and another": (lambda t: t.__setitem__(at(1, 2), 1.0), lambda t: t[3] + 1),
    "rows by index, others gathered": (
        lambda t: t.__setitem__(at(1, 2), 1.0),
        lambda t: t[at(0, 3)],
    ),
    "rows by index, others selected": (
        lambda t: t.index_fill_(0, at(1, 2), 1),
        lambda t: t.index_select(0, at(0, 3)),
    ),
    "rows by index, others written": (
        lambda t: t.__setitem__(at(1, 2), 1.0),
        lambda t: t.__setitem__(at(0, 3), 1.0),
    ),
    "no rows": (lambda t: t.__setitem__(at().long(), 1.0), lambda t: t + 1),
    "a mask that picks nothing": (
        lambda t: t.masked_fill_(t.new_zeros(()) > 0, 1),
        lambda t: t + 1,
    ),
    "embeddings of other rows": (
        lambda t: t.__setitem__(at(1), 1.0),
        lambda t: torch.nn.functional.embedding(at(0, 2), t),
    ),
}


def crossed(watch: Watch, first: Any, second: Any, fenced: bool = False) -> list[str]:
    """What is found where two streams touch one tensor, with nothing to order them."""
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(one):
        table = torch.zeros((4, 4), device=DEVICE)
        at(1)
    torch.cpu.synchronize()
    with torch.cpu.stream(one):
        first(table)
    if fenced:
        two.wait_stream(one)
    with torch.cpu.stream(two):
        second(table)
    torch.cpu.synchronize()
    return [violation.code for violation in watch.drain()]


@pytest.mark.parametrize("name", RACES)
def test_elements_that_both_touch_race(watch: Watch, name: str) -> None:
    first, second = RACES[name]
    assert crossed(watch, first, second) == ["FR401"]
    assert crossed(watch, second, first) == ["FR401"]
    assert crossed(watch, first, second, fenced=True) == []


@pytest.mark.parametrize("name", NO_RACES)
def test_elements_that_only_one_touches_do_not(watch: Watch, name: str) -> None:
    first, second = NO_RACES[name]
    assert crossed(watch, first, second) == []
    assert crossed(watch, second, first) == []


def test_rows_that_are_gathered_after_an_index_wrote_them_race(watch: Watch) -> None:
    def writes(table: torch.Tensor) -> None:
        table[at(1, 2)] = 1.0

    assert crossed(watch, writes, lambda t: t[at(2, 3)]) == ["FR401"]


def test_rows_that_an_index_writes_after_a_gather_are_counted(watch: Watch) -> None:
    """A table of slots is gathered by whole rows, and what lies behind a length is masked."""

    def writes(table: torch.Tensor) -> None:
        table[at(2), at(3)] = 1.0

    assert crossed(watch, lambda t: t[at(2, 3)], writes) == []
    ((what, reason, _),) = watch.coverage().untracked
    assert what == "accesses"
    assert "gathered before" in reason


def test_an_earlier_read_of_another_part_is_remembered(watch: Watch) -> None:
    def reads(table: torch.Tensor) -> None:
        table[:, 0].clone()
        table[:, 1].clone()

    assert crossed(watch, reads, lambda t: t[:, 0].fill_(1)) == ["FR401"]


def test_an_index_write_does_not_end_the_following(watch: Watch) -> None:
    def writes(table: torch.Tensor) -> None:
        table[at(1)] = 1.0
        table[0].fill_(1)

    assert crossed(watch, writes, lambda t: t[0].clone()) == ["FR401"]


def test_a_nested_tensor_over_memory_that_is_known_is_not_followed(watch: Watch) -> None:
    with torch.cpu.stream(torch.cpu.Stream()):
        flat = torch.ones(4)
        flat.add_(1)
        laid = (torch.tensor([[2, 2]]), torch.tensor([[2, 1]]), torch.tensor([0]))
        nested = torch._nested_view_from_buffer(flat, *laid)
        assert watch.coverage().untracked == ()
        assert nested.clone().is_nested
    ((what, reason, _),) = watch.coverage().untracked
    assert what == "operators"
    assert "nested" in reason


def test_too_many_pieces_are_not_compared_and_counted(watch: Watch) -> None:
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(one):
        table = torch.zeros((LIMIT + 1, 2), device=DEVICE)
    two.wait_stream(one)
    with torch.cpu.stream(one):
        table[:, 0].fill_(1)
    with torch.cpu.stream(two):
        table[:, 1].clone()
    torch.cpu.synchronize()
    assert watch.drain() == ()
    ((what, reason, count),) = watch.coverage().untracked
    assert (what, count) == ("accesses", 1)
    assert "too many pieces" in reason


def test_accesses_past_the_last_that_is_remembered_are_counted(watch: Watch) -> None:
    def reads(table: torch.Tensor) -> None:
        for row in (0, 1, 2, 3):
            for column in range(3):
                table[row, column : column + 1].clone()

    assert crossed(watch, reads, lambda t: t[3].fill_(1)) == ["FR401"]
    assert [what for what, _, _ in watch.coverage().untracked] == ["accesses"]
