"""`fmcheck report`: shows the record of a run, and merges records and journals."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcheck.cli import given_path
from fmcheck.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.record.record import Run

CLEAN, FOUND = 0, 1
#: Merging fewer than this shows no progress.
MANY = 8

EXIT_STATUS = """\
exit status:
  0    no violation (advisories, and what tests expect or allow, do not count)
  1    violations, or a part of what was asked for was not watched
  2    bad input, or a file that cannot be written
  130  interrupted
"""
_SHOW = """\
The record is what `pytest -p fmcheck --fmcheck-report FILE.json` writes, or `fmcheck report merge`.
`fmcheck report schema` prints its schema. For a folder, the journals in it are read, or else the
records, so that a run that was killed before it could report can be shown as well.
"""
_MERGE = """\
For a folder, the journals in it (`--fmcheck-journal DIR`) are read, or else the records in it
(*.json). Violations of the same check, buffer, code site and test are shown once, with their total
count.
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `report`."""
    report = commands.add_parser(
        "report",
        help="show or merge the records of `pytest -p fmcheck`",
        description="Shows the record of a run, and merges those of several hosts or workers.",
        allow_abbrev=False,
    )
    whats = report.add_subparsers(required=True, metavar="WHAT", prog="fmcheck report")
    _add_show(whats)
    _add_merge(whats)
    schema = whats.add_parser("schema", help="print the JSON Schema of a record")
    schema.set_defaults(run=_schema)


def _add_show(whats: argparse._SubParsersAction[Any]) -> None:
    show = whats.add_parser(
        "show",
        help="show a record in the terminal",
        description=_SHOW,
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    show.add_argument("source", type=given_path, metavar="DIR_OR_FILE", help="a record or a folder")
    show.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: on a terminal, by NO_COLOR, FORCE_COLOR and TERM (default)",
    )
    show.add_argument(
        "-q", "--quiet", action="store_true", help="only the table and the closing line"
    )
    show.set_defaults(run=_show, options=_options(show))


def _add_merge(whats: argparse._SubParsersAction[Any]) -> None:
    merge = whats.add_parser(
        "merge",
        help="combine several records or journals into one report",
        description=_MERGE,
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    merge.add_argument(
        "sources", nargs="+", type=given_path, metavar="DIR_OR_FILE", help="a record or a folder"
    )
    merge.add_argument(
        "-o",
        "--output",
        action="append",
        required=True,
        metavar="FILE",
        help="what to write: .json, .sarif or .html; may be given several times",
    )
    merge.set_defaults(run=_merge, options=_options(merge))


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings]


def _show(arguments: argparse.Namespace) -> int:
    from fmcheck.record.merging import merge
    from fmcheck.report import colour
    from fmcheck.report.run.run_text import render

    runs = list(_with_progress(list(_sources(arguments.source))))
    run = merge(runs) if len(runs) > 1 else runs[0]
    wanted = colour.wanted(arguments.color, os.environ, sys.stdout.isatty())
    print(render(run, colour.paint if wanted else colour.plain, brief=arguments.quiet))
    return _status(run)


def _merge(arguments: argparse.Namespace) -> int:
    from fmcheck.record.merging import merge
    from fmcheck.report.run.run_text import closing
    from fmcheck.report_files import checked, write_run

    outputs = checked(arguments.output, "--output", Path())
    found = (Path(os.path.realpath(one)) for given in arguments.sources for one in _sources(given))
    sources = list(dict.fromkeys(found))
    run = merge(list(_with_progress(sources)))
    for path in outputs:
        write_run(run, path)
    print(f"{closing(run)}\nfmcheck: {len(sources):,} merged into {_named(outputs)}")
    return _status(run)


def _sources(given: Path) -> Iterable[Path]:
    """Returns a file, the folders of journals in a folder, or else the records in it.

    Raises:
        UsageError: if there is no such file, or nothing to merge in the folder.
    """
    if not given.is_dir():
        return (given,)
    journals = sorted({one.parent for one in given.rglob("*.jsonl")})
    records = sorted(given.rglob("*.json"))
    if not journals and not records:
        raise UsageError(str(given), "holds neither a journal nor a record (*.json)")
    return journals or records


def _read(source: Path) -> Run:
    if source.is_dir():
        from fmcheck.processes.journal.collect import gather

        return gather([source])
    from fmcheck.record.record_file import read_run

    return read_run(source)


def _with_progress(sources: Sequence[Path]) -> Iterator[Run]:
    """Yields the runs; on a terminal, many of them show how far it is."""
    if len(sources) < MANY or not sys.stderr.isatty():
        yield from map(_read, sources)
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from map(_read, track(sources, "merging", console=console, transient=True))


def _named(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)


def _schema(_: argparse.Namespace) -> int:
    from fmcheck.record.record_file import schema

    print(schema(), end="")
    return CLEAN


def _status(run: Run) -> int:
    failed = run.violations or run.problems or run.coverage.fails_unchecked
    return FOUND if failed else CLEAN
