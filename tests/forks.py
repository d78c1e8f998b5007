"""Runs of `fmcheck` in forks of one process that has imported torch, which takes longest.

`python -m tests.forks` reads a JSON list of [code to be run first, arguments], and prints one of
[exit status, output, errors].
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent


class Done(NamedTuple):
    """A run that has ended."""

    returncode: int
    stdout: str
    stderr: str


def run_each(asked: Sequence[tuple[str, Sequence[str]]]) -> list[Done]:
    """Runs `fmcheck` with each list of arguments, each after some code of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.forks"],
        input=json.dumps(asked),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Done(*one) for one in json.loads(done.stdout)]


def _forked(code: str, arguments: Sequence[str]) -> Done:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            _run(code, arguments)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return Done(os.waitstatus_to_exitcode(status), out.read(), err.read())


def _run(code: str, arguments: Sequence[str]) -> None:
    """Runs `fmcheck` and ends this process."""
    status = 70
    try:
        exec(code, {"__name__": "before"})
        from fmcheck.cli import main

        status = main([*arguments])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    import torch._dynamo

    assert torch._dynamo
    json.dump([_forked(*one) for one in json.load(sys.stdin)], sys.stdout)
