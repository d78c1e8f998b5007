"""Which lines changed since a git revision: in commits, in the index and in the working tree.

Git is asked for names and contents only, by commands that read neither attributes nor the working
tree: a repository's own settings name programs to run there, and a change may bring attributes that
declare it to be no text. What differs is found by comparing contents in a folder of our own.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator, Mapping

    from fmcheck.finding import Finding

OPTION = "--since"
HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
#: What the settings of a repository may not change: no program runs, no network is asked.
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.untrackedCache": "false",
    "core.pager": "cat",
    "core.quotePath": "true",
    "diff.external": "",
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
}
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
#: How the modes of links and of files start.
_LINK, _FILE = b"12", b"10"
_SUBMODULE = b"160000"


class Changes:
    """The changed lines of files by absolute path; a file that git does not know is all changed."""

    def __init__(self) -> None:
        self._lines: dict[str, list[range]] = {}
        self._whole: set[str] = set()
        self._tops: set[str] = set()

    def add(self, revision: str, folder: Path, files: Mapping[Path, bytes | None]) -> None:
        """Adds what changed of `files`, in the repository around `folder`, since `revision`.

        What is given for a file is its text, None for that on the disk.

        Raises:
            UsageError: if there is no repository, no git, or no such revision.
        """
        top = os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").removesuffix(b"\n"))
        if top in self._tops:
            return
        self._tops.add(top)
        prefix = os.path.join(top, "")
        if not os.path.join(os.path.realpath(folder), "").startswith(prefix):
            raise UsageError(OPTION, f"the repository around {folder} has its files in {top}")
        before = _Before(folder, _merge_base(revision, folder))
        changed: dict[str, tuple[str, bytes]] = {}
        within: dict[str, dict[Path, bytes | None]] = {}
        for path, text in files.items():
            where = _real(path)
            if not where.startswith(prefix):
                continue
            name, new = where[len(prefix) :], _content(path, text)
            if submodule := before.submodule(name):
                within.setdefault(submodule, {})[path] = text
                continue
            mode, old = before.entry(name)
            is_new = not old and before.may_be_new(name)
            is_other = bool(old) and not mode.startswith(_LINK if os.path.islink(path) else _FILE)
            if new is None or is_new or is_other:
                self._whole.add(where)
            elif old and _object_name(new, old) != old:
                changed[where] = old, new
        for where, lines in _compared(changed, before):
            self._lines.setdefault(where, []).append(lines)
        for submodule, inside in within.items():
            # The commit that its repository is compared with is the one that was checked out there.
            commit = before.entry(submodule)[1]
            self.add(commit, Path(top, submodule), inside)

    def touch(self, path: Path) -> bool:
        """Tells whether a line of the file changed."""
        where = _real(path)
        return where in self._whole or where in self._lines

    def hold(self, finding: Finding, path: Path) -> bool:
        """Tells whether a finding in the file is on a changed line."""
        where = _real(path)
        if where in self._whole:
            return True
        # They are in order, and apart: the last one that starts in time ends last as well.
        hunks, span = self._lines.get(where, []), finding.span
        at = bisect_right(hunks, span.end_line, key=lambda lines: lines.start)
        return at > 0 and span.line < hunks[at - 1].stop


class _Before:
    """The files of a commit, and where those of today come from."""

    def __init__(self, folder: Path, commit: str) -> None:
        self._folder = folder
        self._commit = commit
        self._entries = dict(self._listed())
        self._sources = dict(self._renamed())
        self._known: set[str] | None = None

    def _listed(self) -> Iterator[tuple[str, tuple[bytes, str]]]:
        """Yields each file with its mode and the name of its content."""
        tree = _git(self._folder, "ls-tree", "-r", "-z", "--full-tree", self._commit)
        for entry in tree.split(b"\0"):
            if entry:
                about, _, name = entry.partition(b"\t")
                mode, _, object_name = about.split(b" ")
                yield os.fsdecode(name), (mode, object_name.decode())

    def _renamed(self) -> Iterator[tuple[str, str]]:
        """Yields the new name and the old one of each file that the index has under a new one."""
        output = _git(
            self._folder,
            *("diff-index", "--cached", "--raw", "-z", "--find-renames", "--diff-filter=R"),
            *("--ignore-submodules=all", "--no-ext-diff", "--no-textconv", self._commit, "--"),
        ).split(b"\0")
        for number in range(0, len(output) - 2, 3):
            yield os.fsdecode(output[number + 2]), os.fsdecode(output[number + 1])

    def entry(self, name: str) -> tuple[bytes, str]:
        """Returns the mode of today's file before, and its content's name; both empty if new."""
        there = self._entries.get(name) or self._entries.get(self._sources.get(name, ""))
        return there or (b"", "")

    def submodule(self, name: str) -> str:
        """Returns the submodule that a file lies in, "" for none: it was one before."""
        above = (name[: at.start()] for at in re.finditer("/", name))
        return next((one for one in above if self.entry(one)[0] == _SUBMODULE), "")

    def may_be_new(self, name: str) -> bool:
        """Tells whether a file that was not there before is one of the repository, or may be."""
        if self._known is None:
            tracked = _git(self._folder, "ls-files", "-z", "--full-name", ":/")
            new = _git(
                self._folder,
                *("ls-files", "--others", "--exclude-standard", "--full-name", "-z", ":/"),
            )
            self._known = {os.fsdecode(one) for one in (tracked + new).split(b"\0")}
        # Of a repository inside of this one, which was none before, its folder alone is listed.
        above = (name[: at.start()] for at in re.finditer("/", name))
        return name in self._known or any({one, f"{one}/"} & self._known for one in above)

    def contents(self, object_names: Iterable[str]) -> Iterator[bytes]:
        """Yields contents, as they were committed: through no filter."""
        asked = "".join(f"{one}\n" for one in object_names).encode()
        output, at = _git(self._folder, "cat-file", "--batch", given=asked), 0
        while at < len(output):
            head = output.index(b"\n", at)
            words = output[at:head].split(b" ")
            if len(words) != 3:
                raise UsageError(OPTION, "a content of the revision is missing; fetch the history")
            end = head + 1 + int(words[2])
            yield output[head + 1 : end]
            at = end + 1


def _real(path: Path) -> str:
    """Returns the path as git tells it: a link to a file is a file of its own."""
    return os.path.join(os.path.realpath(path.parent), path.name)


def _content(path: Path, text: bytes | None) -> bytes | None:
    """Returns what git would take for the content of a file, None if it cannot be read."""
    from fmcheck.lint.source import read

    try:
        if os.path.islink(path):
            return os.fsencode(os.readlink(path))
        return read(path) if text is None else text
    except OSError:
        return None


def _object_name(content: bytes, like: str) -> str:
    """Returns the name that git gives a content, by the hash that another one is of."""
    import hashlib

    digest = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    named = digest(b"blob %d\0" % len(content), usedforsecurity=False)
    named.update(content)
    return named.hexdigest()


def _compared(
    changed: Mapping[str, tuple[str, bytes]], before: _Before
) -> Iterator[tuple[str, range]]:
    """Yields the path and the new lines of each hunk of what changed: by path, old name and new.

    It is compared in a folder of our own, where no repository's settings and no attributes hold,
    under numbers, whatever the files are called.
    """
    import tempfile

    if not changed:
        return
    paths = list(changed)
    with tempfile.TemporaryDirectory(prefix="fmcheck-since-") as made:
        folder = os.path.realpath(made)
        olds = before.contents(old for old, _ in changed.values())
        for side, contents in (("old", olds), ("new", (new for _, new in changed.values()))):
            os.mkdir(os.path.join(folder, side))
            for number, content in enumerate(contents):
                with open(os.path.join(folder, side, str(number)), "wb") as file:
                    file.write(content)
        diff = _run(
            folder,
            *("diff", "--no-index", "--unified=0", "--text", "--no-renames", "--no-color"),
            *("--no-ext-diff", "--no-textconv", "--ignore-cr-at-eol"),
            *("--src-prefix=a/", "--dst-prefix=b/", "--", "old", "new"),
            alone=True,
        )
    if diff.returncode > 1:
        raise UsageError(OPTION, "git could not compare the files that changed")
    for number, lines in _hunks(diff.stdout):
        yield paths[number], lines


def _merge_base(revision: str, folder: Path) -> str:
    known = _run(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    )
    if known.returncode:
        listed = _git(folder, "for-each-ref", "--format=%(refname:short)")
        names = listed.decode("utf-8", "replace").split()
        if revision == "HEAD":
            raise UsageError(OPTION, f"the repository around {folder} has no commit yet")
        raise UsageError(
            OPTION,
            f"expected a git revision, got `{revision}`{nearest(revision, ['HEAD', *names])}",
        )
    base = _run(folder, "merge-base", known.stdout.decode().strip(), "HEAD")
    if base.returncode:
        raise UsageError(
            OPTION,
            f"`{revision}` and HEAD have no common ancestor here; a shallow clone lacks it, "
            "fetch more of the history",
        )
    return base.stdout.decode().strip()


def _git(folder: Path, *arguments: str, given: bytes = b"") -> bytes:
    done = _run(folder, *arguments, given=given)
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").partition("\n")[0].removeprefix("fatal: ")
        if why and "not a git repository" not in why:
            raise UsageError(OPTION, f"{folder}: {why}")
        raise UsageError(OPTION, f"{folder} is not in a git repository that can be read")
    return done.stdout


def _run(
    folder: Path | str, *arguments: str, given: bytes = b"", alone: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Returns what came of a command of git's.

    `alone` has it see no repository and no settings of anybody's.
    """
    import subprocess  # not above: most runs ask git nothing

    environ = {**os.environ, **_ENVIRONMENT}
    if alone:
        environ = {name: value for name, value in environ.items() if name[:4] != "GIT_"}
        environ |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "GIT_ATTR_NOSYSTEM": "1"}
        environ |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        environ |= {"GIT_CEILING_DIRECTORIES": os.path.dirname(folder)}
    settings = [part for key, value in _SETTINGS.items() for part in ("-c", f"{key}={value}")]
    try:
        return subprocess.run(
            [_program(), "--no-pager", *settings, "-C", str(folder), *arguments],
            env=environ,
            input=given,
            capture_output=True,
            check=False,
        )
    except (OSError, ValueError) as err:
        why = getattr(err, "strerror", None) or err
        raise UsageError(OPTION, f"git cannot be run: {why}") from err


def _program() -> str:
    """Returns the path of git: never one that a relative part of PATH finds in the linted tree."""
    import shutil

    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = shutil.which("git", path=os.pathsep.join(one for one in parts if os.path.isabs(one)))
    if found is None:
        raise UsageError(OPTION, "git cannot be run: it is not found in PATH")
    return found


def _hunks(diff: bytes) -> Iterator[tuple[int, range]]:
    """Yields the number of a file and the new lines of each hunk of a diff without context."""
    number, rest = 0, 0
    for line in diff.split(b"\n"):
        if rest:
            # A changed line, which may look like a header.
            rest -= not line.startswith(b"\\")
        elif line.startswith(b"+++ b/new/"):
            number = int(line.removeprefix(b"+++ b/new/"))
        elif match := HUNK.match(line):
            removed, first, added = (int(one) if one is not None else 1 for one in match.groups())
            rest = removed + added
            if added:
                yield number, range(first, first + added)
