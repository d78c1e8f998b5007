"""Relay classes: those that hold rows which one function writes and another one gathers."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from fmcheck.init.proposal import Confidence, ProposedEntry
from fmcheck.init.row_accesses import accesses, is_cut, of_class, rows_of
from fmcheck.init.tensors import tensors
from fmcheck.lint.source.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fmcheck.init.engine_tree import EngineTree
    from fmcheck.init.proposal import Value
    from fmcheck.init.row_accesses import RowAccess
    from fmcheck.init.tensors import Tensor

#: Words of the names of buffers that hold a cache's contents, or tables: not a step's results.
_STORED = re.compile(
    r"(^|_)(kv|k|v|key|value|cache|page|pages|block|blocks|table|tables|weight|weights|expert|experts|rope|cos|sin|bias|scale|scales|lora)(_|$)|to_token|mapping"
)
#: Words of names of values that are never below zero.
_COUNTED = re.compile(
    r"(^|_)(token|tokens|id|ids|len|lens|length|lengths|index|indices|count|counts)(_|$)"
)


#: Words of the names of what an engine's next step starts from: it always starts from tokens.
_TOKENS = re.compile(r"(^|_)(token|tokens|id|ids|seq_lens)(_|$)")
#: A name that more classes give to a tensor says nothing about one of them.
MOST_OWNERS = 4


class RelayCandidate:
    """A class whose tensors are written and gathered by rows."""

    def __init__(self, class_: str, buffers: dict[str, list[Tensor]]) -> None:
        self.class_ = class_
        self.buffers = buffers
        self.accesses: dict[str, Sequence[RowAccess]] = {}
        self.place = next(iter(buffers.values()))[0].place

    def gathered(self, name: str) -> Sequence[RowAccess]:
        """Returns the gathers of a buffer."""
        return [one for one in self.accesses[name] if not one.is_write]

    def written(self, name: str) -> Sequence[RowAccess]:
        """Returns the writes of a buffer."""
        return [one for one in self.accesses[name] if one.is_write]

    def carries(self, name: str) -> bool:
        """Tells whether rows of a buffer are written for a later call to gather them.

        One function writes and another one gathers; or one gathers first, and writes then.
        """
        return any(
            wrote.place is not read.place or read.line < wrote.line
            for wrote in self.written(name)
            for read in self.gathered(name)
        )

    def accumulates(self, name: str) -> bool:
        """Tells whether one function that it is handed to reads rows and writes them back."""
        by = {False: set[str](), True: set[str]()}
        for one in self.accesses[name]:
            if one.by is not None:
                by[one.is_write].add(one.by.name)
        return bool(by[False] & by[True])

    @property
    def carrying(self) -> Sequence[str]:
        """The buffers that carry rows from one function to another."""
        return [name for name in self.buffers if self.carries(name) and not self.accumulates(name)]

    @property
    def pool_parameters(self) -> Sequence[str]:
        """The parameters of `__init__` that the buffers' number of rows is read from."""
        return sorted({name for name in self._sizes() if name})

    def _sizes(self) -> Iterator[str]:
        init = self.place.function
        if init.name != "__init__":
            return
        texts = {one.rows for each in self.buffers.values() for one in each}
        for node in init.nodes:
            if isinstance(node, cst.Assign) and any(
                init.part.code(one.target) in texts for one in node.targets
            ):
                texts.add(init.part.code(node.value))
        for text in texts:
            root, dot, _ = text.partition(".")
            if dot and root in init.parameters:
                yield root


