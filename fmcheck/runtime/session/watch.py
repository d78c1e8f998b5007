"""The watch: one session of run-time checks, from an engine's import to the last word."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fmcheck.contract.references import modules
from fmcheck.errors import UsageError
from fmcheck.finding import ADVISORY, ContractUse, Counts, Coverage
from fmcheck.first_import import FirstImport, NextImports, in_turn
from fmcheck.runtime.core.tally import HaltingLock, Tally
from fmcheck.runtime.session.uses import ALL_OWN, reasons, use_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from fmcheck.contract import Contract
    from fmcheck.finding import Violation
    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.order.fences import Happening, RecentEvents
    from fmcheck.runtime.session.accepted_violations import Suppressions
    from fmcheck.runtime.session.all_patches import AllPatches
    from fmcheck.runtime.session.followed_streams import FollowedStreams
    from fmcheck.runtime.session.relay_patches import RelayPatch
    from fmcheck.runtime.session.uses import WatchRequest

_NEEDED = ("numpy", "wrapt")
#: What buffers are made of: a class that a contract names may be loaded by another name.
_OF_BUFFERS = ("torch", "numpy")


@dataclass(eq=False)
class Services:
    """The streams that a session follows, and the kinds of devices that its probes were run on."""

    tally: Tally
    streams: FollowedStreams | None = None
    probed: set[str] = field(default_factory=set)

    def before_buffers_on(self, kind: str) -> None:
        """Tries the detectors, before the first buffer of a kind of device is adopted."""
        from fmcheck.runtime.session import probes
        from fmcheck.runtime.steps.torch_modes import without_others

        probes.load_device(kind)
        if kind not in self.probed:
            self.probed.add(kind)
            with without_others():  # a mode of a test would take them for the engine's calls
                probes.prove(self.tally, kind, of_streams=self.streams is not None)


class Watch:
    """Watches the relay buffers of the contracts' engines between `start` and `stop`.

    Nothing is patched, and next to nothing imported, before torch, NumPy or a module that a
    contract names is. With `halt`, a violation is raised where it is found. `fail_on` names
    advisory checks that are to count as others do. `streams` is how streams are followed, `seed`
    what they are perturbed by in mode `random`; with `traces`, what happens on them is kept for a
    timeline. `asked` says whose the contracts are. With `uninitialized`, unfilled memory is
    followed.
    """

    def __init__(
        self,
        contracts: Iterable[Contract],
        suppressions: Suppressions | None = None,
        halt: bool = False,
        fail_on: Iterable[str] = (),
        streams: str = "off",
        seed: int = 0,
        traces: bool = False,
        asked: WatchRequest | None = None,
        uninitialized: bool = False,
    ) -> None:
        _require(_NEEDED)
        from fmcheck.runtime.session.accepted_violations import Suppressions

        self.asked = asked or ALL_OWN
        self.contracts = tuple(contracts)
        self.tally: Tally = Tally()
        if halt:
            self.tally.lock = HaltingLock()
        self.tally.suppressions = self.suppressions = suppressions or Suppressions()
        self.services = Services(self.tally)
        self._fail_on = frozenset(fail_on)
        self._advisory = ADVISORY.difference(fail_on)
        self._patches: AllPatches | None = None
        self._first: FirstImport | None = None
        self._next = NextImports(self._imported_again)
        self._hooks: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._undo: list[Undo] = []
        self._problems: list[str] = []
        self._streams, self._seed, self.traces = streams, seed, traces
        self._uninitialized = uninitialized
        self.timeline: RecentEvents | None = None
        self._modules_seen = 0

    def start(self) -> None:
        """Waits for the modules that the contracts name; takes those that are loaded at once."""
        self._first = FirstImport((*_OF_BUFFERS, *self.modules), self._begin)
        self._first.wait()

    def _begin(self) -> None:
        """Waits for each module by itself, before the first of them is imported."""
        try:
            from fmcheck.runtime.session.all_patches import AllPatches

            if self._patches is None:
                strict = "FR501" in self._fail_on
                self._patches = AllPatches(self.contracts, self.tally, self.services, strict)
        except Exception as err:
            self._problems.append(f"nothing could be instrumented: {err!r}")
            return
        for module, install in self._patches.installers():
            self._after_import(module, install, again=module.partition(".")[0] != "torch")
        # The imports stand inside: torch is loaded by then, and only then is it wanted.
        self._after_import("torch", _watch_compile)
        self._after_import("torch.jit", _watch_traces)
        self._after_import("torch", self._watch_launches)
        if self._streams != "off":
            self._after_import("torch", self._follow_streams)
            self._after_import("triton.runtime.interpreter", self._follow_interpreter)
        if self._uninitialized:
            self._after_import("torch", self._follow_uninitialized)
        self._after_import("torch._dynamo", _teach_dynamo)
        # By name, as the module that has it would import what it is about.
        self._after_import("torch._dynamo.backends.common", self._watch_asserts)

    def stop(self) -> None:
        """Puts back all that was patched. Relay tensors that live on check nothing more."""
        self._look_last()
        self.tally.active = False
        if self._first is not None:
            self._first.end()
        self._next.end()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _look_last(self) -> None:
        """Looks for what came past the watch, by the import system or otherwise, while it is on."""
        if not self.tally.active:
            return
        if self._patches is None and self._first is not None:
            self._first.arrive_if_loaded()
        if self._patches is not None:
            self._patches.look_last()

    def begin_test(self) -> None:
        """Says that another test begins: what ran before it changes none of its verdicts."""
        from fmcheck.runtime.core.containment import contained

        if self._patches is not None:
            self._patches.begin_test()
        if self.services.streams is not None:
            with contained(self.tally, "following streams (FR401 to FR405)"):
                self.services.streams.begin_test()

    def enter(self, test: str) -> None:
        """Says what is running now, and looks what became of the classes."""
        if self._patches is not None:
            self._patches.look(for_twins=len(sys.modules) != self._modules_seen)
            self._modules_seen = len(sys.modules)
        self.tally.test = test

    def drain(self) -> tuple[Violation, ...]:
        """Returns the violations since it was last asked."""
        return self.tally.drain()

    def is_advice(self, violation: Violation) -> bool:
        """Tells whether a violation is reported and fails nothing."""
        if violation.confidence and violation.code not in self._fail_on:
            return True
        return violation.code in self._advisory

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that a watch waits for, in child processes too."""
        named = (name for one in self.contracts for name in modules(one))
        # Unfilled memory needs no contract, in a child process neither.
        return tuple(dict.fromkeys((*("torch",) * self._uninitialized, *named)))

    @property
    def held(self) -> tuple[str, ...]:
        """The declared classes and kernel functions that were instrumented."""
        return () if self._patches is None else self._patches.patched

    @property
    def dead(self) -> tuple[str, ...]:
        """Sentences on the detectors that did not see the fault they were shown."""
        return tuple(self.tally.dead)

    def coverage(self) -> Coverage:
        """Returns what was reached so far, with every problem that can be known by now."""
        self.tally.collect()
        self._look_last()
        reached = self.reached()
        slips = self._slips()
        notes = (*self._notes(), *self._never_settled(), *slips[False])
        problems = (*reached.problems, *slips[True])
        uses = tuple(self._explained(use, problems) for use in reached.uses)
        return replace(reached, notes=notes, problems=problems, uses=uses)

    def _explained(self, use: ContractUse, problems: Iterable[str]) -> ContractUse:
        """Returns the use of a contract with the reasons why nothing of it was checked."""
        from fmcheck.runtime.core.patches import installed_version

        if use.checked or not use.applied:
            return use
        contract = next(one for one in self.contracts if one.engine.name == use.name)
        wheres = f"contract `{use.name}`:", f"contract `{use.name}`,"
        about = [one for one in (*problems, *self._never_settled()) if one.startswith(wheres)]
        relays = [one for one in self._relays() if one.contract is contract]
        found = reasons(use, contract, installed_version(contract), about, relays)
        return replace(use, missing=tuple(found))

    def _slips(self) -> dict[bool, list[str]]:
        """Returns sentences on what the contracts name and the engine lacks: problems under True.

        In a contract that came with a package they are notes: a fork may lack it by right.
        """
        missing: dict[bool, list[str]] = {True: [], False: []}
        if self._patches is None:
            return missing
        from fmcheck.runtime.session.missing_in_engine import missing_in_engine, missing_inputs

        for contract in self.contracts:
            is_own = contract.engine.name not in self.asked.shipped
            relays = [one for one in self._relays() if one.contract is contract]
            missing[is_own] += [sentence for relay in relays for sentence in relay.slips()]
            missing[is_own] += missing_in_engine(contract, is_own)
            missing[is_own] += missing_inputs(contract, self._patches.fills)
        return missing

    def _never_settled(self) -> list[str]:
        fills = [] if self._patches is None else self._patches.fills
        return [sentence for one in fills if (sentence := one.never_settled())]

    def _relays(self) -> list[RelayPatch]:
        return [] if self._patches is None else self._patches.relays

    def _notes(self) -> Iterator[str]:
        from fmcheck.runtime.core.patches import untried_release
        from fmcheck.runtime.session.uses import without_steps

        for contract in self.contracts:
            if not sys.modules.keys().isdisjoint(modules(contract)):
                yield from untried_release(contract)
                yield from without_steps(contract)
        for sentence, count in self.tally.notes.items():
            yield sentence if count == 1 else f"{sentence} ({count} times)"

    def reached(self) -> Coverage:
        """Returns the same, in a moment: without what is still kept on a device, or never met."""
        from fmcheck.runtime.core.containment import sentences

        suppressions = self.suppressions
        problems = [*self._problems, *self.tally.dead, *suppressions.problems]
        warnings = sum(self.is_advice(violation) for violation in self.tally.all.values())
        if self._patches is not None:
            problems += self._patches.problems()
        return Coverage(
            counts=Counts(*self.tally.numbers),
            violations=len(self.tally.all) - warnings,
            declared=tuple(
                relay.class_
                for contract in self.contracts
                for relay in contract.relay
                if not relay.optional
            ),
            imported=() if self._patches is None else tuple(self._patches.imported),
            touched=tuple(sorted(self.tally.touched)),
            problems=tuple(problems),
            notes=tuple(self._notes()),
            warnings=warnings,
            suppressed=suppressions.taken,
            matched=suppressions.matched,
            unmatched=suppressions.unmatched,
            untracked=tuple((*key, count) for key, count in self.tally.untracked.items()),
            incomplete=sentences(self.tally),
            uses=tuple(self._uses()),
        )

    def _uses(self) -> Iterator[ContractUse]:
        for contract in self.contracts:
            relays = {relay.class_ for relay in contract.relay}
            checked = contract.engine.name in self.tally.checked
            use = use_of(
                contract,
                self.asked,
                modules(contract),
                checked or not relays.isdisjoint(self.tally.touched),
            )
            if use is not None:
                yield use

    def _watch_launches(self, torch: ModuleType) -> Iterator[Undo]:
        """Counts what a step launches, where a contract says that anybody wants to know."""
        from fmcheck.runtime.steps import budgets, step_syncs

        declared = [one.launches for one in self.contracts]
        if any(one.budget or one.per_step for one in declared):
            yield step_syncs.watch_methods(budgets.mode_of_thread)
        if any(budget.launches is not None for one in declared for budget in one.budget):
            yield budgets.watch_compiled(torch)

    def _watch_asserts(self, common: ModuleType) -> Iterator[Undo]:
        from fmcheck.runtime.graphs.dead_assert import watch_asserts

        try:
            yield watch_asserts(common, self.tally)
        except AttributeError as err:
            self.tally.note(f"FR602 is not checked: this torch is unknown to it ({err})")

    def _follow_streams(self, _: ModuleType) -> Iterator[Undo]:
        from fmcheck.runtime.order.fences import RecentEvents
        from fmcheck.runtime.order.lifetimes import Lifetimes
        from fmcheck.runtime.order.stale_events import StaleEvents
        from fmcheck.runtime.session.followed_streams import FollowedStreams
        from fmcheck.runtime.steps.moves import Moves
        from fmcheck.runtime.steps.placements import Placements

        followed = FollowedStreams(self.tally, self._streams, self._seed)
        known = Placements(self.contracts)
        lifetimes = Lifetimes(
            followed.fences, followed.cross_stream, known, self._streams != "tracked"
        )
        followed.judge_memory(lifetimes)
        StaleEvents(followed.fences, self.contracts)
        followed.fences.gates = [
            (relay.module.partition(".")[0], contract.streams.gated)
            for contract in self.contracts
            if contract.streams.gated
            for relay in contract.relay
        ]
        followed.fences.listeners.append(_host_synchronizes)
        if self.traces:
            self.timeline = RecentEvents(followed.fences)
        self.services.streams = followed
        yield from followed.follow()
        yield from lifetimes.follow(followed.ops.is_watched)
        followed.ops.moves = Moves(self.tally, known, followed.ops.is_watched, lifetimes.arrived)
        yield from followed.ops.moves.follow()

    def _follow_uninitialized(self, _: ModuleType) -> Iterator[Undo]:
        from fmcheck.runtime.session import probes
        from fmcheck.runtime.steps.uninitialized import CODE, Uninitialized

        probes.prove_one(self.tally, CODE)
        yield from Uninitialized(self.tally).follow()

    def _follow_interpreter(self, interpreter: ModuleType) -> Iterator[Undo]:
        from fmcheck.runtime.order import interpreted

        if self.services.streams is not None:
            yield from interpreted.follow(self.services.streams.ops, interpreter)

    def _imported_again(self, module: ModuleType) -> None:
        """A module that was instrumented has run again: what it defines is new."""
        for hook in self._hooks.get(module.__name__, ()):
            hook(module)

    def _after_import(
        self, name: str, take: Callable[[ModuleType], Iterator[Undo]], again: bool = False
    ) -> None:
        def hook(module: ModuleType) -> None:
            # A hook that raised would make the engine's own import fail.
            try:
                if self.tally.active:
                    self._undo.extend(take(module))
            except Exception as err:
                self._problems.append(f"module `{name}`: could not be instrumented: {err!r}")
            if self.tally.keeper is not None:
                self.tally.keeper.milestone()

        def first(module: ModuleType) -> None:
            hook(module)
            self._hooks.setdefault(name, []).append(hook)
            self._next.wait(name)

        in_turn(name, first if again else hook)


