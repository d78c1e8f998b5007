"""An error of fmcheck's own code is counted and reported, and never becomes the engine's."""

from __future__ import annotations

import signal
import sys
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.errors import ViolationError
from fmcheck.runtime.core.containment import contained, made_once, sentences
from fmcheck.runtime.core.tally import HaltingLock, Tally
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def tally() -> Tally:
    return Tally()


def test_an_error_goes_no_further(tally: Tally) -> None:
    with contained(tally, "FR401"):
        raise ValueError("of ours")
    assert tally.broken["FR401"].count == 1
    assert 'raise ValueError("of ours")' in tally.broken["FR401"].traceback


def test_the_first_error_is_kept_and_the_others_are_counted(tally: Tally) -> None:
    for text in ("first", "second", "third"):
        with contained(tally, "FR401"):
            raise ValueError(text)
    (sentence,) = sentences(tally)
    assert "FR401 is incomplete" in sentence
    assert "3 times, first with ValueError" in sentence
    assert "first;" in sentence
    assert "please report this line" in sentence


def test_an_error_is_reported_on_one_line_with_our_own_lines(tally: Tally) -> None:
    with contained(tally, "FR401"):
        tally.seen_again(["no key"])
    with contained(tally, "FR402"):
        raise ValueError("one\ntwo")
    first, second = sentences(tally)
    assert "TypeError at tally.py:" in first
    assert "ValueError: one;" in second


def test_an_error_that_cannot_be_told_is_counted(tally: Tally) -> None:
    class ShyError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("never")

    with contained(tally, "FR401"):
        raise ShyError
    (sentence,) = sentences(tally)
    assert "ShyError: no message" in sentence


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_error_passes(tally: Tally, kind: type[BaseException]) -> None:
    with pytest.raises(kind), contained(tally, "FR401"):
        raise kind
    assert not tally.broken


def test_a_violation_passes_in_mode_halt_alone(tally: Tally) -> None:
    with contained(tally, "FR401"):
        raise ViolationError("by mistake")
    assert tally.broken
    halting = Tally(lock=HaltingLock())
    with pytest.raises(ViolationError), contained(halting, "FR401"):
        raise ViolationError("on purpose")
    assert not halting.broken


