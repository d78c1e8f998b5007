"""`python -m tests.corpus_diff [REVISION]`: what a change of the rules does to released trees.

Lints the pinned wheels with every rule, once with the working tree's linter and once with that of
a revision (default: where this branch left `main`, or HEAD on `main` itself), and prints which
findings were added and which removed, by rule and tree. What a revision found is kept in the cache.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.corpus import CorpusError, cache_folder, wheel_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
#: What the rules' precision is judged on, and a release from before the relay was indexed by rows.
TREES = (("sglang", "0.5.23"), ("sglang", "0.5.12"), ("vllm", "0.20.2"))
#: What the linter's findings hang on, of a checkout.
LINTER = ("fmcheck", "rules")
START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from fmcheck.__main__ import main; "
SHOWN = 20


class Found(NamedTuple):
    """A finding, as the other revision would make it again."""

    code: str
    path: str
    line: int
    column: int
    message: str

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self[:4]


class DiffError(Exception):
    """The findings of one side cannot be had: of which, and why."""


class Change(NamedTuple):
    added: Sequence[Found]
    removed: Sequence[Found]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the difference; 0 if there is none, 1 if there is, 2 if it cannot be told."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus_diff")
    parser.add_argument("revision", nargs="?", default="", metavar="REVISION")
    parser.add_argument("--all", action="store_true", help=f"every finding, not {SHOWN} a rule")
    asked = parser.parse_args(arguments)
    try:
        revision = commit_of(asked.revision or branch_point())
        changed = False
        for package, version in TREES:
            source = wheel_source(package, version)
            before, after = findings_of(revision, source), findings_here(source)
            change = compared(before, after)
            changed |= bool(change.added or change.removed)
            shown = None if asked.all else SHOWN
            print("\n".join(reported(source.name, len(before), len(after), change, shown)))
    except (CorpusError, DiffError) as err:
        print(err, file=sys.stderr)
        return 2
    print(f"against {revision[:12]}: {'see above' if changed else 'no difference'}")
    return 1 if changed else 0


def branch_point() -> str:
    """Returns where this branch left `main`; HEAD where it has nothing of its own."""
    for trunk in ("main", "origin/main"):
        done = _git("merge-base", "HEAD", trunk)
        if done.returncode == 0:
            return done.stdout.decode().strip()
    return "HEAD"


def commit_of(revision: str) -> str:
    """Returns the full name of a commit.

    Raises:
        DiffError: if there is none of that name.
    """
    done = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if done.returncode:
        raise DiffError(f"git knows no revision `{revision}`")
    return done.stdout.decode().strip()


def findings_of(revision: str, source: Path) -> Sequence[Found]:
    """Returns what a revision's linter finds in a tree, from the cache if it was asked before."""
    trees = [_git("rev-parse", f"{revision}:{one}").stdout for one in LINTER]
    name = hashlib.sha256(b"".join(trees)).hexdigest()[:20]
    kept = cache_folder() / "corpus-diff" / f"{name}-{source.name}.json"
    if kept.exists():
        return [Found(*one) for one in json.loads(kept.read_text())]
    with tempfile.TemporaryDirectory() as scratch:
        archive = _git("archive", revision, *LINTER, "plugin.py")
        if archive.returncode:
            raise DiffError(f"{revision}: {archive.stderr.decode().strip()}")
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(scratch, filter="data")
        found = _lint(Path(scratch), source, "--no-cache")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found))
    return found


def findings_here(source: Path) -> Sequence[Found]:
    """Returns what the working tree's linter finds in a tree."""
    return _lint(ROOT, source, "--cache-dir", str(cache_folder() / "corpus-diff" / "lint"))


def compared(before: Iterable[Found], after: Iterable[Found]) -> Change:
    """Returns the findings that only one side has, in the order of files and lines."""
    old, new = ({one.key: one for one in side} for side in (before, after))
    return Change(
        sorted(one for key, one in new.items() if key not in old),
        sorted(one for key, one in old.items() if key not in new),
    )


def reported(
    tree: str, before: int, after: int, change: Change, shown: int | None = None
) -> Iterator[str]:
    """Yields the lines that tell of one tree: totals, then by rule what was added and removed."""
    yield f"{tree}: {before} findings before, {after} now"
    by_code: Mapping[str, tuple[list[Found], list[Found]]] = defaultdict(lambda: ([], []))
    for at, side in enumerate(change):
        for one in side:
            by_code[one.code][at].append(one)
    for code in sorted(by_code):
        added, removed = by_code[code]
        yield f"  {code}: +{len(added)} -{len(removed)}"
        for sign, side in (("+", added), ("-", removed)):
            for one in side[:shown]:
                yield f"    {sign} {one.path}:{one.line}:{one.column} {one.message}"
            if shown is not None and len(side) > shown:
                yield f"    {sign} and {len(side) - shown} more (--all)"


def _lint(linter: Path, source: Path, *options: str) -> list[Found]:
    command = [sys.executable, "-c", f"{START}sys.exit(main())", str(linter), "lint", "."]
    command += ["--select", "ALL", "--format", "json", *options]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1, 2) or not done.stdout.startswith("["):
        raise DiffError(
            f"the linter in {linter} ended with status {done.returncode} on {source}:\n"
            f"{done.stderr.strip()[-2000:]}"
        )
    return [
        Found(one["code"], one["path"], one["line"], one["column"], one["message"])
        for one in json.loads(done.stdout)
    ]


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
