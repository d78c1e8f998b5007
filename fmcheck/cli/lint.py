"""`fmcheck lint`: its options, its output, its exit status."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcheck import __version__
from fmcheck.cli import at_least_one, given_path, given_text
from fmcheck.errors import UsageError
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmcheck.finding import RuleInfo
    from fmcheck.lint.run.outcome import Outcome
    from fmcheck.lint.scope.request import Request
    from fmcheck.report.colour import Paint
    from fmcheck.report.contents import Contents

CLEAN, FOUND, FAILED = 0, 1, 2

FORMATS = ("text", "concise", "json", "sarif", "github", "gitlab", "junit")

#: Said where the standard input has no name.
NAMELESS = (
    "standard input has no path, so contract entries for modules and files do not apply to it; "
    "pass its path as `--stdin-filename`"
)

EPILOG = """\
in the source:
  # fmcheck: ignore[FM201] why this is right         on the finding's line
  # fmcheck: ignore-file[FM301] why this is right    above the first statement

exit status:
  0    nothing found (notes alone are nothing); with --diff: nothing to fix
  1    warnings or errors found; with --diff: there is a difference
  2    could not check everything: bad input, a file that cannot be read or decoded,
       what a rule looks at and does not parse, a rule that failed, a file that cannot
       be written, or an error of fmcheck's own, which `--traceback` shows
  130  interrupted
  141  the reader of the output was gone, as behind `| head`
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `lint`."""
    lint = commands.add_parser(
        "lint",
        help="check Python source",
        usage="fmcheck lint [OPTION]... PATH...",
        allow_abbrev=False,
        description="Checks Python files against the rules and the engine's contract.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    lint.add_argument(
        "paths",
        nargs="+",
        type=given_path,
        metavar="PATH",
        help="a file, a folder, or `-` for the standard input",
    )
    add_selection(lint.add_argument_group("which rules"))
    files = lint.add_argument_group("which files and lines")
    add_files(files)
    files.add_argument(
        "--stdin-filename",
        type=given_path,
        metavar="NAME",
        help="the path of the file given on standard input, for settings, contracts and reports",
    )
    _add_fixes(lint.add_argument_group("fixes"))
    _add_baseline(lint.add_argument_group("baseline"))
    _add_output(lint.add_argument_group("output"))
    add_speed(lint.add_argument_group("speed"))
    options = [name for action in lint._actions for name in action.option_strings]
    lint.set_defaults(run=run, options=options)


def add_selection(group: argparse._ArgumentGroup) -> None:
    """Adds the options that say which rules to run."""
    group.add_argument(
        "--select",
        action="append",
        type=given_text,
        default=[],
        metavar="RULES",
        help=(
            "comma-separated codes, prefixes (FM2) or ALL (default: those of the settings, else "
            "all that are on by default)"
        ),
    )
    group.add_argument(
        "--ignore",
        action="append",
        type=given_text,
        default=[],
        metavar="RULES",
        help="comma-separated codes or prefixes to leave out",
    )
    group.add_argument(
        "--config",
        type=given_path,
        metavar="FILE",
        help="settings file, instead of [tool.fmcheck] in the nearest pyproject.toml",
    )


def add_files(group: argparse._ArgumentGroup) -> None:
    """Adds the options that say which files and lines to look at."""
    group.add_argument(
        "--exclude",
        action="append",
        type=given_text,
        default=[],
        metavar="PATTERN",
        help="also leave out these: a .gitignore pattern, relative to this folder",
    )
    group.add_argument(
        "--force-exclude",
        action="store_true",
        help="leave out excluded files even when they are named, as pre-commit does",
    )
    group.add_argument(
        "--no-respect-gitignore",
        action="store_true",
        help="also check files that .gitignore files name",
    )
    group.add_argument(
        "--since",
        type=given_text,
        metavar="REV",
        help="report only lines changed since this git revision, uncommitted ones and "
        "untracked files included",
    )


def _add_fixes(group: argparse._ArgumentGroup) -> None:
    how = group.add_mutually_exclusive_group()
    how.add_argument("--fix", action="store_true", help="apply the safe fixes that rules offer")
    how.add_argument(
        "--diff", action="store_true", help="show what --fix would change, and write nothing"
    )
    group.add_argument(
        "--unsafe-fixes",
        action="store_true",
        help="with --fix or --diff: include fixes that may change what the program does",
    )


def _add_baseline(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--baseline",
        type=given_path,
        metavar="FILE",
        help=(
            "do not report findings listed in this file; a listed finding that is gone is an "
            "error (default: the settings' `baseline`, if any)"
        ),
    )
    how = group.add_mutually_exclusive_group()
    how.add_argument(
        "--update-baseline",
        action="store_true",
        help=(
            "remove fixed entries from the baseline, add nothing; without a baseline, create "
            "one from all current findings"
        ),
    )
    how.add_argument(
        "--add-to-baseline",
        action="store_true",
        help="remove fixed entries and add all current findings",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--format", choices=FORMATS, default="text", help="how findings are shown (default: text)"
    )
    group.add_argument(
        "--output-file", type=given_path, metavar="FILE", help="write findings to FILE (atomically)"
    )
    group.add_argument(
        "--statistics",
        action="store_true",
        help="print a per-rule count instead of the findings",
    )
    group.add_argument(
        "--show-suppressed",
        action="store_true",
        help="show what comments suppress, with their reasons (text, concise, json, sarif)",
    )
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: on a terminal, by NO_COLOR, FORCE_COLOR and TERM (default)",
    )
    group.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print findings only: no summary line, no progress",
    )
    group.add_argument(
        "--watch",
        action="store_true",
        help="lint again whenever a file changes, until Ctrl-C",
    )
    group.add_argument(
        "--exit-zero",
        action="store_true",
        help="exit with 0 even if something was found; 2 stays 2",
    )


def add_speed(group: argparse._ArgumentGroup) -> None:
    """Adds the options on processes and the cache."""
    group.add_argument(
        "-j",
        "--jobs",
        type=at_least_one,
        metavar="N",
        help="number of processes (default: one per CPU, for large inputs)",
    )
    group.add_argument("--no-cache", action="store_true", help="do not read or write the cache")
    group.add_argument(
        "--cache-dir",
        type=given_text,
        metavar="FOLDER",
        help="folder of the cache (default: $FMCHECK_CACHE_DIR, or .fmcheck_cache in the project's "
        "folder, or fmcheck/lint in the user's cache)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Lints as the options say, once or after each change, and returns the exit status."""
    if arguments.output_file and arguments.output_file.suffix in (".py", ".pyi"):
        raise UsageError("--output-file", f"`{arguments.output_file}` is source: not overwritten")
    if not arguments.watch:
        return _lint(arguments)
    from fmcheck.cli.lint_watch import watch

    for option, given in (
        ("-", Path("-") in arguments.paths),
        ("--fix", arguments.fix),
        ("--output-file", arguments.output_file),
        ("--update-baseline", arguments.update_baseline),
        ("--add-to-baseline", arguments.add_to_baseline),
    ):
        if given:
            raise UsageError("--watch", f"cannot be combined with `{option}`")
    return watch(arguments.paths, lambda: _lint(arguments))


