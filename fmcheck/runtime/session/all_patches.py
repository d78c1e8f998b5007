"""All that a session instruments: what its contracts name, made once one of them is imported."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fmcheck.contract.validation import SERVES
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.graphs.fill_patches import FillPatch, outputs_of
from fmcheck.runtime.graphs.replays import ReplayPatch
from fmcheck.runtime.order.lends import LendPatch
from fmcheck.runtime.relay.device_checks import DevicePatch
from fmcheck.runtime.relay.pools import Pools, pools_of
from fmcheck.runtime.relay.scope import CHECK
from fmcheck.runtime.session.calls import OpaquePatch, OwnerPatch, StepPatch, scope_patches
from fmcheck.runtime.session.instances import instances_of
from fmcheck.runtime.session.relay_patches import RelayPatch
from fmcheck.runtime.steps.budgets import BudgetCounter, budget_patches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from fmcheck.contract import Contract
    from fmcheck.runtime.core.declared import CallPatch
    from fmcheck.runtime.core.patches import Patch, Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.relay.adoption import BufferServices


class AllPatches:
    """The patches of some contracts. If `strict`, whole steps are followed for their syncs."""

    def __init__(
        self, contracts: Iterable[Contract], tally: Tally, services: BufferServices, strict: bool
    ) -> None:
        self._tally = tally
        self.relays: list[RelayPatch] = []
        self.imported: list[str] = []
        self._calls: list[CallPatch] = []
        self._others: list[Patch] = []
        self._pools: list[Pools] = []
        self._budgets: list[BudgetCounter] = []
        outputs = functools.cache(outputs_of)
        for contract in contracts:
            pools = pools_of(
                (relay.class_ for relay in contract.relay),
                (part.relays for part in contract.owners if part.does != SERVES),
            )
            nobodys = Pools()
            self._pools += [*dict.fromkeys(pools.values()), nobodys]
            self.relays += [
                RelayPatch(contract, relay, tally, pools[relay.class_], services)
                for relay in contract.relay
            ]
            # First, as the scope of a kernel's function is to be entered around its accesses.
            self._calls += [OpaquePatch(contract, part, tally) for part in contract.opaque]
            for part in contract.owners:
                mine = next((pools[one] for one in part.relays or pools if one in pools), nobodys)
                self._calls.append(OwnerPatch(contract, part, tally, pools=mine))
            self._calls += [StepPatch(contract, part, tally) for part in contract.steps]
            self._calls += scope_patches(contract, tally)
            self._budgets.append(BudgetCounter(tally, contract))
            self._calls += budget_patches(self._budgets[-1], strict)
            self._calls += [LendPatch(contract, part, tally) for part in contract.streams.lend]
            inputs = contract.graph_inputs
            self._calls += [ReplayPatch(contract, part, tally) for part in inputs.replay]
            self._others.append(DevicePatch(contract, tally))
            self._others += [FillPatch(contract, fill, tally, outputs) for fill in inputs.fill]
        for calls in self._calls:
            alike = (one for one in self._calls if type(one) is type(calls))
            calls.named = frozenset(name for one in alike for name in one.functions)

    def installers(self) -> Iterator[tuple[str, Callable[[ModuleType], Iterator[Undo]]]]:
        """Yields each module to wait for, and what instruments it."""
        for relay in self.relays:
            yield relay.relay.module, functools.partial(self._patch_relay, relay)
        for other in (*self._calls, *self._others):
            yield from other.installers()

    def _patch_relay(self, relay: RelayPatch, module: ModuleType) -> Iterator[Undo]:
        yield from relay.install(module)
        is_new = relay.name not in self.imported
        if is_new and relay.class_ is not None and not relay.relay.optional:
            self.imported.append(relay.name)

    @property
    def fills(self) -> list[FillPatch]:
        """The declared fills of graph inputs."""
        return [one for one in self._others if isinstance(one, FillPatch)]

    @property
    def patched(self) -> tuple[str, ...]:
        """The declared classes and kernel functions that were instrumented."""
        relays = [relay.name for relay in self.relays if relay.class_ is not None]
        opaques = (one for one in self._calls if isinstance(one, OpaquePatch))
        return (*relays, *dict.fromkeys(kernel for one in opaques for kernel in one.wrapped))

    def begin_test(self) -> None:
        """Another test begins."""
        for pools in self._pools:
            pools.begin_test()
        for budgets in self._budgets:
            budgets.begin_test()
        for fill in self.fills:
            fill.begin_test()

    def look(self, for_twins: bool) -> None:
        """Looks what became of what was instrumented and, if asked to, for classes loaded twice."""
        with contained(self._tally, CHECK):
            for look in self._tally.placed if self._tally.active else ():
                look()
            for relay in self.relays:
                relay.look()
                if for_twins:
                    relay.look_for_twins()

    def look_last(self) -> None:
        """Looks for relay classes and instances that came past the watch, while it is on."""
        self.look(for_twins=True)
        with contained(self._tally, CHECK):
            # One look at all objects for all classes: with a large engine a third of a second.
            alive = instances_of(*(one for relay in self.relays for one in relay.patched))
            for relay in self.relays:
                relay.look_for_strays(alive)

    def problems(self) -> Iterator[str]:
        """Yields what went wrong up to now."""
        for relay in self.relays:
            relay.close()
            yield from relay.problems
        for other in (*self._calls, *self._others):
            yield from other.problems
