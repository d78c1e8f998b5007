"""The context of a run: its settings, in one environment variable.

Only the standard library is imported: this is read at the start of every Python process of a run.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

VARIABLE = "FMCHECK_RUN"
#: Raised when a reader of the old form would go wrong.
_VERSION = 1


class RunContext(NamedTuple):
    """What a child needs to know.

    `folder` is the run's journal and `board` the name of the journal of the pytest process that
    the child works for, whose process id is `pid`. `streams` and `seed` are those of
    `StreamOptions`, `modules` those that a watch waits for, and `settings` is a `Located` of
    `fmcheck.config` as JSON. `uninitialized` tells whether unfilled memory is followed.
    """

    folder: str
    board: str
    pid: int
    mode: str
    streams: str
    seed: int
    modules: list[str]
    settings: str
    uninitialized: bool = False

    def pack(self) -> str:
        """Returns the value of the variable."""
        return json.dumps([_VERSION, *self])

    @classmethod
    def unpack(cls, text: str) -> RunContext:
        """Reads what `pack` made.

        Raises:
            ValueError: if it was made by another version of fmcheck, or by none.
        """
        version, *rest = json.loads(text)
        if version != _VERSION:
            raise ValueError(f"expected version {_VERSION} of {VARIABLE}, got {version}")
        return cls(*rest)


def here() -> RunContext | None:
    """Returns the context in this process's environment, None if there is none to be read."""
    text = os.environ.get(VARIABLE)
    try:
        return RunContext.unpack(text) if text else None
    except (ValueError, TypeError):
        return None
