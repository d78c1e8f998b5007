"""Clashes: entries of a contract that contradict each other, or that nothing can ever come of."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any

from fmcheck.errors import UsageError, nearest
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fmcheck.contract.schema import Budget, Contract, Fill, GraphInputs, Relay

#: No buffer has more rows: an index of 32 bits ends there.
_MOST_ROWS = 2**31 - 1
_MARKS = "*?["
_OF_SELF = regex(r"self(\.[A-Za-z_]\w*|\[-?\w+\])+")
_VERSION = regex(r"\d+(?:\.\d+)*")


def check_clashes(contract: Contract, where: str) -> None:
    """Rejects entries that contradict each other, and entries without an effect.

    Raises:
        UsageError: naming the file, both keys and what to do.
    """
    inputs = contract.graph_inputs
    _check_inputs(inputs, where)
    for number, fill in enumerate(inputs.fill):
        _check_fill(fill, inputs, where, f"graph_inputs.fill[{number}]")
    for number, relay in enumerate(contract.relay):
        key = f"relay[{number}]"
        _check_sink_rows(relay, where, f"{key}.sink_rows")
        for other, earlier in enumerate(contract.relay[:number]):
            _check_relays(relay, earlier, where, key, f"relay[{other}]")
    for number, budget in enumerate(contract.launches.budget):
        for other, earlier_one in enumerate(contract.launches.budget[:number]):
            key = f"launches.budget[{number}]"
            _check_budgets(budget, earlier_one, where, key, f"launches.budget[{other}]")


def _check_inputs(inputs: GraphInputs, where: str) -> None:
    for key in ("tail_may_stay", "tail_is_discarded"):
        for name in inputs.row_indices:
            known = _match(name, getattr(inputs, key))
            if known is not None:
                raise UsageError(
                    where,
                    f"key `graph_inputs.{key}`: `{known}` contradicts `{name}` in "
                    "`graph_inputs.row_indices`, whose tail must point at the sink row: "
                    "expected it in one of the two",
                )
    _check_rows_hold(inputs.row_indices, inputs.holds, where, "graph_inputs.holds")
    for name in inputs.holds:
        known = _match(name, (*inputs.tail_may_stay, *inputs.tail_is_discarded))
        if known is not None:
            raise UsageError(
                where,
                f"key `graph_inputs.holds.{name}`: is without effect beside `{known}` in "
                "`graph_inputs.tail_may_stay` or `tail_is_discarded`: expected one of the two",
            )
    for key in ("holds", "valid", "batch_dim"):
        _check_globs(getattr(inputs, key), where, f"graph_inputs.{key}")


def _check_rows_hold(rows: Iterable[str], holds: Mapping[str, Any], where: str, key: str) -> None:
    for name in rows:
        known = _match(name, holds)
        if known is not None and isinstance(holds[known], int) and holds[known] != 0:
            raise UsageError(
                where,
                f"key `{key}.{known}`: {holds[known]} contradicts `{name}` in "
                "`graph_inputs.row_indices`, whose tail must point at the sink row: expected 0, "
                "or the name in one of the two",
            )


def _check_globs(table: Mapping[str, Any], where: str, key: str) -> None:
    """Rejects two globs that give different values to one name. An exact name goes first."""
    globs = [name for name in table if any(mark in name for mark in _MARKS)]
    for number, later in enumerate(globs):
        for earlier in globs[:number]:
            # The narrower one may stand first.
            if table[earlier] == table[later] or not _meet(earlier, later):
                continue
            if fnmatchcase(earlier, later) and not fnmatchcase(later, earlier):
                continue
            raise UsageError(
                where,
                f"key `{key}`: globs `{earlier}` ({table[earlier]!r}) and `{later}` "
                f"({table[later]!r}) may mean the same name: expected one value for it "
                "(the narrower glob first, or the name itself)",
            )


_DEMANDS = "`row_indices`, `index_like`, `offsets`, `holds`, `head` or `rewritten`"


def _check_fill(fill: Fill, inputs: GraphInputs, where: str, key: str) -> None:
    _check_rows_hold(inputs.row_indices, fill.holds, where, f"{key}.holds")
    _check_globs(fill.holds, where, f"{key}.holds")
    dropped = (*inputs.tail_may_stay, *inputs.tail_is_discarded)
    lists = (*inputs.row_indices, *inputs.index_like, *inputs.offsets, *inputs.holds)
    judged = [*fill.holds, *inputs.head, *inputs.rewritten]
    judged += [name for name in lists if _match_whole(name, dropped) is None]
    for name in fill.only:
        if not any(_meet(name, one) for one in judged):
            raise UsageError(
                where,
                f"key `{key}.only`: nothing is demanded of `{name}`: expected it in `holds` of "
                f"this fill, or in {_DEMANDS} of `[graph_inputs]`"
                f"{nearest(name, judged)}",
            )
    if not judged and not fill.mapping and not fill.captured:
        raise UsageError(
            where,
            f"key `{key}`: checks nothing, for nothing is demanded of any input: expected a name "
            f"in its `holds`, or in {_DEMANDS} of `[graph_inputs]`, or a path in its `captured`",
        )


def _check_sink_rows(relay: Relay, where: str, key: str) -> None:
    for row in relay.sink_rows or ():
        if isinstance(row, str):
            if not _OF_SELF.fullmatch(row):
                raise UsageError(
                    where,
                    f"key `{key}`: expected a row's number, or a path like `self.pad_row`, "
                    f"got `{row}`",
                )
        elif not -_MOST_ROWS <= row <= _MOST_ROWS:
            raise UsageError(
                where,
                f"key `{key}`: expected rows from 0 to {_MOST_ROWS}, or from -1 backwards, "
                f"got {row}",
            )


def _check_relays(relay: Relay, other: Relay, where: str, key: str, first: str) -> None:
    if relay.class_ != other.class_ or relay == other:
        return
    common = _common_release(relay.releases, other.releases)
    if common is None:
        return
    mine, theirs = ({one.name: one for one in each.buffer} for each in (relay, other))
    for name in (*mine, *theirs):
        if mine.get(name) != theirs.get(name):
            raise UsageError(
                where,
                f"key `{key}`: contradicts `{first}`, which is of the same class "
                f"`{relay.class_}`, in buffer `{name}`: expected `releases` that do not overlap, "
                f"got `{other.releases or 'all'}` and `{relay.releases or 'all'}` (both have "
                f"{common})",
            )


def _check_budgets(budget: Budget, other: Budget, where: str, key: str, first: str) -> None:
    shared = [name for name in budget.functions if name in other.functions]
    if not shared or budget.when != other.when:
        return
    common = _common_release(budget.releases, other.releases)
    for name in ("syncs", "launches"):
        mine, theirs = getattr(budget, name), getattr(other, name)
        if common is not None and None not in (mine, theirs) and mine != theirs:
            raise UsageError(
                where,
                f"key `{key}.{name}`: {mine} contradicts `{first}.{name}` = {theirs} for "
                f"`{shared[0]}`: expected one number, or `releases` or `when` that tell them apart",
            )


def _match(name: str, patterns: Iterable[str]) -> str | None:
    """Returns the first pattern that may mean the same input as a name or glob."""
    return next((one for one in patterns if _meet(name, one)), None)


def _match_whole(name: str, patterns: Iterable[str]) -> str | None:
    """Returns the first pattern that means all that a name or glob means."""
    return next((one for one in patterns if fnmatchcase(name, one)), None)


def _meet(one: str, other: str) -> bool:
    """Tells whether two names or globs may mean the same name."""
    return _meets(tuple(_signs(one)), tuple(_signs(other)))


def _signs(glob: str) -> Iterator[str]:
    """Yields the signs of a glob; one of a set is taken for any."""
    yield from re.sub(r"\[!?\]?[^]]*\]", "?", re.sub(r"\*+", "*", glob))


def _meets(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Walks two globs together: which places of the second each place of the first may meet."""
    at = _after_stars({0}, other)
    for sign in one:
        if sign == "*":
            at = set(range(min(at), len(other) + 1)) if at else at
            continue
        step = {place for place in at if place < len(other) and other[place] == "*"}
        step |= {
            place + 1
            for place in at
            if place < len(other) and (sign == "?" or other[place] in (sign, "?"))
        }
        at = _after_stars(step, other)
    return len(other) in at


def _after_stars(places: set[int], signs: tuple[str, ...]) -> set[int]:
    """Returns places, and those behind the stars that stand there."""
    found = set(places)
    for place in sorted(places):
        while place < len(signs) and signs[place] == "*":
            place += 1
            found.add(place)
    return found


def _common_release(one: str, other: str) -> str | None:
    """Returns a release that two ranges share, None if there is none."""
    return next((version for version in _releases(one + other) if _both(one, other, version)), None)


def _both(one: str, other: str, version: str) -> bool:
    from fmcheck.contract.schema import applies

    return applies(one, version) and applies(other, version)


@cache
def _releases(ranges: str) -> tuple[str, ...]:
    """Returns releases on, before and behind each bound of some ranges."""
    named = _VERSION.findall(ranges)
    return (*named, *(f"{version}.1" for version in named), "0", "999999")
