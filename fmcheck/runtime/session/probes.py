"""Probes: each detector is shown a fault planted in scratch buffers, and must see it.

A probe says nothing (returns "") if its detector reported the fault and was silent on the healthy
twin, and else says what went wrong. Detectors add theirs to `PROBES`.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmcheck.finding import CHECKS
from fmcheck.runtime.steps import budgets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fmcheck.runtime.core.tally import Tally

EAGER = "eager"
#: Run as it is, and compiled by each of these.
BACKENDS = (EAGER, "aot_eager", "inductor")
DEVICES = ("cpu", "cuda")
_ROWS = [1, 2]


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Where a detector is tried: a device, and how the code that gathers is run."""

    device: str
    backend: str = EAGER

    def __str__(self) -> str:
        return self.device if self.backend == EAGER else f"{self.device} {self.backend}"

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function as this place runs it."""
        if self.backend == EAGER:
            return function
        import torch

        made: Callable[..., Any] = torch.compile(function, backend=self.backend)
        return made


@dataclass(frozen=True, slots=True)
class Probe:
    """How a detector is put to the proof: `run` is handed a place and says what went wrong.

    `places` says where it applies. A `cheap` one takes well under a millisecond and is run before
    a session instruments its first buffer on a device, one `of_streams` only where the session
    follows them.
    """

    code: str
    run: Callable[[ProbeTarget], str]
    devices: tuple[str, ...] = DEVICES
    backends: tuple[str, ...] = BACKENDS
    cheap: bool = True
    of_streams: bool = False

    @property
    def name(self) -> str:
        """The check's name."""
        return CHECKS[self.code]

    def applies(self, place: ProbeTarget) -> bool:
        """Tells whether there is anything to prove in a place."""
        return place.device in self.devices and place.backend in self.backends


PROBES: list[Probe] = []


def tried(probe: Probe, place: ProbeTarget) -> str:
    """Returns what went wrong with a detector in a place, "" if it fired as it must."""
    load_device(place.device)
    try:
        # A buffer may be made in a step, whose budget hears of all that its thread does.
        with budgets.apart():
            return probe.run(place)
    except Exception as err:
        return f"{type(err).__name__}: {str(err).partition(chr(10))[0]}"


def load_device(kind: str) -> None:
    """Loads what keeps a ledger on a kind of device; without Triton each access waits for it."""
    if kind == "cuda":
        with contextlib.suppress(ImportError):
            importlib.import_module("fmcheck.runtime.device.guard")


def prove(tally: Tally, device: str, of_streams: bool) -> None:
    """Tries the cheap probes on a kind of device; what stays silent is kept in `dead`."""
    if device not in DEVICES:
        return
    place = ProbeTarget(device)
    for probe in PROBES:
        if not (probe.cheap and probe.applies(place)):
            continue
        if probe.of_streams and not of_streams:
            continue
        _prove(tally, probe, place)


def prove_one(tally: Tally, code: str) -> None:
    """Tries the probe of a check that is asked for by itself, on the CPU."""
    for probe in PROBES:
        if probe.code == code:
            _prove(tally, probe, ProbeTarget("cpu"))


def _prove(tally: Tally, probe: Probe, place: ProbeTarget) -> None:
    wrong = tried(probe, place)
    if wrong:
        tally.dead.append(
            f"the detector of {probe.code} {probe.name} does not work on {place}: {wrong} "
            "(try `fmcheck doctor`)"
        )


def verdict(found: Iterable[str], expected: str, healthy: Iterable[str]) -> str:
    """Returns what is wrong with the codes that were reported for a fault and for its twin."""
    found, healthy = sorted(set(found)), sorted(set(healthy))
    if healthy:
        return f"reported on a healthy run: {', '.join(healthy)}"
    if found != [expected]:
        return f"an injected {expected} was reported as {', '.join(found) or 'nothing'}"
    return ""


# --- the life of a row ---


def _scratch(place: ProbeTarget, sink_holds: int | None = None) -> tuple[Any, Any, Tally]:
    """Returns a watched buffer of its own session, rows to use it with, and that session.

    Each row has an owner.
    """
    import torch

    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.relay.owners import Owners
    from fmcheck.runtime.relay.relay_tensor import relay_tensor
    from fmcheck.runtime.relay.row_layout import Layout

    tally, owners = Tally(), Owners()
    plain = torch.zeros(4, dtype=torch.int64, device=place.device)
    layout = Layout(sink_holds=sink_holds)
    made = relay_tensor(plain, "scratch", "doctor", tally, (">=", 0), owners=owners, layout=layout)
    made._relay.lay_poison()
    owners.hand_out(_ROWS, ["first"] * len(_ROWS))
    return made, torch.tensor(_ROWS, device=place.device), tally


def _take(buf: Any, rows: Any) -> Any:
    return buf[rows]


def _stash(buf: Any, rows: Any, value: Any) -> None:
    buf[rows] = value


