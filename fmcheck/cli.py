"""The command `fmcheck`: reads the command line, runs one command, says what came of it."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from typing import TYPE_CHECKING, NoReturn

from fmcheck import __version__
from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

CLEAN, FOUND, FAILED, INTERRUPTED = 0, 1, 2, 130
#: Commands that run another, whose words stand after `--`.
_TAKING_MORE = ("ci", "prove")
#: Commands with a module of their own, which adds them to the parser.
_MODULES = {
    "lint": "fmcheck.cli_lint",
    "contract": "fmcheck.cli_contract",
    "doctor": "fmcheck.doctor",
    "report": "fmcheck.cli_report",
    "ci": "fmcheck.cli_ci",
    "prove": "fmcheck.cli_prove",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that `argv` asks for and returns its exit status."""
    try:
        own, after = _split(sys.argv[1:] if argv is None else argv)
        arguments, unknown = _parser(own[0] if own else "").parse_known_args(own)
        if unknown:
            raise UsageError(
                unknown[0], f"no such option or argument{nearest(unknown[0], arguments.options)}"
            )
        arguments.after = after
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


def _split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str] | None]:
    """Returns a command's own words, and those after `--` where it takes any, else None."""
    if not argv or argv[0] not in _TAKING_MORE or "--" not in argv:
        return argv, None
    at = list(argv).index("--")
    return argv[:at], argv[at + 1 :]


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the command: one line, with the nearest name."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        _, wrong, choices = message.partition("invalid choice: ")
        if wrong:
            given, *known = re.findall(r"'([^']*)'|([\w-]+)(?=[,)])", choices)
            names = ["".join(one) for one in known]
            message += nearest("".join(given), names)
        raise UsageError(self.prog.removeprefix("fmcheck "), message)


def _parser(asked: str = "") -> argparse.ArgumentParser:
    """Returns the parser of the command that is asked for, of all commands if it is none."""
    parser = _Parser(
        prog="fmcheck",
        allow_abbrev=False,
        description="Finds stale-data bugs in overlap-scheduled LLM inference engines. "
        "`fmcheck lint` reads the source; `pytest -p fmcheck` and `fmcheck.watch` watch it run.",
        epilog="`fmcheck COMMAND --help` tells more of each.",
    )
    parser.add_argument("--version", action="version", version=f"fmcheck {__version__}")
    parser.set_defaults(options=("--help", "--version"))
    # Named here, `prog` spares a formatter, and with it the import of shutil.
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog="fmcheck")
    for name in (asked,) if asked in _MODULES else _MODULES:
        importlib.import_module(_MODULES[name]).add_to(commands)
    if asked in _MODULES:
        return parser
    for name in ("explain", "rule"):
        explain = commands.add_parser(
            name, help="explain a rule, a run-time check, or a code of the linter's own"
        )
        explain.add_argument("code", metavar="CODE", help="the code, as FM201 or FR102")
        explain.set_defaults(run=_explain, command_name=name)
    listing = commands.add_parser(
        "rules", help="list the rules, with those that are off by default"
    )
    listing.set_defaults(run=_list_rules)
    return parser


def _explain(arguments: argparse.Namespace) -> int:
    from fmcheck.check_pages import PAGES, check_page
    from fmcheck.finding import CHECKS
    from fmcheck.lint.own import OWN_CODES
    from fmcheck.lint.page import own_page, rule_page
    from fmcheck.registry import rules

    known = rules()
    code = arguments.code.upper()
    if code in known:
        print(rule_page(known[code]))
    elif code in OWN_CODES:
        print(own_page(OWN_CODES[code]))
    elif code in CHECKS and code in PAGES:
        print(check_page(code))
    else:
        every = (*known, *CHECKS, *OWN_CODES)
        raise UsageError(
            arguments.command_name, f"there is no `{arguments.code}`{nearest(code, every)}"
        )
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
