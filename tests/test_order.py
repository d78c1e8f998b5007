"""The order of tests changes no verdict: what runs first decides nothing of what runs next."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from fmcheck.runtime.session.watch import Watch
from tests.test_placements import DEVICE, FAULTS, streams

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from fmcheck.finding import Violation

ORDERS = 20


def seen_from_the_first_stream_on(fenced: bool) -> None:
    """A write before any stream was entered, which a thread that is followed already would show."""
    made = torch.ones(4, device=DEVICE) * 2
    one, _ = streams()
    with torch.cpu.stream(one):
        made.add_(1)


def staged_before_the_streams(fenced: bool) -> None:
    """A host buffer made before any stream was entered: its home is known in no order."""
    staged = torch.zeros(4)
    one, _ = streams()
    with torch.cpu.stream(one):
        target = torch.zeros(4, device=DEVICE)
        target.copy_(staged, non_blocking=True)
    if fenced:
        one.synchronize()
    staged.fill_(1)


def lent(fenced: bool) -> None:
    """An engine that lends memory: another, that does not, is still told so."""
    one, two = streams()
    with torch.cpu.stream(one):
        made = torch.ones(4, device=DEVICE)
    two.wait_stream(one)
    with torch.cpu.stream(two):
        _ = made + 1
    if fenced:
        made.record_stream(two)


DRIVES: dict[str, Callable[[bool], None]] = {
    **FAULTS,
    "before the first stream": seen_from_the_first_stream_on,
    "staged before": staged_before_the_streams,
    "lent": lent,
}
RUNS = [(name, fenced) for name in DRIVES for fenced in (False, True)]

Found = tuple[str, str, int, str, int]


def reported(one: Violation) -> Found:
    return one.code, one.buffer, one.access.site.line, one.confidence, one.count


def drive(watch: Watch, run: tuple[str, bool]) -> list[Found]:
    name, fenced = run
    watch.begin_test()
    DRIVES[name](fenced)
    return sorted(map(reported, watch.drain()))


def watched() -> Watch:
    watch = Watch([], streams="tracked")
    watch.start()
    return watch


def test_each_drive_is_reported_alike_alone_and_in_twenty_orders() -> None:
    alone = {}
    for run in RUNS:
        watch = watched()
        alone[run] = drive(watch, run)
        watch.stop()
    assert {name for name, fenced in RUNS if not fenced and alone[name, False]} >= set(FAULTS)
    dice = random.Random(15)
    watch = watched()
    try:
        for _ in range(ORDERS):
            runs = dice.sample(RUNS, len(RUNS))
            found = {run: drive(watch, run) for run in runs}
            assert found == alone
    finally:
        watch.stop()


TESTS = """
import torch

DEVICE = torch.device("cpu")


def test_early():
    made = torch.ones(4, device=DEVICE) * 2
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(one):
        made.add_(1)


def test_staged():
    staged = torch.zeros(4)
    one = torch.cpu.Stream()
    with torch.cpu.stream(one):
        sent = staged.to(DEVICE, non_blocking=True, copy=True)
    staged.fill_(1)


def test_race():
    one, two = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(one):
        made = torch.ones(4, device=DEVICE) + 1
    with torch.cpu.stream(two):
        _ = made + 1
    two.synchronize()
"""


def test_a_session_of_pytest_tells_each_test_alike_in_both_orders(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_streams=TESTS)
    names = ["test_early", "test_staged", "test_race"]
    found = []
    for order in (names, names[::-1]):
        result = pytester.runpytest_subprocess(
            "-p", "fmcheck", "-rA", *(f"test_streams.py::{name}" for name in order)
        )
        lines = [line for line in result.outlines if line.startswith("fmcheck violation:")]
        keys = ("rule=", "buf=", "site=", "test=")
        found.append(
            sorted(
                " ".join(word for word in line.split() if word.startswith(keys)) for line in lines
            )
        )
    assert found[0] == found[1]
    assert [one.split()[0] for one in found[0]] == ["rule=FR401", "rule=FR403"]
