"""The pytest plugin: options, hooks and reporting. What is checked, and how, is `fmcheck.runtime`.

Nothing heavy is imported before a watch is asked for: pytest loads this file in every project of
an environment that fmcheck is installed in.
"""

from __future__ import annotations

if __name__ != "fmcheck.plugin":
    raise ImportError("this file is the module fmcheck.plugin; load it with `pytest -p fmcheck`")

import functools
import os
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from fmcheck.errors import FmcheckWarning, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from fmcheck.finding import Coverage, Violation
    from fmcheck.processes.coordinator import Coordinator
    from fmcheck.record.record import Process, Run
    from fmcheck.runtime.session.session import Session
    from fmcheck.stream_options import StreamOptions
    from fmcheck.testing.watched import Watched

MODES = ("fail", "warn", "halt", "off")
_VARIABLE = "FMCHECK_MODE"
_WORKER_KEY = "fmcheck"
#: The exit status of a run that passed and checked nothing of a contract: pytest itself has 0 to 6.
UNCHECKED = 20
_ALLOW_UNCHECKED = "--fmcheck-allow-unchecked"
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
        help=(
            "what a violation does: fail its test, warn, or halt (raise at the offending line); "
            "off disables fmcheck (default: fail with -p fmcheck or PYTEST_PLUGINS=fmcheck, "
            "else off)"
        ),
    )
    group.addoption(
        "--fmcheck-config",
        metavar="FILE",
        dest="fmcheck_config",
        help="settings: contracts, suppressions, fail-on (default: [tool.fmcheck] of the first "
        "pyproject.toml that has one, from pytest's rootdir upwards)",
    )
    group.addoption(
        "--fmcheck-report",
        metavar="FILE",
        dest="fmcheck_report",
        action="append",
        default=[],
        help="write a report, in the format of the file's extension: .json (the record, for "
        "`fmcheck report`), .sarif (code scanning), .html (a page); may be given several times",
    )
    group.addoption(
        "--fmcheck-journal",
        metavar="DIR",
        dest="fmcheck_journal",
        help=(
            "directory where each process keeps a separate record of what it checked and found "
            "(default: a temporary directory, deleted if the run completes normally)"
        ),
    )
    group.addoption(
        "--fmcheck-streams",
        metavar="MODE",
        dest="fmcheck_streams",
        help=(
            "how streams are simulated: tracked; delayed: other streams see a write only after "
            "a fence; random: at any moment up to that fence; off (default: tracked)"
        ),
    )
    group.addoption(
        "--fmcheck-seed",
        metavar="N",
        dest="fmcheck_seed",
        help="seed of --fmcheck-streams=random (default: random; printed in the report)",
    )
    group.addoption(
        "--fmcheck-trace",
        metavar="FILE",
        dest="fmcheck_trace",
        help="write a timeline of the streams, with the findings, as a Chrome trace; open it at https://ui.perfetto.dev",
    )
    group.addoption(
        "--fmcheck-uninitialized",
        dest="fmcheck_uninitialized",
        action="store_true",
        default=False,
        help="report values that depend on unwritten memory, as of torch.empty; runs each "
        "operator on such memory twice",
    )
    group.addoption(
        _ALLOW_UNCHECKED,
        dest="fmcheck_allow_unchecked",
        action="store_true",
        default=False,
        help=f"do not exit with status {UNCHECKED} if the tests pass and nothing that a contract "
        "declares was checked (setting: allow-unchecked = true)",
    )
    parser.addini("fmcheck_streams", "how fmcheck follows streams, unless --fmcheck-streams says")
    parser.addini("fmcheck_seed", "the seed of random streams, unless --fmcheck-seed says")
    parser.addini("fmcheck_mode", "what a violation does, unless --fmcheck or FMCHECK_MODE says so")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Starts the watch before a conftest can import an engine."""
    _start(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Starts the watch where the earlier hook was missed and a setting asks for it."""
    config.addinivalue_line("markers", _MARK)
    _start(config)


