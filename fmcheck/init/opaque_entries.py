"""Opaque functions: kernels and compiled functions that are handed relay buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.init.kernel_parameters import is_conditional, is_launcher, uses
from fmcheck.init.proposal import Confidence, ProposedEntry
from fmcheck.init.relay_entries import confidence
from fmcheck.init.row_accesses import OF_REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.init.engine_tree import EngineTree, FunctionPlace
    from fmcheck.init.kernel_parameters import RowsUse
    from fmcheck.init.proposal import Value
    from fmcheck.init.relay_entries import RelayCandidate


def opaque(tree: EngineTree, relays: Sequence[RelayCandidate]) -> Iterator[ProposedEntry]:
    """Yields an entry for each function that Python does not see the rows of."""
    places: dict[str, FunctionPlace] = {}
    handed: dict[str, set[str]] = {}
    sure: dict[str, Confidence] = {}
    for relay in relays:
        for each in relay.accesses.values():
            for one in each:
                if one.by is not None:
                    places[one.by.name] = one.by
                    handed.setdefault(one.by.name, set()).add(one.parameter)
                    known = sure.get(one.by.name, Confidence.LOW)
                    sure[one.by.name] = max(known, confidence(relay))
    for name, place in places.items():
        hidden = [one for one in uses(tree, place) if one.is_kernel and one.tensor in handed[name]]
        rows = _rows([one.rows for one in hidden])
        if rows:
            entry = _entry(tree, place, rows, [one for one in hidden if one.rows == rows])
            entry.confidence = min(entry.confidence, sure[name])
            yield entry


def _rows(names: Sequence[str]) -> str:
    """Returns the parameter that chooses rows of requests, by its name, or else the first."""
    named = [one for one in names if OF_REQUESTS.search(one)]
    return next(iter([*named, *names]), "")


def _entry(
    tree: EngineTree, place: FunctionPlace, rows: str, found: Sequence[RowsUse]
) -> ProposedEntry:
    keys: dict[str, Value] = {"functions": [place.name], "rows": rows}
    for key, is_write in (("reads", False), ("writes", True)):
        names = [one.tensor for one in found if one.is_write is is_write]
        if names:
            keys[key] = names
    why = []
    sure = Confidence.HIGH if is_launcher(place) else Confidence.MEDIUM
    if is_conditional(tree, place):
        sure = Confidence.MEDIUM
        why.append("The kernel has an `if`: rows_where says which rows it skips, if it skips any.")
    if not is_launcher(place):
        why.append("It is compiled: is it ever called with relay buffers?")
    return ProposedEntry("opaque", keys, place.at(place.function.node.name), sure, why)
