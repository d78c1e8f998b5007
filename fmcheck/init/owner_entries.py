"""Owners: the functions that take rows from a list of free ones, and those that put them back."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fmcheck.init.proposal import Confidence, ProposedEntry
from fmcheck.init.relay_entries import confidence, snake
from fmcheck.init.row_accesses import arguments_of
from fmcheck.lint.model.expressions import is_name, last_name, literal_elements, targets
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.init.engine_tree import EngineTree, FunctionPlace
    from fmcheck.init.proposal import Value
    from fmcheck.init.relay_entries import RelayCandidate

#: An attribute that starts as a range of numbers is a list of free rows.
_FREE = re.compile(r"\bself\.(\w+)\s*(?::[^=\n]+)?=[^=\n]*\b(?:range|arange)\(")
_FREE_LATER = re.compile(
    r"\bself\.(\w+)\s*(?::[^=\n]+)?=\s*(?:\w+\.)*\w+\(\s*\n?\s*(?:list\()?(?:range|arange)\("
)
_POPS = frozenset(("pop", "popleft", "popitem"))
_PUTS = frozenset(("append", "appendleft", "extend", "add", "put", "insert", "update"))
#: Words of names of pools of requests' rows, and of pools of something else.
_REQUESTS = re.compile(
    r"(^|_)(req|reqs|request|requests|row|rows|seq|seqs|slot|slots|state|states)(_|$)"
)
_ELSE = re.compile(
    r"(^|_)(kv|token|tokens|page|pages|paged|block|blocks|cache|mamba|lora|expert|port|ports|host|hidden|worker|rank|adapter|image|embedding|buffer|stream|graph)(_|$)"
)


@dataclass(frozen=True)
class Owner:
    """A function that hands rows out, or takes them back; `rows` is the path to them."""

    place: FunctionPlace
    node: cst.CSTNode
    does: str
    rows: str
    owner: str = ""
    list: str = ""


def owners(tree: EngineTree) -> Iterator[Owner]:
    """Yields the functions of each class that has both kinds."""
    seen: set[tuple[str, str, str]] = set()
    for one in _owners(tree):
        key = one.place.name, one.does, one.rows
        if key not in seen:
            seen.add(key)
            yield one


def _owners(tree: EngineTree) -> Iterator[Owner]:
    for source in tree.sources:
        free = frozenset(_FREE.findall(source.text)) | frozenset(_FREE_LATER.findall(source.text))
        if not free:
            continue
        classes: dict[str, list[FunctionPlace]] = {}
        for place in source.places(((".pop", *_words(free)), tuple(sorted(free)))):
            classes.setdefault(place.owner, []).append(place)
        for owner, places in classes.items():
            found = [one for place in places for one in _of(place, free)]
            if owner and len({one.does for one in found}) == 2:
                yield from found
                yield from _through(source.places(_named(found)), owner, found)


def _words(free: frozenset[str]) -> Sequence[str]:
    return [f".{name}" for name in sorted(free)]


def _listed(place: FunctionPlace, free: frozenset[str]) -> str:
    """Returns the list of free rows that a method uses."""
    code = place.code(place.function.node)
    return next((name for name in sorted(free) if f"self.{name}" in code), "")


def rings(relays: Sequence[RelayCandidate]) -> Iterator[ProposedEntry]:
    """Yields the methods of relays that hand out the next rows of a ring: `% self.size`."""
    for relay in relays:
        for place in relay.place.source.places((("%",), ("return",))):
            steps = [one for one in place.function.nodes if _is_wrapped(one)]
            if place.class_ != relay.class_ or not steps or not list(_returned(place)):
                continue
            wrote = [one.index for name in relay.buffers for one in relay.written(name)]
            parts = sorted({one.rpartition(".")[2] for one in wrote if "." in one})
            keys: dict[str, Value] = {
                "functions": [place.name],
                "does": "hands out",
                "rows": f"return.{parts[0]}" if parts else "return",
                "renews": True,
            }
            why = ("A ring: nobody takes the rows back, and the next one gets them anyway.",)
            yield ProposedEntry("owners", keys, place.at(steps[0]), Confidence.MEDIUM, why)


def _is_wrapped(node: cst.CSTNode) -> bool:
    """Tells whether a counter of the instance is advanced and wrapped."""
    if not isinstance(node, cst.Assign) or not isinstance(node.value, cst.BinaryOperation):
        return False
    target = node.targets[0].target
    is_own = isinstance(target, cst.Attribute) and is_name(target.value, "self")
    return is_own and isinstance(node.value.operator, cst.Modulo)


def _named(found: Sequence[Owner]) -> tuple[tuple[str, ...]]:
    return (tuple(sorted({f"self.{one.place.function.name}(" for one in found})),)


def _of(place: FunctionPlace, free: frozenset[str]) -> Iterator[Owner]:
    """Yields what one method does with the rows that are free."""
    for one in _moved(place, free):
        yield replace(one, list=_listed(place, free))


def _moved(place: FunctionPlace, free: frozenset[str]) -> Iterator[Owner]:
    for node in place.function.nodes:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            word, held = node.func.attr.value, node.func.value
            if _is_free(held, free) and word in _POPS:
                yield from _handed_out(place, node)
            elif _is_free(held, free) and word in _PUTS and node.args:
                yield from _taken_back(place, node, node.args[-1].value)
        elif isinstance(node, cst.Subscript) and _is_free(node.value, free):
            if isinstance(node.slice[0].slice, cst.Slice) and _shrinks(place, free):
                yield from _handed_out(place, node)
        elif isinstance(node, cst.AugAssign) and _is_free(node.target, free):
            yield from _taken_back(place, node, node.value)
        elif isinstance(node, cst.Assign) and _is_free(node.targets[0].target, free):
            yield from _joined(place, node, free)


def _is_free(node: cst.CSTNode, free: frozenset[str]) -> bool:
    return (
        isinstance(node, cst.Attribute) and is_name(node.value, "self") and node.attr.value in free
    )


def _shrinks(place: FunctionPlace, free: frozenset[str]) -> bool:
    """Tells whether a method cuts the list of free rows: `self.free = self.free[n:]`."""
    for node in place.function.nodes:
        if isinstance(node, cst.Del) and isinstance(node.target, cst.Subscript):
            cut: cst.Subscript | None = node.target
        elif isinstance(node, cst.Assign) and isinstance(node.value, cst.Subscript):
            cut = node.value if _is_free(node.targets[0].target, free) else None
        else:
            continue
        if cut is not None and _is_free(cut.value, free):
            return True
    return False


def _joined(place: FunctionPlace, node: cst.Assign, free: frozenset[str]) -> Iterator[Owner]:
    """Yields `self.free = torch.cat((self.free, rows))`, and `self.free + rows`."""
    inner = [one for one in walk(node.value) if _is_free(one, free)]
    if not inner or isinstance(node.value, cst.Subscript):
        return
    for one in walk(node.value):
        if isinstance(one, cst.Name) and one.value in place.function.parameters[1:]:
            yield from _taken_back(place, node, one)
            return


def _handed_out(place: FunctionPlace, node: cst.CSTNode) -> Iterator[Owner]:
    """Yields where a row that was free goes to: what is returned, or where it is kept."""
    statement = _statement(place, node)
    if isinstance(statement, cst.Return):
        yield Owner(place, node, "hands out", "return")
        return
    assigned = list(targets(statement))
    bound = {one.value for one in assigned if isinstance(one, cst.Name)}
    for other in place.function.nodes:
        if isinstance(other, cst.Assign) and isinstance(other.value, cst.Name):
            assigned += targets(other) if other.value.value in bound else ()
    kept = next(filter(None, (_kept(place, one) for one in assigned)), "")
    if kept:
        yield Owner(place, node, "hands out", kept, kept.partition("[")[2].rstrip("]"))
    elif any(bound & _names(one) or isinstance(one, cst.ListComp) for one in _returned(place)):
        yield Owner(place, node, "hands out", "return")


def _statement(place: FunctionPlace, node: cst.CSTNode) -> cst.CSTNode:
    while not isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
        node = place.function.parents[node]
    return node


def _returned(place: FunctionPlace) -> Iterator[cst.CSTNode]:
    for node in place.function.nodes:
        if isinstance(node, cst.Return) and node.value is not None:
            yield node.value


def _names(node: cst.CSTNode) -> set[str]:
    return {one.value for one in walk(node) if isinstance(one, cst.Name)}


def _kept(place: FunctionPlace, target: cst.CSTNode) -> str:
    """Returns the path under which a row is kept: `self.row_of[rid]`, or `req.row`."""
    parameters = place.function.parameters
    if isinstance(target, cst.Subscript) and isinstance(target.value, cst.Attribute):
        chosen = target.slice[0].slice
        if isinstance(chosen, cst.Index) and place.code(chosen.value) in parameters:
            return place.code(target)
    if isinstance(target, cst.Attribute):
        root = place.code(target).partition(".")[0]
        if root in parameters and root != "self":
            return place.code(target)
    return ""


def _taken_back(place: FunctionPlace, node: cst.CSTNode, value: cst.CSTNode) -> Iterator[Owner]:
    path = _path(place, value)
    if path:
        yield Owner(place, node, "takes back", path)


def _path(place: FunctionPlace, value: cst.CSTNode, depth: int = 2) -> str:
    """Returns the path from a parameter to what is put back, "" if there is none."""
    elements = literal_elements(value)
    if elements:
        return _path(place, elements[0], depth)
    if isinstance(value, cst.Name) and value.value not in place.function.parameters and depth:
        found = [_path(place, one, depth - 1) for one in place.function.names.values(value.value)]
        return next(filter(None, found), "")
    if (
        isinstance(value, cst.Call)
        and last_name(value.func) in ("pop", "get", "int")
        and value.args
    ):
        key = place.code(value.args[0].value)
        if (
            isinstance(value.func, cst.Attribute)
            and key.partition(".")[0] in place.function.parameters
        ):
            return f"{place.code(value.func.value)}[{key}]"
        return _path(place, value.args[0].value, depth) if last_name(value.func) == "int" else ""
    code = place.code(value)
    root = re.split(r"[.\[]", code)[0]
    is_path = isinstance(value, (cst.Name, cst.Attribute, cst.Subscript))
    return code if is_path and root in place.function.parameters and code != "self" else ""


def _through(
    places: Iterator[FunctionPlace], owner: str, found: Sequence[Owner]
) -> Iterator[Owner]:
    """Yields the methods that leave it to one of these: `alloc` that calls `self.alloc_rows`."""
    known = {one.place.function.name: one for one in found}
    for place in places:
        if place.owner != owner or place.function.name in (*known, "__init__", "clear", "reset"):
            continue
        for call in place.function.calls:
            one = known.get(last_name(call.func))
            if (
                one is None
                or not isinstance(call.func, cst.Attribute)
                or not is_name(call.func.value, "self")
            ):
                continue
            if one.does == "hands out":
                if any(_names(node) - {"None"} for node in _returned(place)):
                    yield replace(one, place=place, node=call, rows="return", owner="")
            else:
                given = arguments_of(call, one.place.function.parameters[1:])
                value = given.get(one.rows)
                if value is not None and (path := _path(place, value)):
                    yield replace(one, place=place, node=call, rows=path)
            break


def entry(one: Owner, relays: Sequence[RelayCandidate]) -> ProposedEntry:
    """Returns the proposal for a function."""
    keys: dict[str, Value] = {"functions": [one.place.name], "does": one.does, "rows": one.rows}
    guessed: dict[str, Value] = {}
    if one.owner:
        keys["owner"] = one.owner
    elif one.does == "hands out" and (items := _items(one)):
        guessed["owner"] = items
    tied = [relay for relay in relays if _is_pool_of(one, relay)]
    if any(relay.pool_parameters for relay in tied):
        guessed["pool"] = "self"
    sure = Confidence.LOW
    words = f"{snake(one.place.owner)}_{one.list.lstrip('_')}"
    if tied or (_REQUESTS.search(words) and not _ELSE.search(words)):
        sure = max((confidence(relay) for relay in tied), default=Confidence.MEDIUM)
    why = ("Are these the rows of the relay?",) if sure is not Confidence.HIGH else ()
    return ProposedEntry("owners", keys, one.place.at(one.node), sure, why, guessed)


def _is_pool_of(one: Owner, relay: RelayCandidate) -> bool:
    """Tells whether a relay is sized by the pool, or is the pool."""
    if relay.class_ == one.place.class_:
        return True
    return any(name.endswith(snake(one.place.owner)) for name in relay.pool_parameters)


def _items(one: Owner) -> str:
    """Returns a path to whoever gets the rows, if the function goes through a list of them."""
    for node in one.place.function.nodes:
        over = node.iter if isinstance(node, cst.For) else None
        if isinstance(over, cst.Name) and over.value in one.place.function.parameters:
            return f"{over.value}[].rid"
    return ""
