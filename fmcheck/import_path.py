"""Where Python imports from, less the folder that is linted: no code of it is to run.

`python -m` looks in the working folder first, and so does Python with an empty or relative part in
PYTHONPATH: a tree could bring a module of a name that we import, or a plugin for us.
"""

from __future__ import annotations

import os
import sys


def leave_out_working_folder() -> None:
    """Takes what depends on the working folder out of `sys.path`; nothing else is imported yet."""
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    if sys.path and sys.path[0] in ("", here) and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    relative = _relative_parts()
    if os.path.basename(here) in ("site-packages", "dist-packages"):
        relative.discard(here)  # there since Python started, whatever else names it
    # A relative entry that leads nowhere is a hook's, as that of an editable install.
    sys.path[:] = [
        one
        for one in sys.path
        if one and one not in relative and (os.path.isabs(one) or not os.path.lexists(one))
    ]


def _relative_parts() -> set[str]:
    """Returns the folders that relative parts of PYTHONPATH have become."""
    named = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    parts = named.split(os.pathsep) if named else []
    return {os.path.abspath(one) for one in parts if not os.path.isabs(one)}
