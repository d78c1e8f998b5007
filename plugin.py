"""The pytest plugin: options, hooks and reporting. What is checked, and how, is `fmcheck.runtime`.

Nothing heavy is imported before a watch is asked for: pytest loads this file in every project of
an environment that fmcheck is installed in.
"""

from __future__ import annotations

if __name__ != "fmcheck.plugin":
    raise ImportError("this file is the module fmcheck.plugin; load it with `pytest -p fmcheck`")

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fmcheck.errors import FmcheckWarning, UsageError, ViolationError, nearest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from fmcheck.finding import Coverage, Violation
    from fmcheck.reach.outreach import Outreach
    from fmcheck.record import Run
    from fmcheck.runtime.session import Session

MODES = ("fail", "warn", "halt", "off")
_VARIABLE = "FMCHECK_MODE"
_WORKER_KEY = "fmcheck"


class ViolationFailed(pytest.fail.Exception, ViolationError):  # type: ignore[name-defined,misc]  # noqa: N818
    """Fails the phase of a test in which a violation was found."""

    # As pytest's own outcomes do it: the short summary then begins with what was found.
    __module__ = "builtins"

    def __init__(self, text: str) -> None:
        pytest.fail.Exception.__init__(self, text, pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the options, which do nothing by themselves."""
    group = parser.getgroup("fmcheck", "stale data in relay buffers")
    group.addoption(
        "--fmcheck",
        "--fmcheck-mode",
        metavar="MODE",
        dest="fmcheck_mode",
        help="what a violation does: fail its test, warn, halt (raise at the offending line); or "
        "off: nothing is watched (default: fail with -p fmcheck, else off)",
    )
    group.addoption(
        "--fmcheck-config",
        metavar="FILE",
        dest="fmcheck_config",
        help="settings: contracts, suppressions, fail-on (default: [tool.fmcheck] of the nearest "
        "pyproject.toml)",
    )
    group.addoption(
        "--fmcheck-journal",
        metavar="DIR",
        dest="fmcheck_journal",
        help="where each process writes what it checked and found, in a folder of its own that "
        "stays (default: among the temporary files, and removed after a run in good order)",
    )
    parser.addini(
        "fmcheck_mode", "what a violation of fmcheck does, unless --fmcheck or FMCHECK_MODE says it"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Starts the watch before a conftest can import an engine."""
    _start(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Starts the watch where the earlier hook was missed, as for a conftest's `pytest_plugins`."""
    _start(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Lets go of the engine."""
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.reach.stop()
        session.watch.stop()
        session.reach.clear()


def _start(config: pytest.Config) -> None:
    if _SESSION in config.stash:
        return
    mode = _mode(config)
    if mode in ("", "off"):
        return
    try:
        watch, reach = _watch(config, mode)
        watch.start()
        reach.start()
    except UsageError as err:
        raise pytest.UsageError(f"fmcheck: {err}") from None
    config.stash[_SESSION] = session = _Session(config, watch, reach)
    config.pluginmanager.register(session, "fmcheck-session")


def _mode(config: pytest.Config) -> str:
    """Returns the mode that the flag, the environment, the ini file or `-p fmcheck` asks for."""
    known = config.known_args_namespace
    asked = (
        ("--fmcheck", getattr(known, "fmcheck_mode", None)),
        (_VARIABLE, os.environ.get(_VARIABLE)),
        ("fmcheck_mode", config.getini("fmcheck_mode")),
    )
    for where, mode in asked:
        if mode:
            if mode not in MODES:
                raise pytest.UsageError(
                    f"fmcheck: {where}: expected one of {', '.join(MODES)}, got `{mode}`"
                    f"{nearest(mode, MODES)}"
                )
            return str(mode)
    by_name = {"fmcheck", "fmcheck.plugin"}.intersection(known.plugins or ())
    return "fail" if by_name else ""


def _watch(config: pytest.Config, mode: str) -> tuple[Session, Outreach]:
    from fmcheck.config import find_settings, load_settings
    from fmcheck.reach.outreach import Outreach
    from fmcheck.runtime.session import Session

    named = getattr(config.known_args_namespace, "fmcheck_config", None)
    located = load_settings(Path(named)) if named else find_settings(config.rootpath)
    watch = Session(located, mode, who="pytest -p fmcheck")
    asked = getattr(config.known_args_namespace, "fmcheck_journal", None) or ""
    return watch, Outreach(watch, located, config.rootpath, asked)


class _Session:
    """The hooks of a run that is watched."""

    def __init__(self, config: pytest.Config, watch: Session, reach: Outreach) -> None:
        from fmcheck.finding import Coverage

        self.config = config
        self.watch = watch
        self.reach = reach
        self.outside: list[Violation] = []
        self.advice: dict[object, Violation] = {}
        self.of_workers: Coverage = Coverage()
        self.reports: set[tuple[str, str, str]] = set()

    # --- one test ---

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watches the set-up, fixtures included."""
        self.outside += self._drain()
        return (yield from self._phase(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watches the test."""
        return (yield from self._phase(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watches the tear-down, fixtures included."""
        return (yield from self._phase(item, "teardown"))

    def _phase(self, item: pytest.Item, when: str) -> Generator[None, Any, Any]:
        self.watch.enter(item.nodeid)
        self.reach.begin(item.nodeid, when)
        try:
            try:
                result = yield
            finally:
                if when == "call":
                    self.reach.settle()
        except pytest.skip.Exception:
            self._fail(item, when)  # a skip after the fact would hide what was found
            raise
        except (Exception, pytest.fail.Exception) as err:  # the latter is no Exception
            self._tell_beside(err, item, when)
            raise
        finally:
            self.watch.enter("")
            self.reach.end()
            self._stop_if_dead(item.session)
        failures = [one for one in _kept(item) if not isinstance(one.value, pytest.skip.Exception)]
        if failures:
            self._tell_beside(failures[0].value, item, when)
        else:
            self._fail(item, when)
        return result

    def _fail(self, item: pytest.Item, when: str) -> None:
        found = self._drain(item.nodeid)
        if not found:
            return
        self._keep(found, item)
        text = self._render(found)
        if self.watch.mode == "warn":
            warnings.warn(FmcheckWarning(f"\n{text}"), stacklevel=2)
        else:
            _kept(item).clear()  # a skip, which pytest would put in this failure's place
            raise ViolationFailed(text)

    def _tell_beside(self, err: BaseException, item: pytest.Item, when: str) -> None:
        """Leaves a test its own failure, and adds what was found to it."""
        found = self._drain(item.nodeid)
        if not found:
            return
        self._keep(found, item)
        item.add_report_section(when, "fmcheck", self._render(found))
        if hasattr(err, "add_note"):  # from Python 3.11 on
            from fmcheck.report.violation import headline

            err.add_note("\n".join(headline(violation) for violation in found))

    def _drain(self, test: str = "") -> tuple[Violation, ...]:
        """Returns what was found since the last call, and keeps the advice for the end.

        What another process found belongs to `test` or to none.
        """
        found, advice = self.watch.drain()
        reached = self.reach.drain(test)
        for one in (*advice, *reached.advice):
            self._advise(one)
        self.outside += reached.elsewhere
        return (*found, *reached.here)

    def _advise(self, advice: Violation) -> None:
        self.advice.setdefault(advice.key, advice)

    def _stop_if_dead(self, session: pytest.Session) -> None:
        """Stops the session once a detector was seen not to fire: no further test means a thing."""
        dead = (*self.watch.dead, *self.reach.dead)
        if dead:
            session.shouldfail = f"fmcheck: {dead[0]}"

    def _keep(self, found: Iterable[Violation], item: pytest.Item) -> None:
        from fmcheck.report.violation import headline

        item.user_properties += [("fmcheck", headline(violation)) for violation in found]

    # --- the session ---

    def pytest_report_header(self) -> list[str]:
        """Says what is on, and what it does not reach."""
        from fmcheck.reach.gaps import gaps

        names = ", ".join(self.watch.contract_names)
        first = f"fmcheck: mode {self.watch.mode}, contracts: {names} (child processes too)"
        return [first, *(f"fmcheck: {gap}" for gap in gaps())]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a run in which something was found outside of the tests, or not reached."""
        self.outside += self._drain()
        workeroutput = getattr(self.config, "workeroutput", None)
        if workeroutput is not None:  # an xdist worker
            workeroutput[_WORKER_KEY] = self._for_controller()
            return
        found = self.outside and self.watch.mode != "warn"
        problems = self._run().problems
        if (found or problems) and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Says how much was checked, always."""
        if hasattr(self.config, "workerinput"):
            return
        from fmcheck.finding import Counts
        from fmcheck.report.closing import closing_line, endings, gaps

        run = self._run()
        terminalreporter.section("fmcheck")
        for title, found in (
            ("found outside of any test:", [one for one in self.outside if not one.test]),
            ("found in a test that was over:", [one for one in self.outside if one.test]),
        ):
            if found:
                terminalreporter.line(title, red=True)
                terminalreporter.line(self._render(found))
        if self.advice:
            terminalreporter.line("told of, and failing nothing:", yellow=True)
            terminalreporter.line(self._render(self.advice.values()))
        for problem in run.problems:
            terminalreporter.line(f"fmcheck error: {problem}", red=True)
        told = (*endings(run.processes), *self.reach.missed(), *gaps(run.coverage))
        for gap in (*told, *self.reach.kept(run)):
            terminalreporter.line(f"fmcheck: {gap}", yellow=True)
        checked = {one.pid for one in run.processes if one.coverage.counts != Counts()}
        number = len(checked) if checked - {os.getpid()} else 0
        terminalreporter.line(closing_line(run.coverage, number))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Adds what an xdist worker found outside of its tests, or could not report any more."""
        output = getattr(node, "workeroutput", None) or {}
        told = output.get(_WORKER_KEY)
        if told is None:
            name = node.gateway.id
            reported = {(test, when) for worker, test, when in self.reports if worker == name}
            self.outside += self.reach.untold(name, reported)
            return
        import msgspec

        from fmcheck.finding import Coverage, Violation

        coverage, outside, advice = msgspec.json.decode(
            told, type=tuple[Coverage, list[Violation], list[Violation]]
        )
        self.of_workers += coverage
        self.outside += outside
        for one in advice:
            self._advise(one)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes which phases of which tests an xdist worker came to report."""
        node = getattr(report, "node", None)
        if node is not None:
            self.reports.add((node.gateway.id, report.nodeid, report.when or ""))

    def _for_controller(self) -> str:
        """Returns what a controller is told: the counts too, unless it can read the journal."""
        import msgspec

        from fmcheck.finding import Coverage

        coverage = Coverage() if self.reach.is_worker else self._run().coverage
        return msgspec.json.encode((coverage, self.outside, list(self.advice.values()))).decode()

    def _run(self) -> Run:
        """Returns what was checked and found up to now, in all processes."""
        run = self.reach.run()
        return replace(run, coverage=run.coverage + self.of_workers)

    def _render(self, found: Iterable[Violation]) -> str:
        from fmcheck.report.violation import render_all

        return render_all(found, self.config.rootpath)


def _kept(item: pytest.Item) -> list[Any]:
    """Returns how a `unittest.TestCase` ended, which pytest keeps aside and does not raise."""
    return getattr(item, "_excinfo", None) or []


_SESSION = pytest.StashKey[_Session]()
