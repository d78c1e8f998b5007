"""FR301: a relay buffer, its rows and values on one kind of device, and its own module asked for.

`meta` is the second device that every build of torch has.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime.relay.relay_tensor import RelayTensor
from fmcheck.runtime.session.probes import PROBES, ProbeTarget, tried
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "toy_relay:FutureMap"

    [[relay.buffer]]
    name = "tokens_buf"
"""
HERE = torch.tensor([1, 2])
ELSEWHERE = torch.zeros(2, dtype=torch.int64, device="meta")


def now() -> tuple[Any, ...]:
    """What the watch puts something else in place of."""
    return torch.cuda.Event.__new__, torch.cuda.Stream.__new__


BEFORE = now()


class FutureMap:
    def __init__(self, device: str = "cpu", asked: str = "cpu") -> None:
        self.device_module = torch.get_device_module(asked)
        self.tokens_buf = torch.zeros(4, dtype=torch.int64, device=device)

    def ask(self, call: Callable[[], Any]) -> Any:
        return call()

    def make_event(self) -> Any:
        return torch.cuda.Event()

    def make_stream(self) -> Any:
        return torch.cuda.Stream()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    module: Any = ModuleType("toy_relay")
    module.FutureMap = FutureMap
    monkeypatch.setitem(sys.modules, "toy_relay", module)
    watch = Watch([parse_contract(CONTRACT, "toy.toml")])
    watch.start()
    yield watch
    watch.stop()


