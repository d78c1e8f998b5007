"""Relays: what the contracts declare of relay buffers, as the rules ask for it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fmcheck.lint.identity import is_module
from fmcheck.lint.nodes import walk as all_below

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fmcheck.contract import Contract, Relay
    from fmcheck.lint.buffers import Region

#: A shorter last word that all buffers of a relay share says nothing.
LEAST_SUFFIX = 4
#: In-place methods that write rows, and those that read them, by the position of the rows.
ROW_WRITES = {"index_copy_": 1, "index_fill_": 1, "index_add_": 1, "index_put_": 0}
ROW_READS = {"index_select": 1}
ROW_METHODS = ROW_WRITES | ROW_READS


class Relays:
    """What the contracts declare of relays, as the rules ask for it."""

    def __init__(self, contracts: Sequence[Contract]) -> None:
        self._relays = [relay for contract in contracts for relay in contract.relay]
        self._opaque = {
            function.rpartition(":")[2]: opaque
            for contract in contracts
            for opaque in contract.opaque
            for function in opaque.functions
        }
        self._holders = {_snake(relay.qualname.rpartition(".")[2]) for relay in self._relays}
        self._suffixes = {relay.class_: _suffix(relay) for relay in self._relays}
        self._files: dict[str, list[Relay]] = {}
        self._anchors = [anchor.decode() for anchor in self.anchors()]

    def needles(self) -> tuple[bytes, ...]:
        """Returns the names of the relay classes: of the class, and of what holds one."""
        names = {relay.qualname.rpartition(".")[2] for relay in self._relays}
        return tuple(name.encode() for name in sorted(names | {_snake(one) for one in names}))

    def anchors(self) -> tuple[bytes, ...]:
        """Returns the names of the buffers, without the marks of globs."""
        names = {buffer.name for relay in self._relays for buffer in relay.buffer}
        return tuple(sorted({name.strip("*?").encode() for name in names}))

    def of_file(self, identity: str) -> Sequence[Relay]:
        """Returns the relays whose class this file defines."""
        found = self._files.get(identity)
        if found is None:
            found = [relay for relay in self._relays if is_module(identity, relay.module)]
            self._files[identity] = found
        return found

    def peeks(self, identity: str) -> frozenset[str]:
        """Returns the methods of this file's relays whose gathers do not consume."""
        return frozenset(name for relay in self.of_file(identity) for name in relay.peek_names)

    def declares(self, attribute: str) -> bool:
        """Tells whether a contract has a buffer of this name, whichever class it belongs to."""
        return any(self._is_declared(relay, attribute) for relay in self._relays)

    def tells_valid(self, attribute: str) -> bool:
        """Tells whether a contract says which values a buffer of this name may hold."""
        return any(
            buffer.matches(attribute) and buffer.valid
            for relay in self._relays
            for buffer in relay.buffer
        )

    def may_be_named(self, text: str, identity: str) -> bool:
        """Tells whether source text may name a declared buffer, reached through what may hold it.

        That is all that `may_index` may find in it.
        """
        return any(name in text for name in self._anchors) and (
            bool(self.of_file(identity)) or any(holder in text for holder in self._holders)
        )

    def may_index(self, node: ast.AST, identity: str, *contexts: type[ast.expr_context]) -> bool:
        """Tells whether a syntax tree may access rows of a declared buffer: to clear it cheaply.

        One is named, reached through what may hold it; and it, what it is assigned to or what looks
        like it is indexed in one of these `contexts`, or handed to a method or kernel that reads
        or writes rows.
        """
        inner = list(all_below(node))
        named = [one for one in inner if isinstance(one, ast.Attribute) and self.declares(one.attr)]
        if not named or not (self.of_file(identity) or self._is_held(inner)):
            return False
        aliases = _aliases(inner, {one.attr for one in named})
        for one in inner:
            if isinstance(one, ast.Subscript):
                if isinstance(one.ctx, contexts) and not isinstance(one.slice, ast.Slice):
                    base = all_below(one.value)
                    if any(self._may_be_buffer(part, identity, aliases) for part in base):
                        return True
            elif isinstance(one, (ast.Attribute, ast.Name)):
                word = one.attr if isinstance(one, ast.Attribute) else one.id
                if word in ROW_METHODS or word in self._opaque:
                    return True
        return False

    def _is_held(self, nodes: Iterable[ast.AST]) -> bool:
        words = (getattr(one, "attr", getattr(one, "id", None)) for one in nodes)
        return any(isinstance(word, str) and word.lstrip("_") in self._holders for word in words)

    def _may_be_buffer(self, part: ast.AST, identity: str, aliases: Collection[str]) -> bool:
        if isinstance(part, ast.Name):
            return part.id in aliases
        if not isinstance(part, ast.Attribute):
            return False
        own = self.of_file(identity)
        return self.declares(part.attr) or any(self._looks_like(one, part.attr) for one in own)

    def may_write(self, nodes: Iterable[ast.AST]) -> bool:
        """Tells whether syntax trees may write rows of a declared buffer: to clear them cheaply."""
        for node in nodes:
            for one in all_below(node):
                if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store):
                    base = one.value
                    if not isinstance(base, ast.Attribute) or self.declares(base.attr):
                        return True
                elif isinstance(one, ast.Attribute) and one.attr in ROW_WRITES:
                    return True
        return False

    def buffer(self, region: Region, identity: str) -> bool | None:
        """Tells whether a region is a declared relay buffer; False if it only looks like one."""
        holder, _, attribute = region.path.rpartition(".")
        if not region.is_whole or not holder:
            return None
        own = self.of_file(identity) if holder in ("self", "cls") else ()
        last = holder.rpartition(".")[2].lstrip("_")
        for relay in self._relays:
            is_held = last == _snake(relay.qualname.rpartition(".")[2])
            if (is_held or relay in own) and self._is_declared(relay, attribute):
                return True
        return False if any(self._looks_like(relay, attribute) for relay in own) else None

    def opaque_reads(self, name: str) -> str | None:
        """Returns the parameter that holds the rows of a kernel that gathers, by its name."""
        found = self._opaque.get(name)
        return found.rows if found is not None and found.reads else None

    def is_opaque(self, name: str) -> bool:
        """Tells whether a function of this name is a kernel that the contract declares."""
        return name in self._opaque

    def _is_declared(self, relay: Relay, attribute: str) -> bool:
        return any(buffer.matches(attribute) for buffer in relay.buffer)

    def _looks_like(self, relay: Relay, attribute: str) -> bool:
        suffix = self._suffixes[relay.class_]
        return bool(suffix) and attribute.endswith(suffix)