def _lint(arguments: argparse.Namespace) -> int:
    from fmcheck.lint.run.outcome import lint_paths

    request = request_of(arguments)
    outcome = lint_paths(request)
    if arguments.diff:
        _show_diff(outcome, arguments)
        found = bool(outcome.diffs)
    else:
        _show(outcome, arguments, to_stderr=arguments.fix and request.stdin is not None)
        found = outcome.failing
    show_notes(outcome, arguments)
    if outcome.unreadable:
        return FAILED
    return FOUND if found and not arguments.exit_zero else CLEAN


def show_notes(outcome: Outcome, arguments: argparse.Namespace) -> None:
    """Prints what a run has to say beside its findings, on the standard error."""
    for path, why in outcome.refused:
        print(printable(f"fmcheck: {path}: left as it was: {why}"), file=sys.stderr)
    for path, why in outcome.unwritten:
        print(printable(f"fmcheck: {path}: {why}"), file=sys.stderr)
    for note in outcome.notes:
        print(printable(f"fmcheck: {note}"), file=sys.stderr)
    if not outcome.files and not arguments.since and not arguments.force_exclude:
        print("fmcheck: no Python files there; nothing was checked", file=sys.stderr)


def request_of(arguments: argparse.Namespace) -> Request:
    """Returns the request that the options make.

    Raises:
        UsageError: if two of them do not go together.
    """
    from fmcheck.lint.scope.request import Fixing, Request, Updating

    if arguments.unsafe_fixes and not (arguments.fix or arguments.diff):
        raise UsageError("--unsafe-fixes", "expected `--fix` or `--diff` beside it")
    if arguments.statistics and arguments.format != "text":
        raise UsageError("--statistics", "expected `--format text` beside it")
    stdin = _stdin(arguments)
    updating = Updating.SHRINK if arguments.update_baseline else Updating.NONE
    fixing = Fixing.WRITE if arguments.fix else Fixing.NONE
    return Request(
        paths=tuple(arguments.paths) if stdin is None else (arguments.stdin_filename,),
        config=arguments.config,
        select=_selectors(arguments.select),
        ignore=_selectors(arguments.ignore),
        exclude=tuple(arguments.exclude),
        respect_gitignore=not arguments.no_respect_gitignore,
        force_exclude=arguments.force_exclude,
        stdin=stdin,
        fixing=Fixing.DIFF if arguments.diff else fixing,
        unsafe_fixes=arguments.unsafe_fixes,
        baseline=arguments.baseline,
        updating=Updating.ADD if arguments.add_to_baseline else updating,
        since=arguments.since or "",
        progress=not arguments.quiet,
        jobs=arguments.jobs,
        cache=_cache(arguments),
    )


