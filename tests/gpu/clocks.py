"""Part: random programs over streams, judged by the clocks on the device and by brute force."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from tests.device_clocks import OnDevice
from tests.gpu.facts import Fact, exactly, not_shown, seconds_left
from tests.happens_before import by_brute_force, by_clocks, random_program

if TYPE_CHECKING:
    from collections.abc import Iterator


PROGRAMS = 500
SECONDS = 35.0


def run(device: str, programs: int = PROGRAMS) -> Iterator[Fact]:
    """Judges as many programs as time allows, the same ones on each machine."""
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.order.fences import Fences
    from fmcheck.runtime.session import probes

    probes.load_device(device)
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