def relays(tree: EngineTree) -> Sequence[RelayCandidate]:
    """Returns the classes of the tree that may be relays, the likeliest first."""
    made: dict[str, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for tensor in tensors(tree):
        if not tensor.lives_on_host:
            made[tensor.class_][tensor.name].append(tensor)
    owners = _owners(made)
    names = frozenset(
        name
        for name, each in owners.items()
        if len(each) <= MOST_OWNERS and not _STORED.search(name)
    )
    found = list(accesses(tree, rows_of(tree, names)))
    proposed: list[RelayCandidate] = []
    for class_, buffers in made.items():
        relay = RelayCandidate(class_, dict(buffers))
        holders = frozenset((snake(class_), *_aliases(class_)))
        for name, each in buffers.items():
            is_only = len(owners[name]) == 1
            relay.accesses[name] = [
                one
                for one in found
                if one.name == name and (is_only or one in of_class([one], each[0], holders))
            ]
        for name in relay.carrying:
            if is_cut(tree, buffers[name][0], holders):
                del relay.buffers[name]
        if relay.carrying:
            proposed.append(relay)
    return sorted(proposed, key=lambda one: (-_score(one), one.class_))


def _owners(made: Mapping[str, Mapping[str, object]]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for class_, buffers in made.items():
        for name in buffers:
            found[name].add(class_)
    return found


def snake(class_: str) -> str:
    """Returns the name that an instance of a class commonly has: `future_map` for `FutureMap`."""
    name = class_.rpartition(":")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().lstrip("_")


def _aliases(class_: str) -> Iterator[str]:
    """Yields what an instance is called for short: `req_states` for a `RequestState`."""
    words = snake(class_).split("_")
    short = {"request": "req", "requests": "reqs"}
    shorter = [short.get(one, one) for one in words]
    for one in ("_".join(words), "_".join(shorter)):
        yield one
        yield f"{one}s"


def _score(relay: RelayCandidate) -> int:
    """Returns how many things speak for a class, by its buffers and their indices."""
    carrying = [name for name in relay.carrying if not _STORED.search(name)]
    by_request = [
        name for name in carrying if any(one.is_of_requests for one in relay.accesses[name])
    ]
    return len(by_request) * 2 + len(carrying)


def confidence(relay: RelayCandidate) -> Confidence:
    """Returns how sure it is that a class is a relay."""
    by_request = [one for each in relay.accesses.values() for one in each if one.is_of_requests]
    carries_tokens = any(_TOKENS.search(name) for name in relay.carrying)
    if not by_request:
        return Confidence.MEDIUM if carries_tokens else Confidence.LOW
    is_both = {one.is_write for one in by_request} == {True, False} or len(relay.carrying) > 1
    return Confidence.HIGH if is_both and carries_tokens else Confidence.MEDIUM


def entry(relay: RelayCandidate) -> ProposedEntry:
    """Returns the proposal for a relay."""
    sure = confidence(relay)
    guessed: dict[str, Value] = {"sink_rows": [0]}
    if relay.pool_parameters:
        guessed["pool"] = relay.pool_parameters
    return ProposedEntry(
        table="relay",
        keys={"class": relay.class_},
        at=f"{relay.place.source.shown}:{_class_line(relay)}",
        confidence=sure,
        why=(
            "Are these the values that one step leaves for the next, a row for each request?",
            "sink_rows: the rows that padded batch entries point at.",
        ),
        guessed=guessed,
        below=[_buffer(relay, name) for name in relay.buffers if _is_buffer(relay, name)],
    )


def _is_buffer(relay: RelayCandidate, name: str) -> bool:
    return bool(relay.written(name)) or bool(relay.gathered(name))


def _buffer(relay: RelayCandidate, name: str) -> ProposedEntry:
    created = relay.buffers[name]
    keys: dict[str, Value] = {"name": name}
    guessed: dict[str, Value] = {}
    if all(one.is_integer for one in created) or _COUNTED.search(name):
        sure_sign = all(one.is_integer for one in created) and _COUNTED.search(name)
        (keys if sure_sign else guessed)["valid"] = ">= 0"
    if all(one.is_lazy for one in created):
        keys["lazy"] = True
    wrote, read = relay.written(name), relay.gathered(name)
    why = [
        f"{verb} {_sites(kind)}" for verb, kind in (("written", wrote), ("gathered", read)) if kind
    ]
    if wrote and not read:
        why.append("no gather was found: if some modes never read it, set overwrite")
        guessed["overwrite"] = "until gathered"
    if relay.accumulates(name):
        why.append("one function reads it and writes it back: is it state that steps add to?")
        sure = Confidence.LOW
    elif _STORED.search(name) or not (wrote and read):
        sure = Confidence.MEDIUM if not _STORED.search(name) else Confidence.LOW
    else:
        sure = Confidence.HIGH
    return ProposedEntry("relay.buffer", keys, created[0].at, sure, why, guessed)


def _sites(found: Sequence[RowAccess], most: int = 2) -> str:
    sites = list(dict.fromkeys(f"{one.place.at(one.node)} (by `{one.index}`)" for one in found))
    more = f" and {len(sites) - most} more" if len(sites) > most else ""
    return ", ".join(sites[:most]) + more


def _class_line(relay: RelayCandidate) -> int:
    family = relay.place.function.part.stretch.family
    return family.first_line if family is not None else 1
