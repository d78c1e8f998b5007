"""Part: random programs over streams, judged by the clocks on the device and by brute force."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime.core.clocks import Conflict
from fmcheck.runtime.device import clash
from fmcheck.runtime.device.device_streams import DeviceStreams
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.session.streams import Streams
from tests.gpu.facts import Fact, exactly, not_shown, seconds_left
from tests.happens_before import ROWS, by_brute_force, by_clocks, random_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.runtime.order.fences import Fences

PROGRAMS = 500
SECONDS = 35.0


class OnDevice:
    """A guarded buffer's clocks, with the two verbs of `Shadow`. All is launched on one stream."""

    def __init__(self, fences: Fences, device: str) -> None:
        self.fences, self.device = fences, device
        streams = Streams(fences.tally)
        streams.fences = fences
        kind = torch.device(device).type
        if kind != "cpu":  # its buffers have lanes only where its streams are followed
            module = torch.get_device_module(kind)
            streams.devices[kind] = DeviceStreams(fences, module, kind)
        plain = torch.zeros(ROWS, dtype=torch.int64, device=device)
        self.buf = relay_tensor(plain, "b", "m:M", fences.tally, (">=", 0), (), streams=streams)
        streams.ops.stop()  # the program alone says what is done
        self.lanes: Any = self.buf._relay.lanes

    def read(self, rows: list[int], lane: int, moment: int) -> list[Conflict]:
        return self._touch("gather", rows, lane, moment)

    def write(self, rows: list[int], lane: int, moment: int) -> list[Conflict]:
        return self._touch("write", rows, lane, moment)

    def _touch(self, verb: str, rows: list[int], lane: int, moment: int) -> list[Conflict]:
        index = torch.tensor(rows, device=self.device)
        writes = verb == "write"
        self.lanes._enter(verb, index, moment, self.fences.lanes[lane], writes=writes)
        records, lost, _ = self.lanes._ring.drain()
        assert not lost
        slots = self.lanes._lanes
        return [
            Conflict(clash.KINDS[one.kind], slots[one.slot].number, [one.row], [one.earlier])
            for one in records
        ]


def run(device: str, programs: int = PROGRAMS) -> Iterator[Fact]:
    """Judges as many programs as time allows, the same ones on each machine."""
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.order.fences import Fences

    try:
        from fmcheck.runtime.device.guarded_lanes import GuardedLanes
    except ImportError as err:
        yield not_shown("clocks on the device", f"its kernels need Triton: {err}")
        return
    if type(OnDevice(Fences(Tally()), device).lanes) is not GuardedLanes:
        yield not_shown("clocks on the device", f"buffers on {device} are judged by the host")
        return
    judged = raced = done = 0
    differing = []
    until = time.monotonic() + seconds_left(SECONDS)
    for seed in range(programs):
        if time.monotonic() > until:
            break
        program = random_program(random.Random(seed))
        expected = by_brute_force(program)
        if by_clocks(program, lambda fences: OnDevice(fences, device)) != expected:
            differing.append(seed)
        done += 1
        judged += len(expected)
        raced += sum(bool(one) for one in expected)
    yield Fact("programs judged", done, "programs", "at least 25", done >= min(25, programs))
    yield Fact("accesses judged", judged)
    yield Fact("of them races", raced, "", "at least 1", raced > 0)
    yield exactly("seeds of programs judged otherwise than by brute force", str(differing), "[]")
