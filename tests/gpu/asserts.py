"""Part: whether an async assert without a message is dead once compiled: facts, without a goal."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.gpu.facts import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKENDS = ("eager", "aot_eager", "inductor")
#: A device assert ends the process, hence one for each.
SOURCE = """
import torch
def check(values):
    torch._assert_async((values >= 0).all(){message})
torch.compile(check, backend={backend!r})(torch.full((4,), -1, device={device!r}))
torch.get_device_module({device!r}).synchronize()
print("no error")
"""


def run(device: str, backends: tuple[str, ...] = BACKENDS) -> Iterator[Fact]:
    """Asserts what is false, with each backend, with a message and without."""
    cases = [(backend, message) for backend in backends for message in ("", ", 'stale'")]
    with ThreadPoolExecutor(3) as several:
        said = several.map(lambda case: _said(device, *case), cases)
        for (backend, message), word in zip(cases, said, strict=True):
            with_or_without = "with" if message else "without"
            yield Fact(f"assert {with_or_without} a message, {backend}", word)


def _said(device: str, backend: str, message: str) -> str:
    source = SOURCE.format(backend=backend, message=message, device=device)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return "deleted: no error" if "no error" in done.stdout else "no word"
    fired = "device-side assert" in done.stderr or "stale" in done.stderr
    fired = fired or "Expected Tensor with single nonzero value" in done.stderr
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return "raises" if fired else f"failed otherwise: {last[:200]}"