def _row_probe(code: str, plant: Callable[..., None]) -> Callable[[ProbeTarget], str]:
    def run(place: ProbeTarget) -> str:
        buf, rows, tally = _scratch(place)
        take, stash = place.compiled(_take), place.compiled(_stash)
        stash(buf, rows, 5)
        take(buf, rows)
        healthy = [one.code for one in tally.drain()]
        buf, rows, tally = _scratch(place)
        plant(buf, rows, take, stash)
        return verdict([one.code for one in tally.drain()], code, healthy)

    return run


def _read_before_write(buf: Any, rows: Any, take: Any, stash: Any) -> None:
    take(buf, rows)


def _double_read(buf: Any, rows: Any, take: Any, stash: Any) -> None:
    stash(buf, rows, 5)
    take(buf, rows)
    take(buf, rows)


def _lost_write(buf: Any, rows: Any, take: Any, stash: Any) -> None:
    stash(buf, rows, 5)
    stash(buf, rows, 6)


def _stale_owner(buf: Any, rows: Any, take: Any, stash: Any) -> None:
    stash(buf, rows, 5)
    buf._relay.owners.take_back(_ROWS)
    buf._relay.owners.hand_out(_ROWS, ["second"] * len(_ROWS))
    take(buf, rows)


def _invalid_write(buf: Any, rows: Any, take: Any, stash: Any) -> None:
    stash(buf, rows, rows * 0 - 1)


def _invalid_gather(buf: Any, rows: Any, take: Any, stash: Any) -> None:
    stash(buf, rows, 5)
    take(buf, rows)
    stash(buf, rows, -7)  # one number over what was gathered marks that there is nothing
    take(buf, rows)


def _invalid_value(place: ProbeTarget) -> str:
    plants = (_invalid_write, _invalid_gather)
    return next(filter(None, (_row_probe("FR105", one)(place) for one in plants)), "")


def _unowned_write(buf: Any, rows: Any, take: Any, stash: Any) -> None:
    stash(buf, rows + 1, rows * 0 + 5)


def _written_twice(buf: Any, rows: Any, take: Any, stash: Any) -> None:
    stash(buf, rows * 0 + 1, rows)


# --- who is given a row ---


def _wrong_owner(place: ProbeTarget) -> str:
    from fmcheck.runtime.relay.owners import Owners

    owners = Owners()
    owners.hand_out([1], ["b"])
    found, healthy = ([f"FR{one.check}" for one in owners.use([1], [name], 0)] for name in "ab")
    return verdict(found, "FR111", healthy) or _row_probe("FR111", _of_a_batch)(place)


def _of_a_batch(buf: Any, rows: Any, take: Any, stash: Any) -> None:
    from fmcheck.runtime.relay.scope import Serving

    for name in ("first", "second"):
        call = Serving("probe", (), [name].copy)
        call.enter()
        try:
            stash(buf, rows, rows * 0 + 5)
            take(buf, rows)
        finally:
            call.leave()


def _owners_probe(code: str, sink: bool, names: str, frees: int) -> Callable[[ProbeTarget], str]:
    """Hands row 1 to each of some names, and takes it back; the twin does it in turn."""

    def codes(rows: Iterable[int], names: str, frees: int) -> list[str]:
        from fmcheck.runtime.relay.owners import Owners

        owners, found = Owners(), []
        owners.sinks.add(0)
        owners.declared_sinks.add(0)
        for name in names:
            found += owners.hand_out([*rows], [name])
        for _ in range(frees):
            found += owners.take_back([*rows])
        return [f"FR{one.check}" for one in found]

    def run(_: ProbeTarget) -> str:
        return verdict(codes([0 if sink else 1], names, frees), code, codes([1], "a", 1))

    return run


# --- graph inputs and devices ---


def _stale_tail(place: ProbeTarget) -> str:
    from fmcheck.runtime.session import tail_probes

    found, healthy = (tail_probes.fill_codes(place.device, reset) for reset in (False, True))
    return verdict(found, "FR201", healthy)


def _of_the_head(code: str) -> Callable[[ProbeTarget], str]:
    def run(place: ProbeTarget) -> str:
        from fmcheck.runtime.session import tail_probes

        wrong = {"head": -1} if code == "FR202" else {"head": None}
        found, healthy = (tail_probes.fill_codes(place.device, **one) for one in (wrong, {}))
        return verdict(found, code, healthy)

    return run


def _sink_content(place: ProbeTarget) -> str:
    found: list[str] = []
    healthy: list[str] = []
    for reported, value in ((found, 7), (healthy, 0)):
        buf, rows, tally = _scratch(place, sink_holds=0)
        buf[rows] = 5
        buf[rows * 0] = value
        buf[rows * 0]
        reported += [one.code for one in tally.drain()]
    return verdict(found, "FR204", healthy)


def _capture_identity(place: ProbeTarget) -> str:
    from fmcheck.runtime.session import tail_probes

    found, healthy = (tail_probes.fill_codes(place.device, rebind=one) for one in (True, False))
    return verdict(found, "FR601", healthy)


def _overwritten_output(place: ProbeTarget) -> str:
    from fmcheck.runtime.session import operator_probes

    found, healthy = (operator_probes.output_codes(place.device, one) for one in (False, True))
    return verdict(found, "FR603", healthy)


