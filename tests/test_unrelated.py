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


MODES = ("tracked", "delayed", "random")


@pytest.fixture(scope="module")
def differing() -> dict[str, dict[str, list[object]]]:
    """What each mode of streams changes; unwatched, the programs run once for all of them."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.unrelated", ",".join(MODES)],
        cwd=ROOT,
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout[ran.stdout.index('{\n "tracked"') :])


@pytest.mark.parametrize("mode", MODES)
def test_unrelated_programs_do_as_they_do_unwatched(
    mode: str, differing: dict[str, dict[str, list[object]]]
) -> None:
    assert differing[mode] == {}
