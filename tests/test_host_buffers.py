"""Relay buffers in the host's memory: a tensor and an array over it, and copies to and from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.test_relay_patches import Bench, bench, codes  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.runtime.session.watch import Watch

SOURCE = """
    import torch

    class Mirror:
        def __init__(self):
            self.lens = torch.zeros(8, dtype=torch.int64)
            self.array = self.lens.numpy()

        def take_one(self, row):
            return self.array[row] + 0
"""
CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "MODULE:Mirror"
    sink_rows = []
    takes = ["take_one"]

    [[relay.buffer]]
    name = "lens"
    reads = "READS"
"""


@pytest.fixture
def make(bench: Bench) -> Callable[..., tuple[Any, Watch]]:  # noqa: F811
    def made(
        reads: str = "once", more: str = "", source: str = SOURCE, streams: str = "off"
    ) -> tuple[Any, Watch]:
        engine, watch = bench.engine(CONTRACT.replace("READS", reads) + more, source, streams)
        return engine.Mirror(), watch

    return made


def test_what_numpy_returns_of_a_relay_tensor_is_followed(make: Callable[..., Any]) -> None:
    mirror, watch = make()
    mirror.array[np.array([1, 2])] = [5, 6]
    mirror.array[3] = 7
    assert mirror.lens[torch.tensor([1, 2, 3])].tolist() == [5, 6, 7]
    assert codes(watch) == []
    assert mirror.array[np.array([1])].tolist() == [5]
    (twice,) = watch.drain()
    assert (twice.code, twice.rows, twice.access.site.path) == ("FR102", (1,), __file__)
    assert (watch.coverage().notes, watch.coverage().counts.unseen_writes) == ((), 0)


def test_an_array_may_be_declared_beside_its_tensor(make: Callable[..., Any]) -> None:
    more = '\n    [[relay.buffer]]\n    name = "array"\n'
    mirror, watch = make(more=more)
    mirror.array[1] = 5
    assert mirror.lens[torch.tensor([1])].tolist() == [5]
    assert watch.coverage().counts.buffers == 1
    assert codes(watch) == []


@pytest.mark.parametrize("reads", ["once", "many"])
def test_a_number_is_read_of_its_row_alone(make: Callable[..., Any], reads: str) -> None:
    mirror, watch = make(reads)
    mirror.array[1] = 5
    assert [mirror.array[1], mirror.array[np.int64(1)], mirror.array[-7]] == [5, 5, 5]
    assert mirror.array[1, ...][()] == 5
    assert codes(watch) == []
    mirror.array[-1]
    # A value that stays may be read as often as one likes, but not before it is written.
    assert [(one.code, one.rows) for one in watch.drain()] == [("FR101", (7,))] * (reads == "many")


def test_a_function_that_takes_rows_gathers_the_one_that_it_reads(
    make: Callable[..., Any],
) -> None:
    mirror, watch = make()
    mirror.array[1] = 5
    assert mirror.take_one(1) == 5
    assert codes(watch) == []
    mirror.take_one(1)
    assert [(one.code, one.rows) for one in watch.drain()] == [("FR102", (1,))]


HOSTS = {
    "an array": SOURCE,
    "its name": SOURCE.replace("self.array = self.lens.numpy()", "pass"),
}


@pytest.mark.parametrize("by", HOSTS)
@pytest.mark.parametrize("fenced", [True, False])
def test_the_host_waits_for_copies_before_it_writes_again(
    make: Callable[..., Any], by: str, fenced: bool
) -> None:
    more = '\n    [launches]\n    host_values = ["len*"]\n' if by == "its name" else ""
    mirror, watch = make("many", more, HOSTS[by], streams="tracked")
    stream, device = torch.cpu.Stream(), torch.zeros(8, dtype=torch.int64)
    mirror.lens[:4] = torch.arange(4)
    assert (mirror.lens[:4] + 1).tolist() == [1, 2, 3, 4]
    with torch.cpu.stream(stream):
        device[:4].copy_(mirror.lens[:4], non_blocking=True)
        mirror.lens[5:].copy_(device[5:], non_blocking=True)
        done = stream.record_event()
    if fenced:
        done.synchronize()
    mirror.lens[:4].add_(1)
    assert mirror.lens[torch.tensor([6])].tolist() == [0]
    found = codes(watch)
    assert ("FR401" in found) if not fenced else found == []


def test_the_host_s_own_work_is_in_no_stream(make: Callable[..., Any]) -> None:
    mirror, watch = make("many", streams="tracked")
    for number in range(2):
        with torch.cpu.stream(torch.cpu.Stream()):
            mirror.lens[torch.tensor([1])] = torch.tensor([number])
            assert (mirror.lens[torch.tensor([1])] + 1).tolist() == [number + 1]
            torch.zeros(8, dtype=torch.int64).copy_(mirror.lens)
    assert codes(watch) == []


# --- memory that was there before a stream was, and may be on either side ---

DEVICE = "cpu"
FILLS: dict[str, tuple[Callable[[torch.Tensor], Any], list[str]]] = {
    "a number": (lambda one: one.__setitem__(0, 5), []),
    "numbers": (lambda one: one.__setitem__(slice(0, 2), 5), []),
    "a list": (lambda one: one[:2].copy_(torch.tensor([1, 2])), []),
    "nothing": (lambda one: one.zero_(), []),
    # What is computed is the device's, and the copy of it has to wait.
    "values": (lambda one: one.copy_(torch.arange(4, device=DEVICE) + 1), ["FR401"]),
    "values of the same": (lambda one: one.add_(one.clone() + 1), ["FR401"]),
}


@pytest.mark.parametrize("fill", FILLS)
def test_what_the_host_may_have_written_is_copied_after_that(
    make: Callable[..., Any], fill: str
) -> None:
    _, watch = make(streams="tracked")
    source, target = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    stream = torch.cpu.Stream()
    write, expected = FILLS[fill]
    for _ in range(2):
        write(source)
        with torch.cpu.stream(stream):
            target.copy_(source, non_blocking=True)
            done = stream.record_event()
        done.synchronize()
    assert codes(watch) == expected
    assert bool(expected) != ("`host_values` in the contract" in str(watch.coverage().untracked))
