"""Findings of files that have not changed, kept between runs with the same rules and contracts."""

from __future__ import annotations

import binascii
import os
import time
from typing import TYPE_CHECKING, Any

from fmcheck.lint.run import stored

if TYPE_CHECKING:
    from fmcheck.lint.source.file import Consulted


class Cache:
    """Findings by file, for one way of linting; `way` is everything that they hang on beside it.

    An entry is the file's state, its digest, its findings, and the files of its package that they
    hang on. Files that changed, or whose such files did, get a new one.
    """

    def __init__(self, folder: str | None, way: str) -> None:
        self._now = time.time_ns()
        self._path: str | None = None
        self._entries: dict[str, tuple[stored.State, bytes, Any, Consulted]] = {}
        self._is_new = False
        if folder:
            self._way = f"{stored.tool_stamp()} {way}"
            name = f"files-{binascii.crc32(way.encode('utf-8', 'replace')):08x}"
            self._path = os.path.join(folder, name)
            found = stored.load(self._path)
            is_pair = isinstance(found, tuple) and len(found) == 2
            if is_pair and found[0] == self._way and isinstance(found[1], dict):
                self._entries = found[1]

    def by_state(
        self, path: str, state: stored.State | None
    ) -> tuple[bytes, Any, Consulted] | None:
        """Returns what is known of a file in this state: digest, packed findings, what was read."""
        entry = self._entries.get(path)
        return entry[1:] if entry and entry[0] == state and _as_they_were(entry[3]) else None

    def by_digest(self, path: str, digest: bytes) -> tuple[Any, Consulted] | None:
        """Returns what is known of a file with this content: packed findings, what was read."""
        entry = self._entries.get(path)
        return entry[2:] if entry and entry[1] == digest and _as_they_were(entry[3]) else None

    def put(
        self, path: str, state: stored.State, digest: bytes, findings: Any, consulted: Consulted
    ) -> None:
        """Takes in what was found in a file, and what was read for it."""
        now = self._now
        others = {one: stored.trusted(at, now) for one, at in consulted.items()}
        self._entries[path] = (stored.trusted(state, now) or (), digest, findings, others)
        self._is_new = True

    def save(self) -> None:
        """Stores the entries if there are new ones; a folder that cannot be written is no error."""
        if self._path and self._is_new:
            stored.save(self._path, (self._way, self._entries))


def _as_they_were(consulted: Consulted) -> bool:
    return all(stored.state_of(path) == state for path, state in consulted.items())
