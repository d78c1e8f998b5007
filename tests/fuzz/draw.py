"""Where a case's choices come from: a seed, hypothesis or atheris. All it gives is integers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Source(Protocol):
    def integer(self, low: int, high: int) -> int: ...


class Draw:
    """Choices, made of a source's integers."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def integer(self, low: int, high: int) -> int:
        return self._source.integer(low, high)

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.integer(0, len(choices) - 1)]

    def chance(self, one_in: int) -> bool:
        return self.integer(1, one_in) == one_in


class FromSeed:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


class FromHypothesis:
    def __init__(self, data: Any) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        from hypothesis import strategies as st

        return int(self._data.draw(st.integers(low, high)))


class FromAtheris:
    def __init__(self, data: bytes) -> None:
        import atheris

        self._provider = atheris.FuzzedDataProvider(data)

    def integer(self, low: int, high: int) -> int:
        return int(self._provider.ConsumeIntInRange(low, high))