def test_the_error_of_a_signal_s_handler_passes(tally: Tally) -> None:
    def too_late(*_: Any) -> None:
        raise TimeoutError("the test's own")

    before = signal.signal(signal.SIGUSR1, too_late)
    try:
        with pytest.raises(TimeoutError), contained(tally, "FR401"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not tally.broken


class Calls:
    """An engine's call, and how often it was made."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.count = error, 0

    def __call__(self) -> str:
        self.count += 1
        if self.error is not None:
            raise self.error
        return "its own"


def _fails_before(call: Callable[[], Any]) -> Any:
    raise ValueError("of ours")


def _fails_after(call: Callable[[], Any]) -> Any:
    call()
    raise ValueError("of ours")


def _swallows(call: Callable[[], Any]) -> Any:
    try:
        call()
    except RuntimeError as err:
        raise ValueError("of ours") from err


@pytest.mark.parametrize("ours", [_fails_before, _fails_after, lambda call: call()])
def test_a_call_is_made_once_whatever_ours_does(tally: Tally, ours: Any) -> None:
    call = Calls()
    assert made_once(tally, "FR401", ours, call) == "its own"
    assert call.count == 1


@pytest.mark.parametrize("ours", [_fails_before, _swallows, lambda call: call()])
def test_a_call_raises_its_own_error_whatever_ours_does(tally: Tally, ours: Any) -> None:
    call = Calls(RuntimeError("the engine's"))
    with pytest.raises(RuntimeError, match="the engine's") as caught:
        made_once(tally, "FR401", ours, call)
    assert caught.value is call.error
    assert call.count == 1


# --- the listeners of operators -------------------------------------------------------------------


class Broken:
    """A listener that fails, before a call, after it, or when it puts back what it changed."""

    check = "FR499"

    def __init__(self, where: str) -> None:
        self.where = where

    def before(self, call: Any) -> Callable[[], None] | None:
        if self.where == "before":
            raise ValueError("before")

        def put_back() -> None:
            if self.where == "put back":
                raise ValueError("put back")

        return put_back

    def after(self, call: Any) -> None:
        if self.where == "after":
            raise ValueError("after")


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch([], streams="tracked")
    made.start()
    yield made
    made.stop()


def program() -> list[Any]:
    """Runs operators, reads by the host, and an operator that fails."""
    with torch.cpu.stream(torch.cpu.Stream()):
        values = torch.arange(6).reshape(2, 3) + 1
        values[0, 0] = 7
        reported = [values.tolist(), values.sum().item(), bool(values.any()), values.numpy().sum()]
        try:
            _ = values @ values
        except RuntimeError as err:
            reported.append(str(err))
    return reported


@pytest.mark.parametrize("where", ["before", "after", "put back"])
@pytest.mark.parametrize("place", [0, -1])
def test_a_listener_that_fails_changes_nothing(watch: Watch, where: str, place: int) -> None:
    bare = program()
    assert watch.services.streams is not None
    watch.services.streams.ops.listeners.insert(place, Broken(where))
    assert program() == bare
    (sentence,) = watch.coverage().incomplete
    assert sentence.startswith("FR499 is incomplete")


def test_what_other_listeners_find_is_found_beside_a_broken_one(watch: Watch) -> None:
    assert watch.services.streams is not None
    watch.services.streams.ops.listeners.insert(0, Broken("before"))
    first, second = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(first):
        values = torch.ones(4) + 1
    with torch.cpu.stream(second):
        _ = values * 2
    assert [one.code for one in watch.drain()] == ["FR401"]


def test_an_interrupt_in_a_listener_puts_back_what_others_changed(watch: Watch) -> None:
    values = torch.zeros(2)

    class Changes(Broken):
        def before(self, call: Any) -> Callable[[], None] | None:
            values.fill_(9)

            def put_back() -> None:
                values.zero_()

            return put_back

    class Interrupted(Broken):
        def before(self, call: Any) -> Callable[[], None] | None:
            listeners.clear()
            raise KeyboardInterrupt

    assert watch.services.streams is not None
    listeners = watch.services.streams.ops.listeners
    listeners[:] = [Changes(""), Interrupted("")]
    with pytest.raises(KeyboardInterrupt), torch.cpu.stream(torch.cpu.Stream()):
        _ = torch.ones(2) + 1
    assert values.sum() == 0


# --- streams, events and steps --------------------------------------------------------------------


def fences() -> list[Any]:
    """Uses streams and events in each way that is followed."""
    stream, event = torch.cpu.Stream(), torch.cpu.Event()
    stream.wait_stream(torch.cpu.current_stream())
    event.record()
    event.record(stream)
    stream.wait_event(event)
    event.wait()
    event.synchronize()
    stream.record_event()  # type: ignore[no-untyped-call]
    torch.cpu.synchronize()
    torch.ones(2).record_stream(stream)  # type: ignore[arg-type]
    with torch.cpu.stream(stream):
        return [*program(), event.query(), torch.cpu.current_stream() is stream]


@pytest.mark.parametrize(
    "name", ["wait", "wait_lane", "record", "synchronize", "synchronize_all", "lend", "open"]
)
def test_fences_that_fail_change_nothing_and_leave_a_doubt(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("of ours")

    assert watch.services.streams is not None
    expected = fences()
    monkeypatch.setattr(watch.services.streams.fences, name, broken)
    assert fences() == expected
    (sentence, *_) = watch.coverage().incomplete
    assert "is incomplete" in sentence
    assert watch.services.streams.fences.doubts


def test_a_step_s_own_code_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from fmcheck.contract import Budget, Contract, Engine
    from fmcheck.runtime.steps import budgets, step_syncs

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("of ours")

    tally, expected = Tally(), program()
    ledger = budgets.BudgetCounter(tally, Contract(engine=Engine(name="toy")))
    window = budgets.BudgetedCall("step", Budget(functions=("toy:step",), syncs=0), declared=True)
    monkeypatch.setattr(ledger, "sync", broken)
    monkeypatch.setattr(step_syncs.StepMode, "_classify", broken)
    undo = step_syncs.watch_methods(budgets.mode_of_thread)
    ledger.open(window)
    try:
        assert program() == expected
    finally:
        ledger.close(window)
        undo()
    (sentence,) = sentences(tally)
    assert sentence.startswith("budgets of steps (FR501, FR502) is incomplete")


# --- the functions that a contract names ----------------------------------------------------------

CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "toy_contain:Relay"
    peeks = ["look"]
    consumes_at_return = ["late"]

    [[relay.buffer]]
    name = "tokens"
    valid = ">= 0"

    [[owners]]
    functions = ["toy_contain:hand_out"]
    rows = "return"
    does = "hands out"

    [[owners]]
    functions = ["toy_contain:take_back"]
    rows = "rows"
    does = "takes back"

    [[opaque]]
    functions = ["toy_contain:kernel"]
    rows = "rows"
    reads = ["tokens"]

    [[graph_inputs.replay]]
    function = "toy_contain:replayed"
    rows = "relay.rows"
    reads = ["relay.tokens"]
"""
ROWS = torch.tensor([1, 2])


class OutOfRowsError(Exception):
    """An engine's own."""


class Relay:
    def __init__(self, device: str = "cpu") -> None:
        self.tokens = torch.arange(8, device=device)
        self.rows = ROWS

    def look(self) -> list[int]:
        return self.tokens[ROWS].tolist()  # type: ignore[no-any-return]

    def late(self) -> list[int]:
        return self.tokens[ROWS].tolist()  # type: ignore[no-any-return]

    def late_fails(self) -> None:
        self.late()
        raise OutOfRowsError("late")


def hand_out(count: int) -> list[int]:
    if count > 7:
        raise OutOfRowsError(f"no {count} rows")
    return list(range(1, count + 1))


def take_back(rows: list[int]) -> int:
    if not rows:
        raise OutOfRowsError("nothing to take back")
    return len(rows)


def kernel(rows: Any, tokens: Any) -> list[int]:
    assert type(tokens) is torch.Tensor
    return torch.index_select(tokens, 0, rows).tolist()  # type: ignore[no-any-return]


def replayed(relay: Relay) -> str:
    if relay.rows is None:
        raise OutOfRowsError("no rows")
    return "replayed"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Watch]]:
    """An engine that a watch has instrumented."""
    from fmcheck.contract import parse_contract

    module: Any = ModuleType("toy_contain")
    for one in (hand_out, take_back, kernel, replayed):
        setattr(module, one.__name__, one)
    module.Relay = type("Relay", (Relay,), dict(vars(Relay)))
    monkeypatch.setitem(sys.modules, "toy_contain", module)
    made = Watch([parse_contract(CONTRACT, "toy.toml")])
    made.start()
    yield module, made
    made.stop()