def _host_synchronizes(happened: Happening) -> None:
    """Tells a step of the host's own fences, which are syncs."""
    from fmcheck.runtime.steps.budgets import host_synchronized

    if happened.what == "synchronize" and happened.lane.number == 0:
        host_synchronized()


def _watch_compile(torch: ModuleType) -> Iterator[Undo]:
    from fmcheck.runtime.session.compiled import watch_compile

    yield watch_compile(torch)


def _watch_traces(_: ModuleType) -> Iterator[Undo]:
    from fmcheck.runtime.relay.untraced import watch_traces

    def plain(value: Any) -> Any:
        # Not before a trace is made: this room may be what is importing torch just now.
        from fmcheck.runtime.relay import relay_tensor

        return relay_tensor.plain(value)

    yield watch_traces(plain)


def _teach_dynamo(dynamo: ModuleType) -> Iterator[Undo]:
    from fmcheck.runtime.session.compiled import teach_dynamo

    yield teach_dynamo(dynamo)


def _require(packages: Iterable[str]) -> None:
    """Looks for what the watch needs, and imports nothing: an empty session needs none of it."""
    for package in packages:
        try:
            found = package in sys.modules or importlib.util.find_spec(package) is not None
        except ImportError:
            found = False
        if not found:
            raise UsageError("pytest -p fmcheck", f"needs {package}: pip install 'fmcheck[pytest]'")
