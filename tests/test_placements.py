"""Host or device is known from how memory came to be: no wrapper and no mode changes a verdict."""

from __future__ import annotations

import ast
import functools
import re
import sys
import types
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import fmcheck.runtime
from fmcheck.contract import parse_contract
from fmcheck.runtime.core.naming import names_of
from fmcheck.runtime.core.site import Sites
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.session.probes import EAGER, PROBES, Probe, ProbeTarget, tried
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps import factories, placements
from fmcheck.runtime.steps.factories import FactoryMode
from fmcheck.runtime.steps.placements import Placement, Placements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICE = torch.device("cpu")
NAMED = '[engine]\nname = "toy"\n[launches]\nhost_values = ["*_host", "lens"]\n'
NAMED += '[graph_inputs]\nrow_indices = ["rows_host"]\n'


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch([], streams="tracked")
    watch.start()
    yield watch
    watch.stop()


def codes(watch: Watch) -> list[str]:
    assert watch.tally.broken == {}
    # Of memory that is freed while a stream still uses it, tests of their own tell.
    return sorted({one.code for one in watch.drain()} - {"FR402"})


# --- what runs, and what is found ---


def streams() -> tuple[Any, Any]:
    """Two streams, of which the first was entered: this thread is followed from here on."""
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(one):
        pass
    return one, two


def pull_unwaited(fenced: bool) -> None:
    one, two = streams()
    with torch.cpu.stream(one):
        tokens = torch.arange(4, device=DEVICE)
    two.wait_stream(one)
    taken = torch.empty(4, dtype=torch.int64)
    with torch.cpu.stream(two):
        taken.copy_(tokens, non_blocking=True)
    if fenced:
        two.synchronize()
    taken.tolist()


def pull_read_by_an_operator(fenced: bool) -> None:
    one, two = streams()
    with torch.cpu.stream(one):
        tokens = torch.arange(4, device=DEVICE)
    two.wait_stream(one)
    taken = torch.zeros(4, dtype=torch.int64)
    with torch.cpu.stream(two):
        taken.copy_(tokens, non_blocking=True)
    if fenced:
        two.synchronize()
    _ = taken + 1


def sent_to_the_host_unwaited(fenced: bool) -> None:
    one, _ = streams()
    with torch.cpu.stream(one):
        taken = torch.arange(4, device=DEVICE).to("cpu", non_blocking=True, copy=True)
        if fenced:
            one.synchronize()
        taken.tolist()


def push_overwritten(fenced: bool) -> None:
    one, _ = streams()
    staged = torch.zeros(4)
    with torch.cpu.stream(one):
        sent = staged.to(DEVICE, non_blocking=True, copy=True)
        if fenced:
            one.synchronize()
        staged.fill_(1)
    del sent


def push_from_before_the_streams(fenced: bool) -> None:
    staged = torch.zeros(4)
    one, _ = streams()
    with torch.cpu.stream(one):
        sent = staged.to("cpu", non_blocking=True, copy=True)
    if fenced:
        one.synchronize()
    staged.fill_(1)
    del sent


def race(fenced: bool) -> None:
    one, two = streams()
    with torch.cpu.stream(one):
        made = torch.ones(4, device=DEVICE) + 1
    if fenced:
        two.wait_stream(one)
    with torch.cpu.stream(two):
        _ = made + 1
        two.synchronize()


def element_of_another_stream(fenced: bool) -> None:
    one, _ = streams()
    with torch.cpu.stream(one):
        made = torch.ones(4, device=DEVICE) + 1
    if fenced:
        one.synchronize()
    made[0].item()


def rows_by_index(fenced: bool) -> None:
    one, two = streams()
    with torch.cpu.stream(one):
        table = torch.zeros((4, 2), device=DEVICE)
    two.wait_stream(one)
    with torch.cpu.stream(two):
        table[torch.tensor([1, 2], device=DEVICE)] = 1.0
    if fenced:
        one.wait_stream(two)
    with torch.cpu.stream(one):
        _ = table.sum()
    one.wait_stream(two)


FAULTS: dict[str, Callable[[bool], None]] = {
    "FR401": race,
    "FR401 item": element_of_another_stream,
    "FR401 index": rows_by_index,
    "FR403": push_overwritten,
    "FR403 unknown": push_from_before_the_streams,
    "FR404": pull_unwaited,
    "FR404 operator": pull_read_by_an_operator,
    "FR404 to": sent_to_the_host_unwaited,
}


# --- what it runs in ---


