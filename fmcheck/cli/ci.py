"""`fmcheck ci`: lint and watched tests as one gate, with one report of both."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fmcheck.cli import given_path
from fmcheck.cli import lint as cli_lint
from fmcheck.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fmcheck.lint.run.outcome import Outcome
    from fmcheck.report.contents import Contents
    from fmcheck.report.run.markdown import LintHalf, PytestHalf

CLEAN, FOUND, FAILED = 0, 1, 2
SUMMARY = "GITHUB_STEP_SUMMARY"

#: What `fmcheck lint` has options for, and a gate has not.
_NOT_FOR_CI = {
    "fix": False,
    "diff": False,
    "unsafe_fixes": False,
    "update_baseline": False,
    "add_to_baseline": False,
    "statistics": False,
    "format": "text",
    "quiet": False,
    "stdin_filename": None,
}

DESCRIPTION = """\
Lints, runs pytest under `-p fmcheck`, and reports both. What follows `--` goes to pytest as it is;
without `--` no tests are run.
"""
EPILOG = f"""\
written into the folder of --output:
  fmcheck.sarif   both halves, for a code scanning service
  fmcheck.json    the record of the tests, for `fmcheck report`
  fmcheck.html    the same as a page

A summary in Markdown goes to the file of --summary, and to that of ${SUMMARY} if it is
set. Under GITHUB_ACTIONS=true findings are printed as annotations.

exit status, the worse of both halves:
  0    nothing found, and all tests passed
  1    lint warnings or errors, violations, or failed tests
  2    some checks could not run: bad input, a file that could not be read, no tests, a
       pytest that did not finish, or tests that checked nothing of a contract
  130  interrupted

