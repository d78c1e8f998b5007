"""Recording: one run of the command, made so that `fmcheck.lint.run.replay` can tell it again."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any, TextIO

from fmcheck.lint.run.replay import Inputs, keep

#: What the run that is under way depends on; None while nobody records.
INPUTS: ContextVar[Inputs | None] = ContextVar("INPUTS", default=None)
#: Longer output than this is not worth its place in the cache.
MOST_OUTPUT = 20_000_000


class Copied:
    """A text stream that keeps what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        """Writes and keeps a text."""
        self.parts.append(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def recorded(argv: list[str]) -> int:
    """Runs the command and stores what it said, if it is one that may be replayed."""

    from fmcheck.cli import main

    if "--no-cache" in argv:
        return main(argv)
    inputs = Inputs()
    token = INPUTS.set(inputs)
    real = sys.stdout, sys.stderr
    copies = Copied(real[0]), Copied(real[1])
    sys.stdout, sys.stderr = copies
    try:
        status = main(argv)
    finally:
        # The command may have closed its output for good.
        if sys.stdout is copies[0]:
            sys.stdout = real[0]
        sys.stderr = real[1]
        INPUTS.reset(token)
    out, err = ("".join(copy.parts) for copy in copies)
    if inputs.files and status in (0, 1, 2) and len(out) < MOST_OUTPUT:
        keep(argv, inputs, out, err, status)
    return status
