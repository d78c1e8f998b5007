"""A relay attribute that is bound, and bound again: what is in it is what the engine put there."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime.relay import relay_tensor
from fmcheck.runtime.relay.relay_tensor import RelayTensor
from fmcheck.runtime.session import relay_patches as holds
from fmcheck.runtime.session.watch import Watch
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
    reported = []
    relay.late = torch.tensor([0, 3, 5, 7])
    for _ in range(12):
        tokens = relay.late[ROWS]
        reported.append([*tokens.tolist(), int(relay.late.sum()), *relay.late.clone().tolist()])
        relay.late = torch.cat([relay.late[:1], tokens * 7 % 31, relay.late[3:] + 1])
    return reported


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


def zeros(relay: FutureMap) -> None:
    relay.late = torch.zeros(4, dtype=torch.int64)


def full_of_minus_one(relay: FutureMap) -> None:
    relay.late = torch.full(
        (4,),
        -1,
    )


def full_of_nan(relay: FutureMap) -> None:
    relay.late = torch.full((4,), float("nan"))


def full_of_infinity(relay: FutureMap) -> None:
    relay.late = torch.full((4,), float("inf"))


def what_the_contract_forbids(relay: FutureMap) -> None:
    relay.late = torch.full((4,), -9)


def by_another_name(relay: FutureMap) -> None:
    made = ROWS.new_zeros(4).to("cpu")
    relay.late = made


def by_setattr(relay: FutureMap) -> None:
    for name in ("late",):
        setattr(relay, name, torch.zeros(4))


def by_a_function(relay: FutureMap) -> None:
    relay.late = Maker.room()


def in_inference_mode(relay: FutureMap) -> None:
    with torch.inference_mode():
        relay.late = torch.zeros(4)


def one_of_two(relay: FutureMap) -> None:
    relay.late, _ = torch.zeros(4), torch.ones(4)


class Maker:
    @staticmethod
    def room() -> torch.Tensor:
        return torch.zeros(4) if len(ROWS) > 1 else torch.empty(4)

    @staticmethod
    def bare() -> torch.Tensor:
        return torch.empty(4, dtype=torch.int64)


@pytest.mark.parametrize(
    "bind",
    [
        *(zeros, full_of_minus_one, full_of_nan, full_of_infinity, what_the_contract_forbids),
        *(by_another_name, by_setattr, by_a_function, in_inference_mode, one_of_two),
    ],
)
def test_what_a_factory_made_late_was_not_written(
    bind: Callable[[FutureMap], None], watch: Watch
) -> None:
    relay = FutureMap()
    bind(relay)
    before = relay.late.clone()
    assert torch.equal(relay.late[ROWS].nan_to_num(), before[ROWS].nan_to_num())
    assert codes(watch) == ["FR101"]


NO_TOKENS = torch.zeros(4, dtype=torch.int64)


def copied(relay: FutureMap) -> None:
    relay.late = NO_TOKENS.clone()


def computed(relay: FutureMap) -> None:
    relay.late = torch.cat([NO_TOKENS[:1], NO_TOKENS[1:] * 7])


def given(relay: FutureMap, tokens: torch.Tensor = NO_TOKENS) -> None:
    relay.late = tokens


def of_the_hosts_values(relay: FutureMap) -> None:
    relay.late = torch.tensor([0, 0, 0, 0])


def written_before(relay: FutureMap) -> None:
    made = torch.empty(4, dtype=torch.int64)
    made[:] = NO_TOKENS
    relay.late = made


def written_in_inference_mode(relay: FutureMap) -> None:
    with torch.inference_mode():
        made = torch.empty(4, dtype=torch.int64)
        made[:] = NO_TOKENS
        relay.late = made


def by_out(relay: FutureMap) -> None:
    relay.late = torch.full((4,), 0, out=torch.ones(4, dtype=torch.int64))


def one_way_only(relay: FutureMap) -> None:
    relay.late = torch.zeros(4) if len(ROWS) > 9 else NO_TOKENS.clone()


WRITTEN = [
    *(copied, computed, given, of_the_hosts_values, written_before, written_in_inference_mode),
    *(by_out, one_way_only),
]


@pytest.mark.parametrize("bind", WRITTEN)
def test_zeros_that_the_engine_computed_before_a_late_bind_are_values(
    bind: Callable[[FutureMap], None], watch: Watch
) -> None:
    relay = FutureMap()
    bind(relay)
    assert relay.late[ROWS].tolist() == [0, 0]
    assert codes(watch) == []


@pytest.mark.parametrize("bind", WRITTEN)
def test_a_write_to_some_rows_of_a_late_bind_leaves_the_others_values(
    bind: Callable[[FutureMap], None], watch: Watch
) -> None:
    relay = FutureMap()
    bind(relay)
    with torch.inference_mode():
        relay.late[ROWS[:1]] = 5
    assert relay.late[ROWS].tolist() == [5, 0]
    assert codes(watch) == []


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


# --- bound to memory that nobody has filled ---


def empty(relay: FutureMap) -> None:
    relay.late = torch.empty(4, dtype=torch.int64)


def empty_like(relay: FutureMap) -> None:
    relay.late = torch.empty_like(NO_TOKENS)


def new_empty(relay: FutureMap) -> None:
    relay.late = NO_TOKENS.new_empty(4)


def empty_by_another_name(relay: FutureMap) -> None:
    made = torch.empty(4, dtype=torch.int64, device="cpu")
    relay.late = made


def empty_by_a_function(relay: FutureMap) -> None:
    relay.late = Maker.bare().to("cpu")


def empty_in_inference_mode(relay: FutureMap) -> None:
    with torch.inference_mode():
        relay.late = torch.empty(4, dtype=torch.int64)


EMPTY = [
    *(empty, empty_like, new_empty, empty_by_another_name, empty_by_a_function),
    empty_in_inference_mode,
]
BEFORE = {"none": None, "values": torch.tensor([0, 3, 5, 7])}


@pytest.fixture(params=BEFORE)
def bound(request: pytest.FixtureRequest, watch: Watch) -> FutureMap:
    """A relay whose late buffer was or was not bound before."""
    relay = FutureMap()
    relay.late = BEFORE[request.param]
    return relay


@pytest.mark.parametrize("bind", EMPTY)
def test_memory_that_nobody_filled_has_no_values_whenever_it_is_bound(
    bind: Callable[[FutureMap], None], bound: FutureMap, watch: Watch
) -> None:
    bind(bound)
    bound.late[ROWS]
    assert codes(watch) == ["FR101"]


@pytest.mark.parametrize("bind", EMPTY)
def test_a_row_that_is_left_out_after_such_a_bind_was_not_written(
    bind: Callable[[FutureMap], None], bound: FutureMap, watch: Watch
) -> None:
    bind(bound)
    with torch.inference_mode():
        bound.late[ROWS[:1]] = torch.tensor([5])
    bound.late[ROWS]
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR101", (2,))


@pytest.mark.parametrize("bind", EMPTY)
def test_memory_that_is_filled_after_it_was_bound_has_values(
    bind: Callable[[FutureMap], None], bound: FutureMap, watch: Watch
) -> None:
    for step in range(3):
        bind(bound)
        with torch.inference_mode():
            bound.late[:] = step
        assert bound.late[ROWS].tolist() == [step, step]
    assert codes(watch) == []


def write_untracked(made: torch.Tensor) -> None:
    """Fills a tensor as a kernel does that torch does not dispatch."""
    values = torch.tensor([0, 3, 5, 7])  # a name keeps its memory
    ctypes.memmove(made.data_ptr(), values.data_ptr(), 32)


def filled_by_a_kernel(relay: FutureMap) -> None:
    made = torch.empty(4, dtype=torch.int64)
    write_untracked(made)
    relay.late = made


def filled_by_out(relay: FutureMap) -> None:
    relay.late = torch.empty(4, dtype=torch.int64).copy_(torch.tensor([0, 3, 5, 7]))


#: What binds other memory each time.
NEW = [one for one in WRITTEN if one is not given]


@pytest.mark.parametrize("bind", [filled_by_a_kernel, filled_by_out, *NEW])
def test_memory_that_was_filled_before_it_is_bound_again_has_values(
    bind: Callable[[FutureMap], None], watch: Watch
) -> None:
    relay = FutureMap()
    for _ in range(3):
        bind(relay)
        relay.late[ROWS]
    assert codes(watch) == []


def test_memory_that_a_kernel_fills_after_it_was_bound_has_values(watch: Watch) -> None:
    relay = FutureMap()
    relay.late = torch.tensor([0, 3, 5, 7])
    relay.late = torch.empty(4, dtype=torch.int64)
    write_untracked(relay.late)
    assert relay.late[ROWS].tolist() == [3, 5]
    assert codes(watch) == []


def test_an_array_that_nobody_filled_has_no_values(watch: Watch) -> None:
    relay = FutureMap()
    relay.late = np.array([0, 3, 5, 7])
    relay.late = np.empty(4, np.int64)
    relay.late[[1, 2]]
    assert codes(watch) == ["FR101"]
    relay.late = np.empty(4, np.int64)
    relay.late[:] = 5
    assert relay.late[[1, 2]].tolist() == [5, 5]
    made = np.empty(4, np.int64)
    made[:] = 5
    relay.late = made
    assert relay.late[[1, 2]].tolist() == [5, 5]
    assert codes(watch) == []


def test_an_array_that_init_filled_before_it_bound_it_has_values(watch: Watch) -> None:
    made = np.zeros(4, np.int64)
    made[1:] = 5
    relay = FutureMap(made)
    assert relay.buf[[1, 2]].tolist() == [5, 5]

    class Filled(FutureMap):
        def __init__(self) -> None:
            filled = np.zeros(4, np.int64)
            filled[1:] = [5, 6, 7]
            self.buf = filled

    assert Filled().buf[[1, 2]].tolist() == [5, 6]
    assert codes(watch) == []


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
    assert any("expected a plain tensor" in reported for reported in watch.coverage().problems)


# --- an error of our own ---


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("ours")


SPOTS = {
    "adoption": (holds.RelayPatch, "_is_made"),
    "setattr": (holds.RelayPatch, "_adopt"),
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
