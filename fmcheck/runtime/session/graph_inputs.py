"""Graph inputs: what a contract declares of captured graphs, as holds that a watch can start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fmcheck.runtime.graphs.fills import FillHold
from fmcheck.runtime.graphs.replays import ReplayHold
from fmcheck.runtime.relay.devices import DeviceHold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from fmcheck.contract import Contract
    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally


class Hold(Protocol):
    """What waits for modules, takes hold of them, and keeps what went wrong."""

    contract: Contract

    @property
    def problems(self) -> list[str]:
        """What went wrong."""

    def takes(self) -> Iterator[tuple[str, Callable[[ModuleType], Iterator[Undo]]]]:
        """Yields each module to wait for, and what takes hold of it."""


def declared_holds(contract: Contract, tally: Tally) -> Iterator[Hold]:
    """Yields a hold for each part of a contract's graph inputs, and one for its devices."""
    yield DeviceHold(contract, tally)
    for fill in contract.graph_inputs.fill:
        yield FillHold(contract, fill, tally)
    for replay in contract.graph_inputs.replay:
        yield ReplayHold(contract, replay, tally)
