"""What the cache keeps on disk: signed blobs, written whole or not at all, and in which folder.

A blob is signed with a key that the user's own folder of caches holds: one that came with a tree,
or from another user, is as good as none. Files are removed in a folder with our marker only.

Imported before anything else of the linter: `os`, `sys` and `marshal` only.
"""

from __future__ import annotations

import binascii
import marshal
import os
import sys

from fmcheck.files.reading import MOST_RECORD, MOST_SOURCE, read_regular

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: How every blob of ours starts, whatever its layout.
_MAGIC = b"fmcheck cache "
#: The layout of what is stored; another one is as good as nothing stored.
LAYOUT = _MAGIC + b"3\n"
FOLDER = ".fmcheck_cache"
#: The file that makes a folder ours, by name and content; backups know its first line too.
MARKER = "CACHEDIR.TAG"
MARK = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# The cache of fmcheck, which removes old files of its own here.\n"
)
_IGNORE = b"# Made by fmcheck.\n*\n"
_OWN = {".gitignore": _IGNORE, MARKER: MARK}
#: The kinds of blobs: a run as it was reported, and the findings of files.
KINDS = ("run", "files")
#: The packages on whose sources the findings hang, and what is said of them.
STAMPED = (
    *("", "cli", "contract", "contracts", "files", "report", "rules"),
    *("lint", "lint/devices", "lint/graph_inputs", "lint/model", "lint/run", "lint/scope"),
    *("lint/source", "lint/streams"),
)
_KEY_SIZE = 32
_SIGNATURE_SIZE = 16
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
    """Returns the bytes of a regular file, None if it is none, too large, or cannot be read."""
    try:
        return read_regular(path, MOST_SOURCE)
    except OSError:
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
    return os.path.join(_users_caches(), "lint")


def _users_caches() -> str:
    """Returns the folder of ours among the user's caches."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # A relative one is invalid, and might lie in the linted tree.
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "fmcheck")


def refusal(folder: str) -> str:
    """Returns why a folder cannot be the cache's, "" if it can be: it is ours, empty or not there.

    Files of ours are removed in it, so it has to be known as ours beyond its name.
    """
    if os.path.islink(folder):
        return "is a symbolic link: name the folder itself"
    try:
        names = os.listdir(folder)
    except OSError:
        # Not there, or nothing can be stored there, which is no error.
        is_file = os.path.exists(folder) and not os.path.isdir(folder)
        return "is not a folder" if is_file else ""
    if not names or _is_marked(folder) or _holds_ours_alone(folder, names):
        return ""
    return "is not empty, and no cache of fmcheck"


def _is_marked(folder: str) -> bool:
    marker = os.path.join(folder, MARKER)
    return not os.path.islink(marker) and content_of(marker) == MARK


def _holds_ours_alone(folder: str, names: list[str]) -> bool:
    """Tells whether a folder holds what fmcheck stored and nothing else, if without a whole marker.

    Version 0.1 had no marker; a full disk, or a run beside this one, leaves it cut short.
    """
    return ".gitignore" in names and all(
        _kind(name) or (name in _OWN and _is_begun(os.path.join(folder, name), _OWN[name]))
        for name in names
    )


def _is_begun(path: str, whole: bytes) -> bool:
    """Tells whether a file holds this content as far as it goes."""
    content = None if os.path.islink(path) else content_of(path)
    return content is not None and whole.startswith(content)


def load(path: str) -> Any:
    """Returns what `save` stored, None if there is nothing whole, or none of ours."""
    start = len(LAYOUT) + _SIGNATURE_SIZE
    try:
        content = read_regular(path, MOST_RECORD)
        body = memoryview(content)[start:]
        # Before it is read: marshal is not made for what others wrote.
        if content[:start] != LAYOUT + _signature(path, body):
            return None
        return marshal.loads(body)
    except (OSError, ValueError, EOFError, TypeError):
        return None


def save(path: str, value: Any) -> None:
    """Stores a value of plain types in the place of what is there; a failure changes nothing."""
    folder, name = os.path.split(path)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        body = marshal.dumps(value)
        content = LAYOUT + _signature(path, body) + body
        _make(folder)
        _create(temporary, content)
    except (OSError, ValueError):
        return
    try:
        os.replace(temporary, path)
        _prune(folder, name.partition("-")[0])
    except OSError:
        _remove(temporary)


def _signature(path: str, body: bytes | memoryview) -> bytes:
    """Returns what only this user can have written before `body` in a file of this name."""
    try:
        from _blake2 import blake2b  # a tenth of hashlib's time
    except ImportError:
        from hashlib import blake2b
    signed = blake2b(key=_key(), digest_size=_SIGNATURE_SIZE)
    signed.update(os.fsencode(os.path.basename(path)) + b"\0")
    signed.update(body)
    return signed.digest()


def _key() -> bytes:
    """Returns the user's key, made when there is none.

    Raises:
        OSError: if it cannot be made or read, or others may know it.
    """
    folder = _users_caches()
    path = os.path.join(folder, "key")
    if not os.path.lexists(path):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        temporary = f"{path}.{os.getpid()}.tmp"
        _create(temporary, os.urandom(_KEY_SIZE))
        os.replace(temporary, path)
    at = os.lstat(path)
    is_secret = os.name != "posix" or (at.st_uid == os.geteuid() and not at.st_mode & 0o077)
    key = read_regular(path, _KEY_SIZE)
    if at.st_mode & 0o170000 != 0o100000 or not is_secret or len(key) != _KEY_SIZE:
        raise OSError("no key")
    return key


def _create(path: str, content: bytes) -> None:
    """Writes a file that is not there yet, for the user alone; no link is followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o600), "wb") as file:
        try:
            file.write(content)
            file.flush()
        except OSError:
            _remove(path)
            raise


