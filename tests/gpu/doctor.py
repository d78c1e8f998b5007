"""Part: the doctor on this device, in each backend: every detector fires."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.facts import Fact, exactly, not_shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parent.parent.parent


def run(
    device: str, backends: Sequence[str] = ("eager", "aot_eager", "inductor")
) -> Iterator[Fact]:
    """Tries each detector in a backend at a time, so that a cut leaves the others' word."""
    for backend in backends:
        command = [sys.executable, "-m", "fmcheck", "doctor", "--json"]
        command += ["--device", device, "--backend", backend]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        try:
            cells = json.loads(done.stdout)
        except ValueError:
            yield not_shown(f"doctor, {backend}", f"exit status {done.returncode}, no list")
            continue
        tried = [cell for cell in cells if cell["state"] != "-"]
        for cell in tried:
            state = f"{cell['state']}: {cell['reason']}" if cell["reason"] else cell["state"]
            yield exactly(f"{cell['code']} {cell['name']}, {cell['place']}", state, "fires")
        yield exactly(f"exit status of the doctor, {backend}", done.returncode, 0)
