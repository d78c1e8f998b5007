"""What has nothing to do with a relay, a fill or a stream runs as it does without fmcheck."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import unrelated

ROOT = Path(__file__).parent.parent


def test_there_are_a_hundred_programs_at_least() -> None:
    assert len(unrelated.PROGRAMS) >= 100


@pytest.mark.parametrize("mode", ["tracked", "delayed", "random"])
def test_unrelated_programs_do_as_they_do_unwatched(mode: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.unrelated", mode],
        cwd=ROOT,
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads(ran.stdout[ran.stdout.index("{") :]) == {}
