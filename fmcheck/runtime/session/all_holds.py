"""All that a session takes hold of: what its contracts name, made once one of them is imported."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.graphs.fills import FillHold
from fmcheck.runtime.graphs.replays import ReplayHold
from fmcheck.runtime.order.lends import LendHold
from fmcheck.runtime.relay.devices import DeviceHold
from fmcheck.runtime.relay.pools import Pools
from fmcheck.runtime.relay.scope import CHECK
from fmcheck.runtime.session.calls import OwnerHold, StepHold, scope_holds
from fmcheck.runtime.session.hold import OpaqueHold, RelayHold
from fmcheck.runtime.session.instances import instances_of
from fmcheck.runtime.steps.budgets import budget_holds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from fmcheck.contract import Contract
    from fmcheck.runtime.core.patches import CallHold, Hold, Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.relay.adoption import Services


class AllHolds:
    """The holds of some contracts. If `strict`, whole steps are followed for their syncs."""

    def __init__(
        self, contracts: Iterable[Contract], tally: Tally, services: Services, strict: bool
    ) -> None:
        self._tally = tally
        self.relays: list[RelayHold] = []
        self.imported: list[str] = []
        self._opaques: list[OpaqueHold] = []
        self._calls: list[CallHold] = []
        self._others: list[Hold] = []
        self._pools: list[Pools] = []
        for contract in contracts:
            pools = Pools()
            self._pools.append(pools)
            self.relays += [
                RelayHold(contract, relay, tally, pools, services) for relay in contract.relay
            ]
            self._calls += [
                OwnerHold(contract, part, tally, pools=pools) for part in contract.owners
            ]
            self._calls += [StepHold(contract, part, tally) for part in contract.steps]
            self._calls += scope_holds(contract, tally)
            self._calls += budget_holds(contract, tally, strict)
            self._calls += [LendHold(contract, part, tally) for part in contract.streams.lend]
            self._opaques += [
                OpaqueHold(contract, opaque, function, tally)
                for opaque in contract.opaque
                for function in opaque.functions
            ]
            inputs = contract.graph_inputs
            self._others.append(DeviceHold(contract, tally))
            self._others += [FillHold(contract, fill, tally) for fill in inputs.fill]
            self._others += [ReplayHold(contract, replay, tally) for replay in inputs.replay]

    def takes(self) -> Iterator[tuple[str, Callable[[ModuleType], Iterator[Undo]]]]:
        """Yields each module to wait for, and what takes hold of it."""
        for relay in self.relays:
            yield relay.relay.module, functools.partial(self._take_relay, relay)
        for opaque in self._opaques:
            self._tally.unwrapped.append(opaque.reference)
            yield opaque.module, functools.partial(self._take_opaque, opaque)
        for calls in self._calls:
            for module in calls.modules:
                yield module, calls.take
        for other in self._others:
            yield from other.takes()

    def _take_relay(self, relay: RelayHold, module: ModuleType) -> Iterator[Undo]:
        yield from relay.take(module)
        if relay.class_ is not None and not relay.relay.optional:
            self.imported.append(relay.name)

    def _take_opaque(self, opaque: OpaqueHold, module: ModuleType) -> Iterator[Undo]:
        if not opaque.applies:
            self._tally.unwrapped.remove(opaque.reference)
        for undo in opaque.take(module):
            self._tally.unwrapped.remove(opaque.reference)
            yield undo

    @property
    def fills(self) -> list[FillHold]:
        """The declared fills of graph inputs."""
        return [one for one in self._others if isinstance(one, FillHold)]

    @property
    def taken(self) -> tuple[str, ...]:
        """The declared classes and kernel functions that were taken hold of."""
        relays = [relay.name for relay in self.relays if relay.class_ is not None]
        kernels = (opaque.reference for opaque in self._opaques if opaque.is_taken)
        return (*relays, *dict.fromkeys(kernels))

    def begin_test(self) -> None:
        """Another test begins."""
        for pools in self._pools:
            pools.begin_test()
        for calls in self._calls:
            calls.begin_test()

    def look(self, for_twins: bool) -> None:
        """Looks what became of the classes, and, if asked to, whether they are loaded twice."""
        with contained(self._tally, CHECK):
            for relay in self.relays:
                relay.look()
                if for_twins:
                    relay.look_for_twins()

    def look_last(self) -> None:
        """Looks for relay classes and instances that came past the watch, while it is on."""
        self.look(for_twins=True)
        with contained(self._tally, CHECK):
            # One look at all objects for all classes: with a large engine a third of a second.
            alive = instances_of(*(one for relay in self.relays for one in relay.taken))
            for relay in self.relays:
                relay.look_for_strays(alive)

    def problems(self) -> Iterator[str]:
        """Yields what went wrong up to now."""
        for relay in self.relays:
            relay.close()
            yield from relay.problems
        for opaque in self._opaques:
            yield from opaque.problems
        for calls in self._calls:
            calls.close()
            yield from calls.problems
        for other in self._others:
            yield from other.problems
