"""Writes a file whole: a reader, or a crash, sees the old content or the new."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: What tells whether a file is as it was: times of content and of inode in ns, size, inode.
State = tuple[int, ...]


def replace_file(
    path: Path, content: bytes, *, expected: State | None = None, named: Iterable[str | Path] = ()
) -> None:
    """Writes beside `path` and renames. A link stays one; a file keeps mode, owner and attributes.

    What is no regular file, as `/dev/stdout`, is written to instead. `expected` is the state that
    the file must still be in, `named` are folders that a link may lead into as well as into its
    own tree: whoever commits a link does not choose what is written over.

    Raises:
        OSError: if that cannot be done, leads out of the tree, or would part the file from its
            other hard links; the file is then as it was.
    """
    at = _stat(path)
    if at is not None and not stat.S_ISREG(at.st_mode):
        with open(path, "wb") as file:
            file.write(content)
        return
    if why := leads_out(path, named):
        raise OSError(errno.EXDEV, why, str(path))
    target = os.path.realpath(path)
    if at is not None:
        _check(target, at)
    import tempfile  # slow, and who only asks where a link leads needs none

    folder, name = os.path.split(target)
    # A part of the name: all of it with more around it may be longer than a name can be.
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name[:32]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        if at is None:
            os.chmod(temporary, _usual_mode())
        else:
            _dress(temporary, target, at)
        now = _stat(target)
        if expected is not None and (now is None or state_of(now) != expected):
            raise OSError(errno.EAGAIN, "it changed in the meantime", target)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # interrupted once it had the other name
            os.unlink(temporary)
        raise


def leads_out(path: str | Path, named: Iterable[str | Path] = ()) -> str:
    """Returns why a file would be written out of the tree, "" if it would not.

    It, or a folder that it lies in below the current one, is a link that leads out.
    """
    here = os.getcwd()
    one, what = os.path.abspath(path), "it"
    while True:
        if target := leaves_tree(one, named):
            return f"{what} is a link out of the tree, to {target}"
        one = os.path.dirname(one)
        if os.path.commonpath([one, here]) != here or one == here:
            return ""
        what = f"`{os.path.relpath(one)}`"


def leaves_tree(path: str | Path, named: Iterable[str | Path] = ()) -> str:
    """Returns where a link leads that leads out of its tree, "" for any other path.

    Its tree is the repository or project around it, and the folders that the user `named`.
    """
    if not os.path.islink(path):
        return ""
    target = os.path.realpath(path)
    trees = [_tree_around(os.path.realpath(os.path.dirname(path))), *map(os.path.realpath, named)]
    # A folder that is named is a tree; a file that is named is a link to whatever its author liked.
    reached = os.path.join(target, "") if os.path.isdir(target) else target
    is_inside = any(reached.startswith(os.path.join(tree, "")) for tree in trees)
    return "" if is_inside else target


def _tree_around(folder: str) -> str:
    """Returns the repository, or else the project, that a folder lies in, or else the folder."""
    for name in (".git", "pyproject.toml"):
        above = folder
        while not os.path.lexists(os.path.join(above, name)):
            last, above = above, os.path.dirname(above)
            if last == above:
                break
        else:
            return above
    return folder


def refusal(path: str | Path, named: Iterable[str | Path] = ()) -> str:
    """Returns why `replace_file` would leave a file as it is, "" if nothing forbids it by now."""
    if why := leads_out(path, named):
        return why
    target = os.path.realpath(path)
    try:
        at = os.stat(target)
        if not stat.S_ISREG(at.st_mode):
            return ""
        _check(target, at)
    except OSError as err:
        return err.strerror or str(err)
    if not os.access(os.path.dirname(target), os.W_OK | os.X_OK):
        return os.strerror(errno.EACCES)
    user = os.geteuid() if hasattr(os, "geteuid") else at.st_uid
    return "" if user in (0, at.st_uid) else f"it belongs to user {at.st_uid}"


def state_of(at: os.stat_result) -> State:
    """Returns the state of a file from what the system says of it."""
    return at.st_mtime_ns, at.st_ctime_ns, at.st_size, at.st_ino


def _stat(path: str | Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _check(target: str, at: os.stat_result) -> None:
    """Raises OSError where another file in this one's place would not be the same to its owner."""
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
    if at.st_nlink > 1:
        why = f"it has {at.st_nlink} hard links, which a new file would not have"
        raise OSError(errno.EMLINK, why, target)


def _dress(temporary: str, target: str, at: os.stat_result) -> None:
    """Gives the new file the owner, the extended attributes (lists of access too), and the mode."""
    made = os.stat(temporary)
    if (made.st_uid, made.st_gid) != (at.st_uid, at.st_gid):
        try:
            os.chown(temporary, at.st_uid, at.st_gid)
        except OSError as err:
            why = f"it belongs to user {at.st_uid} and group {at.st_gid}, which a new file cannot"
            raise PermissionError(errno.EPERM, why, target) from err
    _copy_attributes(target, temporary)
    # After the owner, whose change takes bits away.
    os.chmod(temporary, stat.S_IMODE(at.st_mode))


def _copy_attributes(source: str, target: str) -> None:
    if not hasattr(os, "listxattr"):
        return
    try:
        names = os.listxattr(source)
    except OSError:
        return  # this file system has none
    for name in names:
        value = os.getxattr(source, name)
        try:
            os.setxattr(target, name, value)
        except OSError as err:
            if name not in os.listxattr(target) or os.getxattr(target, name) != value:
                why = f"its attribute `{name}` cannot be given to a new file"
                raise OSError(errno.EPERM, why, source) from err


def _usual_mode() -> int:
    """Returns the mode of a file that `open` would make; mkstemp's is for its owner alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