def _aliases(nodes: Iterable[ast.AST], attributes: Collection[str]) -> set[str]:
    """Returns the names that are assigned something with these attributes, through other names."""
    assigned: list[tuple[set[str], set[str]]] = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            assigned.append((_words(*node.targets), _words(node.value)))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            assigned.append((_words(node.target), _words(node.value)))
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            assigned.append((_words(node.target), _words(node.iter)))
    found = set(attributes)
    known = 0
    while known < len(found):
        known = len(found)
        for targets, words in assigned:
            if not words.isdisjoint(found):
                found |= targets
    return found


def _words(*nodes: ast.AST) -> set[str]:
    words = (
        getattr(one, "attr", getattr(one, "id", "")) for node in nodes for one in all_below(node)
    )
    return {word for word in words if word}


def _snake(name: str) -> str:
    """Returns the name that an instance of a class commonly has: `future_map` for `FutureMap`."""
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name).lstrip("_")


def _suffix(relay: Relay) -> str:
    """Returns the last word that all buffer names of a relay share, as `_buf`, or ""."""
    names = [buffer.name for buffer in relay.buffer if not buffer.is_glob]
    endings = {name[name.rfind("_") :] if "_" in name else "" for name in names}
    ending = endings.pop() if len(names) > 1 and len(endings) == 1 else ""
    return ending if len(ending) >= LEAST_SUFFIX else ""
