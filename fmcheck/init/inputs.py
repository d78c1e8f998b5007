"""Graph inputs by name: which of them choose rows, and which are used as indices otherwise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmcheck.init.proposal import Confidence, Key
from fmcheck.init.relay_entries import confidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.init.graphs import RunnerCandidate
    from fmcheck.init.relay_entries import RelayCandidate

_INDEX = re.compile(
    r"(^|_)(idx|idxs|index|indices|indexes|rows?|loc|locs|slots?|mapping|positions)(_|$)"
)
_REQUEST = re.compile(r"(^|_)(req|reqs|request|requests|row|rows|seq|batch)(_|$)")
_VALUES = re.compile(r"(^|_)(topk|token|tokens|hidden|prob|probs|draft)(_|$)")


def input_keys(
    runners: Sequence[RunnerCandidate], relays: Sequence[RelayCandidate]
) -> Iterator[Key]:
    """Yields the lists of inputs that hold for all fills."""
    where: dict[str, str] = {}
    for runner in runners:
        for name in runner.names:
            where.setdefault(name, runner.at)
    by_relay = {
        re.split(r"[.\[(]", one.index)[-1].rstrip(")]")
        for relay in relays
        if confidence(relay) is Confidence.HIGH
        for each in relay.accesses.values()
        for one in each
    }
    rows = [name for name in where if name in by_relay or _chooses_row(name)]
    if rows:
        yield Key(
            "graph_inputs",
            "row_indices",
            rows,
            where[rows[0]],
            Confidence.HIGH,
            ["Their padded entries must point at the sink row: a stale one is another request's."],
        )
    others = [name for name in where if name not in rows and _is_index(name)]
    if others:
        yield Key(
            "graph_inputs",
            "index_like",
            others,
            where[others[0]],
            Confidence.MEDIUM,
            ["Are they used as indices (positions, cache slots)? Their tails must be reset then."],
        )


def says_anything(runner: RunnerCandidate) -> bool:
    """Tells whether a fill has an input whose padded tail matters: an index, or a length."""
    return bool(runner.holds) or any(map(_is_index, runner.names))


def _is_index(name: str) -> bool:
    return bool(_INDEX.search(name)) and not _VALUES.search(name)


def _chooses_row(name: str) -> bool:
    return _is_index(name) and bool(_REQUEST.search(name)) and "positions" not in name