class PassingOn(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def default_device(kind: str) -> Iterator[None]:
    torch.set_default_device(kind)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def wrapped() -> Iterator[None]:
    """The factories behind wrappers of the program's own."""

    def wrapper(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    names = ("zeros", "ones", "empty", "arange", "tensor", "full")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(torch, name, wrapper(getattr(torch, name)))
        yield


@contextmanager
def function_mode_in_inference() -> Iterator[None]:
    with torch.inference_mode(), PassingOn(), PassingOn():
        yield


AROUND: dict[str, Callable[[], Any]] = {
    "nothing": nullcontext,
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "a function mode": PassingOn,
    "function modes in inference mode": function_mode_in_inference,
    "a device as context": lambda: torch.device("cpu"),
    "a default device": lambda: default_device("cpu"),
    "wrappers": wrapped,
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_its_healthy_twin_is_not(watch: Watch, name: str, around: str) -> None:
    with AROUND[around]():
        FAULTS[name](False)
        found = codes(watch)
        watch.begin_test()
        FAULTS[name](True)
        healthy = codes(watch)
    assert found == [name[:5]]
    assert healthy == []


@pytest.mark.parametrize("around", [*AROUND, "another default device"])
@pytest.mark.parametrize(
    "probe",
    [one for one in PROBES if one.applies(ProbeTarget("cpu", EAGER))],
    ids=lambda one: one.code,
)
def test_no_probe_is_dead_for_what_it_runs_in(probe: Probe, around: str) -> None:
    with {**AROUND, "another default device": lambda: default_device("meta")}[around]():
        assert tried(probe, ProbeTarget("cpu")) == ""


def test_no_probe_is_dead_in_inference_mode_below_a_session(watch: Watch) -> None:
    streams()
    with torch.inference_mode():
        cheap = [one for one in PROBES if one.cheap and one.applies(ProbeTarget("cpu", EAGER))]
        assert [tried(probe, ProbeTarget("cpu")) for probe in cheap] == [""] * len(cheap)


def test_the_mode_that_hears_factories_lies_beneath_those_of_the_program(watch: Watch) -> None:
    outer, inner = PassingOn(), PassingOn()
    with outer:
        streams()
        with inner:
            stack = _get_current_function_mode_stack()
            assert (type(stack[0]), stack[1:]) == (FactoryMode, [outer, inner])
    assert len(_get_current_function_mode_stack()) == 1
    watch.stop()
    assert _get_current_function_mode_stack() == []


BACKWARD: dict[str, Any] = {
    "of a tensor": lambda total, leaf: total.backward(),
    "of tensors": lambda total, leaf: torch.autograd.backward([total]),
    "a gradient alone": lambda total, leaf: torch.autograd.grad(total, leaf),
}


@pytest.mark.parametrize("how", BACKWARD)
def test_what_a_hook_of_a_backward_pass_makes_is_heard(watch: Watch, how: str) -> None:
    side, _ = streams()
    with torch.cpu.stream(side):
        leaf = torch.ones(2, device=DEVICE, requires_grad=True)
        kept: list[torch.Tensor] = []
        leaf.register_hook(lambda grad: kept.append(torch.zeros(2, device=DEVICE)))
        BACKWARD[how]((leaf * 2).sum(), leaf)
    assert [placements.placement_of(one) for one in kept] == [Placement.DEVICE]
    assert [type(one) for one in _get_current_function_mode_stack()] == [FactoryMode]


@pytest.mark.parametrize("around", ["a device as context", "a default device"])
def test_a_default_device_that_is_left_is_left(watch: Watch, around: str) -> None:
    with AROUND[around]():
        streams()
    assert [type(one) for one in _get_current_function_mode_stack()] == [FactoryMode]


def test_a_compiled_function_sees_no_mode_of_ours(watch: Watch) -> None:
    streams()
    compiled = torch.compile(lambda x: x + torch.zeros(2), backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2))


# --- what is known of memory ---


def test_the_home_of_memory_is_that_of_its_views(watch: Watch) -> None:
    streams()
    made = torch.zeros(4)
    for view in (made[1:], made.view(2, 2), made.detach(), made[None]):
        assert placements.placement_of(view) is Placement.HOST


def test_a_device_that_was_given_as_a_string_may_be_the_host_s(watch: Watch) -> None:
    streams()
    assert placements.placement_of(torch.zeros(4, device=str(DEVICE))) is Placement.EITHER
    spelled = torch.zeros(4, device="cpu")  # pytest would bind the name first
    assert placements.placement_of(spelled) is Placement.HOST
    copied = torch.zeros(4).to("cpu", copy=True)
    assert placements.placement_of(copied) is Placement.HOST
    assert placements.placement_of(torch.zeros(4, device=DEVICE)) is Placement.DEVICE
    assert placements.placement_of(torch.zeros(4)) is Placement.HOST


def test_the_device_of_a_host_tensor_is_the_host(watch: Watch) -> None:
    streams()
    host, there = torch.zeros(4), torch.zeros(4, device=DEVICE)
    beside = torch.zeros(4, device=host.device), torch.zeros(4, device=there.device)
    found = [placements.placement_of(one) for one in beside]
    assert found == [Placement.HOST, Placement.DEVICE]
    of = host.device
    assert placements.placement_of(torch.zeros(4, device=of)) is Placement.HOST
    for _ in range(factories._KNOWN_DEVICES):
        assert there.device
    assert placements.placement_of(torch.zeros(4, device=of)) is Placement.DEVICE


def test_a_copy_to_where_the_host_s_tensor_is_goes_to_the_host(watch: Watch) -> None:
    one, _ = streams()
    with torch.cpu.stream(one):
        host, there = torch.zeros(4), torch.zeros(4, device=DEVICE)
        for other, expected in ((there, []), (host, ["FR404"])):
            sent = (there + 1).to(other.device, non_blocking=True)
            sent.tolist()
            assert codes(watch) == expected
            one.synchronize()


def test_a_copy_from_the_host_to_where_the_host_s_tensor_is_stays_there(watch: Watch) -> None:
    one, _ = streams()
    with torch.cpu.stream(one):
        torch.zeros(1, device=DEVICE)
        host, other = torch.zeros(4), torch.zeros(4)
        copies = host.to(other.device, copy=True), host.to(other, copy=True)
        sent = host.to(torch.zeros(1, device=DEVICE), copy=True)
    found = [placements.placement_of(made) for made in (*copies, sent)]
    assert found == [Placement.HOST, Placement.HOST, Placement.DEVICE]


def test_the_device_of_a_tensor_names_none(watch: Watch) -> None:
    streams()
    given = torch.zeros(4)  # as a test may make its inputs, and mean the device
    torch.zeros(4, device=given.device)
    assert not placements.is_sure(given)
    given.to(DEVICE, copy=True)
    assert placements.is_sure(given)


@pytest.mark.parametrize("setting", [DEVICE, str(DEVICE)])
@pytest.mark.parametrize("how", ["created", "moved"])
def test_memory_without_a_device_is_the_host_s_where_others_have_a_setting(
    watch: Watch, setting: Any, how: str
) -> None:
    streams()
    bare, sent = torch.zeros(4), torch.zeros(4)
    assert not placements.is_sure(bare)
    if how == "created":
        torch.zeros(4, device=setting)
    else:
        sent.to(setting)
    assert placements.is_sure(bare)
    assert placements.is_sure(sent) == (how == "created")  # as it is, it is the device's too
    assert placements.surely_host_s(bare) == (setting is DEVICE)


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor], ids=["tensor", "as_tensor"])
def test_an_array_that_a_factory_copies_is_the_host_s_unless_a_device_was_given(
    watch: Watch, make: Any
) -> None:
    streams()
    setting, values = str(DEVICE), np.arange(3, dtype=np.int32)
    bare = make(values, dtype=torch.int64)
    assert placements.placement_of(bare) is Placement.HOST
    assert placements.placement_of(make([0, 1], dtype=torch.int64)) is Placement.HOST
    sent = make(values, dtype=torch.int64, device=DEVICE)
    assert placements.placement_of(sent) is Placement.DEVICE
    assert placements.placement_of(make(sent, dtype=torch.int32)) is Placement.DEVICE
    assert placements.placement_of(bare.to(setting, non_blocking=True)) is Placement.DEVICE


