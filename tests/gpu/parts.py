"""The parts, in the order in which they are run: what matters most first, as a run may be cut.

What a part does not use of its time, the later ones may; each has its least whatever came before.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A module with `run(device)`, which yields facts; the most seconds that it may take.

    `least` of them are left for it by all parts before it.
    """

    name: str
    module: str
    seconds: float
    least: float = 0.0


PARTS = (
    Part("tests", "tests.gpu.cuda_tests", 150, 90),
    Part("doctor", "tests.gpu.doctor", 120, 70),
    Part("launches", "tests.gpu.launches", 60, 25),
    Part("captured", "tests.gpu.captured", 60, 25),
    Part("clocks", "tests.gpu.clocks", 60, 35),
    Part("memory", "tests.gpu.memory", 40, 20),
    Part("asserts", "tests.gpu.asserts", 90, 45),
    Part("healthy", "tests.gpu.healthy", 100, 50),
    Part("times", "tests.gpu.times", 90, 45),
    Part("faults", "tests.gpu.faults", 150, 60),
)
