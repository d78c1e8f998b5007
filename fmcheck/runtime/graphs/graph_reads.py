"""Graph reads: the memory that operators read while graphs are captured.

A module may keep tensors that are neither parameters nor buffers, of which a graph reads some and
no graph reads others, as what a prefill leaves there. Only what was read counts as captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._C import _len_torch_dispatch_stack as modes_on

from fmcheck.runtime.core.containment import broke
from fmcheck.runtime.steps.operators import tensors_at
from fmcheck.runtime.steps.torch_modes import (
    OperatorMode,
    called,
    has_memory,
    is_traced,
    own_code,
    put_beneath,
    take_out,
)

if TYPE_CHECKING:
    import torch

    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.steps.operators import Operator

_CODE = "FR601"


def storage_of(tensor: torch.Tensor) -> int:
    """Returns the number of a tensor's storage, which is its own for as long as it lives."""
    number: int = tensor.untyped_storage()._cdata
    return number


class GraphReads(OperatorMode):
    """Sees the operators of a thread that captures, and keeps the storages that they read."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tally = tally
        self.storages: set[int] = set()

    def begin(self) -> None:
        """Sees what this thread runs from now on."""
        put_beneath(self)

    def end(self) -> None:
        """Sees no more."""
        take_out(self)

    def failed(self, err: Exception) -> None:
        """Counts an error of our own code."""
        broke(self.tally, _CODE, err)

    def run(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """Makes the call of an operator."""
        if self.tally.active and not (modes_on() and is_traced()):
            with own_code(self.tally, _CODE):
                for tensor in tensors_at(operator.reads, args, kwargs):
                    if has_memory(tensor):
                        self.storages.add(storage_of(tensor))
        return called(operator, args, kwargs)
