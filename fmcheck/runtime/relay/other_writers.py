"""Other writers of a relay buffer: code that no function of torch tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from fmcheck.runtime.relay.memory import Memory


class OtherWriters:
    """What is known of untracked code that writes a buffer, and which rows it may have written.

    It shows in torch's own count of writes, in values that nobody put there, and in memory that
    was handed out. Where poison lies in the memory itself (`counts` is false), a write goes over
    it, so that torch's count says nothing more.

    Attributes:
        escapes: how often the memory was handed out, by how and by the number of the place.
    """

    def __init__(self, rows: int) -> None:
        self.escapes: dict[tuple[str, int], int] = {}
        self.counts = False
        self._is_known = False
        self._in_doubt = np.zeros(rows, bool)
        self._any_in_doubt = False
        self._version = 0

    def begin(self, base: torch.Tensor, counts: bool) -> None:
        """Counts from what was written to a tensor so far."""
        self.counts = counts
        self._version = 0 if base.is_inference() else base._version

    def heed(self, base: torch.Tensor, own: int = 0) -> None:
        """Looks whether torch wrote the memory more often than we saw, `own` times just now."""
        if not self.counts:
            return
        if base.is_inference():  # it counts no writes
            self._in_doubt[:] = self._any_in_doubt = True
            return
        version = base._version
        if version - self._version > own:
            self._in_doubt[:] = self._any_in_doubt = True
        self._version = version

    def escape(self, how: str, site: int) -> None:
        """The memory was handed out."""
        self.escapes[how, site] = self.escapes.get((how, site), 0) + 1

    def settle(self, rows: npt.NDArray[Any]) -> None:
        """Rows were poisoned: what was written to them before is of no matter any more."""
        if self._any_in_doubt:
            self._in_doubt[rows] = False

    def may_have_written(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tells which rows they may have written."""
        return np.asarray(self._in_doubt[rows] | bool(self.escapes))

    def are_known(self, memory: Memory) -> bool:
        """Tells whether there are any for certain: somewhere a row of the buffer gives one away."""
        if not self._is_known:
            self._is_known = memory.was_changed()
        return self._is_known
