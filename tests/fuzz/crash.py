"""A crash: what was fed to which target, what came of it, and the least of it that still does."""

from __future__ import annotations

import hashlib
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Check = Callable[[bytes], "str"]


@dataclass(frozen=True)
class Crash:
    """`what` is one line, the same for one fault wherever it shows; `content` reproduces it."""

    target: str
    what: str
    content: bytes

    @property
    def name(self) -> str:
        ending = {"rules": "py", "contracts": "toml"}[self.target]
        return f"{self.target}-{hashlib.sha256(self.what.encode()).hexdigest()[:10]}.{ending}"

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name
        path.write_bytes(self.content)
        path.with_suffix(".txt").write_text(f"{self.what}\n")
        return path


def where(err: BaseException) -> str:
    """Names an exception by its type and the innermost place that raised it."""
    last = traceback.extract_tb(err.__traceback__)[-1]
    return f"{type(err).__name__} in {last.filename.rpartition('/')[2]}:{last.name}: {err}"[:200]


def least(crash: Crash, check: Check, tries: int = 2000) -> Crash:
    """Returns the crash with as many lines left out as can be, and the same thing coming of it.

    Stretches of lines are left out, long ones first (Zeller's delta debugging).
    """
    same = crash.what.partition(":")[0]
    lines = crash.content.splitlines(keepends=True)
    size = max(1, len(lines) // 2)
    while tries > 0:
        at = 0
        while at < len(lines) and tries > 0:
            shorter = lines[:at] + lines[at + size :]
            tries -= 1
            if check(b"".join(shorter)).partition(":")[0] == same:
                lines = shorter
            else:
                at += size
        if size == 1:
            break
        size = max(1, size // 2)
    return Crash(crash.target, crash.what, b"".join(lines))
