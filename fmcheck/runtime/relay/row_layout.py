"""Layout: what one unit of a relay buffer is, and whose it is, where that is not a row in front.

A buffer is followed through a view whose first dimension counts its units. Units are rows, or some
positions of a row side by side; the engine's own tensor is then a view of that one.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from fmcheck.runtime.relay.owners import Owners

#: More units than this are not followed one by one: the ledger has some 40 bytes for each.
MOST_UNITS = 1 << 22


@dataclass(frozen=True, slots=True)
class Layout:
    """How a buffer is laid out and read, in the contract's words.

    `columns` is how many positions of a row are one unit, 0 where a whole row is. `reads_many`
    tells that a gather leaves the value there for the next one, `sink_holds` what the sinks hold
    whenever they are read.
    """

    row_dim: int = 0
    columns: int = 0
    reads_many: bool = False
    sink_holds: int | None = None

    @property
    def is_plain(self) -> bool:
        """Tells whether the units are the tensor's own rows."""
        return not self.row_dim and not self.columns

    def units(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the view of a tensor whose first dimension counts its units.

        Raises:
            ValueError: saying what of the declared layout the tensor does not fit.
        """
        if self.row_dim:
            if not -tensor.dim() <= self.row_dim < tensor.dim():
                raise ValueError(
                    f"row_dim = {self.row_dim}: expected a tensor with such a dimension, "
                    f"got {tensor.dim()}"
                )
            return tensor.movedim(self.row_dim, 0)
        if not self.columns:
            return tensor
        per = self.per_row(tensor)
        if not tensor.is_contiguous():
            raise ValueError("unit: expected a contiguous tensor, which this one is not")
        if len(tensor) * per > MOST_UNITS:
            raise ValueError(
                f"unit: {len(tensor) * per:,} units are too many to be followed one by one: "
                f"expected at most {MOST_UNITS:,}; say a larger number of columns"
            )
        inner = tensor.shape[2:] if self.columns == 1 else (self.columns, *tensor.shape[2:])
        return tensor.view(len(tensor) * per, *inner)

    def per_row(self, tensor: torch.Tensor) -> int:
        """Returns how many units a row has."""
        if not self.columns:
            return 1
        if tensor.dim() < 2 or tensor.shape[1] % self.columns:
            shape = "x".join(map(str, tensor.shape))
            raise ValueError(
                f"unit: expected rows of a multiple of {self.columns} columns, got {shape}"
            )
        return int(tensor.shape[1]) // self.columns


PLAIN = Layout()


def of_units(owners: Owners | UnitOwners | None, per_row: int) -> Owners | UnitOwners | None:
    """Returns the owners of a buffer's units, from those of its rows or of other units."""
    if isinstance(owners, UnitOwners):
        owners = owners.of_rows
    return owners if owners is None or per_row == 1 else UnitOwners(owners, per_row)


class UnitOwners:
    """The owners of rows, seen by a buffer that has several units to a row."""

    def __init__(self, owners: Owners, per_row: int) -> None:
        self.of_rows, self._per_row = owners, per_row
        self.followers: weakref.WeakSet[Any] = weakref.WeakSet()
        owners.followers.add(self)

    @property
    def drained(self) -> bool | None:
        """What the contract says of it."""
        return self.of_rows.drained

    def add_sinks(self, units: list[int]) -> None:
        """Nobody is to be given these."""
        self.of_rows.add_sinks([unit // self._per_row for unit in units])

    def generation(self, unit: int) -> int:
        """Returns how often its row was handed out."""
        return self.of_rows.generation(unit // self._per_row)

    def generations(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns how often the rows of some units were handed out."""
        return self.of_rows.generations(units // self._per_row)

    def owner(self, unit: int) -> str:
        """Returns who holds its row now."""
        return self.of_rows.owner(unit // self._per_row)

    def name(self, unit: int, generation: int) -> str:
        """Returns who held its row then."""
        return self.of_rows.name(unit // self._per_row, generation)

    def names(self, units: npt.NDArray[np.int64]) -> list[str]:
        """Returns who has the row of each of some units, or had it last."""
        return self.of_rows.names(units // self._per_row)

    def held(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tells which units belong to a row that somebody holds."""
        return self.of_rows.held(units // self._per_row)

    def holds_all(self, units: npt.NDArray[np.int64]) -> bool:
        """Tells whether somebody holds each of their rows."""
        return self.of_rows.holds_all(units // self._per_row)

    def unowned(self, units: npt.NDArray[np.int64], step: int | None) -> npt.NDArray[np.bool_]:
        """Tells which units belong to a row that nobody has."""
        return self.of_rows.unowned(units // self._per_row, step)

    def allocation(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
        """Returns who has the row of each of some units."""
        return self.of_rows.allocation(units // self._per_row)

    def left_in(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the step in which the row of each of some units was taken back last."""
        return self.of_rows.left_in(units // self._per_row)

    # --- as one that follows the rows ---

    def hand_out(self, rows: npt.NDArray[np.int64]) -> None:
        """The rows have new owners, and so have their units."""
        for follower in list(self.followers):
            follower.hand_out(self._units(rows))

    def lose_sinks(self, rows: npt.NDArray[np.int64]) -> None:
        """The rows were no sinks, and neither were their units."""
        for follower in list(self.followers):
            follower.lose_sinks(rows)

    def spare(self, rows: npt.NDArray[np.int64]) -> None:
        """Nobody waits any more for what the rows hold."""
        for follower in list(self.followers):
            follower.spare(self._units(rows))

    def _units(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return (rows[:, None] * self._per_row + np.arange(self._per_row)).reshape(-1)