def _cache(arguments: argparse.Namespace) -> str | None:
    from fmcheck.lint.run.stored import cache_folder, refusal

    if arguments.no_cache:
        return None
    asked = [f"--cache-dir={arguments.cache_dir}"] if arguments.cache_dir else []
    folder = cache_folder(asked, os.environ)
    if folder is not None and (why := refusal(folder)):
        raise UsageError(
            folder, f"{why}; expected a new or an empty folder, by --cache-dir, or --no-cache"
        )
    return folder


def _stdin(arguments: argparse.Namespace) -> bytes | None:
    """Returns the standard input if it is what to lint."""
    if Path("-") not in arguments.paths:
        if arguments.stdin_filename:
            raise UsageError("--stdin-filename", "expected the path `-` beside it")
        return None
    if len(arguments.paths) > 1:
        raise UsageError("-", "expected no other path beside the standard input")
    if sys.stdin is None:
        raise UsageError("-", "expected source on the standard input, which is closed")
    if not (arguments.stdin_filename or arguments.quiet):
        print(f"fmcheck: {NAMELESS}", file=sys.stderr)
    arguments.stdin_filename = arguments.stdin_filename or Path("stdin.py")
    try:
        return sys.stdin.buffer.read()
    except (OSError, ValueError) as err:
        raise UsageError("-", f"the standard input cannot be read: {err}") from err


def _selectors(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for one in given for part in one.split(",") if part.strip())


def _show(outcome: Outcome, arguments: argparse.Namespace, *, to_stderr: bool) -> None:
    """Prints or writes the findings, and the fixed standard input."""
    stream = sys.stderr if to_stderr else sys.stdout
    file = arguments.output_file
    paint = _paint(arguments, stream.isatty() and not file)
    report = _rendered(outcome, arguments, paint)
    if file:
        from fmcheck.files.atomic import replace_file

        try:
            replace_file(file, report.encode() + b"\n" * bool(report))
        except OSError as err:
            raise UsageError(str(file), f"cannot be written: {err.strerror or err}") from err
    elif report:
        print(report, file=stream)
    if outcome.stdin is not None and to_stderr:
        sys.stdout.buffer.write(outcome.stdin)
        sys.stdout.flush()
    if not arguments.quiet and (arguments.format in ("text", "concise") or file):
        for line in _closing(outcome, arguments):
            print(line, file=stream)


