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

from fmcheck.errors import FmcheckWarning, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from fmcheck.finding import Coverage, Violation
    from fmcheck.reach.outreach import Outreach
    from fmcheck.record import Run
    from fmcheck.runtime.session import Session
    from fmcheck.stream_options import StreamOptions
    from fmcheck.testing.watched import Watched

MODES = ("fail", "warn", "halt", "off")
_VARIABLE = "FMCHECK_MODE"
_WORKER_KEY = "fmcheck"
_MARK = (
    "fmcheck(expect=..., allow=..., mode=...): what fmcheck finds in this test. `expect`: checks "
    "that must be found, or the test fails. `allow`: checks that do not fail it. Both take codes "
    "(FR102), names (double-read), families (FR1) or ALL, one or a list. `mode`: fail or warn."
)


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
        "--fmcheck-report",
        metavar="FILE",
        dest="fmcheck_report",
        action="append",
        default=[],
        help="write what was checked and found, by the file's ending: .json (the record, for "
        "`fmcheck report`), .sarif (code scanning), .html (a page); may be given several times",
    )
    group.addoption(
        "--fmcheck-journal",
        metavar="DIR",
        dest="fmcheck_journal",
        help="where each process writes what it checked and found, in a folder of its own that "
        "stays (default: among the temporary files, and removed after a run in good order)",
    )
    group.addoption(
        "--fmcheck-streams",
        metavar="MODE",
        dest="fmcheck_streams",
        help="how streams are followed: tracked; delayed: a write is seen by other streams no "
        "sooner than a fence makes them see it; random: or at any moment up to then; or off "
        "(default: tracked)",
    )
    group.addoption(
        "--fmcheck-seed",
        metavar="N",
        dest="fmcheck_seed",
        help="what --fmcheck-streams=random perturbs streams by (default: drawn anew, and told)",
    )
    group.addoption(
        "--fmcheck-trace",
        metavar="FILE",
        dest="fmcheck_trace",
        help="a timeline of what happened on the streams, with what was found: a Chrome trace, "
        "which https://ui.perfetto.dev opens",
    )
    parser.addini("fmcheck_streams", "how fmcheck follows streams, unless --fmcheck-streams says")
    parser.addini("fmcheck_seed", "the seed of random streams, unless --fmcheck-seed says")
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
    config.addinivalue_line("markers", _MARK)
    _start(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Lets go of the engine."""
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.reach.stop()
        session.watch.stop()
        session.reach.clear()


@pytest.fixture(name="fmcheck")
def _fixture(request: pytest.FixtureRequest) -> Watched:
    """What fmcheck saw in this test: `violations`, `counts`, `sync()`, `expect(...)`."""
    session = request.config.stash.get(_SESSION, None)
    if session is None:
        pytest.skip("asks what fmcheck found, and fmcheck is off: run with `-p fmcheck`")
    return session.outcomes.watched(request.node)


def _start(config: pytest.Config) -> None:
    if _SESSION in config.stash:
        return
    mode = _mode(config)
    try:
        reports = _reports(config, mode)
        if mode in ("", "off"):
            return
        watch, reach = _watch(config, mode)
        watch.start()
        reach.start()
    except UsageError as err:
        raise pytest.UsageError(f"fmcheck: {err}") from None
    config.stash[_SESSION] = session = _Session(config, watch, reach, reports)
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
    from fmcheck.supported import check_torch

    check_torch()
    named = getattr(config.known_args_namespace, "fmcheck_config", None)
    located = load_settings(Path(named)) if named else find_settings(config.rootpath)
    watch = Session(
        located,
        mode,
        who="pytest -p fmcheck",
        streams=_streams(config),
        trace=_trace(config),
    )
    asked = getattr(config.known_args_namespace, "fmcheck_journal", None) or ""
    return watch, Outreach(watch, located, config.rootpath, asked)


def _reports(config: pytest.Config, mode: str) -> tuple[Path, ...]:
    """Returns the reports to write, before a test runs that they could be lost for."""
    asked = getattr(config.known_args_namespace, "fmcheck_report", None)
    if not asked:
        return ()
    from fmcheck.report_files import checked

    if not mode:
        raise UsageError("--fmcheck-report", "fmcheck is off: expected `-p fmcheck` beside it")
    return checked(asked, "--fmcheck-report", config.invocation_params.dir)


def _trace(config: pytest.Config) -> Path | None:
    """Returns the file for the timeline; an xdist worker has one of its own beside it."""
    named = getattr(config.known_args_namespace, "fmcheck_trace", None)
    if not named:
        return None
    path = Path(named)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    return path.with_name(f"{path.stem}.{worker}{path.suffix}") if worker else path


def _streams(config: pytest.Config) -> StreamOptions:
    """Returns how streams are to be followed, each setting from the first place that has it."""
    from fmcheck.stream_options import stream_options

    known = config.known_args_namespace
    return stream_options(
        *(
            (
                (f"--fmcheck-{name}", getattr(known, f"fmcheck_{name}", None)),
                (f"FMCHECK_{name.upper()}", os.environ.get(f"FMCHECK_{name.upper()}")),
                (f"fmcheck_{name}", config.getini(f"fmcheck_{name}")),
            )
            for name in ("streams", "seed")
        )
    )


class _Session:
    """The hooks of a run that is watched."""

    def __init__(
        self, config: pytest.Config, watch: Session, reach: Outreach, reports: tuple[Path, ...]
    ) -> None:
        from fmcheck.finding import Coverage
        from fmcheck.testing.outcomes import Outcomes

        self.config = config
        self.watch = watch
        self.reach = reach
        self.reports = reports
        self.outcomes = Outcomes(
            watch.mode, reach.counts, reach.settle, self._drain, config.rootpath
        )
        self.gathered = self.outcomes.gathered
        self.unwritten: list[str] = []
        self.outside: list[Violation] = []
        self.advice: dict[object, Violation] = {}
        self.of_workers: Coverage = Coverage()
        self.reported: set[tuple[str, str, str]] = set()

    # --- one test ---

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watches the set-up, fixtures included."""
        self._found_outside()
        self.outcomes.open(item)
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
        from fmcheck.testing.outcomes import kept_aside

        self.watch.enter(item.nodeid)
        self.reach.begin(item.nodeid, when)
        try:
            try:
                result = yield
            finally:
                if when == "call":
                    self.reach.settle()
        except pytest.skip.Exception:
            self.outcomes.skipped(item)
            raise
        except (Exception, pytest.fail.Exception) as err:  # the latter is no Exception
            if self.outcomes.failed(item, when, err):
                raise
            return None
        finally:
            self.watch.enter("")
            self.reach.end()
            self._stop_if_dead(item.session)
        kept = kept_aside(item)
        failures = [one for one in kept if not isinstance(one.value, pytest.skip.Exception)]
        if not failures:
            self.outcomes.passed(item, when)
        elif not self.outcomes.failed(item, when, failures[0].value):
            kept.clear()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes which tests were meant to fail, and which phases an xdist worker came to report."""
        self.outcomes.reported(report)
        node = getattr(report, "node", None)
        if node is not None:
            self.reported.add((node.gateway.id, report.nodeid, report.when or ""))

    def _found_outside(self) -> None:
        found, _ = self._drain("")
        self.outside += found
        self.gathered.failing += found

    def _drain(self, test: str) -> tuple[tuple[Violation, ...], tuple[Violation, ...]]:
        """Returns what was found since the last call, and the advice, which is kept for the end.

        What another process found belongs to `test` or to none.
        """
        found, advice = self.watch.drain()
        reached = self.reach.drain(test)
        for one in (*advice, *reached.advice):
            self._advise(one)
        self.outside += reached.elsewhere
        self.gathered.failing += reached.elsewhere
        return (*found, *reached.here), (*advice, *reached.advice)

    def _advise(self, advice: Violation) -> None:
        self.advice.setdefault(advice.key, advice)

    def _stop_if_dead(self, session: pytest.Session) -> None:
        """Stops the session once a detector was seen not to fire: no further test means a thing."""
        dead = (*self.watch.dead, *self.reach.dead)
        if dead:
            session.shouldfail = f"fmcheck: {dead[0]}"

    # --- the session ---

    def pytest_report_header(self) -> list[str]:
        """Says what is on, and what it does not reach."""
        from fmcheck.reach.gaps import gaps
        from fmcheck.reach.unreported import unreported

        names = ", ".join(self.watch.contract_names)
        first = (
            f"fmcheck: mode {self.watch.mode}, streams {self.watch.streams}, contracts: {names} "
            "(child processes too)"
        )
        told = (*gaps(), *unreported(self.config.rootpath))
        return [first, *(f"fmcheck: {sentence}" for sentence in told)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a run in which something was found outside of the tests, or not reached."""
        self._found_outside()
        workeroutput = getattr(self.config, "workeroutput", None)
        if workeroutput is not None:  # an xdist worker
            workeroutput[_WORKER_KEY] = self._for_controller()
            return
        found = self.outside and not self._only_warned()
        run = self._run()
        if (found or run.problems) and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._write_reports(session, run)

    def _only_warned(self) -> bool:
        """Warns of what was found outside of any test, in mode warn; False if that is an error."""
        if self.watch.mode != "warn":
            return False
        try:
            warnings.warn(FmcheckWarning(f"\n{self._render(self.outside)}"), stacklevel=2)
        except FmcheckWarning:  # -W error
            return False
        return True

    def _write_reports(self, session: pytest.Session, run: Run) -> None:
        from fmcheck.report_files import write_run

        for path in self.reports:
            try:
                write_run(run, path)
            except UsageError as err:
                self.unwritten.append(str(err))
                if session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Says how much was checked, always."""
        if hasattr(self.config, "workerinput"):
            return
        from fmcheck.report.by_check import FAILS
        from fmcheck.report.closing import closing_line, endings, gaps
        from fmcheck.report.table import table

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
        for problem in (*run.problems, *(f"report {one}" for one in self.unwritten)):
            terminalreporter.line(f"fmcheck error: {problem}", red=True)
        for line, kind in table(run, self.config.rootpath):
            terminalreporter.line(line, red=kind == FAILS, bold=not kind)
        told = (*endings(run.processes), *self.reach.missed(), *gaps(run.coverage))
        for gap in (*told, *self.reach.kept(run)):
            terminalreporter.line(f"fmcheck: {gap}", yellow=True)
        terminalreporter.line(closing_line(run.coverage, run.checked_in, run.only_accepted))
        for path in () if self.unwritten else self.reports:
            shown = os.path.relpath(path, self.config.invocation_params.dir)
            terminalreporter.line(f"fmcheck: report {shown}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Adds what an xdist worker found outside of its tests, or could not report any more."""
        output = getattr(node, "workeroutput", None) or {}
        told = output.get(_WORKER_KEY)
        if told is None:
            name = node.gateway.id
            reported = {(test, when) for worker, test, when in self.reported if worker == name}
            self.outside += self.reach.untold(name, reported)
            return
        import msgspec

        from fmcheck.finding import Coverage, Violation
        from fmcheck.testing.gathered import Gathered

        coverage, gathered, outside, advice = msgspec.json.decode(
            told, type=tuple[Coverage, Gathered, list[Violation], list[Violation]]
        )
        self.of_workers += coverage
        self.gathered.take_in(gathered)
        self.outside += outside
        for one in advice:
            self._advise(one)

    def _for_controller(self) -> str:
        """Returns what a controller is told: the counts too, unless it can read the journal."""
        import msgspec

        from fmcheck.finding import Coverage

        coverage = Coverage() if self.reach.is_worker else self._run().coverage
        told = (coverage, self.gathered, self.outside, list(self.advice.values()))
        return msgspec.json.encode(told).decode()

    def _run(self) -> Run:
        """Returns what was checked and found up to now, in all processes."""
        run = self.reach.run()
        run = replace(run, coverage=run.coverage + self.of_workers)
        return self.gathered.sorted_out(run)

    def _render(self, found: Iterable[Violation]) -> str:
        from fmcheck.report.violation import render_all

        return render_all(found, self.config.rootpath)


_SESSION = pytest.StashKey[_Session]()