def _of_ours(*_: Any, **__: Any) -> Any:
    raise ValueError("of ours")


def _error_of(call: Callable[[], Any]) -> tuple[type, str]:
    try:
        call()
    except Exception as err:
        return type(err), str(err)
    raise AssertionError("expected an error of the engine's own")


def _made_by(call: Callable[[], Any]) -> tuple[type, str]:
    """Returns the type of what a call makes, or its error."""
    try:
        return type(call()), ""
    except Exception as err:
        return type(err), str(err)


#: A build of torch for CPUs refuses an event; another makes one, and asks for a GPU as it is used.
UNWATCHED = _made_by(torch.cuda.Event)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        ("fmcheck.runtime.relay.relay_tensor.before_call", "relay buffers"),
        ("fmcheck.runtime.relay.relay_tensor.after_call", "relay buffers"),
        ("fmcheck.runtime.relay.opaque._given", "relay buffers"),
        ("fmcheck.runtime.core.paths.look_up", "relay buffers"),
        ("fmcheck.runtime.relay.buffer.RelayBuffer._retire_now", "relay buffers"),
        (
            "fmcheck.runtime.relay.owners.Owners.hand_out",
            "owners of rows (FR104, FR106 to FR109, FR111)",
        ),
        (
            "fmcheck.runtime.relay.owners.Owners.take_back",
            "owners of rows (FR104, FR106 to FR109, FR111)",
        ),
        ("fmcheck.runtime.relay.device_checks.DevicePatch._compare", "FR301"),
        ("fmcheck.runtime.relay.device_checks.compare", "FR301"),
    ],
)
def test_what_the_contract_s_functions_do_is_their_own(
    engine: tuple[Any, Watch], monkeypatch: pytest.MonkeyPatch, broken: str, check: str
) -> None:
    module, watch = engine
    monkeypatch.setattr(broken, _of_ours)
    relay = module.Relay()
    assert module.hand_out(3) == [1, 2, 3]
    assert module.take_back([1, 2]) == 2
    assert relay.look() == relay.late() == [1, 2]
    assert module.kernel(ROWS, relay.tokens) == [1, 2]
    assert module.replayed(relay) == "replayed"
    assert _made_by(torch.cuda.Event) == UNWATCHED
    assert module.Relay("meta").tokens[ROWS].shape == (2,)

    assert _error_of(lambda: module.hand_out(9)) == (OutOfRowsError, "no 9 rows")
    assert _error_of(lambda: module.take_back([])) == (OutOfRowsError, "nothing to take back")
    assert _error_of(relay.late_fails) == (OutOfRowsError, "late")
    assert _error_of(lambda: module.kernel(ROWS, bad=1)) == _error_of(lambda: kernel(ROWS, bad=1))  # type: ignore[call-arg]
    wrong = torch.tensor([99])
    plain = torch.arange(8)
    assert _error_of(lambda: module.kernel(wrong, relay.tokens)) == _error_of(
        lambda: kernel(wrong, plain)
    )
    relay.rows = None
    assert _error_of(lambda: module.replayed(relay)) == (OutOfRowsError, "no rows")

    reported = watch.coverage().incomplete
    assert [one for one in reported if one.startswith(f"{check} is incomplete")] == list(reported)
    assert reported