def _remove(path: str) -> None:
    try:  # noqa: SIM105, contextlib is an import
        os.unlink(path)
    except OSError:
        pass


def _make(folder: str) -> None:
    """Makes the cache's folder, of which git is to know nothing; OSError if it cannot be ours."""
    os.makedirs(folder, exist_ok=True)
    if refusal(folder):
        raise OSError("not ours")
    for name, content in _OWN.items():
        path = os.path.join(folder, name)
        if _is_begun(path, content) and content_of(path) != content:
            _remove(path)
        if not os.path.lexists(path):
            _create(path, content)


def _prune(folder: str, kind: str) -> None:
    """Removes the oldest files of a kind, and what interrupted runs left behind."""
    kept = [entry for entry in os.scandir(folder) if _kind(entry.name) == kind]
    kept.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns, reverse=True)
    for entry in kept[MOST_KEPT:]:
        if entry.is_file(follow_symlinks=False) and _starts_as_ours(entry.path):
            os.unlink(entry.path)


def _kind(name: str) -> str:
    """Returns the kind of blob that a name of ours is of, "" for any other name.

    Names are `run-1a2b3c4d` and, for what is being written, `run-1a2b3c4d.4711.tmp`.
    """
    kind, _, rest = name.partition("-")
    digits, dot, more = rest.partition(".")
    is_hex = len(digits) == 8 and not digits.strip("0123456789abcdef")
    is_whole = not dot or (more.endswith(".tmp") and more[:-4].isdigit())
    return kind if kind in KINDS and is_hex and is_whole else ""


def _starts_as_ours(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) in (_MAGIC, b"")  # an interrupted run may leave it empty


def tool_stamp() -> str:
    """Returns what tells one fmcheck, with its rules and the packages beside it, from another.

    Sources by name, time and size; packages, which may register rules, by their names, versions
    and entry points: a fresh checkout gives even those new times.
    """
    seen: list[Any] = [sys.version_info[:3], sys.path]
    import fmcheck

    for package in fmcheck.__path__:
        for part in STAMPED:
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
