"""What the cache keeps on disk: checked blobs, written whole or not at all, and where they lie.

Imported before anything else of the linter: `os`, `sys` and `marshal` only.
"""

from __future__ import annotations

import binascii
import marshal
import os
import sys

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: The layout of what is stored; another one is as good as nothing stored.
LAYOUT = b"fmcheck cache 1\n"
FOLDER = ".fmcheck_cache"
#: More files than this of one kind and the oldest go.
MOST_KEPT = 24
#: File systems may give two writes within this time one time stamp, in ns.
RACE = 20_000_000

#: A file's state: times of content and of inode in ns, size, inode; () for one not to be trusted.
State = tuple[int, ...]


def state_of(path: str) -> State | None:
    """Returns the state of a file or folder, None if there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def content_of(path: str) -> bytes | None:
    """Returns the bytes of a regular file, None if it is none or cannot be read."""
    try:
        # O_NONBLOCK: opening a FIFO would wait for ever.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(handle, "rb") as file:
            return file.read() if os.fstat(handle).st_mode & 0o170000 == 0o100000 else None
    except (OSError, ValueError):
        return None


def entry_points(folder: str) -> Iterator[tuple[str, bytes | None]]:
    """Yields the metadata folders of the packages in a folder, each with its entry points' file."""
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return
    for name in sorted(names):
        if name.endswith((".dist-info", ".egg-info")):
            yield name, content_of(os.path.join(folder or ".", name, "entry_points.txt"))


def trusted(state: State | None, now: int) -> State | None:
    """Returns a state as it may be stored at `now`: () if a later write could leave it the same."""
    if state and max(state[0], state[1]) > now - RACE:
        return ()
    return state


def cache_folder(argv: list[str], environ: dict[str, str] | os._Environ[str]) -> str | None:
    """Returns the folder of the cache that a command line asks for; None for no cache."""
    if "--no-cache" in argv:
        return None
    for number, argument in enumerate(argv):
        if argument == "--cache-dir" and number + 1 < len(argv):
            return os.path.abspath(argv[number + 1])
        if argument.startswith("--cache-dir="):
            return os.path.abspath(argument.partition("=")[2])
    named = environ.get("FMCHECK_CACHE_DIR")
    if named:
        return os.path.abspath(named)
    folder = os.getcwd()
    while True:
        if any(os.path.exists(os.path.join(folder, name)) for name in ("pyproject.toml", ".git")):
            return os.path.join(folder, FOLDER)
        above = os.path.dirname(folder)
        if above == folder:
            break
        folder = above
    # No project: its cache would lie about in anybody's folder.
    home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "fmcheck", "lint")


def load(path: str) -> Any:
    """Returns what `save` stored, None if there is nothing whole."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        start = len(LAYOUT) + 4
        body = memoryview(content)[start:]
        checksum = binascii.crc32(body).to_bytes(4, "little")
        if content[:start] != LAYOUT + checksum:
            return None
        return marshal.loads(body)
    except (OSError, ValueError, EOFError, TypeError):
        return None


def save(path: str, value: Any) -> None:
    """Stores a value of plain types in the place of what is there; a failure changes nothing."""
    folder = os.path.dirname(path)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        body = marshal.dumps(value)
        _make(folder)
        with open(temporary, "wb") as file:
            file.write(LAYOUT + binascii.crc32(body).to_bytes(4, "little") + body)
        os.replace(temporary, path)
        _prune(folder, os.path.basename(path).partition("-")[0])
    except (OSError, ValueError):
        try:  # noqa: SIM105, contextlib is an import
            os.unlink(temporary)
        except OSError:
            pass


def _make(folder: str) -> None:
    """Makes the cache's folder, of which git is to know nothing."""
    os.makedirs(folder, exist_ok=True)
    ignore = os.path.join(folder, ".gitignore")
    if not os.path.exists(ignore):
        with open(ignore, "w") as file:
            file.write("# Made by fmcheck.\n*\n")


def _prune(folder: str, kind: str) -> None:
    """Takes out the oldest files of a kind, and what interrupted runs left behind."""
    kept = [entry for entry in os.scandir(folder) if entry.name.startswith(f"{kind}-")]
    kept.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    for entry in kept[MOST_KEPT:]:
        os.unlink(entry.path)


def tool_stamp() -> str:
    """Returns what tells one fmcheck, with its rules and the packages beside it, from another.

    Sources by name, time and size; packages, which may register rules, by their names, versions
    and entry points: a fresh checkout gives even those new times.
    """
    seen: list[Any] = [sys.version_info[:3], sys.path]
    import fmcheck

    for package in fmcheck.__path__:
        for part in ("", "contracts", "lint", "report", "rules"):
            seen += _sources(os.path.join(package, part))
    for folder in sys.path:
        seen += _distributions(folder)
    return f"{binascii.crc32(repr(seen).encode()):08x}{len(seen):x}"


def _sources(folder: str) -> list[tuple[str, int, int]]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".toml")):
                    at = entry.stat()
                    found.append((entry.path, at.st_mtime_ns, at.st_size))
    except OSError:
        pass
    return sorted(found)


def _distributions(folder: str) -> list[tuple[str, int]]:
    return [
        (name, -1 if text is None else binascii.crc32(text)) for name, text in entry_points(folder)
    ]
