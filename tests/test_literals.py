"""Whether a call spells the host's name itself, or hands on what it has from elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps.literals import spells_host

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "cpu"
DEVICE = torch.device(HOST)


class Asked:
    def to(self, *args: Any, **kwargs: Any) -> bool:
        return spells_host(sys._getframe(1))


def asked(*args: Any, **kwargs: Any) -> bool:
    return spells_host(sys._getframe(1))


def same(value: Any, *_: Any) -> Any:
    return value


def chosen(is_host: bool, device: str) -> bool:
    return asked(3, device="cpu" if is_host else device)


def bound() -> bool:
    device = "cpu"
    return asked(3, device=device)


SPELLED: list[Callable[[], bool]] = [
    lambda: asked("cpu"),
    lambda: asked(3, device="cpu"),
    lambda: asked(3, 4, device="cpu", dtype=same(int)),
    lambda: asked([same(one) for one in (1, 2)], device="cpu"),
    lambda: Asked().to("cpu"),
    lambda: Asked().to("cpu", non_blocking=True),
    lambda: Asked().to(device="cpu", non_blocking=same(True)),
    lambda: same(same(Asked()).to("cpu")),
    lambda: asked(3, device=torch.device("cpu")),
    lambda: asked(torch.device("cpu"), same(3)),
    lambda: Asked().to(torch.device("cpu"), non_blocking=True),
    lambda: Asked().to(device=torch.device("cpu"), dtype=same(int)),
]
OTHERS: list[Callable[[], bool]] = [
    lambda: asked(3, device=HOST),
    lambda: asked(3, device=same("cpu")),
    lambda: asked(same("cpu"), device=HOST),
    lambda: same(asked(3, device=HOST), "cpu"),
    lambda: same(same("cpu") == "cpu") and asked(HOST),
    lambda: Asked().to(HOST, same("cpu")),
    lambda: chosen(False, HOST),
    lambda: asked(3, device=torch.device(HOST)),
    lambda: asked(3, device=same(torch.device("cpu"))),
    lambda: asked(3, device=torch.device("cpu").type),
    lambda: asked(3, device=torch.Generator("cpu").device),
    bound,
]


@pytest.mark.parametrize("call", SPELLED)
def test_a_constant_among_the_arguments_is_spelled(call: Callable[[], bool]) -> None:
    assert call()


@pytest.mark.parametrize("call", OTHERS)
def test_what_is_chosen_bound_or_another_call_s_is_not(call: Callable[[], bool]) -> None:
    assert not call()


class Engine:
    """An engine that has its device as a string, and a table of its own on the host."""

    def __init__(self, device: str) -> None:
        self.buf = torch.zeros(4, device=device)
        self.side = torch.cpu.Stream()

    def step(self, table: torch.Tensor) -> torch.Tensor:
        table.fill_(3)
        with torch.cpu.stream(self.side):
            return table[table > 2]

    def on_host(self) -> torch.Tensor:
        return self.step(torch.zeros(4, device="cpu"))

    def on_device(self) -> torch.Tensor:
        return self.step(torch.zeros(4, device=self.buf.device.type))


CONTRACT = """
    [engine]
    name = "toy"
    [launches]
    device_is_string = true
"""


@pytest.mark.parametrize(("method", "found"), [("on_host", []), ("on_device", ["FR401"])])
def test_what_a_call_makes_on_the_host_by_name_is_in_no_stream_s_order(
    method: str, found: list[str]
) -> None:
    assert reported(lambda engine: getattr(engine, method)(), CONTRACT) == found


@pytest.mark.parametrize(("how", "found"), [("by a setting", []), ("by none", ["FR401"])])
def test_the_name_of_the_host_is_the_device_s_where_nothing_else_names_one(
    how: str, found: list[str]
) -> None:
    def run(engine: Engine) -> None:
        if how == "by a setting":
            torch.zeros(4, device=HOST)
        engine.on_host()

    assert reported(run) == found


class Loop:
    def __init__(self) -> None:
        self.tokens = torch.zeros(4, device=DEVICE)

    def spelled(self) -> None:
        self.tokens.to("cpu")

    def set(self) -> None:
        self.tokens.to(HOST)


@pytest.mark.parametrize(("method", "found"), [("spelled", ["FR501"]), ("set", [])])
def test_a_copy_to_the_host_by_name_is_a_wait_though_the_device_is_a_string(
    method: str, found: list[str]
) -> None:
    budget = f"[[launches.budget]]\nfunctions = ['{__name__}:Loop.{method}']\nsyncs = 0\n"

    def run(engine: Engine) -> None:
        getattr(Loop(), method)()

    assert reported(run, CONTRACT + budget) == found


def reported(run: Callable[[Engine], object], *contracts: str) -> list[str]:
    """Runs an engine under a watch; returns the codes of what is found."""
    watch = Watch([parse_contract(one, "toy.toml") for one in contracts], streams="tracked")
    watch.start()
    try:
        engine = Engine(HOST)
        with torch.cpu.stream(engine.side):
            pass
        run(engine)
        assert watch.tally.broken == {}
        return sorted({one.code for one in watch.drain()})
    finally:
        watch.stop()
