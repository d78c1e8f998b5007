"""What the user asked a run of the linter for."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path


class Fixing(enum.Enum):
    """What becomes of fixes: nothing, they are written, or shown as a diff."""

    NONE = "none"
    WRITE = "write"
    DIFF = "diff"


class Updating(enum.Enum):
    """What becomes of the baseline: it stays, loses what is gone, or gains what was found too."""

    NONE = "none"
    SHRINK = "shrink"
    ADD = "add"


class Request(Struct, frozen=True):
    """What the user asked for.

    `select` and `baseline` replace what the settings say, `ignore` and `exclude` add to it.
    `stdin` is the text of the one file that `paths` names, which is then not read. `since` is a
    git revision: only what is on lines changed since then is reported. `jobs` is the number of
    processes, None for one that fits; `cache` the folder of the cache, None for none.
    """

    paths: tuple[Path, ...]
    config: Path | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    respect_gitignore: bool = True
    force_exclude: bool = False
    stdin: bytes | None = None
    fixing: Fixing = Fixing.NONE
    unsafe_fixes: bool = False
    baseline: Path | None = None
    updating: Updating = Updating.NONE
    since: str = ""
    progress: bool = True
    jobs: int | None = None
    cache: str | None = None
