"""What the start-up files call, at the start of each Python process of an environment."""

from __future__ import annotations

import os


def arrive() -> None:
    """Waits for the engine, if a run of fmcheck started this process."""
    if "FMCHECK_RUN" in os.environ:
        from fmcheck.processes import arrival

        arrival.arrive("start-up file")
