"""The session: a watch that is on, for a block of code or for a run of pytest.

`fmcheck.watch` is the way in for engines without pytest; the pytest plugin uses the same object.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.errors import (
    CoverageError,
    DetectorError,
    FmcheckWarning,
    UsageError,
    ViolationError,
    nearest,
)
from fmcheck.first_import import keep_modules
from fmcheck.runtime.session.watch import Watch
from fmcheck.stream_options import StreamOptions, stream_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from fmcheck.config import Located
    from fmcheck.finding import Counts, Coverage, Violation

#: What a violation does: fail what is running, warn, raise at the offending line, nothing at all.
MODES = ("fail", "warn", "halt", "off")

#: How a caller of `watch` lets a block check nothing.
_ALLOW = "allow_unchecked=True"

_active: Session | None = None


class Session:
    """One session of a process; there is never a second beside it.

    As a context manager it watches the block and, in mode `fail` and `halt`, raises at its end for
    what was found in it.
    """

    def __init__(
        self,
        located: Located,
        mode: str = "fail",
        who: str = "fmcheck.watch",
        streams: StreamOptions | None = None,
        trace: Path | None = None,
        uninitialized: bool = False,
    ) -> None:
        from fmcheck.registry import contract_files, contracts_for
        from fmcheck.runtime.session.accepted_violations import suppressions_of
        from fmcheck.runtime.session.uses import WatchRequest, shown_source

        if mode not in MODES:
            raise UsageError(
                f"{who}: mode",
                f"expected one of {', '.join(MODES)}, got `{mode}`{nearest(mode, MODES)}",
            )
        self.mode = mode
        self.who = who
        self.gives_way = False
        self.streams = streams or StreamOptions()
        self.trace = trace
        self.uninitialized = uninitialized
        contracts = contracts_for(located) if mode != "off" else ()
        files = contract_files()
        names = located.settings.contracts or tuple(files)
        called = [(one.engine.name, name) for one, name in zip(contracts, names, strict=False)]
        asked = WatchRequest(
            sources={
                engine: name if name in files else shown_source(str(located.folder / name))
                for engine, name in called
            },
            shipped={engine for engine, name in called if name in files},
            allow_unchecked=located.settings.allow_unchecked,
        )
        self._watch = Watch(
            contracts,
            suppressions_of(located),
            halt=mode == "halt",
            fail_on=located.settings.fail_on,
            streams=self.streams.mode,
            seed=self.streams.seed,
            traces=trace is not None,
            asked=asked,
            uninitialized=uninitialized,
        )

    # --- on and off ---

    def start(self, gives_way: bool = False) -> None:
        """Instruments the engines that the contracts name.

        One that `gives_way` stops when another is started.

        Raises:
            UsageError: if another session of this process is on.
        """
        global _active
        if _active is not None and _active.gives_way:
            _active.stop()
        if _active is not None:
            raise UsageError(
                self.who,
                f"a watch is already active in this process, started by {_active.who}; only one "
                "can be, as two would poison the same buffers",
            )
        _active = self
        self.gives_way = gives_way
        if self.mode != "off":
            keep_modules()
            self._watch.start()

    def stop(self) -> None:
        """Lets go of the engines. What was found and counted stays."""
        global _active
        if _active is self:
            _active = None
            self._watch.stop()

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            try:
                self.sync()
            finally:
                self.write_trace()
        finally:
            self.stop()
        if err is not None:
            self._add_note(err)
        else:
            self._conclude()

    def write_trace(self) -> None:
        """Writes what happened on the streams, if that was asked for; nothing, if nobody followed.

        Raises:
            UsageError: if the file cannot be written.
        """
        if self.trace is None:
            return
        from fmcheck.report.run.trace import trace
        from fmcheck.report_files import write_file

        timeline = self._watch.timeline
        events, dropped = (timeline.events(), timeline.dropped) if timeline else ((), 0)
        write_file(self.trace, trace(events, self.violations, Path.cwd(), dropped).encode())

    # --- what was found ---

    @property
    def contract_names(self) -> tuple[str, ...]:
        """The engines that this session knows."""
        return tuple(contract.engine.name for contract in self._watch.contracts)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the session waits for."""
        return self._watch.modules

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What was found since the session began, advice included."""
        self.sync()
        return tuple(self._watch.tally.all.values())

    @property
    def dead(self) -> tuple[str, ...]:
        """Sentences on the detectors that did not see the fault they were shown."""
        return self._watch.dead

    @property
    def counts(self) -> Counts:
        """What was checked since the session began."""
        return self._watch.tally.counts()

    def sync(self) -> None:
        """Takes over what was found and is still kept on a device."""
        self._watch.tally.collect()

    def coverage(self) -> Coverage:
        """Returns what was reached so far, with every problem that can be known by now."""
        return self._watch.coverage()

    def begin_test(self) -> None:
        """Says that another test begins."""
        self._watch.begin_test()

    def enter(self, test: str) -> None:
        """Says what is running now."""
        self._watch.enter(test)

    def drain(self) -> tuple[tuple[Violation, ...], tuple[Violation, ...]]:
        """Returns what was found since the last call: what may fail the run, and the advice."""
        found = self._watch.drain()
        advice = tuple(one for one in found if self._watch.is_advice(one))
        return tuple(one for one in found if not self._watch.is_advice(one)), advice

    # --- the end of a block ---

    def _conclude(self) -> None:
        """Raises or warns for what was found in the block."""
        if self.dead:
            raise DetectorError("; ".join(self.dead))
        coverage = self.coverage()
        failing, advice = self._sorted()
        if failing and self.mode != "warn":
            raise ViolationError(self._report((*failing, *advice), coverage))
        if failing or advice:
            self._warn(self._report((*failing, *advice), coverage))
        missed = [*coverage.problems, *self._unchecked(coverage)]
        if missed and self.mode != "warn":
            raise CoverageError("; ".join(missed))
        if not (failing or advice):  # a report says it as well
            missed += self._not_applied(coverage)
        for sentence in missed:
            self._warn(f"fmcheck: {sentence}")

    def _unchecked(self, coverage: Coverage) -> list[str]:
        from fmcheck.report.run.closing import unchecked

        return [unchecked(use, _ALLOW) for use in coverage.unchecked if not use.allowed]

    def _not_applied(self, coverage: Coverage) -> list[str]:
        """Returns a sentence if all contracts are of engines that were not imported."""
        from fmcheck.report.run.closing import not_applied

        if self._watch.asked.allow_unchecked:
            return []
        remedy = f"pass the contract of your engine in `contracts`, or `{_ALLOW}`"
        return [f"{sentence}; {remedy}" for sentence in not_applied(coverage)]

    def _add_note(self, err: BaseException) -> None:
        """Leaves the block its own error, and adds what was found to it."""
        failing, _ = self._sorted()
        if (failing or self.dead) and hasattr(err, "add_note"):  # from Python 3.11 on
            err.add_note("\n".join((*self.dead, self._report(failing, self.coverage()))))

    def _sorted(self) -> tuple[tuple[Violation, ...], tuple[Violation, ...]]:
        found = self.violations
        advice = tuple(one for one in found if self._watch.is_advice(one))
        return tuple(one for one in found if one not in advice), advice

    def _report(self, found: Sequence[Violation], coverage: Coverage) -> str:
        from fmcheck.report.run.closing import closing_line, gaps
        from fmcheck.report.run.violation import render_all

        parts = (render_all(found, Path.cwd()), *gaps(coverage), closing_line(coverage))
        return "\n" + "\n".join(part for part in parts if part)

    def _warn(self, text: str) -> None:
        warnings.warn(FmcheckWarning(text), stacklevel=4)


def is_on() -> bool:
    """Tells whether a session of this process is on."""
    return _active is not None


def watch(
    contracts: Sequence[str | Path] | None = None,
    mode: str = "fail",
    config: str | Path | None = None,
    streams: str = "tracked",
    seed: int | None = None,
    trace: str | Path | None = None,
    allow_unchecked: bool = False,
    uninitialized: bool = False,
) -> Session:
    """Returns a session to be used as a context manager.

    `contracts` are names of registered contracts or paths of contract files, relative to the
    current folder; None means those of the settings. `mode` is what a violation does: `fail`
    raises at the end of the block, `warn` warns there, `halt` raises at the offending line as
    well, `off` does not watch. `config` names a settings file in place of the nearest
    pyproject.toml. `streams` says how streams are followed: `tracked`, `delayed`, `random`, which
    takes a `seed`, or `off`. `trace` is a file for the timeline of what happened on them, which
    Perfetto opens. With `allow_unchecked`, the block may check nothing of what a contract declares.
    With `uninitialized`, memory that an allocation leaves unfilled is followed as well (FR701).

    Raises:
        UsageError: if a mode, a contract or the settings do not fit.
        ViolationError: at the end of the block, with the whole report. An error of the block's own
            is left as it is, with a note on what was found.
        CoverageError: at the end of a block without violations, if part of what was to be watched
            was not: a declared buffer never appeared, a suppression has expired, or nothing of what
            a contract declares was checked. A contract that fmcheck ships is passed over where its
            engine was not imported; where none is left, the block ends with a warning.
        DetectorError: at the end of the block, if a detector is dead in this process.
    """
    import msgspec

    from fmcheck.config import allowing_unchecked, find_settings, load_settings

    located = load_settings(Path(config)) if config is not None else find_settings(Path.cwd())
    if contracts is not None:
        named = tuple(
            str(Path(one).resolve()) if str(one).endswith(".toml") else str(one)
            for one in contracts
        )
        settings = msgspec.structs.replace(located.settings, contracts=named)
        located = msgspec.structs.replace(located, settings=settings)
    if allow_unchecked:
        located = allowing_unchecked(located)
    who = "fmcheck.watch"
    options = stream_options([(f"{who}: streams", streams)], [(f"{who}: seed", seed)])
    path = None if trace is None else Path(trace).absolute()
    return Session(located, mode, who, options, path, uninitialized)


def sync() -> None:
    """Takes over what the session of this process has found and still keeps on a device.

    Without a session there is nothing to do.
    """
    if _active is not None:
        _active.sync()
