"""The watch on a CUDA device: same verdicts, and what is not checked is counted.

These need a GPU; without one each is skipped and says so. CI has none.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fmcheck.runtime.relay_tensor import RelayTensor, relay_tensor
from fmcheck.runtime.tally import Tally

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DTYPES = [torch.int64, torch.int32, torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.fixture
def tally() -> Tally:
    return Tally()


def watched(tally: Tally, dtype: torch.dtype = torch.int64, width: int = 0) -> RelayTensor:
    shape = (16, width) if width else (16,)
    bound = None if dtype.is_floating_point else (">=", 0)
    plain = torch.zeros(shape, dtype=dtype, device="cuda")
    made = relay_tensor(plain, "Map.buf", "engine:Map", tally, bound)
    made._relay.lay_poison()
    return made


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda")


def codes(tally: Tally) -> list[str]:
    return [violation.code for violation in tally.drain()]


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_healthy_rows_are_silent_and_keep_their_values(tally, dtype, width):
    buf = watched(tally, dtype, width)

    for step in range(1, 20):
        batch = rows(1 + step % 3, 5, 9)
        buf[batch] = torch.full((3, *buf.shape[1:]), step, dtype=dtype, device="cuda")
        assert (buf[batch] == step).all()

    assert codes(tally) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_faults_are_told_apart(tally, dtype):
    buf = watched(tally, dtype)
    buf[rows(1, 2)] = 1

    buf[rows(1, 2)]
    buf[rows(2, 3)]

    (double, unwritten) = sorted(tally.drain(), key=lambda violation: violation.code)[::-1]
    assert (double.code, double.rows) == ("FR102", (2,))
    assert (unwritten.code, unwritten.rows) == ("FR101", (3,))
    assert double.device == "cuda:0"


def test_sink_row_is_never_a_finding(tally):
    buf = watched(tally)

    buf[rows(0, 0)]
    buf[rows(0)]

    assert codes(tally) == []


def test_copy_to_pinned_memory_is_a_peek(tally):
    buf = watched(tally)
    buf[rows(1)] = 7
    mirror = torch.empty(16, dtype=torch.int64, pin_memory=True)

    mirror.copy_(buf, non_blocking=True)
    torch.cuda.synchronize()

    assert mirror[1] == 7
    assert (buf[rows(1)] == 7).all()
    assert codes(tally) == []


def test_another_stream_is_seen(tally):
    buf = watched(tally)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        buf[rows(1)] = 7
    torch.cuda.current_stream().wait_stream(side)

    buf[rows(1)]
    buf[rows(1)]

    assert codes(tally) == ["FR102"]


def test_a_replayed_double_read_is_found(tally):
    buf, batch, out = watched(tally), rows(1), torch.zeros(1, dtype=torch.int64, device="cuda")
    buf[batch] = 7
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(buf[batch])
    assert codes(tally) == []

    graph.replay()
    assert codes(tally) == []
    assert out.item() == 7
    graph.replay()

    assert codes(tally) == ["FR102"]


def test_an_access_waits_for_nothing(tally):
    buf, batch, values = watched(tally), rows(1, 2), rows(7, 8)
    buf[batch] = values
    buf[batch]
    torch.cuda.set_sync_debug_mode("error")
    try:
        buf[batch] = values
        got = buf[batch]
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert got.tolist() == [7, 8]
    assert codes(tally) == []


def test_findings_past_the_end_of_the_ring_are_counted(tally):
    buf = watched(tally)
    buf._relay._ring.capacity = 3

    buf[rows(1, 2, 3, 4, 5)]

    ((code, count),) = [(one.code, one.row_count) for one in tally.drain()]
    assert (code, count) == ("FR101", 3)
    assert [note for note in tally.notes if "2 findings on cuda:0 did not fit" in note]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_function_stays_watched(tally, backend):
    torch._dynamo.config.nontraceable_tensor_subclasses.add(RelayTensor)

    def take(buf: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return buf[batch] * 2

    compiled = torch.compile(take, backend=backend)
    buf = watched(tally)
    buf[rows(1)] = 7

    assert compiled(buf, rows(1)).item() == 14
    compiled(buf, rows(1))

    assert codes(tally) == ["FR102"]


DEAD_ASSERT = """
import torch, sys
def check(values):
    torch._assert_async((values >= 0).all(){message})
torch.compile(check, backend={backend!r})(torch.full((4,), -1, device="cuda"))
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("backend", "message", "fires"),
    [
        ("eager", "", True),
        ("aot_eager", "", False),
        ("inductor", "", False),
        ("aot_eager", ", 'stale'", True),
        ("inductor", ", 'stale'", True),
    ],
)
def test_an_async_assert_without_a_message_is_dead_when_compiled(backend, message, fires):
    """The ground that FM601 stands on. A device assert ends the process: hence one for each."""
    source = DEAD_ASSERT.format(backend=backend, message=message)

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)

    assert (done.returncode != 0) is fires, done.stderr
    assert ("device-side assert" in done.stderr) is fires
