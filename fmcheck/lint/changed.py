"""Which lines changed since a git revision: in commits, in the index and in the working tree."""

from __future__ import annotations

import ast
import os
import re
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fmcheck.finding import Finding

HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
OPTION = "--since"


class Changes:
    """The changed lines of files by absolute path; a file that git does not know is all changed."""

    def __init__(self) -> None:
        self._lines: dict[str, list[range]] = {}
        self._whole: set[str] = set()

    def add(self, revision: str, folder: Path) -> None:
        """Adds what changed, in the repository around `folder`, since it left `revision`.

        Raises:
            UsageError: if there is no repository, no git, or no such revision.
        """
        top = _git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n")
        if any(path.startswith(f"{top}{os.sep}") for path in (*self._lines, *self._whole)):
            return
        base = _merge_base(revision, folder)
        diff = _git(
            folder,
            *("-c", "core.quotePath=true", "diff", "--unified=0", "--find-renames"),
            *("--no-color", "--no-ext-diff", "--no-textconv", "--no-relative"),
            *("--ignore-submodules", "--src-prefix=a/", "--dst-prefix=b/", base, "--"),
        )
        for path, lines in _hunks(diff):
            self._lines.setdefault(os.path.join(top, path), []).append(lines)
        listed = _git(
            folder, "ls-files", "--others", "--exclude-standard", "--full-name", "-z", ":/"
        )
        self._whole.update(os.path.join(top, os.fsdecode(path)) for path in listed.split(b"\0"))

    def touch(self, path: Path) -> bool:
        """Tells whether a line of the file changed."""
        where = _real(path)
        return where in self._whole or where in self._lines

    def hold(self, finding: Finding, path: Path) -> bool:
        """Tells whether a finding in the file is on a changed line."""
        where = _real(path)
        span = finding.span
        return where in self._whole or any(
            lines.start <= span.end_line and span.line < lines.stop
            for lines in self._lines.get(where, ())
        )


def _real(path: Path) -> str:
    """Returns the path as git tells it: a link to a file is a file of its own."""
    return os.path.join(os.path.realpath(path.parent), path.name)


def _merge_base(revision: str, folder: Path) -> str:
    known = _run(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    )
    if known is None:
        names = _git(folder, "for-each-ref", "--format=%(refname:short)").decode().split()
        raise UsageError(
            OPTION,
            f"expected a git revision, got `{revision}`{nearest(revision, ['HEAD', *names])}",
        )
    commit = known.decode().strip()
    base = _run(folder, "merge-base", commit, "HEAD")
    if base is None:
        raise UsageError(
            OPTION,
            f"`{revision}` and HEAD have no common ancestor here; a shallow clone lacks it, "
            "fetch more of the history",
        )
    return base.decode().strip()


def _git(folder: Path, *arguments: str) -> bytes:
    given = _run(folder, *arguments)
    if given is None:
        raise UsageError(OPTION, f"{folder} is not in a git repository that can be read")
    return given


def _run(folder: Path, *arguments: str) -> bytes | None:
    import subprocess  # not above: most runs ask git nothing

    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, check=False
        )
    except OSError as err:
        raise UsageError(OPTION, f"git cannot be run: {err.strerror or err}") from err
    return None if done.returncode else done.stdout


def _hunks(diff: bytes) -> Iterator[tuple[str, range]]:
    """Yields the path and the new lines of each hunk of a diff without context."""
    path, rest = "", 0
    for line in diff.split(b"\n"):
        if rest:
            # A changed line, which may look like a header.
            rest -= not line.startswith(b"\\")
        elif line.startswith(b"+++ "):
            path = _path(line[4:])
        elif match := HUNK.match(line):
            removed, first, added = (int(one) if one is not None else 1 for one in match.groups())
            rest = removed + added
            if added:
                yield path, range(first, first + added)


def _path(header: bytes) -> str:
    """Returns the path of a `+++` line, which git quotes as C does if it is odd."""
    text = header.rstrip(b"\t")
    if text.startswith(b'"'):
        text = ast.literal_eval("b" + text.decode())
    return os.fsdecode(text[2:])
