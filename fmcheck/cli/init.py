"""`fmcheck init`: its options, its output, its exit status."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcheck.cli import given_path, given_text
from fmcheck.errors import UsageError
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.init.propose import Proposal
    from fmcheck.lint.run.missing_in_source import SourceFiles

WRITTEN = 0
OUTPUT = "fmcheck.toml"

EPILOG = f"""\
examples:
  fmcheck init src/                    # writes {OUTPUT}
  fmcheck init src/ -o my_engine.toml
  fmcheck init src/ -o -               # to standard output

  Nothing is imported or run, and no file is overwritten. Entries that the source shows are active;
  entries that it only suggests are comments. Each says where it was seen.

exit status:
  0    the contract was written
  2    it was not: bad input, no file that can be read, or there is such a file already
  130  interrupted
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `init`."""
    init = commands.add_parser(
        "init",
        help="propose a contract for an engine, from its source",
        usage="fmcheck init [OPTION]... PATH...",
        allow_abbrev=False,
        description="Reads the source of an engine and writes a contract to start from: relay "
        "classes, owners of rows, kernels, graph runners, steps and streams.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    init.add_argument(
        "paths", nargs="+", type=given_path, metavar="PATH", help="a file or folder of the engine"
    )
    init.add_argument(
        *("-o", "--output"),
        type=given_path,
        default=Path(OUTPUT),
        metavar="FILE",
        help=f"the contract to write, `-` for standard output (default: {OUTPUT})",
    )
    init.add_argument(
        "--name", type=given_text, help="the engine's name (default: that of its top package)"
    )
    init.set_defaults(run=run, options=("--help", "--output", "--name", "-o"))


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    from fmcheck.init.engine_tree import read_tree
    from fmcheck.init.propose import propose
    from fmcheck.lint.run.missing_in_source import SourceFiles
    from fmcheck.lint.scope.files import python_files

    output = None if arguments.output == Path("-") else arguments.output
    if output is not None:
        _check_output(output)
    if arguments.name and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", arguments.name):
        raise UsageError("--name", f"expected a name like `my-engine`, got `{arguments.name}`")
    paths = list(python_files(arguments.paths))
    if not paths:
        raise UsageError(", ".join(map(str, arguments.paths)), "no Python file found")
    with _progress(len(paths)) as show_progress:
        tree = read_tree(paths, arguments.paths, show_progress)
        source = SourceFiles([Path(one.path) for one in tree.sources])
        proposal = propose(tree, arguments.name or tree.package, lambda one: _missing(one, source))
    for number, (path, reason) in enumerate(tree.left_out.items(), 1):
        if number == len(paths):
            raise UsageError(str(path), f"{reason}; no file is left")
        print(f"fmcheck: {printable(f'{path}: {reason}')}: left out", file=sys.stderr)
    if output is None:
        print(proposal.text, end="")
    else:
        _write(output, proposal.text)
        print(_summary(proposal, output, arguments.paths))
    return WRITTEN


def _missing(contract: Contract, source: SourceFiles) -> Sequence[str]:
    """Returns what a contract names and the source does not have."""
    from fmcheck.lint.run.missing_in_source import missing_in_source

    return [sentence for _, sentence in missing_in_source(contract, None, source)]


def _check_output(path: Path) -> None:
    if path.is_dir():
        raise UsageError(str(path), "is a folder: expected `--output FILE`")
    if os.path.lexists(path):
        raise UsageError(
            str(path), "exists already and is not overwritten; choose another name with `--output`"
        )
    if not path.parent.is_dir():
        raise UsageError(str(path), f"there is no folder `{path.parent}`")


def _write(path: Path, text: str) -> None:
    """Writes a file that must not be there yet: one that appeared meanwhile is not overwritten."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as err:
        raise UsageError(str(path), f"cannot be written: {err.strerror or err}") from err


def _summary(proposal: Proposal, output: Path, paths: Sequence[Path]) -> str:
    from fmcheck.report.text import count

    active, comments = proposal.counts()
    named = " ".join(map(str, paths))
    lines = [
        f"{output}: {active} active and {comments} commented-out entries, "
        f"from {count(proposal.files, 'file')}"
    ]
    if not active:
        lines.append("Nothing was certain: read the comments, and docs/contracts.md.")
    lines += [
        "Next:",
        f"  1. read {output}: uncomment what is right, remove what is not",
        f"  2. fmcheck contract {output} {named}",
        f'  3. in pyproject.toml, under [tool.fmcheck]: contracts = ["{output}"]',
        f"  4. fmcheck lint {named}; then pytest -p fmcheck",
    ]
    return printable("\n".join(lines), keep="\n")


@contextmanager
def _progress(files: int) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how many files were read; says nothing in a pipe."""
    shows = sys.stderr is not None and sys.stderr.isatty()

    def show_progress(done: int) -> None:
        if shows and (done % 50 == 0 or done == files):
            what = "looking for entries" if done == files else "reading"
            line = f"\r\x1b[K{done:,} of {files:,} files: {what} ..."
            print(line, end="", file=sys.stderr, flush=True)

    try:
        yield show_progress
    finally:
        if shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
