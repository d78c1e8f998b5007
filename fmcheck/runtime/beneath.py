"""What lies beneath the poison: what a buffer would hold if nobody watched.

An engine that is handed poison may die of it, as of an index of -1, and takes its test along before
anybody is told. So a gather that was reported brings what it would have brought without a watch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from fmcheck.runtime.memory import Memory
    from fmcheck.runtime.poison import Poison


class Beneath:
    """The elements that a window shows, as bits, where our poison has gone over them.

    Elsewhere the buffer itself holds what the engine wrote.
    """

    def __init__(self, memory: Memory, poison: Poison) -> None:
        self._memory = memory
        self._poison = poison

    def keep(self, expression: Any, bits: npt.NDArray[Any], live: npt.NDArray[np.bool_]) -> None:
        """Poison is about to go over elements that are `bits` now, in rows that are live or not."""
        self._memory.write(expression, self.of(expression, bits, live))

    def keep_values(self, expression: Any, bits: npt.NDArray[Any]) -> None:
        """Poison is about to go over elements, none of which is poison."""
        self._memory.write(expression, bits)

    def written(self, expression: Any, bits: npt.NDArray[Any]) -> None:
        """The engine itself wrote these elements, some of which are poison."""
        mine = self._memory.read(expression)
        self._memory.write(expression, np.where(self._poison.is_poison(bits), bits, mine))

    def of(
        self, expression: Any, bits: npt.NDArray[Any], live: npt.NDArray[np.bool_]
    ) -> npt.NDArray[Any]:
        """Returns elements with what lies beneath in place of our poison."""
        ours = self._poison.is_poison(bits)
        if not self._poison.certain:  # a live row may hold a value of the same bits
            ours &= ~live
        return np.where(ours, self._memory.read(expression), bits)