class StandIn:
    """What an engine puts in place of a stream where there is no device."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


class Bare:
    pass


def test_a_class_in_place_of_a_stream_takes_its_own_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", StandIn)
    monkeypatch.setattr(torch.cuda, "Event", Bare)
    watches = [Watch([parse_contract(CONTRACT.replace("toy", name), name)]) for name in "ab"]
    for watch in watches:
        watch.start()
    assert torch.cuda.Stream("cuda:0", 1).arguments == ("cuda:0", 1)
    assert type(torch.cuda.Event()) is Bare
    with pytest.raises(TypeError, match="Bare\\(\\) takes no arguments"):
        torch.cuda.Event(1)
    for watch in reversed(watches):
        watch.stop()
    assert "__new__" not in vars(StandIn)


def test_a_function_in_place_of_a_stream_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = min
    monkeypatch.setattr(torch.cuda, "Stream", stand_in)
    watch = Watch([parse_contract(CONTRACT, "toy.toml")])
    watch.start()
    assert torch.cuda.Stream is stand_in
    watch.stop()
    assert watch.coverage().problems == ()
    assert not watch.coverage().incomplete


def codes(watch: Watch) -> list[str]:
    return [violation.code for violation in watch.drain()]


def attempt(call: Callable[[], Any]) -> None:
    """Makes a call that torch may refuse."""
    with contextlib.suppress(RuntimeError, NotImplementedError, AssertionError):
        call()


MIXED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "gather": lambda buf, rows, values: buf[rows],
    "stash": lambda buf, rows, values: buf.__setitem__(rows, values),
    "index_select": lambda buf, rows, values: buf.index_select(0, rows),
    "index_copy_": lambda buf, rows, values: buf.index_copy_(0, rows, values),
    "index_put_": lambda buf, rows, values: buf.index_put_((rows,), values),
}


@pytest.mark.parametrize("call", MIXED.values(), ids=MIXED)
def test_rows_on_another_device_are_reported(watch: Watch, call: Callable[..., Any]) -> None:
    buffer = FutureMap().tokens_buf
    attempt(lambda: call(buffer, ELSEWHERE, HERE))
    (violation,) = watch.drain()
    assert (violation.code, violation.buffer) == ("FR301", "FutureMap.tokens_buf")
    assert violation.values[:2] == ("cpu", "meta")
    assert violation.access.site.path == __file__


@pytest.mark.parametrize("name", ["stash", "index_copy_", "index_put_"])
def test_values_on_another_device_are_reported(watch: Watch, name: str) -> None:
    buffer = FutureMap().tokens_buf
    attempt(lambda: MIXED[name](buffer, HERE, ELSEWHERE))
    assert codes(watch) == ["FR301"]


@pytest.mark.parametrize("call", MIXED.values(), ids=MIXED)
def test_a_buffer_on_another_device_than_its_rows_is_reported(
    watch: Watch, call: Callable[..., Any]
) -> None:
    buffer = FutureMap("meta").tokens_buf
    attempt(lambda: call(buffer, HERE, ELSEWHERE))
    (violation,) = watch.drain()
    assert (violation.code, violation.buffer) == ("FR301", "FutureMap.tokens_buf")


def test_a_buffer_without_memory_is_copied_and_pickled_as_without_a_watch(watch: Watch) -> None:
    astray = FutureMap("meta").tokens_buf
    for made in (copy.deepcopy(astray), pickle.loads(pickle.dumps(astray))):
        assert (type(made), made.shape, made.device.type) == (torch.Tensor, astray.shape, "meta")


def test_all_on_one_device_is_right(watch: Watch) -> None:
    buffer = FutureMap().tokens_buf
    buffer[HERE] = torch.tensor([3, 4])
    assert buffer[HERE].tolist() == [3, 4]
    astray = FutureMap("meta").tokens_buf
    astray[ELSEWHERE] = ELSEWHERE
    assert astray[ELSEWHERE].shape == (2,)
    assert codes(watch) == []


def test_a_number_may_be_anywhere(watch: Watch) -> None:
    astray = FutureMap("meta").tokens_buf
    astray[ELSEWHERE] = torch.tensor(3)
    assert codes(watch) == []


def test_a_copy_between_devices_is_no_fault(watch: Watch) -> None:
    buffer = FutureMap().tokens_buf
    torch.zeros(4, dtype=torch.int64, device="meta").copy_(buffer)
    assert buffer.to("meta").device.type == "meta"
    assert codes(watch) == []


@pytest.mark.parametrize(
    ("method", "asked"),
    [("make_event", "torch.cuda.Event"), ("make_stream", "torch.cuda.Stream")],
)
def test_a_relay_that_makes_another_devices_event_is_reported(
    watch: Watch, method: str, asked: str
) -> None:
    future_map = FutureMap()
    assert type(future_map.tokens_buf) is RelayTensor
    attempt(getattr(future_map, method))
    (violation,) = watch.drain()
    assert (violation.code, violation.values) == ("FR301", (asked,))
    assert violation.access.site.function.endswith(method)
    assert violation.expected.endswith("torch.cpu")


def test_a_relay_that_keeps_another_devices_module_is_reported(watch: Watch) -> None:
    FutureMap(asked="cuda")
    (violation,) = watch.drain()
    assert (violation.code, violation.values) == ("FR301", ("torch.cuda",))


def test_a_relay_may_keep_its_own_devices_module(watch: Watch) -> None:
    FutureMap()
    assert codes(watch) == []


def test_others_may_ask_for_what_they_want(watch: Watch) -> None:
    future_map = FutureMap()
    attempt(torch.cuda.Event)
    future_map.ask(lambda: attempt(torch.cuda.Event))
    assert codes(watch) == []


def test_after_the_watch_torch_is_as_it_was(watch: Watch) -> None:
    assert now() != BEFORE
    watch.stop()
    assert now() == BEFORE


def test_the_check_sees_its_own_fault() -> None:
    assert probe("FR301") == ""


def test_a_check_that_sees_nothing_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from fmcheck.runtime.relay import device_checks

    monkeypatch.setattr(device_checks, "compare", lambda name, args, kwargs: None)
    assert probe("FR301") != ""


def probe(code: str) -> str:
    """What the probe of a check says is wrong with its detector."""
    (one,) = [probe for probe in PROBES if probe.code == code]
    return tried(one, ProbeTarget("cpu"))


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("agnostic = ['tests/*.py']", ["FR301"]),
        ("agnostic = ['tests/*.py']\n    cuda_only = ['tests/test_d*.py']", []),
        ("agnostic = ['src/*.py']", []),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there to be asked for")
def test_an_agnostic_file_is_reported_that_it_asks_for_cuda_where_there_is_none(
    table: str, found: list[str]
) -> None:
    contract = f"[engine]\n    name = 'toy'\n    [device]\n    {table}"
    watch = Watch([parse_contract(contract, "toy.toml")])
    watch.start()
    try:
        with contextlib.suppress(RuntimeError):
            torch.cuda.Stream()
    finally:
        watch.stop()
    assert codes(watch) == found
