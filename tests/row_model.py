"""A plain model of the life of a row, written from the table of the design alone.

Which elements a call of torch touches is found by making the same call on a tensor of element
numbers, or on one of zeros; no index expression is ever looked at. Each row has a state, whether
its value is awaited, whose value it is, and how many owners it has had.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# A row remembers so many of its owners.
REMEMBERED = 4
EMPTY, LIVE, CONSUMED = "empty", "live", "consumed"
NAN_BITS = {
    torch.float64: (torch.int64, 0x7FF8_FC0C_DEAD_F00D),
    torch.float32: (torch.int32, 0x7FCF_C0DE),
    torch.bfloat16: (torch.int16, 0x7FDC),
    torch.float16: (torch.int16, 0x7EFC),
}


@dataclass
class Row:
    """One row of one buffer."""

    state: str = EMPTY
    awaited: bool = False
    writer: int = 0
    left_unread: bool = False
    reported: bool = False


@dataclass
class Pool:
    """Rows and owners: who holds a row, the names of all who ever did, by generation."""

    names: list[list[str]]
    held: list[bool]

    @classmethod
    def of(cls, rows: int) -> Pool:
        return cls([[""] for _ in range(rows)], [False] * rows)

    def generation(self, row: int) -> int:
        return len(self.names[row]) - 1

    def owner(self, row: int) -> str:
        return self.names[row][-1] if self.held[row] else ""


@dataclass(frozen=True)
class Said:
    """What the checker must say of one call."""

    code: str
    rows: tuple[int, ...]
    owner: str
    previous: str


@dataclass
class Model:
    """One buffer: its elements, as a plain tensor with our own poison in it, and its rows.

    `unwatched` is what the memory would hold without a watch. On a CPU it holds that watched too,
    and poison is only what a gather is judged by; on a device poison `lies_in_memory`.
    """

    memory: torch.Tensor
    bound: tuple[str, int] | None
    pool: Pool | None
    overwrite: str
    sinks: tuple[int, ...] = (0,)
    rows: list[Row] = field(default_factory=list)
    gathered: bool = False
    has_owners: bool = False
    lies_in_memory: bool = False

    def __post_init__(self) -> None:
        self.rows = [Row() for _ in range(len(self.memory))]
        self.width = self.memory.numel() // len(self.memory)
        self.numbers = torch.arange(self.memory.numel()).reshape(self.memory.shape)
        self.unwatched = self.memory.clone()
        self._poison(e for e in range(self.memory.numel()) if e // self.width not in self.sinks)

    # --- values ---

    @property
    def has_poison(self) -> bool:
        return self.memory.dtype.is_signed

    @property
    def certain(self) -> bool:
        """Whether poison can be nothing else."""
        if self.memory.dtype.is_floating_point:
            return True
        return self.has_poison and self.bound in ((">=", 0), (">", 0))

    @property
    def bits(self) -> torch.Tensor:
        flat = self.memory.reshape(-1)
        if self.memory.dtype.is_floating_point:
            return flat.view(NAN_BITS[self.memory.dtype][0])
        return flat

    @property
    def poison(self) -> int:
        return NAN_BITS[self.memory.dtype][1] if self.memory.dtype.is_floating_point else -1

    def _poison(self, elements: Iterable[int]) -> None:
        chosen = [e for e in elements if e // self.width not in self.sinks]
        if self.has_poison and chosen:
            self.bits[torch.tensor(chosen)] = self.poison

    def _is_poison(self, element: int) -> bool:
        return self.has_poison and int(self.bits[element]) == self.poison

    def _is_invalid(self, element: int) -> bool:
        if self.bound is None:
            return False
        value = self.memory.reshape(-1)[element].item()
        sign, limit = self.bound
        return not (value >= limit if sign == ">=" else value > limit)

    # --- calls ---

    @property
    def real(self) -> torch.Tensor:
        """What the memory holds."""
        return self.memory if self.lies_in_memory else self.unwatched

    def write(
        self,
        call: Callable[[torch.Tensor], Any],
        updates: bool,
        constant: bool,
        picks: bool = False,
        twice: Iterable[int] = (),
    ) -> list[Said]:
        """Makes a write; returns the values it went over, and those that are not valid.

        Where it `picks` rows, each has to have an owner; to those in `twice` it gave two values.
        """
        marks = torch.zeros(self.memory.shape, dtype=torch.int64)
        touched = self._touched_by(call, marks, updates)
        call(self.real)
        if touched:
            places = torch.tensor(touched)
            self.memory.reshape(-1)[places] = self.real.reshape(-1)[places]
        by_row = self._by_row(touched)
        invalid = self._invalid_rows(by_row, updates, constant)
        retired = {
            row
            for row in by_row
            if self.certain and all(self._is_poison(e) for e in self._elements(row))
            if constant or self.memory.dtype.is_floating_point
        }
        nobodys = [
            row
            for row in by_row
            if picks and self.has_owners and row not in retired and self._is_nobodys(row)
        ]
        lost = [
            row
            for row, elements in by_row.items()
            if row not in retired and len(elements) == self.width and self._is_lost(row)
        ]
        for row in by_row:
            known = self.rows[row]
            if row in retired:
                if known.state == LIVE:
                    known.state = CONSUMED
            else:
                known.state, known.awaited, known.reported = LIVE, True, row in invalid
                known.writer = self.pool.generation(row) if self.pool else 0
        said = self._say("FR103", lost) if not updates else []
        said += self._say("FR105", invalid) + self._say("FR109", nobodys)
        given = [row for row in twice if row not in self.sinks]
        return said + self._say("FR110", given)

    def _is_nobodys(self, row: int) -> bool:
        """A row that was taken back may be written by a step that is still in flight."""
        is_owned = row in self.sinks or self.pool is None
        return not is_owned and len(self.pool.names[row]) == 1

    def _invalid_rows(
        self, by_row: dict[int, set[int]], updates: bool, constant: bool
    ) -> list[int]:
        """Rows that a write has given a value that is not valid."""
        if constant and len(by_row) == len(self.rows):
            return []  # a reset
        return [
            row
            for row, elements in by_row.items()
            if row not in self.sinks
            and not (constant and self.rows[row].state == CONSUMED)  # a mark: nothing in here
            and (self.rows[row].state == LIVE or not updates)
            and any(self._is_bad_value(element, constant) for element in elements)
        ]

    def _is_bad_value(self, element: int, constant: bool) -> bool:
        marks = self._is_poison(element) and (constant or self.memory.dtype.is_floating_point)
        return self._is_invalid(element) and not marks

    def _touched_by(
        self, call: Callable[[torch.Tensor], Any], marks: torch.Tensor, updates: bool
    ) -> list[int]:
        """Elements that come out changed from a start of 0 or from one of 1."""
        if updates:
            call(marks)
            return marks.reshape(-1).nonzero().flatten().tolist()
        ones = torch.ones_like(marks)
        call(marks)
        call(ones)
        # What was not written differs between the two.
        return (marks == ones).reshape(-1).nonzero().flatten().tolist()

    def _is_lost(self, row: int) -> bool:
        if self.pool is None or row in self.sinks or not self.pool.held[row]:
            return False
        guards = {"never": True, "always": False, "until gathered": self.gathered}
        known = self.rows[row]
        return guards[self.overwrite] and known.state == LIVE and known.awaited

    def gather(
        self, call: Callable[[torch.Tensor], torch.Tensor], peeks: bool
    ) -> tuple[torch.Tensor, list[Said]]:
        """Makes a gather; returns what it got, and what is wrong with it."""
        result = call(self.real).clone()
        numbers = call(self.numbers)
        touched = numbers.reshape(-1).tolist()
        codes: dict[int, set[str]] = {}
        for element in touched:
            code = self._verdict(element)
            if code:
                codes.setdefault(element // self.width, set()).add(code)
        self.gathered = self.gathered or bool(touched)
        said = []
        for code in sorted({code for of_row in codes.values() for code in of_row}):
            said += self._say(code, [row for row, of_row in codes.items() if code in of_row])
        for row in self._by_row(touched):
            known = self.rows[row]
            unseen = self.has_poison and row not in codes and row not in self.sinks
            if known.state != LIVE and unseen:
                # A write that is not tracked: what was reported of the last value is over.
                known.state, known.writer, known.reported = LIVE, 0, False
            known.awaited = False
            if not peeks and known.state == LIVE:
                known.state = CONSUMED
        if not peeks:
            self._poison(touched)
        return result, said

    def _verdict(self, element: int) -> str:
        row = element // self.width
        known = self.rows[row]
        if row in self.sinks:
            return ""
        live, poison, invalid = known.state == LIVE, self._is_poison(element), False
        invalid = self._is_invalid(element)
        bad = poison if self.certain else (poison or not self.has_poison) and not live
        if not bad and not invalid:
            return ""
        if live and known.reported:
            return ""  # when it was written
        if live:
            return "FR101" if poison and self.memory.dtype.is_floating_point else "FR105"
        if not poison and self.has_poison:
            return "FR105"
        if known.state == CONSUMED:
            return "FR102"
        return "FR104" if known.left_unread else "FR101"

    def new_owners(self, rows: Iterable[int]) -> None:
        """Rows were handed out, and the pool knows of it already."""
        for row in rows:
            if row in self.sinks or row >= len(self.rows):
                continue
            self.has_owners = True
            known = self.rows[row]
            if known.state != EMPTY:
                known.left_unread = known.state == LIVE
            known.state = EMPTY
            self._poison(self._elements(row))

    def spare(self, rows: Iterable[int]) -> None:
        """Nobody waits any more for what the rows hold."""
        for row in rows:
            if row < len(self.rows):
                self.rows[row].awaited = False

    def _elements(self, row: int) -> range:
        return range(row * self.width, (row + 1) * self.width)

    def _by_row(self, elements: Iterable[int]) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for element in elements:
            found.setdefault(element // self.width, set()).add(element)
        return found

    def _say(self, code: str, rows: list[int]) -> list[Said]:
        if not rows:
            return []
        rows = sorted(rows)
        first = rows[0]
        if self.pool is None:
            return [Said(code, tuple(rows), "", "")]
        names = self.pool.names[first]
        past = self.rows[first].writer if code == "FR104" else len(names) - 2
        previous = names[past] if past >= max(0, len(names) - REMEMBERED) else ""
        return [Said(code, tuple(rows), self.pool.owner(first), previous)]