def _wrong_device(place: ProbeTarget) -> str:
    import torch

    from fmcheck.runtime.session import tail_probes

    elsewhere = torch.zeros(1, dtype=torch.int64, device="meta")
    own = torch.tensor([1], device=place.device)
    found, healthy = (tail_probes.gather_codes(place.device, rows) for rows in (elsewhere, own))
    return verdict(found, "FR301", healthy)


# --- what a step costs ---


def _host_sync(place: ProbeTarget) -> str:
    from fmcheck.runtime.session import operator_probes

    found, healthy = (operator_probes.step_codes(place.device, waits, 2) for waits in (True, False))
    return verdict(found, "FR501", healthy)


def _launch_budget(place: ProbeTarget) -> str:
    from fmcheck.runtime.session import operator_probes

    found, healthy = (operator_probes.step_codes(place.device, False, count) for count in (3, 2))
    return verdict(found, "FR502", healthy)


# --- streams ---


def _stream_race(place: ProbeTarget) -> str:
    from fmcheck.runtime.session import stream_probes

    found, healthy = (stream_probes.race_codes(place.device, one) for one in (False, True))
    return verdict(found, "FR401", healthy)


def _of_memory(code: str) -> Callable[[ProbeTarget], str]:
    def run(place: ProbeTarget) -> str:
        from fmcheck.runtime.session import stream_probes

        found, healthy = (stream_probes.memory_codes(code, fenced) for fenced in (False, True))
        return verdict(found, code, healthy)

    return run


# --- compiled asserts ---


def _assert_alone(values: Any) -> Any:
    import torch

    torch._assert_async((values >= 0).all())
    return values + 1


def _assert_with_message(values: Any) -> Any:
    import torch

    torch._assert_async((values >= 0).all(), "a message keeps it")
    return values + 1


def _dead_assert(place: ProbeTarget) -> str:
    with _asserts_watched() as tally:
        codes = []
        for function in (_assert_with_message, _assert_alone):
            _compiled_again(function, place)
            codes.append([one.code for one in tally.drain()])
    return verdict(codes[1], "FR602", codes[0])


def _compiled_again(function: Callable[..., Any], place: ProbeTarget) -> None:
    """Compiles a function as if nobody had, and calls it."""
    import torch
    from torch._dynamo import eval_frame

    eval_frame.remove_from_cache(function)
    place.compiled(function)(torch.ones(2, device=place.device))


def _asserts_watched() -> Any:
    from contextlib import contextmanager
    from importlib import import_module

    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.graphs import dead_assert

    @contextmanager
    def watched() -> Iterator[Tally]:
        tally = Tally()
        undo = dead_assert.watch_asserts(import_module(dead_assert.HOOKED), tally)
        try:
            yield tally
        finally:
            undo()

    return watched()


def _uninitialized(place: ProbeTarget) -> str:
    from fmcheck.runtime.session.operator_probes import sum_codes

    return verdict(sum_codes(2), "FR701", sum_codes(3))


PROBES += [
    Probe("FR101", _row_probe("FR101", _read_before_write)),
    Probe("FR102", _row_probe("FR102", _double_read)),
    Probe("FR103", _row_probe("FR103", _lost_write)),
    Probe("FR104", _row_probe("FR104", _stale_owner)),
    Probe("FR105", _invalid_value),
    Probe("FR106", _owners_probe("FR106", True, "a", 1), ("cpu",), (EAGER,)),
    Probe("FR107", _owners_probe("FR107", False, "ab", 1), ("cpu",), (EAGER,)),
    Probe("FR108", _owners_probe("FR108", False, "a", 2), ("cpu",), (EAGER,)),
    Probe("FR109", _row_probe("FR109", _unowned_write)),
    Probe("FR110", _row_probe("FR110", _written_twice)),
    Probe("FR111", _wrong_owner, ("cpu",), (EAGER,)),
    Probe("FR201", _stale_tail, backends=(EAGER,)),
    Probe("FR202", _of_the_head("FR202"), backends=(EAGER,)),
    Probe("FR203", _of_the_head("FR203"), backends=(EAGER,)),
    Probe("FR204", _sink_content, backends=(EAGER,)),
    Probe("FR301", _wrong_device, backends=(EAGER,)),
    Probe("FR401", _stream_race, backends=(EAGER,), of_streams=True),
    *(
        Probe(code, _of_memory(code), devices=("cpu",), backends=(EAGER,), of_streams=True)
        for code in ("FR402", "FR403", "FR404", "FR405")
    ),
    Probe("FR501", _host_sync, backends=(EAGER,)),
    Probe("FR502", _launch_budget, backends=(EAGER,)),
    Probe("FR601", _capture_identity, backends=(EAGER,)),
    Probe("FR602", _dead_assert, backends=BACKENDS[1:], cheap=False),
    Probe("FR603", _overwritten_output, backends=(EAGER,)),
    # Cheap as it is, a session that does not follow such memory has no use for it.
    Probe("FR701", _uninitialized, devices=("cpu",), backends=(EAGER,), cheap=False),
]
