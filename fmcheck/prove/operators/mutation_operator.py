"""An operator: one kind of fault, and every place of a module where it can be planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.prove.operators.engine_names import EngineNames
    from fmcheck.prove.operators.mutant import Fault
    from fmcheck.prove.operators.parsed import ParsedModule


@dataclass(frozen=True, slots=True)
class MutationOperator:
    """A kind of fault. `about` says in one sentence what is planted."""

    name: str
    about: str
    faults: Callable[[ParsedModule, EngineNames], Iterator[Fault]]