def test_what_a_setting_sends_from_the_host_is_a_copy_of_its_own(watch: Watch) -> None:
    streams()
    torch.zeros(1, device=str(DEVICE))
    host = torch.zeros(4)
    sent = host.to(str(DEVICE), non_blocking=True)
    assert sent.data_ptr() != host.data_ptr()
    assert placements.placement_of(sent) is Placement.DEVICE
    waited = host.to(str(DEVICE))
    assert waited is host


def test_what_was_done_to_memory_ends_where_a_setting_sends_it(watch: Watch) -> None:
    one, two = streams()
    with torch.cpu.stream(one):
        indices = torch.arange(6) + 1  # nobody has said by now whose it is
    with torch.cpu.stream(two):
        _ = indices.to(str(DEVICE)) + 1
    assert codes(watch) == []


STRINGS = """
    [engine]
    name = "toy"
    [launches]
    device_is_string = true
    [[relay]]
    class = "toy_with_strings.relay:Relay"
    [[relay.buffer]]
    name = "buf"
"""


def test_how_an_engine_names_its_device_says_nothing_of_another_engine(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams()
    made, known = (
        torch.zeros(4, device=str(DEVICE)),
        Placements([parse_contract(STRINGS, "toy.toml")]),
    )
    assert known.of(made) is Placement.EITHER
    monkeypatch.setitem(sys.modules, "toy_with_strings", types.ModuleType("toy_with_strings"))
    assert known.of(made) is Placement.DEVICE


class Batch:
    def __init__(self) -> None:
        self.lens = torch.arange(3)
        self.rows_host = torch.arange(3)
        self.kept = {"seq_host": torch.arange(3), "other": torch.arange(3)}


def placement_by_name(tensor: torch.Tensor) -> Placement:
    return Placements([parse_contract(NAMED, "toy.toml")]).of(tensor, Sites())


def test_a_declared_name_is_that_of_a_local_an_attribute_or_an_item() -> None:
    batch = Batch()
    mine_host = torch.arange(3)
    assert placement_by_name(batch.lens) is Placement.HOST
    assert placement_by_name(batch.lens[1:]) is Placement.HOST
    assert placement_by_name(batch.kept["seq_host"]) is Placement.HOST
    assert placement_by_name(mine_host) is Placement.HOST
    assert placement_by_name(batch.kept["other"]) is Placement.UNKNOWN
    assert placement_by_name(torch.arange(3)) is Placement.UNKNOWN


def test_a_declared_path_is_that_of_an_attribute_of_such_an_object() -> None:
    contract = '[engine]\nname = "toy"\n[launches]\n'
    contract += 'host_values = ["host_*.lens", "host_kept.seq*", "device_io.not"]\n'
    known = Placements([parse_contract(contract, "toy.toml")])

    def of(tensor: torch.Tensor) -> Placement:
        return known.of(tensor, Sites())

    host_batch, batch, lens = Batch(), Batch(), torch.arange(3)
    pair: Any = Box(host_io=Batch(), device_io=Batch(), host_slotted=Slotted(lens))
    host_kept = {"seq_host": torch.arange(3), "other": torch.arange(3)}
    host_other = torch.arange(3)
    assert of(host_batch.lens) is Placement.HOST
    assert of(pair.host_io.lens) is Placement.HOST
    assert of(host_kept["seq_host"]) is Placement.HOST
    for other in (batch.lens, pair.device_io.lens, host_batch.rows_host):
        assert of(other) is Placement.UNKNOWN
    for other in (host_kept["other"], host_other, lens):
        assert of(other) is Placement.UNKNOWN


def test_a_declared_name_goes_before_the_setting_that_the_device_is(watch: Watch) -> None:
    streams()
    contract = '[engine]\nname = "toy"\n[launches]\ndevice_is_string = true\n'
    contract += 'host_values = ["*_host"]\n'
    known = Placements([parse_contract(contract, "toy.toml")])
    mine_host = torch.zeros(4, device=str(DEVICE))
    assert known.of(torch.zeros(4, device=str(DEVICE)), Sites()) is Placement.DEVICE
    assert known.of(mine_host, Sites()) is Placement.HOST


def test_what_was_taken_for_the_device_s_stays_so_when_a_setting_is_met(watch: Watch) -> None:
    streams()
    spelled, taken = torch.zeros(4, device="cpu"), torch.zeros(4, device="cpu")
    placements.take_for_device(taken)
    assert not placements.is_sure(spelled)
    torch.zeros(4, device=str(DEVICE))
    assert placements.is_sure(spelled)
    assert not placements.is_sure(taken)


def test_what_is_sent_to_the_host_by_name_is_the_tensor_itself() -> None:
    contract = '[engine]\nname = "toy"\n[launches]\ndevice_is_string = true\n'
    watch = Watch([parse_contract(contract, "toy.toml")], streams="tracked")
    watch.start()
    try:
        streams()
        host = torch.zeros(4)
        here = host.to("cpu", non_blocking=True)
        there = host.to(str(DEVICE), non_blocking=True)
        assert here is host
        assert there is not host
    finally:
        watch.stop()


def test_a_graph_input_is_the_device_s_whatever_it_is_called() -> None:
    batch = Batch()
    assert placement_by_name(batch.rows_host) is Placement.UNKNOWN


def test_what_a_name_said_is_forgotten_with_the_test() -> None:
    mine_host = torch.arange(3)
    assert placement_by_name(mine_host) is Placement.HOST
    placements.forget_names()
    assert placements.placement_of(mine_host) is Placement.UNKNOWN


def test_a_new_tensor_in_the_place_of_an_old_one_has_no_home_yet(watch: Watch) -> None:
    streams()
    for _ in range(50):
        made = torch.zeros(4, device=DEVICE)
        assert placements.placement_of(made) is Placement.DEVICE
        del made
        assert placements.placement_of(torch.zeros(4)) is Placement.HOST


def test_an_error_of_ours_never_reaches_a_factory_s_caller(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("ours")

    streams()
    monkeypatch.setattr(factories, "call_of", fails)
    monkeypatch.setattr(factories, "note_made", fails)
    assert torch.zeros(2).tolist() == [0, 0]
    assert any("ours" in one.error for one in watch.tally.broken.values())
    watch.tally.broken.clear()


# --- names that frames have for memory ---


class Box:
    """Holds things by name."""

    def __init__(self, **things: Any) -> None:
        vars(self).update(things)


class Slotted:
    __slots__ = ("lens_host", "other")

    def __init__(self, lens: torch.Tensor) -> None:
        self.lens_host = lens


def names(tensor: torch.Tensor) -> list[str]:
    return [*names_of(tensor, sys._getframe(1), re.compile(r".*_host$"))]


def test_memory_is_named_by_attributes_items_and_slots_of_what_a_local_holds() -> None:
    lens = torch.tensor([1, 2])
    one = Box(a_host=lens[:1], other=lens)
    assert names(lens) == ["a_host"]
    one = Box(inner=Slotted(lens))
    assert names(lens) == ["lens_host"]
    one = {0: {"b_host": lens, 1: lens}}  # type: ignore[assignment]
    assert names(lens) == ["b_host"]
    one = Box(inner=Box(inner=Box(c_host=lens)))  # deeper than is looked
    assert names(lens) == []
    assert one


def test_a_namespace_that_had_no_such_name_is_asked_again() -> None:
    one = Box(other=1)
    lens = torch.tensor([1, 2])
    assert names(lens) == []
    vars(one)["lens_host"] = lens
    assert names(lens) == ["lens_host"]


def test_what_lies_too_deep_for_one_frame_is_found_by_another() -> None:
    lens = torch.tensor([1, 2])
    near = Box(lens_host=lens)

    def inner(far: Box) -> list[str]:
        return names(far.a.b.lens_host)  # type: ignore[attr-defined]

    assert inner(Box(a=Box(b=near))) == ["lens_host"]


def test_frames_of_our_own_name_nothing() -> None:
    def asked(lens_host: torch.Tensor) -> list[str]:
        return [*names_of(lens_host, sys._getframe(), re.compile(r".*_host$"))]

    ours = types.FunctionType(asked.__code__, {**globals(), "__name__": "fmcheck.runtime.any"})
    assert asked(torch.tensor([1])) == ["lens_host"]
    assert ours(torch.tensor([1])) == []


# --- what a program puts in the place of torch's own methods ---


def test_a_move_of_the_program_s_own_is_called_once_with_what_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[dict[str, Any]] = []

    def moving(tensor: Any, *args: Any, _to: Any = torch.Tensor.to, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return _to(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", moving)
    watch = Watch([], streams="tracked")
    watch.start()
    try:
        side, _ = streams()
        mine = torch.ones(4, pin_memory=False)
        with torch.cpu.stream(side):
            sent = mine.to(DEVICE, non_blocking=True)
            again = sent.to(DEVICE, torch.float64)
    finally:
        watch.stop()
    assert calls == [{"non_blocking": True}, {}]
    assert sent.data_ptr() != mine.data_ptr(), "as on a device, it is a copy"
    assert again.dtype is torch.float64


def step(mine: torch.Tensor, side: Any) -> torch.Tensor:
    with torch.cpu.stream(side):
        return mine.to(DEVICE, non_blocking=True)


def test_an_asynchronous_move_copies_in_a_step_whose_launches_are_counted() -> None:
    launches = f'[launches]\nper_step = ["{__name__}:step"]\nhost_values = ["mine"]\n'
    contract = parse_contract(f'[engine]\nname = "toy"\n{launches}', "toy.toml")
    watch = Watch([contract], streams="tracked")
    watch.start()
    try:
        side, _ = streams()
        mine = torch.ones(4)
        assert sys.modules[__name__].step(mine, side).data_ptr() != mine.data_ptr()
    finally:
        watch.stop()


def test_what_is_pinned_is_the_host_s_however_the_program_pins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone())
    watch = Watch([], streams="tracked")
    watch.start()
    try:
        side, _ = streams()
        batch = torch.arange(4) * 2
        with torch.cpu.stream(side):
            pinned = batch.pin_memory()
            doubled = pinned * 2
        assert [placements.placement_of(one) for one in (batch, pinned)] == [
            Placement.HOST,
            Placement.HOST,
        ]
        assert placements.is_sure(pinned)
        assert pinned.tolist() == [0, 2, 4, 6]
        assert doubled.tolist() == [0, 4, 8, 12]
        assert codes(watch) == []
    finally:
        watch.stop()


@pytest.mark.parametrize(
    ("setting", "is_spelled", "confidence"),
    [
        ("", False, ""),
        ("device_is_string = true", False, "incomplete"),
        ("device_is_string = true", True, ""),
    ],
)
def test_where_the_device_is_a_string_a_move_to_it_is_a_guess_unless_the_call_spells_it(
    setting: str, is_spelled: bool, confidence: str
) -> None:
    contract = f'[engine]\nname = "toy"\n[launches]\n{setting}\n'
    watch = Watch([parse_contract(contract, "toy.toml")], streams="tracked")
    watch.start()
    try:
        side, _ = streams()
        with torch.cpu.stream(side):
            tokens = torch.arange(4, device=DEVICE)
            if is_spelled:
                sent = tokens.to("cpu", non_blocking=True, copy=True)
            else:
                sent = tokens.to(str(DEVICE), non_blocking=True, copy=True)
            sent + sent
            sent.tolist()
        (early,) = [one for one in watch.drain() if one.access.verb == "tolist"]
        assert (early.code, early.confidence) == ("FR404", confidence)
    finally:
        watch.stop()


# --- what fmcheck makes itself ---

FACTORIES = {"arange", "as_tensor", "empty", "empty_strided", "full", "ones", "rand", "randint"}
FACTORIES |= {"randn", "scalar_tensor", "tensor", "zeros"}


def test_what_fmcheck_makes_at_run_time_is_where_it_says_whatever_the_default() -> None:
    made = []
    for path in sorted(Path(fmcheck.runtime.__path__[0]).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            named = [call.func, *call.args[:1]]  # or `partial(torch.zeros, ...)`
            if any(ast.unparse(one) in {f"torch.{word}" for word in FACTORIES} for one in named):
                made.append((f"{path.name}:{call.lineno}", [one.arg for one in call.keywords]))
    assert len(made) > 30
    assert [where for where, given in made if not {"device", None} & set(given)] == []


def test_a_relay_of_the_host_is_watched_where_another_device_is_the_default() -> None:
    tally = Tally()
    with default_device("meta"):
        plain = torch.zeros(4, 2, dtype=torch.int64, device="cpu")
        made: Any = relay_tensor(plain, "buf", "test", tally, (">=", 0))
        made._relay.lay_poison()
        rows = torch.tensor([1, 2], device="cpu")
        made[rows] = 5
        assert made[rows].tolist() == [[5, 5], [5, 5]]
        assert made[rows].tolist() == [[5, 5], [5, 5]]
    assert [one.code for one in tally.drain()] == ["FR102"]


HOMES = {
    "torch's": (Path(torch.__file__).with_name("functional.py"), False),
    "NumPy's": (Path(np.__file__).with_name("matlib.py"), False),
    "a name like torch's": (Path(torch.__file__).parent.with_name("torchtoy") / "a.py", True),
    "a name like fmcheck's": (
        Path(fmcheck.runtime.__file__).parent.with_name("runtime_toy.py"),
        True,
    ),
}


@pytest.mark.parametrize("whose", HOMES)
def test_the_line_of_an_access_is_in_no_library_that_makes_it(whose: str) -> None:
    file, is_the_engines = HOMES[whose]
    made: dict[str, Any] = {}
    exec(compile("def look(sites):\n    return sites.here()", str(file), "exec"), made)
    sites = Sites()
    assert sites[made["look"](sites)].path == (str(file) if is_the_engines else __file__)