example:
  fmcheck ci --lint src --baseline fmcheck-baseline.json -- -n 4 test/
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `ci`."""
    ci = commands.add_parser(
        "ci",
        help="check a change: lint and watched tests, one report, one exit status",
        usage="fmcheck ci [OPTION]... [-- PYTEST_ARGUMENT...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    lint = ci.add_argument_group("lint")
    lint.add_argument(
        "--lint",
        nargs="+",
        action="extend",
        type=given_path,
        metavar="PATH",
        help="files and folders to lint (default: this folder)",
    )
    lint.add_argument("--no-lint", action="store_true", help="run only the tests")
    lint.add_argument(
        "--baseline",
        type=given_path,
        metavar="FILE",
        help="file of accepted findings (default: the settings' `baseline`, if any)",
    )
    cli_lint.add_selection(lint)
    cli_lint.add_files(lint)
    cli_lint.add_speed(lint)
    reports = ci.add_argument_group("reports")
    reports.add_argument(
        "--output",
        type=given_path,
        default=Path("fmcheck-report"),
        metavar="DIR",
        help="where reports go (default: fmcheck-report)",
    )
    reports.add_argument(
        "--summary", type=given_path, metavar="FILE", help="write the summary there"
    )
    reports.add_argument(
        "--exit-zero", action="store_true", help="exit with 0 even for findings; 2 stays 2"
    )
    options = [name for action in ci._actions for name in action.option_strings]
    ci.set_defaults(run=run, options=options, **_NOT_FOR_CI)


def run(arguments: argparse.Namespace) -> int:
    """Runs what was asked for, writes the reports, and returns the worse exit status."""
    from fmcheck.report_files import ENDINGS, checked

    if arguments.no_lint and arguments.after is None:
        raise UsageError("ci", "nothing to do: expected `-- PYTEST_ARGUMENT...` with --no-lint")
    if arguments.no_lint and arguments.lint:
        raise UsageError("ci", "expected --lint or --no-lint, got both")
    folder = Path.cwd() / arguments.output
    for old in checked([f"fmcheck{one}" for one in ENDINGS], "--output", folder):
        old.unlink(missing_ok=True)
    statuses: list[int] = []
    runs: list[dict[str, Any]] = []
    linted = tested = None
    if not arguments.no_lint:
        outcome, contents = _lint(arguments)
        statuses.append(_lint_status(outcome, arguments))
        runs.append(_named(_lint_sarif(contents), "lint"))
        linted = _linted(outcome)
    if arguments.after is not None:
        tested = _test(arguments, folder)
        statuses.append(_test_status(tested))
        if tested.run is not None:
            runs.append(_named(_test_sarif(tested), "tests"))
    status = max(statuses)
    if arguments.exit_zero and status == FOUND:
        status = CLEAN
    _write(folder / "fmcheck.sarif", _log(runs))
    _summarise(arguments, linted, tested, status)
    names = ", ".join(sorted(one.name for one in folder.glob("fmcheck.*")))
    print(f"fmcheck ci: {names} in {arguments.output}; exit status {status}")
    return status


# --- lint ---


def _lint(arguments: argparse.Namespace) -> tuple[Outcome, Contents]:
    """Lints, shows what was found, and returns it."""
    from fmcheck.lint.run.outcome import lint_paths
    from fmcheck.report import contents, github, text

    arguments.paths = arguments.lint or [Path()]
    outcome = lint_paths(cli_lint.request_of(arguments))
    found = contents.Contents(
        findings=outcome.findings,
        suppressed=(),
        codes=cli_lint.codes(),
        lines_of=outcome.lines_of,
        root=os.getcwd(),
        version=_version(),
        files=outcome.files,
        complete=not outcome.unreadable,
    )
    if _on_github():
        print(github.render(found), end="\n" * bool(outcome.findings))
    else:
        for one in outcome.findings:
            print(text.render(one, outcome.lines_of))
    print(text.summary(outcome.findings, outcome.files, outcome.rules))
    cli_lint.show_notes(outcome, arguments)
    return outcome, found


def _lint_status(outcome: Outcome, arguments: argparse.Namespace) -> int:
    if outcome.unreadable or not (outcome.files or arguments.since):
        return FAILED
    return FOUND if outcome.failing else CLEAN


def _lint_sarif(contents: Contents) -> dict[str, Any]:
    from fmcheck.report.sarif import lint_run

    return lint_run(contents)


def _linted(outcome: Outcome) -> LintHalf:
    from fmcheck.report.run.markdown import LintHalf

    return LintHalf(outcome.findings, outcome.files, outcome.rules, outcome.allowed)


# --- tests ---


def _test(arguments: argparse.Namespace, folder: Path) -> PytestHalf:
    """Runs pytest, whose output is seen as it comes, and returns what it came to."""
    from importlib.util import find_spec

    from fmcheck.processes.journal.collect import gather
    from fmcheck.processes.journal.layout import LINES
    from fmcheck.record.record_file import read_run
    from fmcheck.report.run import run_github
    from fmcheck.report.run.markdown import PytestHalf
    from fmcheck.report_files import write_run

    if find_spec("pytest") is None:
        raise UsageError("ci", "tests need pytest: pip install 'fmcheck[pytest]'")
    record, page = folder / "fmcheck.json", folder / "fmcheck.html"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "fmcheck"]
    command += [f"--fmcheck-report={one}" for one in (record, page)]
    if arguments.config:
        command.append(f"--fmcheck-config={arguments.config}")
    sys.stdout.flush()
    run = None
    # A folder of our own: one of a plain name may be somebody's, and is removed with all in it.
    with tempfile.TemporaryDirectory(
        prefix="fmcheck-journal-", dir=folder, ignore_cleanup_errors=True
    ) as journal:
        command.append(f"--fmcheck-journal={journal}")
        status = subprocess.run([*command, *arguments.after], check=False).returncode
        if record.exists():
            run = read_run(record)
        elif any(Path(journal).rglob(f"*{LINES}")):
            # An engine that dies may take pytest with it: what it had found is reported all the
            # same.
            run = gather([Path(journal)])
            for one in (record, page):
                write_run(run, one)
    if run is None:
        return PytestHalf(status, None)
    if _on_github() and (run.violations or run.advice):
        print(run_github.render(run))
    return PytestHalf(status, run)


def _test_status(tested: PytestHalf) -> int:
    # pytest's own: 0 all passed, 1 some failed; 5, that there were none, is no pass.
    if tested.run is None or tested.status not in (CLEAN, FOUND):
        return FAILED
    return tested.status


def _test_sarif(tested: PytestHalf) -> dict[str, Any]:
    from fmcheck.report.run.run_sarif import violations_run

    assert tested.run is not None
    return violations_run(tested.run)


# --- reports ---


def _named(run: dict[str, Any], half: str) -> dict[str, Any]:
    """Returns a SARIF run with its category: a service takes one run of each from a file."""
    return {**run, "automationDetails": {"id": f"fmcheck-{half}/"}}


def _log(runs: Sequence[dict[str, Any]]) -> str:
    from fmcheck.report.sarif import log

    return log(*runs)


def _summarise(
    arguments: argparse.Namespace, linted: LintHalf | None, tested: PytestHalf | None, status: int
) -> None:
    from fmcheck.report.run.markdown import render

    rendered = render(linted, tested, status, _link(os.environ))
    if arguments.summary:
        _write(arguments.summary, rendered)
    if page := os.environ.get(SUMMARY):
        try:
            with open(page, "a", encoding="utf-8") as file:
                file.write(rendered)
        except OSError as err:
            raise UsageError(page, f"cannot be written: {err.strerror or err}") from err


def _link(environ: Mapping[str, str]) -> Callable[[str, int], str]:
    """Returns what gives the address of a line on GitHub, where the environment tells of one."""
    from fmcheck.report.repository import path_in, repository

    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_SHA")
    server, name, commit = (environ.get(one, "") for one in names)
    root = repository(os.getcwd())

    def link(path: str, line: int) -> str:
        inside = path_in(root, os.path.abspath(path))
        if not (server and name and commit) or os.path.isabs(inside):
            return ""
        return f"{server}/{name}/blob/{commit}/{quote(inside)}#L{line}"

    return link


def _write(path: Path, text: str) -> None:
    from fmcheck.files.atomic import replace_file

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode() + b"\n")
    except OSError as err:
        raise UsageError(str(path), f"cannot be written: {err.strerror or err}") from err


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _version() -> str:
    from fmcheck import __version__

    return __version__