def _rendered(outcome: Outcome, arguments: argparse.Namespace, paint: Paint) -> str:
    from importlib import import_module

    contents = _contents(outcome, arguments)
    # One format's module is imported, not six.
    module = import_module(f"fmcheck.report.{arguments.format}")
    report: str = (
        _text(contents, arguments, paint) if arguments.format == "text" else module.render(contents)
    )
    return report


def _text(contents: Contents, arguments: argparse.Namespace, paint: Paint) -> str:
    from fmcheck.report import text

    if arguments.statistics:
        return text.statistics(contents)
    parts = [text.render(one, contents.lines_of, paint) for one in contents.findings]
    parts += [text.render(one, contents.lines_of, paint) for one in contents.suppressed]
    return "\n".join(parts)


def _closing(outcome: Outcome, arguments: argparse.Namespace) -> list[str]:
    from fmcheck.report import text

    lines = [text.summary(outcome.findings, outcome.files, outcome.rules)]
    if outcome.fixed:
        left = "; the remaining findings are shown above" if outcome.findings else ""
        lines.append(f"{outcome.fixed:,} fixed{left}")
    if offer := text.fixable(one for one in outcome.findings if one.path not in outcome.kept):
        lines.append(offer)
    if arguments.fix and (kept := text.not_fixable(outcome.findings, outcome.kept)):
        lines.append(kept)
    if outcome.allowed:
        lines.append(f"{outcome.allowed:,} more in the baseline")
    if outcome.suppressed and arguments.show_suppressed:
        lines.append(f"{len(outcome.suppressed):,} suppressed by comments")
    return lines


def _contents(outcome: Outcome, arguments: argparse.Namespace) -> Contents:
    from fmcheck.report.contents import Contents

    return Contents(
        findings=outcome.findings,
        suppressed=outcome.suppressed if arguments.show_suppressed else (),
        codes=codes() if arguments.statistics or arguments.format != "text" else {},
        lines_of=outcome.lines_of,
        root=os.getcwd(),
        version=__version__,
        files=outcome.files,
        complete=not outcome.unreadable,
    )


def codes() -> Mapping[str, RuleInfo]:
    """Returns what there is to say of each code."""
    from inspect import cleandoc

    from fmcheck.finding import RuleInfo
    from fmcheck.lint.own import OWN_CODES
    from fmcheck.registry import rules

    pages = [
        *((rule.code, rule.name, rule.severity, rule.__doc__ or "") for rule in rules().values()),
        *((own.code, own.name, own.severity, own.page) for own in OWN_CODES.values()),
    ]
    return {
        code: RuleInfo(code, name, severity, _first(page), cleandoc(page))
        for code, name, severity, page in pages
    }


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]


def _show_diff(outcome: Outcome, arguments: argparse.Namespace) -> None:
    from fmcheck.report.colour import paint_diff, plain
    from fmcheck.report.text import count

    is_terminal = sys.stdout.isatty()
    paint = _paint(arguments, is_terminal)
    for diff in outcome.diffs:
        if is_terminal or paint is not plain:
            text = diff.decode(errors="surrogateescape").replace("\r\n", "\n")
            print(paint_diff(printable(text, keep="\t\n\f"), paint), end="")
        else:  # a patch, byte for byte
            sys.stdout.flush()
            sys.stdout.buffer.write(diff)
            sys.stdout.buffer.flush()
    unchecked = [one for one in outcome.findings if one.code in ("FM001", "FM002")]
    for one in unchecked:
        print(printable(f"fmcheck: {one.path}: {one.whole}"), file=sys.stderr)
    if not arguments.quiet:
        print(f"{count(len(outcome.diffs), 'file')} would change", file=sys.stderr)


def _paint(arguments: argparse.Namespace, is_terminal: bool) -> Paint:
    from fmcheck.report import colour

    wanted = colour.wanted(arguments.color, os.environ, is_terminal)
    return colour.paint if wanted else colour.plain
