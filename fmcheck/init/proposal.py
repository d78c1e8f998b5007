"""Proposals: entries of a contract, each with where it was seen and how sure that is."""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Value: TypeAlias = "str | int | bool | Sequence[str] | Sequence[int] | Mapping[str, str | int]"
_BARE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
#: Longer lists are written one item a line.
_MOST_COLUMNS = 100


class Confidence(enum.IntEnum):
    """How sure an entry is; what is less than HIGH is written as a comment."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2

    @property
    def word(self) -> str:
        """The word that a contract's comment has for it."""
        return self.name.lower()


@dataclass
class ProposedEntry:
    """One table of a contract, as `[[relay]]`, with the tables below it.

    `why` are sentences for its comment. `keys` in `guessed` are written as comments.
    """

    table: str
    keys: dict[str, Value]
    at: str
    confidence: Confidence
    why: Sequence[str] = ()
    guessed: Mapping[str, Value] = field(default_factory=dict)
    below: Sequence[ProposedEntry] = ()

    def lines(self, *, is_active: bool = True) -> Iterator[str]:
        """Yields the lines of the entry, without a line break."""
        is_active = is_active and self.confidence is Confidence.HIGH
        yield f"# {self.at}, confidence: {self.confidence.word}"
        for sentence in self.why:
            yield f"# {sentence}"
        written = [f"[[{self.table}]]"]
        written += [line for key, value in self.keys.items() for line in _written(key, value)]
        yield from written if is_active else [f"# {line}" for line in written]
        for key, value in self.guessed.items():
            yield from (f"# {line}" for line in _written(key, value))
        for one in self.below:
            yield ""
            yield from one.lines(is_active=is_active)

    def count(self) -> tuple[int, int]:
        """Returns how many entries are active, and how many are comments."""
        return self._count(is_active=True)

    def _count(self, *, is_active: bool) -> tuple[int, int]:
        is_active = is_active and self.confidence is Confidence.HIGH
        counts = [one._count(is_active=is_active) for one in self.below]
        active = sum(one for one, _ in counts) + is_active
        return active, sum(one for _, one in counts) + (not is_active)


@dataclass
class Key:
    """One key of a table that a contract has once, as `graph_inputs.row_indices`."""

    table: str
    name: str
    value: Value
    at: str
    confidence: Confidence
    why: Sequence[str] = ()

    def lines(self) -> Iterator[str]:
        """Yields the lines of the key, without a line break."""
        yield f"# {self.at}, confidence: {self.confidence.word}"
        for sentence in self.why:
            yield f"# {sentence}"
        mark = "" if self.confidence is Confidence.HIGH else "# "
        yield from (mark + line for line in _written(self.name, self.value))


def _written(key: str, value: Value) -> Iterator[str]:
    name = key if _BARE.fullmatch(key) else json.dumps(key)
    text = f"{name} = {_literal(value)}"
    if isinstance(value, (list, tuple)) and len(text) > _MOST_COLUMNS:
        yield f"{name} = ["
        yield from (f"    {_literal(one)}," for one in value)
        yield "]"
    else:
        yield text


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    assert isinstance(value, dict)
    return "{ " + ", ".join(f"{key} = {_literal(one)}" for key, one in value.items()) + " }"
