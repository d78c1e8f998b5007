"""The command `fmcheck`: reads the command line, runs one command, says what came of it."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fmcheck import __version__
from fmcheck.errors import UsageError, nearest, nearest_code
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CLEAN, FOUND, FAILED, INTERRUPTED = 0, 1, 2, 130
#: What a shell shows of a program that wrote to a pipe nobody reads: it is ended by SIGPIPE (13).
READER_GONE = 128 + 13
#: Shows the traceback of an error; any command takes it, at any place.
TRACEBACK = "--traceback"
#: Options that no command is needed for, and that every command knows of.
_ALONE = ("-h", "--help", "--version")
_GLOBAL = ("--help", "--version", TRACEBACK)
#: What a stream that takes nothing more says; an error about a file has the file's name.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
#: An error's own words may be a whole file.
_MOST_WORDS = 300
_REPORT = (
    "fmcheck: this is a bug of fmcheck: please report it, with what `--traceback` (or the "
    "environment variable FMCHECK_TRACEBACK=1) adds"
)
#: Commands that run another, whose words stand after `--`.
_TAKING_MORE = ("ci", "prove")
#: How near an option has to be to be offered.
_NEAR = 0.65
_REQUIRED = "the following arguments are required: "
#: Names of commands that still work, and are not offered.
_OLD = ("rule",)
#: Commands with a module of their own, which adds them to the parser.
_MODULES = {
    "lint": "fmcheck.cli.lint",
    "init": "fmcheck.cli.init",
    "contract": "fmcheck.cli.contract",
    "doctor": "fmcheck.cli.doctor",
    "report": "fmcheck.cli.report",
    "ci": "fmcheck.cli.ci",
    "prove": "fmcheck.cli.prove",
    "completion": "fmcheck.cli.completion",
    "schema": "fmcheck.cli.schema",
    "server": "fmcheck.cli.server",
}
_EVERY = ", ".join((*_MODULES, "explain", "rules"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that `argv` asks for and returns its exit status."""
    given = sys.argv[1:] if argv is None else argv
    try:
        own, after = _split(given)
        own = [word for word in own if word != TRACEBACK]
        arguments = _arguments(own)
        arguments.after = after
        status = _run(arguments)
        flush()
    except SystemExit as err:  # argparse's, after --help and --version
        try:
            flush()
        except OSError as unwritten:
            return ended(unwritten, given)
        raise err
    except BaseException as err:
        return ended(err, given)
    return status


def _arguments(own: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments of a command line; argparse itself ends what asks for help."""
    if own and own[0].startswith("-") and own[0] not in _ALONE:
        raise UsageError(own[0], f"no such option{_nearest_option(own[0], ())}")
    arguments, unknown = parser(own[0] if own else "").parse_known_args(own)
    if unknown:
        near = _nearest_option(unknown[0], arguments.options)
        near = near or f"; `fmcheck {own[0]} --help` lists them"
        raise UsageError(unknown[0], f"no such option or argument{near}")
    return arguments


def _nearest_option(given: str, options: Iterable[str]) -> str:
    """Returns the option that may have been meant, as a question; a letter stands for its word."""
    name = given.partition("=")[0]
    known = {option: option for option in options} | {one: f"fmcheck {one}" for one in _GLOBAL}
    if name[:1] == "-" != name[1:2] and len(name) > 1:
        found = [said for one, said in known.items() if one.startswith(f"--{name[1].lower()}")]
        return f"; did you mean {' or '.join(f'`{one}`' for one in found[:3])}?" if found else ""
    for one, said in known.items():
        if one == name:
            return f"; did you mean `{said}`?"
    near = nearest(name, known, _NEAR)
    return next((near.replace(f"`{one}`", f"`{known[one]}`") for one in known if one in near), near)


def _run(arguments: argparse.Namespace) -> int:
    try:
        status: int = arguments.run(arguments)
    except SystemExit as err:
        # Of a plugin, say: its status would read as ours.
        raise RuntimeError(f"something called sys.exit({err.code!r})") from err
    return status


def flush() -> None:
    """Writes out what is left of the output, so that a full disk is an error here, not at exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def ended(err: BaseException, argv: Sequence[str]) -> int:
    """Returns the exit status of a run that ended by an error, and says what is to be said of it.

    The one place that decides it: what was not foreseen is FAILED, for 1 would read as findings.
    """
    if isinstance(err, SystemExit):
        return err.code if isinstance(err.code, int) else CLEAN if err.code is None else FAILED
    if TRACEBACK in argv or os.environ.get("FMCHECK_TRACEBACK"):
        import traceback

        _complain("".join(traceback.format_exception(err)).rstrip())
    if isinstance(err, UsageError):
        _complain(f"fmcheck: {err}")
        return FAILED
    if isinstance(err, KeyboardInterrupt):
        _complain("fmcheck: interrupted")
        return INTERRUPTED
    if isinstance(err, BrokenPipeError):
        _give_up_output()  # `| head` wants to hear no more
        return READER_GONE
    if isinstance(err, OSError) and err.errno in _UNWRITABLE and err.filename is None:
        _forget_run()
        _give_up_output()
        _complain(f"fmcheck: standard output: cannot be written: {err.strerror or err}")
        return FAILED
    if isinstance(err, FileNotFoundError) and not _has_folder():
        _complain("fmcheck: the current folder was removed: expected to run in one that exists")
        return FAILED
    if isinstance(err, MemoryError):
        _forget_run()
        _complain("fmcheck: out of memory: not everything was checked; try fewer files or `-j 1`")
        return FAILED
    _forget_run()
    _complain(f"fmcheck: internal error: {_one_line(err)}; not everything was checked\n{_REPORT}")
    return FAILED


def _has_folder() -> bool:
    """Tells whether the folder that the command runs in still exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _forget_run() -> None:
    """Keeps a run that ended by an error from being replayed: the next one may go well."""
    from fmcheck.lint.run.recording import INPUTS

    inputs = INPUTS.get()
    if inputs is not None:
        inputs.repeatable = False


def _one_line(err: BaseException) -> str:
    first = str(err).strip().partition("\n")[0][:_MOST_WORDS]
    return f"{type(err).__name__}: {first}" if first else type(err).__name__


def _give_up_output() -> None:
    """Sends what the standard output still holds nowhere: Python would complain at its end."""
    stream, sys.stdout = sys.stdout, None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()


def _complain(text: str) -> None:
    """Writes to the standard error, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        print(printable(text, keep="\t\n"), file=sys.stderr)
        if sys.stderr is not None:
            sys.stderr.flush()


def _split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str] | None]:
    """Returns a command's own words, and those after `--` where it takes any, else None."""
    if not argv or argv[0] not in _TAKING_MORE or "--" not in argv:
        return argv, None
    at = list(argv).index("--")
    return argv[:at], argv[at + 1 :]


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the command: one line, with the nearest name."""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Prints help; argparse's own keeps silent where that cannot be written."""
        (file or sys.stdout).write(message)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        where = self.prog.removeprefix("fmcheck ")
        _, wrong, choices = message.partition("invalid choice: ")
        option = re.match(r"argument ([^:]+): ", message)
        if wrong:
            given, *known = re.findall(r"'([^']*)'|([\w-]+)(?=[,)])", choices)
            names = ["".join(one) for one in known]
            listed = ", ".join(f"`{one}`" for one in names if one not in _OLD)
            where = self._named(option[1]) if option else where
            message = f"expected one of {listed}, got `{''.join(given)}`"
            message += nearest("".join(given), names, _NEAR)
        elif option:
            where, message = self._named(option[1]), _plain(message[option.end() :])
        elif message.startswith(_REQUIRED):
            missing = message.removeprefix(_REQUIRED)
            message = f"expected {missing}; `{self.prog} --help` shows the usage"
            if self.prog == "fmcheck":
                where, message = "COMMAND", f"expected one of {_EVERY}; see `fmcheck --help`"
        raise UsageError(where, message)

    def _named(self, option: str) -> str:
        """Returns an option by its long name, an argument with the command that it is of."""
        name = option.rpartition("/")[2]
        if name.startswith("-") or self.prog == "fmcheck":
            return name
        return f"{self.prog.removeprefix('fmcheck ')} {name}"