@pytest.fixture(name="fmcheck")
def _fixture(request: pytest.FixtureRequest) -> Watched:
    """What fmcheck saw in this test: `violations`, `counts`, `sync()`, `expect(...)`."""
    session = _session(request.config)
    if session is None:
        pytest.skip("needs fmcheck, which is off: run with `-p fmcheck`")
    return session.outcomes.watched(request.node)


def _session(config: pytest.Config) -> _Session | None:
    """Returns the session of a watched run, None where nothing is watched."""
    return None if _SESSION is None else config.stash.get(_SESSION, None)


def _start(config: pytest.Config) -> None:
    if _session(config) is not None or config.pluginmanager.has_plugin("fmcheck-off"):
        return
    try:
        _refuse_empty(config)
        mode, where = _mode(config)
        reports = _reports(config, mode)
        if mode in ("", "off"):
            config.pluginmanager.register(_Off(config, where), "fmcheck-off")
            return
        session = _Session(config, *_watch(config, mode), reports)
        config.add_cleanup(session.close)  # called where an error ends pytest before its run, too
        session.watch.start()
        session.coordinator.start()
    except UsageError as err:
        raise pytest.UsageError(f"fmcheck: {err}") from None
    assert _SESSION is not None  # an older pytest was refused
    config.stash[_SESSION] = session
    config.pluginmanager.register(session, "fmcheck-session")


def _refuse_empty(config: pytest.Config) -> None:
    """Refuses an option without a value: that is what a variable holds that is not set."""
    for name in ("", "-config", "-journal", "-trace", "-streams", "-seed"):
        dest = f"fmcheck{name or '-mode'}".replace("-", "_")
        if getattr(config.known_args_namespace, dest, None) == "":
            raise UsageError(f"--fmcheck{name}", "expected a value, got an empty one")


def _mode(config: pytest.Config) -> tuple[str, str]:
    """Returns the mode, and which of flag, environment, ini file and `-p fmcheck` asks for it."""
    known = config.known_args_namespace
    asked = (
        ("--fmcheck", getattr(known, "fmcheck_mode", None)),
        (_VARIABLE, os.environ.get(_VARIABLE)),
        ("fmcheck_mode", config.getini("fmcheck_mode")),
    )
    for where, mode in asked:
        if mode:
            if mode not in MODES:
                raise UsageError(
                    where,
                    f"expected one of {', '.join(MODES)}, got `{mode}`{nearest(mode, MODES)}",
                )
            return str(mode), where
    by_name = _by_name(config)
    return ("fail", by_name) if by_name else ("", "")


def _by_name(config: pytest.Config) -> str:
    """Returns what names the plugin before an engine can be imported; "" if nothing does."""
    if _names_us(config.known_args_namespace.plugins or ()):
        return "-p fmcheck"
    return "PYTEST_PLUGINS" if _names_us(os.environ.get("PYTEST_PLUGINS", "")) else ""


def _names_us(plugins: Any) -> bool:
    """Tells whether plugins, as a list or as a text with commas, have this one among them."""
    names = plugins.split(",") if isinstance(plugins, str) else plugins
    if not isinstance(names, (list, tuple)):  # a module that happens to have pytest's name for it
        return False
    return not {"fmcheck", "fmcheck.plugin"}.isdisjoint(str(name).strip() for name in names)


def _watch(config: pytest.Config, mode: str) -> tuple[Session, Coordinator]:
    from fmcheck.supported import check_versions

    check_versions()  # before what an older one cannot import
    from fmcheck.config import allowing_unchecked, find_settings, load_settings
    from fmcheck.processes.coordinator import Coordinator
    from fmcheck.runtime.session.session import Session

    known = config.known_args_namespace
    named = _named_settings(config)
    located = load_settings(Path(named)) if named else find_settings(config.rootpath)
    if getattr(known, "fmcheck_allow_unchecked", False):
        located = allowing_unchecked(located)
    watch = Session(
        located,
        mode,
        who="pytest -p fmcheck",
        streams=_streams(config),
        trace=_trace(config),
        uninitialized=bool(getattr(known, "fmcheck_uninitialized", False)),
    )
    asked = getattr(known, "fmcheck_journal", None) or ""
    return watch, Coordinator(watch, located, config.rootpath, asked)


