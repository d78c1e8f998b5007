"""The command `fmcheck`: reads the command line, runs one command, says what came of it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck import __version__
from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

CLEAN, FOUND, FAILED, INTERRUPTED = 0, 1, 2, 130

EXIT_STATUS = """\
exit status:
  0  nothing found (notes alone are nothing)
  1  warnings or errors found
  2  could not check everything: bad input, a file that cannot be read or decoded, a file of a
     rule's concern that does not parse, or a rule that failed
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that `argv` asks for and returns its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except UsageError as err:
        print(f"fmcheck: {err}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("fmcheck: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`| head`): keep Python from complaining when it flushes.
        sys.stdout = None
        return FAILED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fmcheck",
        description="Finds stale-data bugs in overlap-scheduled LLM inference engines. "
        "`fmcheck lint` reads the source; `pytest -p fmcheck` watches it run.",
    )
    parser.add_argument("--version", action="version", version=f"fmcheck {__version__}")
    # Named here, `prog` spares a formatter, and with it the import of shutil.
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog="fmcheck")
    _add_lint(commands)
    rule = commands.add_parser("rule", help="explain a rule")
    rule.add_argument("code", metavar="CODE", help="a rule's code, as FM201")
    rule.set_defaults(run=_explain)
    listing = commands.add_parser("rules", help="list the rules")
    listing.set_defaults(run=_list_rules)
    return parser


def _add_lint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    lint = commands.add_parser(
        "lint",
        help="check Python source",
        description="Checks Python files against the rules and the engine's contract.",
        epilog=EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    lint.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file or a folder")
    lint.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="RULES",
        help="only these: codes, families (FM2) or ALL, split by commas",
    )
    lint.add_argument(
        "--ignore", action="append", default=[], metavar="RULES", help="all but these"
    )
    lint.add_argument("--fix", action="store_true", help="apply the fixes that rules offer")
    lint.add_argument(
        "--format", choices=("text", "json"), default="text", help="how findings are shown"
    )
    lint.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings file, instead of [tool.fmcheck] in the nearest pyproject.toml",
    )
    lint.add_argument(
        "-j",
        "--jobs",
        type=_at_least_one,
        metavar="N",
        help="processes to use (default: as many as there are processors, if there is work)",
    )
    lint.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    lint.add_argument(
        "--cache-dir",
        metavar="FOLDER",
        help="folder of the cache (default: $FMCHECK_CACHE_DIR, or .fmcheck_cache in the project's "
        "folder, or fmcheck/lint in the user's cache)",
    )
    lint.set_defaults(run=_lint)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _lint(arguments: argparse.Namespace) -> int:
    from fmcheck.lint.run import Request, lint_paths
    from fmcheck.report import text

    outcome = lint_paths(
        Request(
            paths=tuple(arguments.paths),
            config=arguments.config,
            select=_selectors(arguments.select),
            ignore=_selectors(arguments.ignore),
            fix=arguments.fix,
            jobs=arguments.jobs,
            cache=_cache(arguments),
        )
    )
    if arguments.format == "json":
        from fmcheck.report import json

        print(json.render(outcome.findings))
    else:
        for finding in outcome.findings:
            print(text.render(finding, outcome.lines_of))
        print(text.summary(outcome.findings, outcome.files, outcome.rules))
        if outcome.fixed:
            print(f"fixed {outcome.fixed} of what was found; the rest is above")
    if not outcome.files:
        print("fmcheck: no Python files there; nothing was checked", file=sys.stderr)
    if outcome.unreadable:
        return FAILED
    return FOUND if outcome.failing else CLEAN


def _cache(arguments: argparse.Namespace) -> str | None:
    from fmcheck.lint.stored import cache_folder

    if arguments.no_cache:
        return None
    asked = [f"--cache-dir={arguments.cache_dir}"] if arguments.cache_dir else []
    return cache_folder(asked, os.environ)


def _selectors(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for one in given for part in one.split(",") if part.strip())


def _explain(arguments: argparse.Namespace) -> int:
    from fmcheck.lint.page import rule_page
    from fmcheck.registry import rules

    known = rules()
    code = arguments.code.upper()
    if code not in known:
        raise UsageError("rule", f"there is no `{arguments.code}`{nearest(code, known)}")
    print(rule_page(known[code]))
    return CLEAN


def _list_rules(arguments: argparse.Namespace) -> int:
    from fmcheck.registry import rules

    for code, rule in rules().items():
        marks = " ".join(
            mark
            for mark, holds in (
                ("fix", rule.has_fix()),
                ("off by default", not rule.on_by_default),
            )
            if holds
        )
        summary = (rule.__doc__ or "").strip().partition("\n")[0]
        print(
            f"{code}  {rule.name:<26}  {rule.severity.value:<8} {summary}"
            f"{f'  [{marks}]' if marks else ''}"
        )
    return CLEAN