def _plain(message: str) -> str:
    """Returns argparse's own words for an error as the rest of fmcheck would put it."""
    if message == "expected one argument":
        return "expected a value after it"
    number = re.fullmatch(r"invalid (\w+) value: '(.*)'", message)
    if number:
        kinds = {"int": "a whole number", "float": "a number"}
        return f"expected {kinds.get(number[1], number[1])}, got `{number[2]}`"
    both = re.fullmatch(r"not allowed with argument (.+)", message)
    return f"cannot be combined with `{both[1].rpartition('/')[2]}`" if both else message


def parser(asked: str = "") -> argparse.ArgumentParser:
    """Returns the parser of the command that is asked for, of all commands if it is none."""
    whole = _Parser(
        prog="fmcheck",
        allow_abbrev=False,
        description="Finds stale-data bugs in overlap-scheduled LLM inference engines. "
        "`fmcheck lint` reads the source; `pytest -p fmcheck` and `fmcheck.watch` watch it run.",
        epilog="`fmcheck COMMAND --help` has more on each.",
    )
    whole.add_argument("--version", action="version", version=f"fmcheck {__version__}")
    whole.add_argument(
        TRACEBACK, action="store_true", help="with any command: show the traceback of an error"
    )
    whole.set_defaults(options=())
    # Named here, `prog` spares a formatter, and with it the import of shutil.
    commands = whole.add_subparsers(required=True, metavar="COMMAND", prog="fmcheck")
    for name in (asked,) if asked in _MODULES else _MODULES:
        importlib.import_module(_MODULES[name]).add_to(commands)
    if asked in _MODULES:
        return whole
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
    return whole


def given_path(text: str) -> Path:
    """Returns a path that was given; an empty one, of a variable that is not set, is no folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty one")
    return Path(text)


def given_text(text: str) -> str:
    """Returns what was given for an option; nothing is what a variable holds that is not set."""
    if not text.strip(", "):
        raise argparse.ArgumentTypeError("expected a value, got an empty one")
    return text


def at_least_one(text: str) -> int:
    """Returns a number of an option that counts something."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1 (got `{text}`)")
    return int(text)


def _explain(arguments: argparse.Namespace) -> int:
    from fmcheck.cli.check_pages import PAGES, check_page
    from fmcheck.finding import CHECKS
    from fmcheck.lint.own import OWN_CODES, REMOVED, why_removed
    from fmcheck.lint.page import own_page, rule_page
    from fmcheck.registry import rules

    known = rules()
    given = arguments.code.strip()
    names = {rule.name: one for one, rule in known.items()} | {CHECKS[one]: one for one in PAGES}
    code = names.get(given.lower(), given.upper())
    if code in known:
        print(rule_page(known[code]))
    elif code in OWN_CODES:
        print(own_page(OWN_CODES[code]))
    elif code in CHECKS and code in PAGES:
        print(check_page(code))
    elif code in REMOVED:
        raise UsageError(arguments.command_name, why_removed(code))
    else:
        near = nearest(given.lower(), names, _NEAR)
        near = near or nearest_code(code, (*known, *CHECKS, *OWN_CODES))
        raise UsageError(arguments.command_name, f"there is no `{arguments.code}`{near}")
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