def _named_settings(config: pytest.Config) -> str:
    return getattr(config.known_args_namespace, "fmcheck_config", None) or ""


def _reports(config: pytest.Config, mode: str) -> tuple[Path, ...]:
    """Returns the reports to write, before a test runs that they could be lost for."""
    asked = getattr(config.known_args_namespace, "fmcheck_report", None)
    if not asked:
        return ()
    from fmcheck.report_files import checked

    if not mode:
        raise UsageError("--fmcheck-report", "fmcheck is off: add `-p fmcheck`")
    return checked(asked, "--fmcheck-report", config.invocation_params.dir)


def _trace(config: pytest.Config) -> Path | None:
    """Returns the file for the timeline; an xdist worker has one of its own beside it."""
    named = getattr(config.known_args_namespace, "fmcheck_trace", None)
    if not named:
        return None
    from fmcheck.report_files import check_writable

    path = Path(config.invocation_params.dir, named)
    check_writable(path, named, "--fmcheck-trace")
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


class _Off:
    """The hooks of a run that is not watched: one that was to be says so.

    A test that expects a finding fails where that is off by accident, as by a variable beside
    `-p fmcheck`. It is skipped where the command line says so, or nobody asked for a watch.
    """

    def __init__(self, config: pytest.Config, where: str) -> None:
        self._config = config
        self._where = where
        self._is_asked = bool(_by_name(config)) or where == "--fmcheck"
        self._by_accident = self._is_asked and where != "--fmcheck"
        self._test_modules: set[ModuleType] = set()

    def pytest_report_header(self) -> list[str]:
        """Says that nothing is watched, and why."""
        return self._said()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keeps the modules of the tests, which may name plugins as a conftest does."""
        tests = (item for item in session.items if isinstance(item, pytest.Function))
        self._test_modules = {test.module for test in tests}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Says it again, where the results are."""
        said = self._said()
        if said and not hasattr(self._config, "workerinput"):
            terminalreporter.section("fmcheck")
            terminalreporter.line(said[0], yellow=True)

    def _said(self) -> list[str]:
        """Returns the one sentence that says so, none where nothing asked for a watch."""
        naming = self._naming()
        if not (self._is_asked or naming):
            return []
        if self._where:
            return [f"fmcheck: off ({self._where}=off): nothing is watched"]
        return [
            f"fmcheck: off: nothing is watched: `pytest_plugins` in {naming} comes too late to "
            "watch an engine; switch it on with `-p fmcheck`, on the command line or in `addopts`, "
            "or with the variable PYTEST_PLUGINS=fmcheck"
        ]

    def _naming(self) -> str:
        """Returns a module, as a conftest, that has this plugin in its `pytest_plugins`, or ""."""
        for module in (*self._config.pluginmanager.get_plugins(), *self._test_modules):
            if not isinstance(module, ModuleType) or module.__name__ == __package__:
                continue
            if _names_us(getattr(module, "pytest_plugins", ())):
                file = module.__file__ or module.__name__
                return os.path.relpath(file, self._config.rootpath)
        return ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Keeps a test from passing that expects what nobody looks for."""
        asked = [mark.kwargs.get("expect") for mark in item.iter_markers("fmcheck")]
        wanted = next(filter(None, asked), None)
        if not wanted:
            return
        codes = wanted if isinstance(wanted, str) else ", ".join(map(str, wanted))
        text = f"expects {codes}, and fmcheck is off: run with `-p fmcheck`"
        if not self._by_accident:
            pytest.skip(text)
        said = f"{text} (or skip such tests with --fmcheck=off); {self._said()[0]}"
        pytest.fail(said, pytrace=False)


class _Session:
    """The hooks of a run that is watched."""

    def __init__(
        self,
        config: pytest.Config,
        watch: Session,
        coordinator: Coordinator,
        reports: tuple[Path, ...],
    ) -> None:
        from fmcheck.finding import Coverage
        from fmcheck.processes.exit_hooks import before_own_exit
        from fmcheck.testing.outcomes import Outcomes

        self.config = config
        self.watch = watch
        self.coordinator = coordinator
        self.reports = reports
        self.outcomes = Outcomes(
            watch.mode, coordinator.counts, coordinator.settle, self._drain, config.rootpath
        )
        self.gathered = self.outcomes.gathered
        self.unwritten: list[str] = []
        self.outside: list[Violation] = []
        self.advice: dict[object, Violation] = {}
        self.of_workers: Coverage = Coverage()
        self.reported: set[tuple[str, str, str]] = set()
        self.has_run = self._is_cut_short = self._is_finished = False
        self._cutting = ""
        self._earlier: tuple[str, ...] | None = None
        self._is_closed = False
        self._folders = [config.invocation_params.dir]
        self._undo = before_own_exit(self._show_before_end)

    def close(self) -> None:
        """Lets go of the engine, and watches no more for the end of this process."""
        self._undo()
        self.coordinator.stop()
        self.watch.stop()
        self.coordinator.clear()

    # --- one test ---

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watches the set-up, fixtures included."""
        self._found_outside()
        self.outcomes.open(item)
        self.watch.begin_test()
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
        self.coordinator.begin(item.nodeid, when)
        try:
            try:
                result = yield
            finally:
                if when == "call":
                    self.coordinator.settle()
        except pytest.skip.Exception:
            self.outcomes.skipped(item)
            raise
        except (KeyboardInterrupt, pytest.exit.Exception):
            # No report of this phase is made, and pytest shows the message alone.
            self.outside += self.outcomes.cut_short(item)
            self._cutting = item.nodeid
            raise
        except (Exception, pytest.fail.Exception) as err:  # the latter is no Exception
            if self.outcomes.failed(item, when, err):
                raise
            return None
        finally:
            self.watch.enter("")
            self.coordinator.end()
            self._stop_if_dead(item.session)
        kept = kept_aside(item)
        failures = [one for one in kept if not isinstance(one.value, pytest.skip.Exception)]
        if not failures:
            self.outcomes.passed(item, when)
        elif not self.outcomes.failed(item, when, failures[0].value):
            kept.clear()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Puts the code of what was found first into the line of pytest's summary."""
        report = yield
        short = getattr(call.excinfo and call.excinfo.value, "short", "")
        crash = getattr(report.longrepr, "reprcrash", None)
        if short and crash is not None:
            crash.message = short
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes which tests were meant to fail, and which phases an xdist worker came to report."""
        self.has_run = not self.config.getoption("setuponly", False)
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
        reached = self.coordinator.drain(test)
        for one in (*advice, *reached.advice):
            self._advise(one)
        self.outside += reached.elsewhere
        self.gathered.failing += reached.elsewhere
        return (*found, *reached.here), (*advice, *reached.advice)

    def _advise(self, advice: Violation) -> None:
        self.advice.setdefault(advice.key, advice)

    def _stop_if_dead(self, session: pytest.Session) -> None:
        """Stops the session once a detector was seen not to fire: no further test means a thing."""
        dead = (*self.watch.dead, *self.coordinator.dead)
        if dead:
            session.shouldfail = f"fmcheck: {dead[0]}"

    # --- the session ---

    def pytest_report_header(self) -> list[str]:
        """Says what is on, and what it does not reach."""
        from fmcheck.processes.unreachable import unreachable

        names = ", ".join(self.watch.contract_names)
        first = (
            f"fmcheck: mode {self.watch.mode}, streams {self.watch.streams}, contracts: {names} "
            "(child processes too)"
        )
        return [f"fmcheck: {one}" for one in self._earlier_runs()] + [
            first,
            *(f"fmcheck: {one}" for one in unreachable()),
        ]

    def _earlier_runs(self) -> tuple[str, ...]:
        """Returns what earlier runs found and could not report, the first time that it is asked."""
        from fmcheck.processes.killed_runs import unreported

        if self._earlier is not None:
            return ()
        self._earlier = tuple(unreported(self.config.rootpath))
        return self._earlier

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keeps the folders that a user may expect settings to be read from."""
        here = self.config.invocation_params.dir
        named = [Path(here, argument.partition("::")[0]) for argument in self.config.args]
        self._folders += [one if os.path.isdir(one) else one.parent for one in named]
        self._folders += dict.fromkeys(item.path.parent for item in session.items)

    def _unread_settings(self, run: Run) -> Iterator[str]:
        """Yields where settings were looked for in vain, and those that were not read."""
        from fmcheck.config import unread_settings
        from fmcheck.report.run.closing import not_applied

        if _named_settings(self.config):
            return
        root = self.config.rootpath
        if self.coordinator.settings_file is None and not_applied(run.coverage):
            yield (
                f"no settings: no `[tool.fmcheck]` in a pyproject.toml of {root} (pytest's rootdir)"
                " or of a folder above it"
            )
        unread = unread_settings(self._folders, root)
        if unread:
            shown = os.path.relpath(unread[0], self.config.invocation_params.dir)
            more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
            yield (
                f"`[tool.fmcheck]` of {shown}{more} was not read: it is neither in pytest's rootdir"
                f" ({root}) nor above it; read it with `--fmcheck-config {shown}`"
            )

    def pytest_keyboard_interrupt(self) -> None:
        """Notes that a test ends the run, by `pytest.exit` with a status of its own."""
        self._is_cut_short = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self) -> None:
        """Shows the end of a run where pytest has not: one with a status of a test's own."""
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if self._is_finished and reporter is not None and not self._is_closed:
            self.pytest_terminal_summary(reporter)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a run in which something was found outside of the tests, or not reached."""
        self._is_finished = True
        self._found_outside()
        self._write_or_note(session, self.watch.write_trace)
        workeroutput = getattr(self.config, "workeroutput", None)
        if workeroutput is not None:  # an xdist worker
            workeroutput[_WORKER_KEY] = self._for_controller()
            return
        found = self.outside and not self._only_warned()
        if self._is_cut_short and self.watch.mode != "warn":
            found = found or self.gathered.failing
        run = self._run()
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            if found:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            elif self._unchecked(run):
                session.exitstatus = UNCHECKED
            elif run.problems:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._write_reports(session, run)

    def _unchecked(self, run: Run) -> list[str]:
        """Returns a sentence on each contract that should have been checked and was not.

        What only collects or shows, or has no test to run, checks nothing by right.
        """
        from fmcheck.report.run.closing import unchecked

        missed = [use for use in run.coverage.unchecked if not use.allowed]
        return [unchecked(use, _ALLOW_UNCHECKED) for use in missed] if self.has_run else []

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
        from fmcheck.report.well_formed import as_text
        from fmcheck.report_files import write_run

        processes = tuple(self._ended(one, session) for one in run.processes)
        run = as_text(replace(run, processes=processes))
        for path in self.reports:
            self._write_or_note(session, functools.partial(write_run, run, path))

    def _write_or_note(self, session: pytest.Session, write: Callable[[], None]) -> None:
        """Writes a file, and fails the run if that cannot be done."""
        try:
            write()
        except UsageError as err:
            self.unwritten.append(str(err))
            if session.exitstatus in (pytest.ExitCode.OK, UNCHECKED):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _ended(self, process: Process, session: pytest.Session) -> Process:
        """Returns a process as it is once the run is over: this one is about to exit."""
        if process.pid != os.getpid() or process.ending != "running":
            return process
        return replace(process, ending=f"exit {int(session.exitstatus)}", ended=time.time())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Says how much was checked, always."""
        if hasattr(self.config, "workerinput"):
            return
        self._is_closed = True
        terminalreporter.section("fmcheck")
        for sentence in self._earlier_runs():  # in a quiet run, which has no header
            terminalreporter.line(f"fmcheck: {sentence}", yellow=True)
        self._summarize(terminalreporter, self._run())

    def _show_before_end(self) -> None:
        """Shows what was found, in a process that is about to be ended without pytest's report."""
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if self._is_closed or reporter is None or hasattr(self.config, "workerinput"):
            return
        self._is_closed = True
        run = self._run()
        if not run.violations and not run.problems:
            return
        capture: Any = self.config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            capture.suspend(in_=False)
        reporter.ensure_newline()
        reporter.section("fmcheck: the tests are ending this process", red=True)
        reporter.line(self._render(run.violations))
        self._summarize(reporter, run)
        reporter.flush()
        self.coordinator.reported()

    def _summarize(self, terminalreporter: Any, run: Run) -> None:
        from fmcheck.report.run.by_check import FAILS
        from fmcheck.report.run.closing import closing_line_of, endings, gaps
        from fmcheck.report.run.table import table

        cut = [one for one in self.outside if one.test and one.test == self._cutting]
        late = [one for one in self.outside if one.test and one.test != self._cutting]
        for title, found in (
            ("found outside of any test:", [one for one in self.outside if not one.test]),
            ("found in the test that ended the run:", cut),
            ("found after its test had ended:", late),
        ):
            if found:
                terminalreporter.line(title, red=True)
                terminalreporter.line(self._render(found))
        if self.advice:
            terminalreporter.line("Advisories (do not fail the run):", yellow=True)
            terminalreporter.line(self._render(self.advice.values()))
        unwritten = (f"report {one}" for one in self.unwritten)
        for problem in (*run.problems, *self._unchecked(run), *unwritten):
            terminalreporter.line(f"fmcheck error: {problem}", red=True)
        for line, kind in table(run, self.config.rootpath):
            terminalreporter.line(line, red=kind == FAILS, bold=not kind)
        gaps_found = (*endings(run.processes), *self.coordinator.missed(), *gaps(run.coverage))
        for gap in (*gaps_found, *self._unread_settings(run), *self.coordinator.kept(run)):
            terminalreporter.line(f"fmcheck: {gap}", yellow=True)
        terminalreporter.line(closing_line_of(run))
        for path in () if self.unwritten else self.reports:
            shown = os.path.relpath(path, self.config.invocation_params.dir)
            terminalreporter.line(f"fmcheck: report {shown}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Adds what an xdist worker found outside of its tests, or could not report any more."""
        output = getattr(node, "workeroutput", None) or {}
        sent = output.get(_WORKER_KEY)
        if sent is None:
            name = node.gateway.id
            reported = {(test, when) for worker, test, when in self.reported if worker == name}
            self.outside += self.coordinator.unreported(name, reported)
            return
        import msgspec

        from fmcheck.finding import Coverage, Violation
        from fmcheck.testing.gathered import Gathered

        coverage, gathered, outside, advice = msgspec.json.decode(
            sent, type=tuple[Coverage, Gathered, list[Violation], list[Violation]]
        )
        self.of_workers += coverage
        self.gathered.take_in(gathered)
        self.outside += outside
        for one in advice:
            self._advise(one)

    def _for_controller(self) -> str:
        """Returns what a controller is told: the counts too, unless it can read the journal."""
        from fmcheck.finding import Coverage
        from fmcheck.report.well_formed import encoded

        coverage = Coverage() if self.coordinator.is_worker else self._run().coverage
        sent = (coverage, self.gathered, self.outside, list(self.advice.values()))
        return encoded(sent).decode()

    def _run(self) -> Run:
        """Returns what was checked and found up to now, in all processes."""
        run = self.coordinator.run()
        run = replace(run, coverage=run.coverage + self.of_workers)
        return self.gathered.sorted_out(run)

    def _render(self, found: Iterable[Violation]) -> str:
        from fmcheck.report.run.violation import render_all

        return render_all(found, self.config.rootpath)


#: pytest before 7.0 has none: it loads this file, too, in an environment that fmcheck lints in.
_SESSION = pytest.StashKey[_Session]() if hasattr(pytest, "StashKey") else None
