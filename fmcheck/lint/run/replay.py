"""Replay: a run that was made before, replayed while nothing that it looked at has changed.

This comes before everything else that the command imports: most runs end here. What a run
depended on is `Inputs`; a file of other times but the same content has not changed.
"""

from __future__ import annotations

import binascii
import os
import sys
import time

from fmcheck.lint.run import stored

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from typing import Any

#: Options whose meaning is in the command line and the files that were noted, so that a run with
#: them may be replayed. With any other one it is made again.
_FLAGS = frozenset(
    ("--exit-zero", "--statistics", "--show-suppressed", "--quiet", "-q", "--force-exclude")
)
_VALUED = frozenset(
    ("--select", "--ignore", "--exclude", "--format", "--config", "--jobs", "-j", "--cache-dir")
)
_ENVIRONMENT = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM", "COLUMNS")
_SUFFIXES = (".py", ".pyi", ".gitignore")


class Inputs:
    """What a run read: files by path with state and digest, and folders with what they list.

    A file's digest is None where it could not be read, a missing file is None. `repeatable` is
    taken back by a run whose outcome hangs on more than that.
    """

    def __init__(self) -> None:
        self.started = time.time_ns()
        self.files: dict[str, tuple[stored.State, bytes | None] | None] = {}
        self.folders: dict[str, tuple[stored.State, int] | None] = {}
        self.repeatable = True

    def note(self, path: str, state: stored.State | None, digest: bytes | None) -> None:
        """Notes a file that was read in this state."""
        state = stored.trusted(state, self.started)
        self.files[path] = None if state is None else (state, digest)

    def note_file(self, path: str) -> None:
        """Notes a file that the run looks at, or would if it were there."""
        state = stored.state_of(path)
        self.note(path, state, digest_of(path) if state else None)

    def note_folder(self, path: str) -> None:
        """Notes a folder that was walked, with all below it, but for those of tools."""
        left = [path]  # no recursion: folders may nest deeper than calls
        while left:
            path = left.pop()
            state = stored.state_of(path)
            if state is None:
                self.folders[path] = None
                continue
            names, folders = _listing(path)
            self.folders[path] = stored.trusted(state, self.started) or (), _sum(names)
            left += [os.path.join(path, name) for name in folders]
            if ".gitignore" in names:
                self.note_file(os.path.join(path, ".gitignore"))


def digest_of(path: str) -> bytes | None:
    """Returns the digest of a regular file's content, None if it cannot be read."""
    from hashlib import sha256

    content = stored.content_of(path)
    return None if content is None else sha256(content).digest()


def replay(argv: list[str]) -> int | None:
    """Says again what this command line's last run said; None if it is to be made again."""
    key = _key(argv)
    folder = stored.cache_folder(argv, os.environ) if key else None
    if key is None or folder is None or stored.refusal(folder):
        return None
    path = _path(folder, key)
    found = stored.load(path)
    if not _is_record(found) or found[:2] != (key, stored.tool_stamp()):
        return None
    _, _, files, folders, out, err, status = found
    now = time.time_ns()
    changed = _changed(files, now)
    moved = None if changed is None else _moved(folders, now)
    if changed is None or moved is None:
        return None
    sys.stdout.write(out)
    sys.stderr.write(err)
    if changed or moved:
        files.update(changed)
        folders.update(moved)
        stored.save(path, found)
    assert isinstance(status, int)
    return status


def _is_record(found: Any) -> bool:
    """Tells whether what was loaded is a record of a run that looked at something."""
    kinds = (str, str, dict, dict, str, str, int)
    return isinstance(found, tuple) and tuple(map(type, found)) == kinds and bool(found[2])


def keep(argv: list[str], inputs: Inputs, out: str, err: str, status: int) -> None:
    """Stores a run for `replay`."""
    key = _key(argv)
    folder = stored.cache_folder(argv, os.environ) if key else None
    if key is not None and folder is not None and inputs.repeatable:
        value = (key, stored.tool_stamp(), inputs.files, inputs.folders, out, err, status)
        stored.save(_path(folder, key), value)


def _path(folder: str, key: str) -> str:
    return os.path.join(folder, f"run-{binascii.crc32(key.encode('utf-8', 'replace')):08x}")


def _key(argv: list[str]) -> str | None:
    """Returns all that a run's output hangs on beside files; None if that is not known."""
    if argv[:1] != ["lint"]:
        return None
    expected = iter(argv[1:])
    for argument in expected:
        if argument.startswith("-"):
            name, has_value, _ = argument.partition("=")
            if name in _VALUED:
                if not has_value:
                    next(expected, None)
            elif argument not in _FLAGS and not (name[:2] == "-j" and name[2:].isdigit()):
                return None
    try:
        terminal = [bool(one and one.isatty()) for one in (sys.stdout, sys.stderr)]
        encoding = sys.stdout.encoding
        around = [os.environ.get(name) for name in _ENVIRONMENT]
        return repr((argv, os.getcwd(), terminal, encoding, around, os.geteuid()))
    except (OSError, AttributeError, ValueError):
        return None


def _changed(files: dict[str, Any], now: int) -> dict[str, Any] | None:
    """Returns the noted files whose state changed and whose content did not; None if one's did."""
    states: dict[str, Any] = {}
    stat = os.stat
    for path, noted in files.items():
        try:
            at = stat(path)
        except (OSError, ValueError):
            if noted is not None:
                return None
            continue
        if noted is None:
            return None
        state = (at.st_mtime_ns, at.st_ctime_ns, at.st_size, at.st_ino)
        if noted[0] != state:
            if noted[1] is None or (noted[0] and noted[0][2] != at.st_size):
                return None
            states[path] = state
    for path, state in states.items():
        digest = files[path][1]
        if digest_of(path) != digest:
            return None
        states[path] = stored.trusted(state, now), digest
    return states


def _moved(folders: dict[str, Any], now: int) -> dict[str, Any] | None:
    """Returns the noted folders that changed but list the same files; None if one does not."""
    found: dict[str, Any] = {}
    for path, noted in folders.items():
        state = stored.state_of(path)
        if state is None or noted is None:
            if state is not noted:
                return None
        elif noted[0] != state:
            if _sum(_listing(path)[0]) != noted[1]:
                return None
            found[path] = stored.trusted(state, now), noted[1]
    return found


def _sum(names: list[str]) -> int:
    return binascii.crc32("\0".join(names).encode("utf-8", "replace"))


def _listing(path: str) -> tuple[list[str], list[str]]:
    """Returns what of a folder may matter to a run, and which of that are folders."""
    names: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(_SUFFIXES):
                    names.append(name)
                if entry.is_dir(follow_symlinks=False) and name not in _UNSEEN:
                    folders.append(name)
                    names.append(f"{name}/")
    except OSError:
        return ["(cannot be read)"], []
    names.sort()
    return names, folders


_UNSEEN = frozenset(("__pycache__", stored.FOLDER, ".git"))
