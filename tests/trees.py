"""The trees of released code that the linter is measured on: those opened, and those still fresh.

`tests/data/trees.toml` lists both, with the rule by which fresh trees are chosen. An opened tree,
in any version, cannot be fresh. `python -m tests.trees` fetches the fresh ones into the cache and
checks the counts that the file gives; it lints nothing.
"""

from __future__ import annotations

import hashlib
import re
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from fmcheck.files.strict import convert, read_toml
from tests.clones import commit_source
from tests.corpus import CorpusError, sdist_source, wheel_source

if TYPE_CHECKING:
    from collections.abc import Iterable

DATA = Path(__file__).parent / "data" / "trees.toml"


class TreesError(Exception):
    """A list of trees that cannot be measured on, and why."""


class Opened(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tree that somebody read for findings, or on which a rule was tuned.

    `figure` says how many of its findings were right before that, "" where nobody wrote it down.
    """

    name: str
    versions: tuple[str, ...]
    when: str
    purpose: str
    figure: str = ""


class Unnamed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Trees that were opened and whose names nobody wrote down."""

    count: int
    when: str
    purpose: str
    figure: str


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A list of candidates for a round, and the rule by which fresh trees are taken from it.

    `out` says of each candidate that was looked at and not taken, why not.
    """

    round: int
    when: str
    rule: str
    candidates: tuple[str, ...]
    out: dict[str, str] = msgspec.field(default_factory=dict)


class Fresh(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A tree that nobody has opened. `version` is a commit where `kind` is "commit".

    `related` names an opened project from which parts of this one were copied.
    """

    name: str
    version: str
    kind: Literal["wheel", "sdist", "commit"]
    about: str
    files: int
    lines: int
    related: str = ""

    @cached_property
    def project(self) -> str:
        """The name that stands for all versions and spellings."""
        return project(self.name)


class Trees(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file `trees.toml`."""

    opened: tuple[Opened, ...]
    fresh: tuple[Fresh, ...]
    suspected: tuple[str, ...] = ()
    unnamed: tuple[Unnamed, ...] = ()
    choice: tuple[Choice, ...] = ()


def project(name: str) -> str:
    """Returns the name of a project without its owner, in the spelling of package indexes."""
    return re.sub(r"[-_.]+", "-", name.rpartition("/")[2]).lower()


def load(path: Path = DATA) -> Trees:
    """Returns the lists, fresh trees in the order in which they are to be taken.

    Raises:
        TreesError: if a fresh tree is listed twice, or was opened, or may have been.
    """
    trees = convert(read_toml(path), Trees, str(path))
    opened = {project(one.name) for one in trees.opened}
    suspected = {project(name) for name in trees.suspected}
    seen: set[str] = set()
    for tree in trees.fresh:
        for group, what in (
            (opened, "has been opened"),
            (suspected, "may have been opened"),
            (seen, "is listed twice"),
        ):
            if tree.project in group:
                raise TreesError(f"{path}: fresh tree `{tree.name}` {what}: remove it")
        seen.add(tree.project)
    return msgspec.structs.replace(trees, fresh=tuple(sorted(trees.fresh, key=_place)))


def source(tree: Fresh) -> Path:
    """Returns the folder of a fresh tree's Python files.

    Raises:
        CorpusError: if it is neither in the cache nor to be had.
    """
    fetch = {"wheel": wheel_source, "sdist": sdist_source, "commit": commit_source}
    return fetch[tree.kind](tree.name, tree.version)


def count(folder: Path) -> tuple[int, int]:
    """Returns how many Python files a folder has, and how many lines they have together."""
    files = [path for path in folder.rglob("*.py") if path.is_file()]
    return len(files), sum(path.read_bytes().count(b"\n") for path in files)


def main(wanted: Iterable[Fresh] | None = None) -> int:
    """Fetches the fresh trees and prints their counts; 1 if one differs or cannot be had."""
    failures = 0
    for tree in load().fresh if wanted is None else wanted:
        try:
            found = count(source(tree))
        except CorpusError as err:
            print(f"{tree.name}: {err}", file=sys.stderr)
            failures += 1
            continue
        wrong = "" if found == (tree.files, tree.lines) else ": not what the list says"
        failures += bool(wrong)
        print(f"{tree.name} {tree.version}: {found[0]} files, {found[1]} lines{wrong}")
    return int(failures > 0)


def _place(tree: Fresh) -> str:
    """What orders fresh trees, so that nobody picks."""
    return hashlib.sha256(tree.name.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