def test_an_engine_s_import_goes_on_where_it_cannot_be_instrumented(
    monkeypatch: pytest.MonkeyPatch, engine: tuple[Any, Watch]
) -> None:
    from fmcheck.contract import parse_contract

    module, _ = engine
    monkeypatch.setattr("fmcheck.runtime.session.relay_patches.RelayPatch._patch_class", _of_ours)
    other = Watch([parse_contract(CONTRACT, "toy.toml")])
    other.start()
    try:
        assert module.Relay().look() == [1, 2]
        (problem, *_) = other.coverage().problems
        assert "module `toy_contain`: could not be instrumented: ValueError('of ours')" in problem
    finally:
        other.stop()


def test_the_end_of_a_buffer_runs_no_dictionary_that_would_lose_a_signal_s_error(
    engine: tuple[Any, Watch],
) -> None:
    relay = engine[0].Relay()
    assert relay.look() is not None
    ran: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            ran.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    del relay
    sys.setprofile(None)
    assert not [name for name in ran if name.startswith("WeakValueDictionary")]


@pytest.mark.parametrize("name", ["hand_out", "take_back"])
def test_the_error_of_a_signal_s_handler_passes_where_a_contract_is_followed(
    engine: tuple[Any, Watch], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def too_late(*_: Any) -> None:
        raise TimeoutError("the test's own")

    module, _ = engine
    reported = {"hand_out": lambda: module.hand_out(2), "take_back": lambda: module.take_back([1])}
    monkeypatch.setattr(
        "fmcheck.runtime.core.paths.as_rows", lambda *_: signal.raise_signal(signal.SIGUSR1)
    )
    before = signal.signal(signal.SIGUSR1, too_late)
    try:
        with pytest.raises(TimeoutError):
            reported[name]()
    finally:
        signal.signal(signal.SIGUSR1, before)


# --- operators ------------------------------------------------------------------------------------


def test_an_operator_that_the_dispatcher_lacks_is_passed_on(watch: Watch) -> None:
    """An error there ends the process: torch asks for the sizes of a nested tensor in C++."""
    with torch.cpu.stream(torch.cpu.Stream()):
        values = torch.randn(5, 2).requires_grad_()
        made = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]))
        (made * made).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, values.detach() * 2)
    assert watch.coverage().incomplete == ()


def composite() -> list[float]:
    """What a mode sees whole in inference mode, though it consists of other operators."""
    with torch.inference_mode(), torch.cpu.stream(torch.cpu.Stream()):
        made: list[float] = torch.ones(2, 2).matmul(torch.ones(2)).tolist()
    return made


@pytest.mark.parametrize(
    "broken",
    ["fmcheck.runtime.steps.torch_modes.decomposes", "fmcheck.runtime.steps.operators._operator"],
)
def test_an_operator_that_cannot_be_read_is_made_as_it_is(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    bare = program(), composite()
    monkeypatch.setattr("fmcheck.runtime.steps.operators.known", {})
    monkeypatch.setattr(broken, _of_ours)
    assert (program(), composite()) == bare
    assert "following operators on streams" in watch.coverage().incomplete[0]


def test_a_function_mode_of_the_program_hears_what_it_heard_unwatched(watch: Watch) -> None:
    from torch.overrides import TorchFunctionMode

    class Hears(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            heard.append(func.__name__)
            return func(*args, **(kwargs or {}))

    heard: list[str] = []
    with torch.cpu.stream(torch.cpu.Stream()), Hears():
        values = torch.ones(2)
        values.tolist(), values.sum().item(), values.numpy(), values.cpu()
    assert heard == ["ones", "tolist", "sum", "item", "numpy", "cpu"]


def test_a_number_read_as_a_tensor_is_no_error_of_ours(watch: Watch) -> None:
    with torch.cpu.stream(torch.cpu.Stream()):
        made = torch.jit.trace(lambda x: x * 2 + x.shape[0], torch.ones(3))
        assert made(torch.ones(3)).tolist() == [5.0, 5.0, 5.0]
    assert watch.coverage().incomplete == ()
