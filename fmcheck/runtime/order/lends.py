"""Lends: functions of the engine that tell the allocator which stream uses a tensor.

On a CPU device an engine need not call `record_stream`, and one that would on a GPU says so here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.core import kinds
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.declared import CallPatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.contract import Lend


@dataclass(eq=False)
class LendPatch(CallPatch):
    """One function that is handed a tensor and a stream."""

    part: Lend

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, which lends where `record_stream` does nothing."""

        def end(args: Any, kwargs: Any, _: Any) -> None:
            if self.tally.active:
                with contained(self.tally, "FR402"):
                    self._lend((*args, *kwargs.values()))

        return kinds.after_body(function, end)

    def _lend(self, given: tuple[Any, ...]) -> None:
        import torch

        from fmcheck.runtime.order import virtual

        streams = [one for one in given if isinstance(one, torch.cpu.Stream)]
        for tensor in given:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                for stream in streams:
                    virtual.lend(self.tally, tensor, stream)
