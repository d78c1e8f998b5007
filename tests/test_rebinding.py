"""A relay attribute that is bound, and bound again: what is in it is what the engine put there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime import hold as holds
from fmcheck.runtime import relay_tensor
from fmcheck.runtime.relay_tensor import RelayTensor
from fmcheck.runtime.watch import Watch
from tests.toy import CONTRACT, FutureMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = torch.tensor([1, 2])


@pytest.fixture
def watch() -> Iterator[Watch]:
    one = Watch([parse_contract(CONTRACT, "toy.toml")])
    one.start()
    yield one
    one.stop()


def codes(watch: Watch) -> list[str]:
    return [violation.code for violation in watch.drain()]


def decode(relay: Any) -> list[list[int]]:
    """Twelve steps; each binds what the next one starts from."""
    told = []
    relay.late = torch.tensor([0, 3, 5, 7])
    for _ in range(12):
        tokens = relay.late[ROWS]
        told.append([*tokens.tolist(), int(relay.late.sum()), *relay.late.clone().tolist()])
        relay.late = torch.cat([relay.late[:1], tokens * 7 % 31, relay.late[3:] + 1])
    return told


def test_a_buffer_that_is_bound_each_step_brings_what_was_bound(watch: Watch) -> None:
    watched = decode(FutureMap())
    watch.tally.active = False
    assert watched == decode(FutureMap())
    assert codes(watch) == []


def test_a_buffer_that_is_bound_anew_after_none_brings_what_was_bound(watch: Watch) -> None:
    relay = FutureMap()
    for step in range(5):
        relay.late = None
        relay.late = torch.tensor([0, step + 1, step + 2, 9])
        assert relay.late[ROWS].tolist() == [step + 1, step + 2]
    assert codes(watch) == []


def test_a_second_gather_of_what_was_bound_is_a_double_read(watch: Watch) -> None:
    relay = FutureMap()
    relay.late = torch.tensor([0, 3, 5, 7])
    relay.late[ROWS]
    relay.late = torch.tensor([0, 4, 6, 8])
    assert relay.late[ROWS].tolist() == [4, 6]
    assert codes(watch) == []
    assert relay.late[ROWS].tolist() == [4, 6]
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR102", (1, 2))
    assert violation.last_write is not None
    assert violation.last_write.site.path == __file__


PLACEHOLDERS: dict[str, Callable[[], torch.Tensor]] = {
    "zeros": lambda: torch.zeros(4, dtype=torch.int64),
    "full of -1": lambda: torch.full((4,), -1),
    "full of NaN": lambda: torch.full((4,), float("nan")),
    "full of infinity": lambda: torch.full((4,), float("inf")),
    "what the contract forbids": lambda: torch.full((4,), -9),
}


@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_a_buffer_made_late_that_holds_a_mark_was_not_written(name: str, watch: Watch) -> None:
    relay = FutureMap()
    relay.late = PLACEHOLDERS[name]()
    before = relay.late.clone()
    assert torch.equal(relay.late[ROWS].nan_to_num(), before[ROWS].nan_to_num())
    assert codes(watch) == ["FR101"]


def test_a_buffer_made_late_by_empty_was_not_written_where_it_was_not(watch: Watch) -> None:
    relay = FutureMap()
    garbage = torch.empty(4, dtype=torch.int64)
    garbage.data.copy_(torch.tensor([8, 1, 9, 4]))
    assert garbage._version == 0  # as the allocator leaves it
    relay.late = garbage
    relay.late[ROWS[:1]] = torch.tensor([5])
    assert relay.late[ROWS].tolist() == [5, 9]
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR101", (2,))


def test_an_update_of_what_was_bound_goes_into_values(watch: Watch) -> None:
    relay = FutureMap()
    relay.late = torch.tensor([0, 3, 5, 7])
    relay.late += 1
    assert relay.late[ROWS].tolist() == [4, 6]
    assert codes(watch) == []


def test_a_buffer_that_was_written_before_it_is_bound_has_values(watch: Watch) -> None:
    made = torch.zeros(4, dtype=torch.int64)
    made[1:] = torch.tensor([3, 5, 7])
    relay = FutureMap(made)
    assert relay.buf[ROWS].tolist() == [3, 5]
    assert codes(watch) == []
    relay.buf[ROWS]
    assert codes(watch) == ["FR102"]


def test_what_init_made_is_a_placeholder(watch: Watch) -> None:
    FutureMap().buf[ROWS]
    assert codes(watch) == ["FR101"]


def test_attributes_of_a_tensor_stay_with_it(watch: Watch) -> None:
    buffer = torch.nn.Buffer(torch.zeros(4, dtype=torch.int64))
    buffer.tag = "mine"  # type: ignore[attr-defined]
    relay = FutureMap(buffer)
    assert type(relay.buf) is RelayTensor
    assert isinstance(relay.buf, torch.nn.Buffer)
    assert relay.buf.tag == "mine"  # type: ignore[attr-defined]


def test_a_parameter_stays_one(watch: Watch) -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    assert FutureMap(parameter).buf is parameter
    assert any("expected a plain tensor" in told for told in watch.coverage().problems)


# --- an error of our own ---


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("ours")


SPOTS = {
    "adoption": (holds.RelayHold, "_is_made"),
    "setattr": (holds.RelayHold, "_adopt"),
    "a window": (relay_tensor, "_window_of_view"),
    "a gather": (relay_tensor.RelayBuffer, "gather"),
    "a write": (relay_tensor.RelayBuffer, "stash"),
    "a peek": (relay_tensor.RelayBuffer, "peek"),
    "a translation": (relay_tensor, "_translation_of"),
    "an index": (relay_tensor.rows, "selects_rows"),
}


def use(relay: Any) -> list[Any]:
    relay.buf[ROWS] = torch.tensor([5, 6])
    got = [relay.buf[ROWS], relay.buf[1:][ROWS], relay.buf + 1, relay.buf.index_select(0, ROWS)]
    relay.buf.add_(1)
    return [*(one.tolist() for one in got), relay.buf.tolist()]


@pytest.mark.parametrize("name", SPOTS)
def test_an_error_of_our_own_never_reaches_the_engine(
    name: str, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, spot = SPOTS[name]
    monkeypatch.setattr(holder, spot, broken)
    monkeypatch.setattr(relay_tensor, "_translations", {})
    assert use(FutureMap()) == [[5, 6], [6, 0], [1, 6, 7, 1], [5, 6], [1, 6, 7, 1]]
    (sentence,) = watch.coverage().incomplete
    assert "relay buffers is incomplete" in sentence
    assert "RuntimeError" in sentence


def test_an_error_of_the_engines_call_is_the_engines(watch: Watch) -> None:
    with pytest.raises(IndexError):
        FutureMap().buf[torch.tensor([99])]
    assert watch.coverage().incomplete == ()
