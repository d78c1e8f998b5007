"""What lies beneath the poison: what each row would hold if nobody watched.

An engine that is handed poison may die of it, as of an index of -1, and takes its test along before
anybody is told. So a gather that was reported brings what it would have brought without a watch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fmcheck.runtime.rows import EVERYTHING

if TYPE_CHECKING:
    import numpy.typing as npt

    from fmcheck.runtime.memory import Memory
    from fmcheck.runtime.poison import Poison


class Beneath:
    """The elements of one buffer as bits, of the shape of the buffer.

    What an engine wrote stands in the buffer itself; here is what our poison has gone over.
    """

    def __init__(self, memory: Memory, poison: Poison) -> None:
        self._memory = memory
        self._poison = poison
        self._bits = memory.read(EVERYTHING)

    def keep(self, rows: Any) -> None:
        """Poison is about to go over some rows."""
        self._bits[rows] = self._merged(rows, self._memory.read(rows))

    def keep_values(self, expression: Any, bits: npt.NDArray[Any]) -> None:
        """Poison is about to go over elements, none of which is poison: these."""
        self._bits[expression] = bits

    def forget(self, rows: Any, bits: Any) -> None:
        """The engine itself wrote the poison."""
        self._bits[rows] = bits

    def of(self, expression: Any, bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns gathered elements with what lies beneath in place of the poison."""
        return self._merged(expression, bits)

    def _merged(self, expression: Any, bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.where(self._poison.is_poison(bits), self._bits[expression], bits)
