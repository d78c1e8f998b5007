"""What the start-up files call, at the start of each Python process of an environment."""

from __future__ import annotations

import os
import sys


def arrive() -> None:
    """Waits for the engine, if a run of fmcheck started this process."""
    if "FMCHECK_RUN" in os.environ:
        try:
            from fmcheck.processes.child import child_start

            child_start.wait_for_engine("start-up file")
        except (Exception, SystemExit) as err:  # of a module in the way of the standard library's
            print("fmcheck: this process is not watched:", repr(err), file=sys.stderr)
